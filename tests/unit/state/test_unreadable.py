"""One object that cannot be read ends no watch: the last known value stays, and later objects are seen."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from berth_api.resources import quantity
from berth_client.reflector import Reflector, Sink, Source
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches import sources
from berth_operator.state.watches.sinks import Table
from berth_operator.state.watches.storage import Storage
from tests.objects.builders import (
    GPU,
    MEMORY,
    NVIDIA,
    Raw,
    container,
    device,
    entry,
    every_pod,
    half,
    node,
    pod,
    relist,
    whole,
)
from tests.objects.resource_claims import claim as resource_claim
from tests.objects.resource_claims import gpu, resource_slice
from tests.objects.volumes import raw_claim, raw_volume
from tests.unit.client.watches import ScriptedApi

LEGAL = ("1" * 70, "0" * 70 + "1", "1e3000", "1e-3000", "1e2147483647", 2**63 - 1, 1)
"""Amounts that Kubernetes serves."""
ILLEGAL = ("x", "", "1e3000x", "-1e3000")


class Watches:
    """The sinks of all watches, and the state that they feed."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=20.0, clock=lambda: 100.0)
        others = sources.except_pods(Storage(self.cluster), node_selector="", agent_namespace="")
        self.sinks: Mapping[str, Sink] = {
            **{name: table for name, (_, table) in others.items()},
            "pods": every_pod(self.cluster),
        }

    @property
    def fleet(self) -> Fleet:
        return self.cluster.fleet

    def put(self, kind: str, *objects: Raw) -> None:
        for obj in objects:
            self.sinks[kind].apply("MODIFIED", obj)

    def known(self, kind: str) -> set[str]:
        """Return the names of the objects of a kind in the state."""
        volumes = self.fleet.volumes
        keys: Mapping[str, Any] = {
            "nodes": self.cluster.node_cache.nodes,
            "devices": self.cluster.node_cache.devices,
            "claims": volumes.claims,
            "volumes": volumes.volumes,
            "storage capacities": [key for capacities in volumes.capacities.values() for key in capacities],
            "resource slices": self.fleet.claims.slices,
            "resource claims": self.fleet.claims.claims,
            "pods": [*self.fleet.charges, *self.cluster.pending],
        }
        return {key.rpartition("/")[2].removeprefix("uid-").removesuffix("-gpu.nvidia.com") for key in keys[kind]}


def capacity(name: str, amount: Any) -> Raw:
    metadata = {"name": name, "namespace": "ns"}
    return {"metadata": metadata, "storageClassName": "made", "capacity": amount, "maximumVolumeSize": amount}


def asking_claim(name: str, amount: Any) -> Raw:
    claim = resource_claim(name)
    claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": amount}}
    return claim


def placed(name: str, amount: Any, **fields: Any) -> Raw:
    return pod(name, {"cpu": amount, "memory": amount, NVIDIA: amount}, on="node", **fields)


def resized(name: str, amount: Any) -> Raw:
    amounts = {"cpu": amount, "memory": amount}
    status = {"name": "main", "resources": {"requests": amounts}, "allocatedResources": amounts}
    overhead = {"overhead": amounts, "resources": {"requests": amounts, "limits": amounts}}
    return placed(name, 1, status={"containerStatuses": [status], "resources": {"requests": amounts}}, **overhead)


def of_limits(name: str, amount: Any) -> Raw:
    limited = container(requests={}, resources={"limits": {NVIDIA: amount, "cpu": amount}})
    return pod(name, on="node", containers=[limited], initContainers=[container("i", {"cpu": amount})])


OBJECTS: Mapping[str, tuple[str, Callable[[str, Any], Raw]]] = {
    "node": ("nodes", lambda name, amount: node(name, allocatable={"cpu": amount, MEMORY: amount, NVIDIA: amount})),
    "claim": ("claims", lambda name, amount: raw_claim(name, spec={"resources": {"requests": {"storage": amount}}})),
    "volume": ("volumes", lambda name, amount: raw_volume(name, spec={"capacity": {"storage": amount}})),
    "capacity": ("storage capacities", capacity),
    "slice": (
        "resource slices",
        lambda name, amount: resource_slice(gpu(0, capacity={"memory": {"value": amount}}), node=name),
    ),
    "resource claim": ("resource claims", asking_claim),
    "bound pod": ("pods", placed),
    "resized pod": ("pods", resized),
    "pod with limits": ("pods", of_limits),
    "waiting pod": ("pods", lambda name, amount: pod(name, {"cpu": amount, GPU: amount})),
}
BY_KIND = pytest.mark.parametrize(("kind", "of"), OBJECTS.values(), ids=OBJECTS)


@BY_KIND
@pytest.mark.parametrize("amount", LEGAL, ids=lambda amount: str(amount)[:12])
def test_any_amount_that_kubernetes_serves_is_read(kind: str, of: Callable[[str, Any], Raw], amount: Any) -> None:
    watches = Watches()
    with capture_logs() as logs:
        watches.put(kind, of("a", amount), of("b", 1))
    assert watches.known(kind) == {"a", "b"}
    assert not logs


