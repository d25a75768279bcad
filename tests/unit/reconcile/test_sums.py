"""A Node's sums of devices: enough for kubelet to admit every running pod again."""

from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.allocation import Grant
from berth_api.names import MANAGED, MODEL_PREFIX
from berth_api.request import Kind, Kinds
from berth_operator.controllers.reconcile import sums
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.views import NodeView
from berth_operator.state.objects import devices, nodes
from berth_operator.state.objects.nodes import NodeRecord
from tests.objects.builders import (
    A100,
    CORE,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    T4,
    bare_node,
    charge,
    device,
    entry,
    grant,
    instance,
    replica,
)

Raw = dict[str, Any]

MARKED = {MANAGED: "true"}


def view(*entries: Raw, raw: Raw | None = None, charges: tuple[Charge, ...] = (), **fields: Any) -> NodeView:
    """Return the view of a node with these entries in its Device; `without=True` omits the Device."""
    shown = raw or bare_node()
    record = NodeRecord(
        uid="uid-node",
        info=nodes.info(shown),
        capacity=nodes.device_sums(shown, "capacity"),
        allocatable=nodes.device_sums(shown, "allocatable"),
    )
    without = fields.pop("without", False)
    strategy = fields.pop("strategy", "mixed")
    raw_device = device("node", *entries, **fields)
    raw_device["spec"]["migStrategy"] = strategy
    inventory = None if without else devices.record(raw_device)
    return NodeView(name="node", node=record, device=inventory, ours=True, alive=True, charges=charges)


def by_name(name: str, requested: tuple[tuple[str, int], ...], *grants: Grant) -> Charge:
    """Return the charge of a pod that requests device resources, so that kubelet allocates them."""
    return charge(name, *grants, resources=requested, plugin_requests=requested)


def shown(of: NodeView) -> dict[str, int]:
    """Return the sums under the first of Berth's prefixes; check that the second has the same."""
    expected = sums.wanted(of)
    ours = {
        name.removeprefix(names.PREFIX): amount for name, amount in expected.items() if name.startswith(names.PREFIX)
    }
    others = {name.removeprefix(names.OTHER_PREFIX): amount for name, amount in expected.items() if name not in ours}
    assert {name: others[name] for name in ours} == ours
    return ours


def gpus(count: float, memory: int, shares: int) -> dict[str, int]:
    core = int(100 * count)
    return {"gpu": core, "gpu.shared": shares, "gpu-core": core, "gpu-memory": memory, "gpu-memory-ratio": core}


MIG: Raw = {
    "enabled": True,
    "instances": [{"id": "MIG-0-0", "profile": "1g.10gb", "gpuInstance": 1, "computeInstance": 0, "memory": "9Gi"}],
}
FULL: Raw = {"core": 100, "ratio": 100, "memory": 8 * GI}
HALF: Raw = {"core": 50, "ratio": 50, "memory": 4 * GI}


def gpu(minor: int, **fields: Any) -> Raw:
    return entry(minor, memory=8 * GI, **fields)


def left_behind() -> Charge:
    return replace(charge("a", grant(0, **FULL)), uid="node/uid-a", priority=kubelet_allocation.BEYOND)


def foreign() -> Charge:
    return replace(left_behind(), uid=kubelet_allocation.foreign_uid("node"), pod=kubelet_allocation.FOREIGN)


# --- sums -------------------------------------------------------------------------------------------------------


