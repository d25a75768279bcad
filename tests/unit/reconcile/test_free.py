"""Pods would get, one after another, what Devices, `kubectl berth free` and the advice show as free."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation import REPLICAS, Grant, mig, short
from berth_api.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.resources import quantity
from berth_kubectl.commands import free
from berth_operator.controllers.reconcile import status
from berth_operator.core.advice import free_report, summary
from berth_operator.core.advice.fleet_figures import fleet_figures
from berth_operator.core.advice.fleet_rows import fleet_row
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.views import NodeView
from berth_operator.state.objects import devices, nodes
from berth_operator.state.objects.nodes import NodeRecord
from tests.objects.builders import (
    A100_BYTES,
    GPU,
    NVIDIA,
    RATIO,
    add,
    asks,
    card,
    charge,
    device,
    divided,
    entry,
    fleet,
    node,
    node_info,
    waiting,
)

Raw = dict[str, Any]

MIG_1G = mig.resource("1g.10gb")
RENAMED = "nvidia.com/gpu.shared"


def slice_pod(name: str, replica_resource: str | None) -> PendingPod:
    """Return a pod that accepts one slice, by the name by which kubelet counts slices."""
    if replica_resource == NVIDIA:
        return waiting(name, asks({NVIDIA: 1}, annotations={names.GPU_SUBDEVICES: "only"}))
    return waiting(name, {REPLICAS: 1})


@st.composite
def cards(draw: st.DrawFn, replica_resource: str | None) -> list[Raw]:
    entries = []
    for minor in range(draw(st.integers(1, 3))):
        fields: Raw = {"health": draw(st.sampled_from([True, True, True, False]))}
        match draw(st.sampled_from(["sliced", "sliced", "MIG", "plain"])):
            case "sliced":
                fields["replicas"] = draw(st.sampled_from([2, 3, 4, 7]))
                fields |= {"replicaResource": replica_resource} if replica_resource else {}
            case "MIG":
                ids = [f"MIG-{minor}-{number}" for number in range(draw(st.integers(1, 3)))]
                instance = {"profile": "1g.10gb", "gpuInstance": 0, "computeInstance": 0, "memory": "9Gi"}
                fields["mig"] = {"enabled": True, "instances": [{"id": each, **instance} for each in ids]}
        entries.append(entry(minor, **fields))
    return entries


@st.composite
def histories(draw: st.DrawFn) -> tuple[str | None, list[list[Raw] | Raw | int]]:
    """Draw how slices are called, and what happens to a node: Devices, requests of pods, ends of pods."""
    replica_resource = draw(st.sampled_from([None, NVIDIA, RENAMED]))
    pods = [{GPU: 100}, {GPU: 30}, {RATIO: 40}, {NVIDIA: 1}, {REPLICAS: 1}, {REPLICAS: 2}, {MIG_1G: 1}]
    changes = st.one_of(st.sampled_from(pods), st.sampled_from(pods), st.integers(0, 9), cards(replica_resource))
    return replica_resource, [draw(cards(replica_resource)), *draw(st.lists(changes, max_size=10))]


SLICED: list[Raw] = [entry(minor, replicas=4) for minor in range(2)]


@settings(max_examples=60, deadline=None)
@given(history=histories(), withheld=st.lists(st.integers(0, 2), max_size=1))
@example(history=(None, [SLICED, {NVIDIA: 1}, {GPU: 100}]), withheld=[])
@example(history=(None, [SLICED, {REPLICAS: 1}]), withheld=[])
def test_what_is_shown_as_free_is_placed_and_no_more(
    history: tuple[str | None, list[list[Raw] | Raw | int]], withheld: list[int]
) -> None:
    replica_resource, changes = history
    of, raw = Fleet(), device("node")
    add(of, node_info("node"), devices.record(raw).inventory)
    for number, change in enumerate(changes):
        if isinstance(change, list):
            raw = device("node", *change)
            of.put_device("node", devices.record(raw).inventory)
        elif isinstance(change, int):
            of.release(f"uid-{change}")
        elif isinstance(outcome := decide(of, waiting(str(number), change), Policy()), Placement):
            of.charge(outcome.charge)
    raw["status"] = {"withheld": withheld}
    of.withhold("node", withheld)
    shown = [in_the_status(of, raw), in_the_row(of), in_the_summary(of), in_the_report(of)]
    slices = placed(of, [slice_pod(f"slice-{number}", replica_resource) for number in range(22)])
    instances = placed(of, [waiting(f"instance-{number}", {MIG_1G: 1}) for number in range(10)])
    assert [(each[REPLICAS], each[MIG_1G]) for each in shown] == [(slices, instances)] * 4
    left = [min(card["free"].get(name, 0) for name in (GPU_CORE, GPU_MEMORY_RATIO)) for card in the_row(of)["devices"]]
    shares = sorted(filter(None, left), reverse=True)
    # The largest first: each fits only where as much is shown, so the last one finds nothing.
    pods = [waiting(f"share-{number}", {GPU: share}) for number, share in enumerate([*shares, 1])]
    assert placed(of, pods) == len(shares)
    status, row, summed, reported = ((each[GPU_CORE], each[GPU_MEMORY_RATIO]) for each in shown)
    assert status == summed == reported
    assert row == (sum(shares), 0)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda of: of.put_node(node_info("node", cordoned=True)), id="cordoned"),
        pytest.param(lambda of: of.put_node(node_info("node", ready=False)), id="not ready"),
        pytest.param(lambda of: of.set_fresh("node", fresh=False), id="silent agent"),
        pytest.param(lambda of: of.remove_node("node"), id="no Node"),
        pytest.param(lambda of: of.charge(charge("x", unknown=("gpu",))), id="unknown allocation"),
    ],
)
def test_nothing_is_free_on_a_node_that_takes_no_pods(change: Callable[[Fleet], object]) -> None:
    of = fleet({"node": (card(0), divided(1, "1g.10gb"))})
    assert in_the_report(of) == in_the_row(of) + Counter({GPU_MEMORY: A100_BYTES, GPU_MEMORY_RATIO: 100})
    change(of)
    assert free_report.free_capacity(of) == {}
    assert in_the_row(of).total() == 0
    assert sum(gpu.free for gpu in fleet_figures(of).gpus.values()) == 0


def test_no_instance_is_free_while_the_card_of_a_held_one_is_not_known() -> None:
    of = fleet({"node": (card(0), divided(1, "1g.10gb"))})
    of.charge(charge("x", Grant(type="gpu", minor=7, amounts=((MIG_1G, 1),), id="MIG-gone")))
    assert (in_the_report(of)[MIG_1G], in_the_row(of)[MIG_1G], in_the_summary(of)[MIG_1G]) == (0, 0, 0)
    assert in_the_report(of)[GPU_CORE] == 100


def placed(of: Fleet, pods: Sequence[PendingPod]) -> int:
    """Place pods one after another, then release them; return how many found a place."""
    for number, pod in enumerate(pods):
        outcome = decide(of, pod, Policy())
        if not isinstance(outcome, Placement):
            for each in pods[:number]:
                of.release(each.uid)
            return number
        of.charge(outcome.charge)
    raise AssertionError("more pods than anything could take")


def in_the_status(of: Fleet, raw: Raw) -> Counter[str]:
    record = NodeRecord(uid="u", info=nodes.info(node()), capacity={}, allocatable={})
    charges, listed = tuple(of.on_node("node")), devices.record(raw)
    view = NodeView(name="node", node=record, device=listed, ours=True, alive=True, charges=charges)
    return added(use.free for use in status.wanted(view, lambda: "").devices)


def in_the_summary(of: Fleet) -> Counter[str]:
    report = summary.summary(of, "node")
    assert report is not None
    return added([report["deviceFree"]])


def in_the_row(of: Fleet) -> Counter[str]:
    """Return what `kubectl berth free` counts."""
    counted = Counter[str]()
    units = {free.SLICE: (REPLICAS, 1), "1g.10gb": (MIG_1G, 1), free.WHOLE: (GPU_CORE, 100), free.SHARE: (GPU_CORE, 1)}
    for (_, _, kind), pool in free.pooled([the_row(of)]).items():
        name, unit = units[kind]
        counted[name] += unit * sum(pool.free.values())
    return counted


def the_row(of: Fleet) -> Any:
    return fleet_row(of, "node", {})


def in_the_report(of: Fleet) -> Counter[str]:
    return added(dict(left.free) for left in free_report.free_capacity(of).values())


def added(amounts: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update({short(name): quantity.parse(amount) for name, amount in each.items()})
    return total
