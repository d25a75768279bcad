"""The recorded rows have the fields of the API's schemas, and agree with each other."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from berth_operator.apis.aggregated.openapi import of_type
from berth_operator.apis.visibility.documents import OBJECTS
from tests.page.scene import Scene


def unknown(schema: Mapping[str, Any], value: Any, path: str = "") -> list[str]:
    """Return the paths of a value's fields that a schema does not have."""
    if isinstance(value, list):
        return [name for each in value for name in unknown(schema.get("items", {}), each, f"{path}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    fields = schema["properties"]
    return [
        *(f"{path}.{name}" for name in value if name not in fields and name != "metadata"),
        *(
            name
            for field in value
            if field in fields
            for name in unknown(fields[field], value[field], f"{path}.{field}")
        ),
    ]


@pytest.fixture(scope="module")
def scene() -> Scene:
    made = Scene(100)
    for _ in range(20):
        list(made.step(measured=True))
    return made


def test_rows_have_only_fields_of_the_schemas(scene: Scene) -> None:
    schemas = {kind: of_type(of) for kind, of in OBJECTS.items()}
    rows = {"FleetNode": scene.fleet.values(), "QueuedPod": scene.queue, "Holder": scene.holders.values()}
    assert [name for kind, some in rows.items() for row in some for name in unknown(schemas[kind], row)] == []
    pods = [pod["metadata"] for pod in [*scene.queue, *scene.holders.values()]]
    explained = [scene.explanation(pod["namespace"], pod["name"]) for pod in pods]
    assert {field for each in explained for field in unknown(schemas["PodExplanation"], each)} == set()


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