NODE_SHOWS_HEALTHY_CARDS_AND_WHAT_PODS_HOLD_ON_OTHERS = {
    "what a pod has left behind on a card that failed": (
        view(gpu(0, health=False), charges=(left_behind(),)),
        gpus(1, 8 * GI, 1),
    ),
    "foreign use of a card that failed": (view(gpu(0, health=False), charges=(foreign(),)), {}),
    "instances are no part of these sums": (
        view(gpu(0), gpu(1, mig={"enabled": True}), charges=(charge("a", instance(1)),)),
        gpus(1, 8 * GI, 100),
    ),
    "a sliced card is": (view(gpu(0, replicas=4), charges=(charge("a", replica(0)),)), gpus(1, 8 * GI, 100)),
    "under strategy none a card in MIG mode is one like any other": (
        view(gpu(0, mig=MIG), strategy="none", charges=(charge("a", grant(0, **FULL)),)),
        gpus(1, 8 * GI, 100),
    ),
    "strategy single": (view(gpu(0, mig=MIG), strategy="single", charges=(charge("a", instance(0)),)), {}),
    "MIG mode was switched on under a pod that shares the card": (
        view(gpu(0, mig=MIG), charges=(charge("a", grant(0, **HALF)),)),
        gpus(0.5, 4 * GI, 1),
    ),
    "a slice of an unhealthy card": (
        view(gpu(0, health=False, replicas=4), charges=(charge("a", replica(0)),)),
        gpus(0.25, 20 * GI, 1),
    ),
    "no cards": (view(), {}),
    "healthy cards": (view(gpu(0), gpu(1)), gpus(2, 16 * GI, 200)),
    "an unhealthy card": (view(gpu(0), gpu(1, health=False)), gpus(1, 8 * GI, 100)),
    "a card in MIG mode": (view(gpu(0), gpu(1, mig={"enabled": True})), gpus(1, 8 * GI, 100)),
    "two unequal cards": (view(entry(0, memory=8 * GI), entry(1, memory=GI)), gpus(2, 9 * GI, 200)),
    "held on a healthy card": (view(gpu(0), charges=(charge("a", grant(0, **FULL)),)), gpus(1, 8 * GI, 100)),
    "held on an unhealthy card": (
        view(gpu(0), gpu(1, health=False), charges=(charge("a", grant(1, **FULL)),)),
        gpus(2, 16 * GI, 101),
    ),
    "two halves on an unhealthy card": (
        view(gpu(0), gpu(1, health=False), charges=(charge("a", grant(1, **HALF)), charge("b", grant(1, **HALF)))),
        gpus(2, 16 * GI, 102),
    ),
    "held on a vanished card": (view(gpu(0), charges=(charge("a", grant(7, **HALF)),)), gpus(1.5, 12 * GI, 101)),
    "Device deleted": (view(without=True, charges=(charge("a", grant(0, **FULL)),)), gpus(1, 8 * GI, 1)),
    "Device deleted, no pod holds anything": (view(without=True), {}),
    "other types": (
        view(gpu(0), entry(0, type="rdma", id="N", resources={}), entry(0, type="fpga", id="F", resources={})),
        {**gpus(1, 8 * GI, 100), "rdma": 100, "fpga": 100},
    ),
    "held on a vanished NIC": (view(charges=(charge("a", grant(0, "rdma", rdma=30)),)), {"rdma": 30}),
}


@pytest.mark.parametrize(
    ("of", "expected"),
    NODE_SHOWS_HEALTHY_CARDS_AND_WHAT_PODS_HOLD_ON_OTHERS.values(),
    ids=NODE_SHOWS_HEALTHY_CARDS_AND_WHAT_PODS_HOLD_ON_OTHERS,
)
def test_a_node_shows_healthy_cards_and_what_pods_hold_on_others(of: NodeView, expected: dict[str, int]) -> None:
    assert shown(of) == expected


@pytest.mark.parametrize("prefix", [pytest.param("kubernetes.io/", id="ours"), pytest.param("koordinator.sh/", id="o")])
def test_a_sum_is_never_below_what_live_pods_request(prefix: str) -> None:
    requested = ((f"{prefix}gpu-core", 300), (f"{prefix}gpu-memory", 30 * GI))
    expected = sums.wanted(view(gpu(0), charges=(by_name("a", requested),)))
    assert expected[f"{prefix}gpu-core"] == 300
    assert expected[f"{prefix}gpu-memory"] == 30 * GI
    other = names.OTHER_PREFIX if prefix == names.PREFIX else names.PREFIX
    assert expected[f"{other}gpu-core"] == 100


# --- patches of sums --------------------------------------------------------------------------------------------


def written(of: NodeView) -> Raw:
    patch = sums.status_patch(of)
    assert patch is not None
    assert patch["status"]["capacity"] == patch["status"]["allocatable"]
    capacity: Raw = patch["status"]["capacity"]
    return capacity


