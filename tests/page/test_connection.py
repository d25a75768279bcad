"""The page's display while it cannot read something, and its recovery without a reload."""

from collections.abc import Iterator

import pytest

from tests.page import views
from tests.page.browsing import Window
from tests.page.scene import Scene
from tests.page.stand_in import StandIn


@pytest.fixture(autouse=True)
def _whole_again(stand_in: StandIn) -> Iterator[None]:
    """Make the stand-in answer again, for the next test."""
    yield
    stand_in.accept()
    stand_in.stop()
    stand_in.start()


def words(window: Window, *expected: str) -> None:
    """Wait until the view shows these words."""
    window.wait("argument.every((word) => document.querySelector('main').innerText.includes(word))", list(expected))


def test_a_change_is_drawn(window: Window, stand_in: StandIn) -> None:
    window.open("/")
    views.wait(window, "fleet")
    name, node = next(iter(stand_in.scene.fleet.items()))
    for card in node["devices"]:
        card["users"], card["held"], card["free"] = 1, 100, dict.fromkeys(card["free"], 0)
    stand_in.change([("fleet", "MODIFIED", node)])
    views.wait_held(window, name, len(node["devices"]))
    stand_in.change([("fleet", "DELETED", node)])
    window.wait(f"!document.querySelector('[data-node={name}]')")
    stand_in.change([("fleet", "ADDED", node)])
    window.wait(f"document.querySelector('[data-node={name}]')")
    assert window.complaints == []


def test_a_killed_connection_is_shown_and_heals(window: Window, stand_in: StandIn) -> None:
    window.open("/")
    views.wait(window, "fleet")
    before = views.nodes(window)
    stand_in.stop()
    views.wait_state(window, "lost")
    assert views.nodes(window) == before  # what is known stays
    window.wait("Number(document.querySelector('[data-age]').dataset.age) >= 1")
    assert "lost" in window.page.inner_text("[data-state]").lower()
    assert "lost" in window.page.inner_text("[aria-live]").lower()
    stand_in.start()
    views.wait_state(window, "live")
    assert window.complaints == []


def test_an_expired_watch_lists_again(window: Window, stand_in: StandIn) -> None:
    window.open("/")
    views.wait(window, "fleet")
    listed = stand_in.count("fleet", watch=False)
    other = Scene(3, seed=9)
    stand_in.rows["fleet"].replace(other.fleet.values())  # without a frame: only another list shows it
    stand_in.expire()
    window.wait("document.querySelectorAll('[data-node]').length === 3")
    assert stand_in.count("fleet", watch=False) == listed + 1
    stand_in.rows["fleet"].replace(stand_in.scene.fleet.values())


@pytest.mark.parametrize("view", ["fleet", "queue", "holders", "pod"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (403, ("may not", "visibility.berth.dev", "ClusterRole")),
        (404, ("visibility API", "docs/visibility.md")),
        (503, ("does not answer", "no replica leads")),
    ],
)
def test_a_refusal_is_said_in_words(
    window: Window, stand_in: StandIn, view: str, code: int, expected: tuple[str, ...]
) -> None:
    stand_in.refuse(".*", code, "no replica leads" if code == 503 else "refused by a test")
    window.open(views.path(view, stand_in.scene))
    words(window, *expected)
    assert window.complaints == []


def test_where_all_namespaces_are_refused_that_of_the_context_is_shown(window: Window, stand_in: StandIn) -> None:
    stand_in.refuse("queue|holders", 403, "not in the whole cluster")
    for view in ("queue", "holders"):
        window.open(views.PATHS[view])
        window.wait(f"document.querySelector('[data-restricted={view}]') && {views.SHOWN[view]}")
        words(window, "research")
        shown = window.page.evaluate("[...document.querySelectorAll('[data-pod]')].map((row) => row.dataset.pod)")
        assert {each.partition("/")[0] for each in shown} == {"research"}
    window.open("/")
    views.wait(window, "fleet")


def test_a_fleet_without_rights_on_holders_is_still_drawn(window: Window, stand_in: StandIn) -> None:
    stand_in.refuse(".*holders", 403, "not at all")
    window.open("/")
    window.wait("document.querySelector('[data-forbidden=holders]') && document.querySelector('[data-node]')")
    views.wait_state(window, "live")


def test_what_was_not_measured_is_no_zero(window: Window, stand_in: StandIn) -> None:
    scene = Scene(4, seed=3)
    for node in scene.fleet.values():
        for card in node["devices"]:
            card.pop("metrics", None)
    stand_in.rows["fleet"].replace(scene.fleet.values())
    window.open("/?colour=use&node=gpu-0000")
    views.wait(window, "fleet")
    window.wait("document.querySelector('aside.details')")
    text = window.text()
    assert "not measured" in text
    for zero in ("0 %", "0%", "0 W", "0.0 kW", "0 kW", "0 B"):
        assert f"\n{zero}" not in text
        assert f" {zero}" not in text.replace("below 1 %", "")
    stand_in.rows["fleet"].replace(stand_in.scene.fleet.values())
