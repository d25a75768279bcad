"""Which agents count as alive, by the renewals that the operator itself observed: stories with their ends."""

import itertools

import pytest

from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.heartbeats import Heartbeats
from tests.objects.builders import device, entry, lease, node

GRACE = 20.0
HEARD = "0 device; 0 lease 1"
"""Just after a start: a Device, and a Lease whose renewals are not observed yet."""
RENEWED = f"{HEARD}; 0 lease 2"
"""An agent whose renewal was observed."""


def played(story: str) -> tuple[Heartbeats, float]:
    """Return the heartbeats after what happened at which second, and the last of these seconds.

    A Lease has its time, `-` for none, and its duration, 40 seconds if nothing is said, `-` for none.
    """
    heartbeats, now = Heartbeats(grace=GRACE), 0.0
    for step in filter(None, story.split("; ")):
        second, what, *lease = step.split()
        now = float(second)
        match what:
            case "device" | "doubted":
                heartbeats.expect("node", now, doubted=what == "doubted")
            case "lease":
                time, duration = [*lease, "40"][:2]
                heartbeats.observe("node", time.strip("-"), None if duration == "-" else float(duration), now)
            case "dismissed":
                heartbeats.dismiss("node")
            case "gone":
                heartbeats.lost("node")
    return heartbeats, now


@pytest.mark.parametrize(
    ("story", "last"),
    [
        pytest.param("0 device; 0 lease 1; 100 lease 2", 160, id="a renewal lasts for the duration and the grace"),
        pytest.param(f"{RENEWED}; 30 lease 3; 60 lease 4; 270 lease 5", 330, id="every renewal counts again"),
        pytest.param(f"{RENEWED}; 50 lease 2", 60, id="the same time again is no renewal"),
        pytest.param(f"{RENEWED}; 50 lease 0", 110, id="a time that goes back is one: the remote clock does not count"),
        pytest.param(f"{RENEWED}; 1000 lease 3", 1060, id="an agent recovers by itself"),
        pytest.param(HEARD, 60, id="after a restart a Device is believed for one duration"),
        pytest.param(f"{HEARD}; 50 device", 60, id="a Device seen again is not believed longer"),
        pytest.param("0 device", 20, id="a missing Lease counts after the grace"),
        pytest.param("0 device; 0 lease -", 20, id="a Lease without a time counts as missing"),
        pytest.param("0 doubted; 0 lease 1; 5 lease 2", 65, id="Unknown ends with the first renewal"),
        pytest.param(f"{RENEWED}; 0 gone", 60, id="a Lease that is gone takes its renewal with it only in time"),
        pytest.param(f"{HEARD}; 0 gone", 20, id="a Lease that is gone before a renewal leaves the grace"),
        pytest.param("0 doubted; 0 lease 1; 0 gone; 7 lease 1", 67, id="a Lease made again with its old time"),
        pytest.param("0 doubted; 0 lease 1; 0 gone; 7 lease 9", 67, id="a Lease made again with a new one"),
        pytest.param(f"{RENEWED} -", 60, id="no duration is forty seconds"),
        pytest.param(f"{RENEWED} 0", 60, id="zero is none"),
        pytest.param(f"{RENEWED} 1", 21, id="one second"),
        pytest.param(f"{RENEWED} -5", 21, id="negative is one second"),
        pytest.param(f"{RENEWED} 3600", 3620, id="an hour"),
        pytest.param(f"{RENEWED} 1000000000", 3620, id="thirty years are an hour"),
        pytest.param(f"{RENEWED}; 10 lease 2 100", 120, id="a changed duration counts from the last renewal"),
        pytest.param("0 lease 1; 50 lease 2; 55 doubted", 110, id="a renewal seen before the Device counts"),
        pytest.param(f"{HEARD}; 0 dismissed; 500 device", 560, id="a Device that is created again is trusted again"),
    ],
)
def test_until_when_an_agent_is_alive(story: str, last: float) -> None:
    heartbeats, _ = played(story)
    assert heartbeats.alive("node", last)
    assert list(heartbeats.silent(last)) == []
    assert not heartbeats.alive("node", last + 0.1)
    assert list(heartbeats.silent(last + 0.1)) == ["node"]


@pytest.mark.parametrize(
    ("story", "silent"),
    [
        pytest.param("0 doubted; 0 lease 1", ["node"], id="after a restart Unknown stays Unknown"),
        pytest.param("0 doubted", ["node"], id="of an Unknown Device without a Lease"),
        pytest.param("0 lease 1; 1 lease 2", ["node"], id="of a Lease without a Device"),
        pytest.param(f"{HEARD}; 0 dismissed", ["node"], id="of a Device that is gone"),
        pytest.param("", [], id="of an unknown node"),
        pytest.param("0 dismissed", [], id="of a Device that was never there"),
        pytest.param("0 gone", [], id="of a Lease that was never there"),
    ],
)
def test_no_agent_is_alive(story: str, silent: list[str]) -> None:
    heartbeats, now = played(story)
    assert not any(heartbeats.alive("node", now + later) for later in (0.0, 30.0))
    assert list(heartbeats.silent(now)) == silent


def test_since_when_an_agent_is_silent_is_known_though_its_lease_is_gone() -> None:
    assert played("0 device")[0].last_renewal("node") == ""
    assert played("0 device; 5 lease 5; 5 gone")[0].last_renewal("node") == "5"


@pytest.mark.parametrize("order", [*itertools.permutations(["node", "device", "lease"])], ids=" ".join)
def test_a_node_is_forgotten_with_the_last_of_its_objects(order: tuple[str, ...]) -> None:
    cache = Cluster(grace=GRACE).node_cache
    cache.put_node(node("node"))
    cache.put_device(device("node", entry()))
    cache.put_lease(lease("node", "1"))
    remove = {"node": cache.remove_node, "device": cache.remove_device, "lease": cache.remove_lease}
    for kind in order:
        assert cache.view("node").last_renewal == "1"
        remove[kind]("node")
    assert cache.view("node").last_renewal == ""
