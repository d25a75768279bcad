"""Tables report objects that are gone, also from a full list."""

from typing import Any

import pytest

from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches import sinks
from berth_operator.state.watches.sinks import Table
from tests.objects.builders import GPU, device, entry, every_pod, half, lease, node, pod, relist

Raw = dict[str, Any]


class Log:
    """Records what a table passes on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.table = Table(
            kind="letters",
            key=lambda obj: str(obj["name"]),
            put=lambda obj: self.lines.append(f"put {obj['name']}{obj.get('version', '')}"),
            remove=lambda key: self.lines.append(f"remove {key}"),
        )

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def objects(names: str) -> list[Raw]:
    return [{"name": name} for name in names]


def test_what_is_missing_in_a_list_is_gone_at_its_end() -> None:
    log = Log()
    relist(log.table, objects("ab"))
    log.take()
    relist(log.table, objects("bc"), requested_at=1.0)
    assert log.take() == ["put b", "put c", "remove a"]
    relist(log.table, objects("bc"), requested_at=2.0)
    assert log.take() == ["put b", "put c"]


def test_a_list_is_put_page_by_page() -> None:
    log = Log()
    listing = log.table.listing(requested_at=1.0)
    listing.put(objects("a"))
    assert log.take() == ["put a"]
    listing.put(objects("b"))
    listing.end("")
    assert log.take() == ["put b"]


def test_what_only_a_list_that_broke_off_showed_is_gone_after_the_next() -> None:
    log = Log()
    log.table.listing(requested_at=0.0).put(objects("ab"))
    log.take()
    relist(log.table, objects("b"), requested_at=1.0)
    assert log.take() == ["put b", "remove a"]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        pytest.param("ADDED", ["put a"], id="added"),
        pytest.param("MODIFIED", ["put a"], id="modified"),
        pytest.param("DELETED", ["remove a"], id="deleted"),
    ],
)
def test_an_event_is_passed_on(kind: Any, lines: list[str]) -> None:
    log = Log()
    log.table.apply(kind, {"name": "a"})
    assert log.take() == lines


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    sinks.nodes(cluster).apply("ADDED", node())
    sinks.devices(cluster).apply("ADDED", device("node", entry(0), entry(1)))
    return cluster


def test_objects_of_every_kind_reach_the_cluster(cluster: Cluster) -> None:
    sinks.leases(cluster).apply("ADDED", lease())
    pods = every_pod(cluster)
    pods.apply("ADDED", pod("a", {GPU: "50"}))
    pods.apply("ADDED", pod("b", {GPU: "50"}, on="node", allocated=half()))
    assert list(cluster.node_cache.nodes) == list(cluster.node_cache.devices) == ["node"]
    assert list(cluster.pending) == ["uid-a"]
    assert list(cluster.fleet.charges) == ["uid-b"]
