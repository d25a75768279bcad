"""Devices of plug-ins are allocated, charged and released as built-in ones."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from berth_api import request
from berth_api.allocation import Grant
from berth_api.request import Kind, Kinds, Part
from berth_operator.core.allocators import simple
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import AllocationPolicy, DevicePlugin
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import nodes, pods
from tests.objects.builders import add, bare_node, inventory, node_info, other_card, pod, waiting

NPU, CORE = "example.com/npu", "example.com/npu-core"
KIND = Kind(name="npu", resources={NPU: 1, CORE: 100}, counted=("npu-memory",))
KINDS = Kinds((KIND,))


def npu(minor: int = 0, memory: int = 0, **fields: Any) -> CardInfo:
    return replace(other_card("npu", minor, **fields), amounts=(("npu", 100), ("npu-memory", memory)))


PLAIN = Policy(plugins={"npu": DevicePlugin(kind=KIND)})
"""A policy with a plug-in that has neither an allocator nor a score."""


def fleet(*cards: int) -> Fleet:
    """Return a Fleet with nodes `a`, `b` … with this many NPUs each."""
    made = Fleet(kinds=KINDS)
    for name, count in zip("abc", cards, strict=False):
        add(made, node_info(name), inventory(*(npu(minor) for minor in range(count))))
    return made


def wants(amounts: dict[str, int], name: str = "pod", kind: Kind = KIND, **fields: Any) -> PendingPod:
    device_request = request.of_resources(amounts, kinds=Kinds((kind,)))
    return waiting(name, PodRequest(resources=(("pods", 1),), devices=device_request), **fields)


def given(of: Fleet, pod: PendingPod, policy: Policy = PLAIN) -> tuple[str, list[int]]:
    placement = decide(of, pod, policy)
    assert isinstance(placement, Placement), placement
    of.charge(placement.charge)
    return placement.node, [grant.minor for grant in placement.grants]


def refused(of: Fleet, pod: PendingPod, policy: Policy = PLAIN) -> str:
    failure = decide(of, pod, policy)
    assert isinstance(failure, Failure)
    return failure.message


def test_devices_are_taken_and_given_back() -> None:
    made = fleet(4)
    assert given(made, wants({NPU: 3}, "a")) == ("a", [0, 1, 2])
    assert "1 node(s) have too few free NPUs (2 requested with npu 100)" in refused(made, wants({NPU: 2}, "b"))
    made.release("uid-a")
    assert given(made, wants({NPU: 4}, "b")) == ("a", [0, 1, 2, 3])


def test_shares_of_a_device_are_packed_and_bounded() -> None:
    made = fleet(2)
    shares = [given(made, wants({CORE: 40}, f"pod-{number}"))[1] for number in range(4)]
    assert sorted(shares) == [[0], [0], [1], [1]]
    assert "too few free NPUs" in refused(made, wants({CORE: 40}))
    assert given(made, wants({CORE: 20})) in [("a", [0]), ("a", [1])]


def test_only_healthy_devices_of_the_type_will_do() -> None:
    made = Fleet(kinds=KINDS)
    add(made, node_info("a"), inventory(npu(0, healthy=False), other_card("rdma"), npu(1)))
    assert given(made, wants({NPU: 1})) == ("a", [1])


def test_pods_below_leave_for_one_above() -> None:
    made = fleet(1)
    given(made, wants({NPU: 1}, "low"))
    preemption = preempt(made, wants({NPU: 1}, "high", priority=9), PLAIN, Budgets())
    assert preemption is not None
    assert [each.uid for each in preemption.victims] == ["uid-low"]


def of_memory(wanted: Any, _hint: request.Hint) -> Part:
    return Part(type="npu", count=1, amounts=(("npu-memory", wanted[CORE]),))


def test_a_plug_in_may_count_by_other_names() -> None:
    kind = Kind(name="npu", resources={CORE: 100}, counted=("npu-memory",), reads=of_memory)
    made = Fleet(kinds=Kinds((kind,)))
    add(made, node_info("a"), inventory(npu(0, memory=8), npu(1, memory=32)))
    assert given(made, wants({CORE: 24}, "a", kind)) == ("a", [1])
    assert "too few free NPUs" in refused(made, wants({CORE: 9}, "b", kind))
    assert [given(made, wants({CORE: 8}, name, kind))[1] for name in ("c", "d")] == [[1], [0]]


class Pairs:
    """An allocator that allocates only devices with an even minor."""

    def passes(self, fleet: Fleet, _request: PodRequest, part: Part, rows: Rows) -> Mask:
        cards = fleet.cards[part.type]
        free: Mask = cards.healthy[rows] & (cards.users[rows] == 0) & (cards.minor[rows] % 2 == 0)
        enough: Mask = free.sum(axis=1) >= part.count
        return enough

    could_pass = staticmethod(simple.could_pass)

    def reasons(self, _fleet: Fleet, _request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        yield f"no {part.count} even NPUs", rejected

    def choose(
        self,
        fleet: Fleet,
        row: int,
        _request: PodRequest,
        part: Part,
        _policy: AllocationPolicy,
        *,
        near: Collection[int] = (),
    ) -> tuple[Grant, ...]:
        cards = fleet.cards[part.type]
        assert not near
        minors = [int(cards.minor[row, slot]) for slot in cards.slots(row) if not cards.users[row, slot]]
        even = [minor for minor in minors if minor % 2 == 0]
        return tuple(Grant(type="npu", minor=minor, amounts=part.amounts) for minor in even[: part.count])


def test_a_plug_in_may_bring_its_own_allocator() -> None:
    made, policy = fleet(4), Policy(plugins={"npu": DevicePlugin(kind=KIND, allocator=Pairs())})
    assert given(made, wants({NPU: 2}, "a"), policy) == ("a", [0, 2])
    assert refused(made, wants({NPU: 1}, "b"), policy) == "0/1 nodes are available: 1 no 1 even NPUs."


class Last:
    """A score that prefers the last node."""

    NAME = "last"

    def score(self, _fleet: Fleet, _request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        return np.linspace(0.0, 100.0, len(fits))


@pytest.mark.parametrize(
    ("score", "node_name"), [pytest.param(None, "a", id="none"), pytest.param(Last(), "c", id="own")]
)
def test_a_plug_in_may_prefer_nodes(score: Last | None, node_name: str) -> None:
    policy = Policy(plugins={"npu": DevicePlugin(kind=KIND, score=score)})
    assert given(fleet(1, 1, 1), wants({NPU: 1}), policy)[0] == node_name


def test_its_score_is_not_asked_for_other_pods() -> None:
    policy = Policy(plugins={"npu": DevicePlugin(kind=KIND, score=Last())})
    assert {given(fleet(1, 1, 1), waiting(str(number)), policy)[0] for number in range(20)} == {"a", "b", "c"}


# --- what the API server shows ------------------------------------------------------------------------------

HELD = '{"npu": [{"minor": 1, "resources": {"npu": "100"}}], "gpu": [{"minor": 0, "resources": {"gpu-core": "100"}}]}'


def test_what_a_bound_pod_holds_is_charged() -> None:
    charge = pods.charge(pod("a", {NPU: "1"}, on="n", allocated=HELD), KINDS)
    assert {grant.type: grant.minor for grant in charge.grants} == {"npu": 1}  # it requested no GPU
    assert (charge.plugin_requests, charge.unknown) == (((NPU, 1),), ())


def test_without_an_annotation_it_may_hold_any_device_of_the_type() -> None:
    assert pods.charge(pod("a", {NPU: "1"}, on="n"), KINDS).unknown == ("npu",)


def test_without_the_plug_in_its_devices_are_passed_over_and_the_others_counted() -> None:
    charge = pods.charge(pod("a", {NPU: "1", "nvidia.com/gpu": "1"}, on="n", allocated=HELD))
    assert [grant.type for grant in charge.grants] == ["gpu"]
    assert charge.unknown == ()
    assert dict(charge.resources)[NPU] == 1


@pytest.mark.parametrize("summed", [True, False])
def test_what_a_node_shows_limits_pods_in_addition_to_the_devices(*, summed: bool) -> None:
    kinds = Kinds((replace(KIND, summed=summed),))
    raw = bare_node("n", allocatable={NPU: "2"})
    assert nodes.info(raw).allocatable[NPU] == 2
    assert nodes.device_sums(raw, "allocatable", kinds) == {NPU: 2}
    assert dict(pods.pending(pod("a", {NPU: "3"}), kinds).request.resources)[NPU] == 3
    assert dict(pods.charge(pod("a", {NPU: "3"}, on="n"), kinds).resources)[NPU] == 3


@pytest.mark.parametrize(("gangs", "error"), [(True, ""), (False, "its members cannot request devices of type npu")])
def test_a_plug_in_may_stay_out_of_gangs(*, gangs: bool, error: str) -> None:
    kinds = Kinds((replace(KIND, gangs=gangs),))
    raw = pod("a", {NPU: "1"}, labels={"scheduling.x-k8s.io/pod-group": "g"})
    assert error in pods.pending(raw, kinds).error
    assert bool(pods.pending(raw, kinds).error) is not gangs
    assert not pods.pending(pod("a", {NPU: "1"}), kinds).error


def test_the_cluster_reads_pods_and_nodes_by_its_plug_ins() -> None:
    cluster = Cluster(grace=1.0, fleet=Fleet(kinds=KINDS), clock=lambda: 0.0)
    cluster.node_cache.put_node(bare_node("n", allocatable={NPU: "2"}))
    cluster.put_pending(pod("a", {NPU: "1"}))
    assert cluster.pending["uid-a"].request.devices.parts[0].type == "npu"
    cluster.put_bound(pod("b", {NPU: "1"}, on="n", allocated=HELD))
    assert cluster.fleet.cards["npu"].users[cluster.fleet.rows["n"]].tolist() == [1]
    assert cluster.node_cache.nodes["n"].allocatable == {NPU: 2}
    assert cluster.node_cache.view("n").kinds.names == ("gpu", "rdma", "fpga", "npu")
