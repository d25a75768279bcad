"""Hostile Devices and the pods that meet them: a decision does a bounded amount of work, and its result is fixed."""

from collections.abc import Iterator

import numpy as np
import pytest

from berth_api import names
from berth_api.links import DIRECT as NVLINK
from berth_operator.core.allocators import locality, switches, topology
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import pods
from tests.attacks.work import counted
from tests.attacks.zoo import DEVICES
from tests.objects.builders import NVIDIA, RDMA, Raw, device, entry, hints, jointly, node, pod

MAX_CALLS = 400_000
"""Of one decision: a tenth of a second."""
MAX_CALLS_OF_DEVICE = 1_000_000
"""To read a Device: it happens once for each generation."""


def cluster(raw: Raw) -> Cluster:
    made = Cluster(grace=40)
    made.node_cache.put_node(node("node", allocatable={"cpu": "1000", "nvidia.com/gpu": "256"}))
    made.node_cache.put_device(raw)
    made.fleet.set_fresh("node", fresh=True)
    return made


def requests() -> Iterator[Raw]:
    for level in ("nvlink", "numa", "pcie", ""):
        for number in (1, 2, 16, 100):
            annotations = {names.GPU_TOPOLOGY: level} if level else {}
            yield pod(f"{level or 'any'}-{number}", {NVIDIA: str(number)}, annotations=annotations)


@pytest.mark.parametrize("kind", DEVICES)
def test_reading_a_hostile_device_takes_bounded_work(kind: str) -> None:
    raw = DEVICES[kind]("node", 0)
    counted(lambda: cluster(raw), MAX_CALLS_OF_DEVICE)


@pytest.mark.parametrize("kind", DEVICES)
def test_a_decision_on_a_hostile_device_takes_bounded_work(kind: str) -> None:
    made = cluster(DEVICES[kind]("node", 0))
    for raw in requests():
        pending = pods.pending(pods.transform(raw))
        outcome, _ = counted(lambda pending=pending: decide(made.fleet, pending, Policy()), MAX_CALLS)  # type: ignore[misc]
        assert isinstance(outcome, Placement | Failure)


def test_cards_beyond_the_limit_are_named_on_the_device() -> None:
    # 256 cards with 63 NVLinks each and a pod of 16 held the loop for 197 s.
    made = cluster(DEVICES["256 cards in a ring of 63 NVLinks"]("node", 0))
    assert made.fleet.cards["gpu"].minor.shape[1] == 64
    view = made.node_cache.view("node")
    assert view is not None
    assert view.device is not None
    assert "spec.devices: 256 cards of type gpu; 64 are read, those with the lowest minors" in view.device.problems


def test_the_same_input_has_the_same_result() -> None:
    def grants() -> list[int]:
        for cached in (topology.best, locality.cliques, locality.link_scores):
            cached.cache.clear()
        made = cluster(DEVICES["64 cards in a ring of 31 NVLinks"]("node", 0))
        request = pod("pod", {NVIDIA: "16"}, annotations={names.GPU_TOPOLOGY: "nvlink"})
        outcome = decide(made.fleet, pods.pending(pods.transform(request)), Policy())
        assert isinstance(outcome, Placement)
        scores = locality.link_scores(made.fleet.intern_table.wirings[1], 64)
        slots = [each.minor for each in outcome.grants]
        assert (scores[np.ix_(slots, slots)] + NVLINK * np.eye(16) >= NVLINK).all()
        return slots

    assert grants() == grants()


def test_joint_allocation_under_many_switches_takes_bounded_work() -> None:
    entries = [
        entry(
            minor, type=kind, id=f"{kind.upper()}-{minor}", topology={"pcieID": f"switch-{minor}", "nodeID": minor % 8}
        )
        for kind in ("gpu", "rdma")
        for minor in range(128)
    ]
    made = cluster(device("node", *entries))
    request = pod("pod", {NVIDIA: "40", RDMA: "4000"}, annotations=jointly("gpu", "rdma") | hints(rdma={}))
    pending = pods.pending(pods.transform(request))
    assert not pending.error
    counted(lambda: decide(made.fleet, pending, Policy()), MAX_CALLS)


def test_the_smallest_set_of_switches_is_exact_on_real_machines_and_bounded_on_others() -> None:
    assert switches.fewest([(1, 2), (4, 4), (3, 2), (8, 8)], (8, 8)) == (3,)
    many = [(1 + place % 3, 1 + place % 5) for place in range(256)]
    chosen, _ = counted(lambda: switches.fewest(many, (64, 64)), MAX_CALLS)
    assert chosen is not None
    assert sum(many[each][0] for each in chosen) >= 64 <= sum(many[each][1] for each in chosen)


def test_profiles_and_names_of_a_device_do_not_widen_the_columns_without_limit() -> None:
    made = cluster(DEVICES["256 cards with 4,096 MIG profiles"]("node", 0))
    assert len(made.fleet.cards["gpu"].index) < 64