def test_a_new_device_is_shown_in_both_fields_and_under_both_prefixes() -> None:
    assert written(view(gpu(0))) == {
        prefix + name: text
        for prefix in ("kubernetes.io/", "koordinator.sh/")
        for name, text in {
            "gpu": "100",
            "gpu.shared": "100",
            "gpu-core": "100",
            "gpu-memory": "8Gi",
            "gpu-memory-ratio": "100",
        }.items()
    }


def current(of: NodeView, **changes: str) -> Raw:
    """Return a node whose sums are up to date, except for the changes."""
    return bare_node(labels=MARKED, allocatable={**written(of), **changes})


def test_nothing_is_written_when_nothing_differs() -> None:
    assert sums.status_patch(view(gpu(0), raw=current(view(gpu(0))))) is None


def test_an_equal_amount_in_another_unit_is_no_difference() -> None:
    raw = current(view(gpu(0)), **{MEMORY: "8192Mi"})
    assert sums.status_patch(view(gpu(0), raw=raw)) is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({GPU: "800"}, id="too much"),
        pytest.param({CORE: "0"}, id="zero"),
        pytest.param({"kubernetes.io/rdma": "100"}, id="one that should not be there"),
    ],
)
def test_an_edit_by_hand_is_mended(changes: dict[str, str]) -> None:
    patch = written(view(gpu(0), raw=current(view(gpu(0)), **changes)))
    (name,) = changes
    assert patch[name] == written(view(gpu(0))).get(name)


def test_one_of_many_cards_that_fails_is_missed_at_once() -> None:
    before, after = (view(*(gpu(minor, health=minor < sound) for minor in range(16))) for sound in (16, 15))
    assert written(replace(after, node=view(raw=current(before)).node))[GPU] == "1500"


def test_a_difference_in_one_field_is_enough() -> None:
    raw = current(view(gpu(0)))
    raw["status"]["capacity"] = {**raw["status"]["capacity"], GPU: "1"}
    assert sums.status_patch(view(gpu(0), raw=raw)) is not None


def test_what_others_write_is_left_alone() -> None:
    raw = bare_node(labels=MARKED, allocatable={NVIDIA: "8", "example.com/x": "1"})
    assert not {NVIDIA, "example.com/x", "cpu"} & set(written(view(gpu(0), raw=raw)))


def test_a_deleted_devices_sums_are_taken_away() -> None:
    patch = written(view(raw=current(view(gpu(0))), without=True))
    assert set(patch) == set(written(view(gpu(0))))
    assert set(patch.values()) == {None}


def test_a_deleted_devices_sums_stay_as_long_as_live_pods_request_them() -> None:
    held = (by_name("a", ((CORE, 50), (RATIO, 50)), grant(0, core=50, ratio=50, memory=GI)),)
    patch = written(view(raw=current(view(gpu(0))), without=True, charges=held))
    assert patch[CORE] == patch["koordinator.sh/gpu-core"] == "50"
    assert patch[MEMORY] == "1Gi"


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(view(without=True), id="bare"),
        pytest.param(view(without=True, raw=bare_node(allocatable={GPU: "800"})), id="another system's sums"),
        pytest.param(view(without=True, charges=(by_name("a", ((GPU, 50),)),)), id="a pod that requests"),
        pytest.param(view(without=True, raw=bare_node(labels={names.MODEL_LABEL: "x"})), id="another system's labels"),
        pytest.param(view(without=True, raw=bare_node(labels={MODEL_PREFIX + "x": "1"})), id="a label like ours"),
    ],
)
def test_nothing_is_touched_on_a_node_that_never_had_a_device(of: NodeView) -> None:
    assert sums.status_patch(of) is None
    assert sums.label_patch(of) is None


def test_without_a_node_there_is_nothing_to_write() -> None:
    inventory = devices.record(device("node", gpu(0)))
    of = NodeView(name="node", node=None, device=inventory, ours=True, alive=True, charges=())
    assert sums.status_patch(of) is None
    assert sums.label_patch(of) is None


# --- labels -----------------------------------------------------------------------------------------------------


def labels(of: NodeView) -> Raw:
    patch = sums.label_patch(of)
    assert patch is not None
    changed: Raw = patch["metadata"]["labels"]
    return changed


SAFE = "NVIDIA-A100-SXM4-80GB"


