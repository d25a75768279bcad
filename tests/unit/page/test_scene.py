"""The recorded rows agree with each other."""

from datetime import UTC, datetime

import pytest

from tests.page.scene import Scene


@pytest.fixture(scope="module")
def scene() -> Scene:
    made = Scene(100)
    for _ in range(20):
        list(made.step(measured=True))
    return made


def test_what_holders_hold_is_not_free(scene: Scene) -> None:
    held: dict[tuple[str, int, str], int] = {}
    for holder in scene.holders.values():
        for part in holder["devices"]:
            for name, amount in part["amounts"].items():
                key = holder["node"], part["minor"], name
                held[key] = held.get(key, 0) + amount
    taken = {
        (node, card["minor"], name): amount - card["free"][name]
        for node, row in scene.fleet.items()
        for card in row["devices"]
        for name, amount in card["total"].items()
        if amount != card["free"][name]
    }
    assert taken == held


def test_the_same_seed_gives_the_same_rows_and_changes() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    one, other = Scene(20, seed=3, now=now), Scene(20, seed=3, now=now)
    assert list(one.fleet.items()) == list(other.fleet.items())
    assert [change[1:] for change in one.step()] == [change[1:] for change in other.step()]