@BY_KIND
@pytest.mark.parametrize("amount", ILLEGAL)
def test_later_objects_are_seen_after_one_that_cannot_be_read(
    kind: str, of: Callable[[str, Any], Raw], amount: Any
) -> None:
    watches = Watches()
    watches.put(kind, of("a", amount), of("b", 1))
    assert "b" in watches.known(kind)
    relist(watches.sinks[kind], [of("a", amount), of("b", 1), of("c", 1)])
    assert {"b", "c"} <= watches.known(kind)
    # What has become unreadable stays, and goes when it is deleted.
    watches.put(kind, of("b", amount))
    relist(watches.sinks[kind], [of("b", amount), of("c", 1)])
    assert {"b", "c"} <= watches.known(kind)
    for name in "abc":
        watches.sinks[kind].apply("DELETED", of(name, amount))
    assert not watches.known(kind)


@pytest.mark.looptime
@BY_KIND
@pytest.mark.parametrize("amount", ["1" * 70, "1e3000", "x"])
async def test_a_reflector_goes_on(kind: str, of: Callable[[str, Any], Raw], amount: Any) -> None:
    watches = Watches()

    def line(name: str, amount: Any) -> bytes:
        obj = of(name, amount)
        obj["metadata"]["resourceVersion"] = "8"
        return orjson.dumps({"type": "ADDED", "object": obj})

    first = {"metadata": {"resourceVersion": "7"}, "items": [of("a", amount), of("b", 1)]}
    api = ScriptedApi(lists=[first], watches=[[line("c", amount), line("d", 1)]])
    reflector = Reflector(api=api, source=Source(path="/things"), sink=watches.sinks[kind])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            await reflector.run()
    assert {"b", "d"} <= watches.known(kind)


def test_an_absurd_amount_is_truncated() -> None:
    watches = Watches()
    watches.put("pods", placed("a", "1e3000"))
    watches.put("claims", raw_claim("a", spec={"resources": {"requests": {"storage": "1" * 70}}}))
    assert dict(watches.fleet.charges["uid-a"].resources)["memory"] == quantity.MAX
    assert watches.fleet.volumes.claims["ns/a"].size == quantity.MAX


# --- bound pods -------------------------------------------------------------------------------------------------


@pytest.fixture
def watches() -> Watches:
    made = Watches()
    made.put("nodes", node(), node("other"))
    made.put("devices", device("node", entry(0), entry(1)), device("other", entry(0)))
    return made


def test_a_bound_pod_that_was_never_read_may_hold_any_device(watches: Watches) -> None:
    watches.put("pods", placed("a", "x"))
    charge = watches.fleet.charges["uid-a"]
    assert (charge.node, set(charge.unknown), charge.grants) == ("node", set(watches.fleet.cards), ())
    assert dict(charge.resources) == {"pods": 1}
    watches.put("pods", placed("a", 1, allocated=whole(0)))
    charge = watches.fleet.charges["uid-a"]
    assert (charge.unknown, [grant.minor for grant in charge.grants]) == ((), [0])


def test_a_bound_pod_keeps_its_charge_while_it_cannot_be_read(watches: Watches) -> None:
    watches.put("pods", pod("a", {GPU: "50", "cpu": "2"}, on="node", allocated=half(1)))
    known = watches.fleet.charges["uid-a"]
    watches.put("pods", pod("a", {GPU: "50", "cpu": "x"}, on="node", allocated=half(0)))
    assert watches.fleet.charges["uid-a"] == known
    # The same pod on another node would be another one, of which nothing is known.
    watches.put("pods", pod("a", {GPU: "50", "cpu": "x"}, on="other", allocated=half(0)))
    assert (watches.fleet.charges["uid-a"].node, watches.fleet.charges["uid-a"].grants) == ("other", ())


def test_a_waiting_pod_that_cannot_be_read_once_it_is_bound_waits_no_more(watches: Watches) -> None:
    watches.put("pods", pod("a", {GPU: "50"}))
    assert "uid-a" in watches.cluster.pending
    watches.put("pods", pod("a", {GPU: "50", "cpu": "x"}, on="node", allocated=half()))
    assert "uid-a" not in watches.cluster.pending
    assert "gpu" in watches.fleet.charges["uid-a"].unknown


# --- logs -------------------------------------------------------------------------------------------------------


def test_each_version_is_logged_once() -> None:
    watches = Watches()

    def unread(version: int, amount: str = "x") -> Raw:
        return raw_claim("a", version=version, spec={"resources": {"requests": {"storage": amount}}})

    with capture_logs() as logs:
        for version in (1, 1, 2):
            watches.put("claims", unread(version))
        relist(watches.sinks["claims"], [unread(2)])
    assert [line["version"] for line in logs] == ["1", "2"]
    assert {(line["kind"], line["namespace"], line["name"]) for line in logs} == {("persistentvolumeclaims", "ns", "a")}
    assert '"x" is not a quantity' in logs[0]["error"]
    with capture_logs() as logs:
        watches.put("claims", unread(3, "1"), unread(4))
        relist(watches.sinks["claims"], [])
        watches.put("claims", unread(4))
    assert [line["version"] for line in logs] == ["4", "4"]


def test_what_was_left_out_is_not_removed() -> None:
    removed: list[str] = []

    def put(obj: Raw) -> None:
        raise ValueError(obj["metadata"]["name"])

    table = Table(kind="things", key=lambda obj: str(obj["metadata"]["name"]), put=put, remove=removed.append)
    table.apply("ADDED", {"metadata": {"name": "a"}})
    table.apply("DELETED", {"metadata": {"name": "a"}})
    relist(table, [{"metadata": {"name": "b"}}])
    relist(table, [])
    assert not removed