def test_cards_of_one_model_are_labelled() -> None:
    assert labels(view(gpu(0), gpu(1))) == {
        MANAGED: "true",
        MODEL_PREFIX + SAFE: "2",
        names.MODEL_LABEL: SAFE,
        names.VENDOR_LABEL: "nvidia",
        names.DRIVER_LABEL: "570.124.06",
    }


def test_mixed_models_are_counted_each_and_have_no_single_label() -> None:
    written = labels(view(gpu(0), gpu(1), gpu(2, model=T4)))
    assert written[MODEL_PREFIX + SAFE] == "2"
    assert written[MODEL_PREFIX + "Tesla-T4"] == "1"
    assert names.MODEL_LABEL not in written


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        pytest.param([""], {}, id="no name"),
        pytest.param(["(?)"], {}, id="a name without a letter"),
        pytest.param([A100, A100.replace(" ", "-")], {SAFE: "2"}, id="two names that look the same in a label"),
        pytest.param(["A" * 100], {"A" * 63: "1"}, id="a long name"),
        pytest.param([f"{'A' * 62}  B"], {"A" * 62: "1"}, id="cut at a space"),
    ],
)
def test_a_name_that_a_label_cannot_hold(models: list[str], expected: dict[str, str]) -> None:
    written = labels(view(*(gpu(minor, model=model) for minor, model in enumerate(models))))
    assert {k.removeprefix(MODEL_PREFIX): v for k, v in written.items() if k.startswith(MODEL_PREFIX)} == expected


def test_a_node_with_nics_alone_is_only_marked() -> None:
    assert labels(view(entry(0, type="rdma", id="N", resources={}))) == {MANAGED: "true"}


def test_a_driver_that_is_not_loaded_has_no_label() -> None:
    assert names.DRIVER_LABEL not in labels(view(gpu(0), driver=""))


def labelled(of: NodeView, **more: str) -> Raw:
    return bare_node(labels={**labels(of), **more})


def test_nothing_is_written_when_no_label_differs() -> None:
    assert sums.label_patch(view(gpu(0), raw=labelled(view(gpu(0))))) is None


def test_labels_of_others_are_left_alone() -> None:
    raw = labelled(view(gpu(0)), zone="x")
    assert sums.label_patch(view(gpu(0), raw=raw)) is None


def test_a_deleted_devices_labels_are_taken_away() -> None:
    raw = labelled(view(gpu(0)), zone="x")
    written = labels(view(raw=raw, without=True))
    assert set(written) == set(labels(view(gpu(0))))
    assert set(written.values()) == {None}


def test_the_mark_stays_while_sums_do() -> None:
    raw = labelled(view(gpu(0)))
    of = view(raw=raw, without=True, charges=(by_name("a", ((GPU, 50),)),))
    assert labels(of)[MANAGED] == "false"


# --- types of plug-ins ------------------------------------------------------------------------------------------

NPU, NPU_CORE = "example.com/npu", "example.com/npu-core"


def npu_view(*, summed: bool = True, charges: tuple[Charge, ...] = ()) -> NodeView:
    kind = Kind(name="npu", resources={NPU: 1, NPU_CORE: 100}, summed=summed)
    cards = [{"type": "npu", "minor": minor, "id": f"npu-{minor}", "health": minor < 3} for minor in range(4)]
    return replace(view(*cards, charges=charges), kinds=Kinds((kind,)))


def test_what_a_pod_holds_of_a_failed_one_counts() -> None:
    held = Charge(uid="u", pod="ns/a", node="node", grants=(Grant(type="npu", minor=3, amounts=(("npu", 100),)),))
    assert sums.wanted(npu_view(charges=(held,)))[NPU] == 4


def test_where_a_device_plugin_writes_them_they_are_left_to_it() -> None:
    assert NPU not in sums.wanted(npu_view(summed=False))


def test_what_pods_have_by_class_alone_is_not_shown_on_the_node() -> None:
    """A plug-in's resource that the Node had would be taken for that of a device plugin."""
    kind = Kind(name="npu", resources={NPU: 1, NPU_CORE: 100}, summed=True)
    by_class = charge("a", resources=((NPU, 1),))
    assert NPU not in sums.wanted(replace(view(gpu(0), charges=(by_class,)), kinds=Kinds((kind,))))
    assert sums.wanted(npu_view(charges=(by_class,)))[NPU] >= 1
