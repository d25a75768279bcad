"""A standby replica reads pods on request: once for all concurrent requests, and no more than needed."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from berth_api.request import BUILT_IN, Kinds
from berth_client.errors import ApiError
from berth_operator.apis.debug_api.snapshots import KEPT_SECONDS, Listed, Live, UnreadError
from berth_operator.core.advice import summary
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import device, entry, half, lease, node, pod
from tests.stand_ins.third_party import KIND, NPU

pytestmark = pytest.mark.looptime


class Replica:
    """A replica that knows two nodes, and an API server with a pod on each."""

    def __init__(self, kinds: Kinds = BUILT_IN, trusted: Collection[str] = ()) -> None:
        clock = asyncio.get_running_loop().time
        self.cluster = Cluster(grace=0, fleet=Fleet(kinds=kinds), trusted_schedulers=trusted, clock=clock)
        for name in "ab":
            self.cluster.node_cache.put_lease(lease(name, duration=100))
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, entry(0)))
        self.pods = [pod("p", {"kubernetes.io/gpu": "50"}, on="a", allocated=half(0)), pod("q", on="b")]
        self.selectors: list[str] = []
        self.fault: ApiError | None = None
        self.knows_nodes = True
        self.listed = Listed(get_page=self.get_page, cluster=self.cluster, knows_nodes=lambda: self.knows_nodes)

    async def get_page(self, path: str, params: Mapping[str, str]) -> Any:
        assert path == "/api/v1/pods"
        selector = params["fieldSelector"]
        self.selectors.append(selector)
        await asyncio.sleep(0.1)
        if self.fault is not None:
            raise self.fault
        named = selector.partition(",")[0].removeprefix("spec.nodeName=")
        items = [
            each for each in self.pods if selector.startswith("spec.nodeName!=") or each["spec"]["nodeName"] == named
        ]
        return {"metadata": {"resourceVersion": "1"}, "items": items}


def summary_of(fleet: Fleet, name: str) -> dict[str, Any]:
    result = summary.summary(fleet, name)
    assert result is not None
    return result


ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


async def test_a_pod_that_cannot_be_read_may_hold_any_device() -> None:
    replica = Replica()
    replica.pods[0] = pod("p", {"kubernetes.io/gpu": "50", "cpu": "x"}, on="a", allocated=half(0))
    fleet = await replica.listed.whole()
    assert {name: charge.unknown for name, charge in fleet.charges.items()} == {
        "uid-p": tuple(fleet.cards),
        "uid-q": (),
    }


async def test_all_pods_are_read_once_for_the_requests_of_a_few_seconds() -> None:
    replica = Replica()
    first, second = await asyncio.gather(replica.listed.whole(), replica.listed.whole())
    assert first is second
    assert replica.selectors == [f"spec.nodeName!=,{ALIVE}"]
    assert (summary_of(first, "a")["ready"], list(summary_of(first, "a")["allocateSet"]["gpu"])) == (True, ["ns/p"])
    assert first.charges.keys() == {"uid-p", "uid-q"}
    # The state for its own decisions is not changed.
    assert not replica.cluster.fleet.charges

    await asyncio.sleep(KEPT_SECONDS - 0.1)
    assert await replica.listed.whole() is first
    await asyncio.sleep(0.2)
    # No part of the snapshot is kept.
    assert replica.listed._reading is None
    assert await replica.listed.whole() is not first
    assert len(replica.selectors) == 2


async def test_of_one_node_no_other_pods_are_read() -> None:
    replica = Replica()
    fleet = await replica.listed.of("a")
    assert replica.selectors == [f"spec.nodeName=a,{ALIVE}"]
    assert fleet.charges.keys() == {"uid-p"}
    assert summary_of(fleet, "a")["deviceFree"]["kubernetes.io/gpu-core"] == "50"


async def test_devices_of_plug_ins_are_shown_with_their_holders() -> None:
    replica = Replica(Kinds((KIND,)))
    replica.cluster.node_cache.put_device(
        device("a", *({"type": "npu", "minor": n, "id": f"N{n}", "health": True} for n in (0, 1)), generation=2)
    )
    allocated = '{"npu": [{"minor": 1, "resources": {"kubernetes.io/npu": "100"}}]}'
    replica.pods = [pod("p", {NPU: "1"}, on="a", allocated=allocated), pod("lost", {NPU: "1"}, on="b")]
    fleet = await replica.listed.whole()
    assert summary_of(fleet, "a")["deviceFreeDetail"]["npu"] == {
        "0": {"kubernetes.io/npu": "100"},
        "1": {"kubernetes.io/npu": "0"},
    }
    assert list(summary_of(fleet, "a")["allocateSet"]["npu"]) == ["ns/p"]
    assert summary_of(fleet, "b")["unaccounted"] == {"npu": ["ns/lost"]}


@pytest.mark.parametrize(("trusted", "unknown"), [((), {"gpu": ["ns/p"]}), (("koord-scheduler",), {})])
async def test_allocations_of_another_scheduler_count_as_for_a_leader(trusted: Collection[str], unknown: Any) -> None:
    replica = Replica(trusted=trusted)
    theirs = pod("p", {"kubernetes.io/gpu": "50"}, on="a", claims=half(0), schedulerName="koord-scheduler", bare=True)
    replica.pods = [theirs]
    assert summary_of(await replica.listed.whole(), "a")["unaccounted"] == unknown


async def test_an_agent_without_heartbeats_is_reported() -> None:
    replica = Replica()
    assert summary_of(await replica.listed.of("a"), "a")["ready"] is True
    await asyncio.sleep(200)
    assert summary_of(await replica.listed.of("a"), "a")["ready"] is False


async def test_a_failure_is_not_kept() -> None:
    replica = Replica()
    replica.fault = ApiError(500, "InternalError", "no")
    for read in (replica.listed.whole, replica.listed.whole, lambda: replica.listed.of("a")):
        with pytest.raises(ApiError):
            await read()
    replica.fault = None
    assert (await replica.listed.whole()).charges


async def test_before_nodes_are_known_nothing_is_reported() -> None:
    replica = Replica()
    replica.knows_nodes = False
    for read in (replica.listed.whole, lambda: replica.listed.of("a")):
        with pytest.raises(UnreadError):
            await read()
    assert replica.selectors == []
    replica.knows_nodes = True
    assert (await replica.listed.whole()).charges


async def test_a_request_that_was_given_up_takes_nothing_from_the_others() -> None:
    replica = Replica()
    impatient = asyncio.create_task(replica.listed.whole())
    patient = asyncio.create_task(replica.listed.whole())
    await asyncio.sleep(0.05)
    impatient.cancel()
    assert (await patient).charges
    assert len(replica.selectors) == 1


async def test_a_leader_shows_what_it_decides_by() -> None:
    cluster = Cluster(grace=10)
    assert await Live(cluster).whole() is cluster.fleet
    assert await Live(cluster).of("a") is cluster.fleet
