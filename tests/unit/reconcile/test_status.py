"""The status of a Device."""

from dataclasses import replace
from typing import Any

import pytest

from berth_api.allocation import MAX_MINOR, Grant
from berth_api.device import REPORTED, DeviceStatus
from berth_operator.controllers.reconcile import status
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.views import NodeView
from berth_operator.state.objects import devices, nodes
from berth_operator.state.objects.nodes import NodeRecord
from tests.objects.builders import (
    CORE,
    GI,
    MEMORY,
    NVIDIA,
    RATIO,
    charge,
    condition,
    device,
    entry,
    grant,
    instance,
    node,
    replica,
    with_functions,
)
from tests.objects.managed_fields import fields_of

Raw = dict[str, Any]

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"


def view(
    *entries: Raw,
    charges: tuple[Charge, ...] = (),
    alive: bool = True,
    has_node: bool = True,
    foreign: str = "",
    **fields: Any,
) -> NodeView:
    raw = node()
    record = NodeRecord(uid="u", info=nodes.info(raw), capacity={}, allocatable={})
    record_ = replace(devices.record(device("node", *entries, **fields)), foreign_spec=foreign)
    return NodeView(
        name="node", node=record if has_node else None, device=record_, ours=True, alive=alive, charges=charges
    )


def expected_status(of: NodeView) -> DeviceStatus:
    return status.wanted(of, lambda: NEW)


def reported_condition(of: NodeView, kind: str) -> tuple[str, str, str]:
    condition = next(each for each in expected_status(of).conditions if each.type == kind)
    return condition.status, condition.reason, condition.message


def gpu(minor: int, **fields: Any) -> Raw:
    return entry(minor, memory=8 * GI, **fields)


MIG: Raw = {
    "enabled": True,
    "instances": [
        {"id": f"MIG-0-{i}", "profile": profile, "gpuInstance": i, "computeInstance": 0, "memory": "9Gi"}
        for i, profile in enumerate(["1g.10gb", "3g.40gb", "1g.10gb"])
    ],
}
FULL: Raw = {"core": 100, "ratio": 100, "memory": 8 * GI}
HALF: Raw = {"core": 50, "ratio": 50, "memory": 4 * GI}
MANY: Raw = {f"name-{i}": 1 for i in range(50)}


# --- the summary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("charges", "allocated"),
    [
        pytest.param((), "0", id="none"),
        pytest.param((charge("a", grant(0, **FULL)),), "1", id="one"),
        pytest.param(
            (charge("a", grant(0, **FULL), grant(1, **FULL), grant(2, **FULL)), charge("b", grant(3, **HALF))),
            "3.5",
            id="three and a half",
        ),
        pytest.param((charge("a", grant(0, memory=1, ratio=1)),), "0.01", id="a hundredth"),
        pytest.param((charge("a", grant(0, ratio=33)), charge("b", grant(0, ratio=34))), "0.67", id="two thirds"),
        pytest.param((charge("a", grant(0, "rdma", rdma=100)),), "0", id="a NIC is no GPU"),
        pytest.param((charge("a", grant(0, core=100)),), "1", id="all cores"),
        pytest.param((charge("a", unknown=("gpu",)),), "0", id="unknown"),
        pytest.param(
            (charge("a", grant(0, core=100, ratio=1)), charge("b", grant(0, ratio=50))), "1", id="cores and memory"
        ),
        pytest.param((charge("a", replica(0, 0), replica(0, 1)),), "0.5", id="two of four slices"),
        pytest.param((charge("a", instance(0, 0)),), "0.14", id="an instance of a card without instances"),
    ],
)
def test_allocated_counts_gpus_to_hundredths(charges: tuple[Charge, ...], allocated: str) -> None:
    assert expected_status(view(gpu(0), charges=charges)).allocated == allocated


def test_gpus_are_counted_and_those_that_can_be_handed_out() -> None:
    nic = entry(0, type="rdma", id="N", resources={})
    shown = expected_status(view(gpu(0), gpu(1, health=False), gpu(2, mig={"enabled": True}), nic, generation=5))
    assert (shown.gpus, shown.healthy, shown.observed_generation) == (3, 1, 5)
    assert expected_status(view(gpu(0), gpu(1, mig=MIG), gpu(2, mig={"enabled": True}))).healthy == 2


ANY = (charge("any", unknown=("gpu",)),)


@pytest.mark.parametrize(
    ("of", "blocked", "free"),
    [
        pytest.param(view(gpu(0), gpu(1, health=False)), 0, ["100", "0"], id="nothing blocked, one failed"),
        pytest.param(view(gpu(0), gpu(1, health=False), charges=ANY), 1, ["0", "0"], id="any card"),
        pytest.param(view(gpu(0), charges=(*ANY, charge("a", grant(0, **HALF)))), 1, ["0"], id="a share is held"),
        pytest.param(view(gpu(0), charges=(charge("any", unknown=("rdma",)),)), 0, ["100"], id="any NIC"),
        pytest.param(view(gpu(0), alive=False), 0, ["0"], id="agent not heard"),
        pytest.param(view(gpu(0), has_node=False), 0, ["0"], id="no node"),
        pytest.param(view(gpu(0), foreign="x"), 0, ["0"], id="values of another manager"),
    ],
)
def test_blocked_cards_are_counted_and_nothing_of_them_is_free(of: NodeView, blocked: int, free: list[str]) -> None:
    shown = expected_status(of)
    assert (shown.blocked, [use.free[CORE] for use in shown.devices]) == (blocked, free)


def test_a_lost_instance_of_an_unknown_card_blocks_the_cards_in_mig_mode() -> None:
    lost = charge("lost", replace(instance(0, 9), minor=MAX_MINOR + 1, parent=""))
    shown = expected_status(view(gpu(0, mig=MIG), gpu(1), charges=(lost,)))
    assert shown.blocked == 1
    assert [sorted(set(use.free.values())) for use in shown.devices if use.minor >= 0] == [["0"], ["100", "8Gi"]]


def test_any_nic_blocks_nics() -> None:
    nic = entry(0, type="rdma", id="N", resources={})
    shown = expected_status(view(gpu(0), nic, charges=(charge("any", unknown=("rdma",)),)))
    assert (shown.blocked, shown.devices[1].free) == (0, {"kubernetes.io/rdma": "0"})
    assert [use.blocked for use in shown.devices] == [None, True]


def test_the_operator_leaves_out_what_the_agent_writes() -> None:
    assert {DeviceStatus.model_fields[name].alias for name in status.BY_AGENT} == set(REPORTED)


def test_pods_that_another_program_bound_are_named_and_block_nothing() -> None:
    charges = tuple(replace(charge(name), lacks_cards=True) for name in ("b", "a"))
    shown = view(gpu(0), charges=charges)
    status, reason, message = reported_condition(shown, "BoundByBerth")
    assert (status, reason) == ("False", "AllocationMissing")
    assert message == "another program bound these pods, so their containers see no GPU: ns/a, ns/b"
    assert reported_condition(shown, "Accounted")[0] == "True"
    assert expected_status(shown).blocked == 0


def test_the_types_that_are_not_allocated_are_named_for_each_reason() -> None:
    lost = replace(instance(0, 9), minor=MAX_MINOR + 1, parent="")
    charges = (charge("a", unknown=("gpu", "rdma")), charge("b", lost))
    status, reason, message = reported_condition(view(gpu(0, mig=MIG), charges=charges), "Accounted")
    assert (status, reason) == ("False", "AllocationUnknown")
    of_pods, of_instances = message.split("; ")
    assert of_pods.startswith("no gpu or rdma is allocated: the allocation of these pods")
    assert of_instances.startswith("no MIG device is allocated: ")


@pytest.mark.parametrize(
    ("grants", "allocated"),
    [
        pytest.param([instance(0, 0)], "0.2", id="one of five slices"),
        pytest.param([instance(0, 1, "3g.40gb")], "0.6", id="three of them"),
        pytest.param([instance(0, 0), instance(0, 1, "3g.40gb"), instance(0, 2)], "1", id="all that there are"),
        pytest.param([instance(0, 0), grant(1, **FULL)], "1.2", id="another card"),
    ],
)
def test_of_a_card_in_mig_mode_the_slices_in_use_count(grants: list[Grant], allocated: str) -> None:
    assert expected_status(view(gpu(0, mig=MIG), gpu(1), charges=(charge("a", *grants),))).allocated == allocated


def test_many_models_are_cut() -> None:
    shown = expected_status(view(*(gpu(i, model=f"{i}{'x' * 200}") for i in range(10))))
    assert len(shown.model) == 1024


# --- each card --------------------------------------------------------------------------------------------------


def test_a_card_shows_what_a_deleted_pod_holds_and_not_its_other_users() -> None:
    left = replace(charge("a", grant(0, core=100, ratio=100)), uid="node/uid-a", priority=kubelet_allocation.BEYOND)
    foreign = replace(
        left,
        uid=kubelet_allocation.foreign_uid("node"),
        pod=kubelet_allocation.FOREIGN,
        grants=(grant(1, core=100, ratio=100),),
    )
    one, other = expected_status(view(gpu(0), gpu(1), charges=(left, foreign))).devices
    assert [(holder.namespace, holder.name, holder.uid) for holder in one.holders] == [("ns", "a", "uid-a")]
    assert other.holders == []
    assert [each.free[CORE] for each in (one, other)] == ["0", "0"]


def test_a_card_shows_its_holders_and_what_is_free() -> None:
    shown = expected_status(
        view(gpu(0), charges=(charge("b", grant(0, **HALF)), charge("a", grant(0, ratio=20, memory=GI))))
    )
    (use,) = shown.devices
    assert (use.type, use.minor) == ("gpu", 0)
    assert use.free == {CORE: "50", MEMORY: "3Gi", RATIO: "30"}
    assert [(holder.namespace, holder.name, holder.uid) for holder in use.holders] == [
        ("ns", "a", "uid-a"),
        ("ns", "b", "uid-b"),
    ]
    assert use.holders[1].resources == {CORE: "50", MEMORY: "4Gi", RATIO: "50"}


def test_a_share_has_no_name() -> None:
    body = status.body("node", expected_status(view(gpu(0), charges=(charge("a", grant(0, **HALF)),))))
    assert "id" not in body["status"]["devices"][0]["holders"][0]


def test_virtual_functions_are_no_resource_of_their_own() -> None:
    nic = entry(0, type="rdma", id="rdma-0", resources={}, vfGroups=[{"vfs": [{"minor": 0, "busID": "a"}]}])
    (use,) = expected_status(view(nic, charges=(charge("a", with_functions(0, "a")),))).devices
    assert use.free == {"kubernetes.io/rdma": "99"}
    assert use.holders[0].resources == {"kubernetes.io/rdma": "1"}


def test_cards_stand_in_order_of_type_and_minor_the_vanished_last() -> None:
    nic = entry(0, type="rdma", id="N", resources={})
    shown = expected_status(view(nic, gpu(5), gpu(1), charges=(charge("a", grant(3, **HALF)),)))
    assert [(use.type, use.minor, bool(use.free)) for use in shown.devices] == [
        ("gpu", 1, True),
        ("gpu", 5, True),
        ("rdma", 0, True),
        ("gpu", 3, False),
    ]


@pytest.mark.parametrize(
    "charges",
    [
        pytest.param(tuple(charge(f"pod-{i}", grant(0, ratio=1)) for i in range(200)), id="many holders"),
        pytest.param(
            tuple(charge(f"pod-{i}", *(grant(100 * i + j, ratio=1) for j in range(100))) for i in range(5)),
            id="many cards that do not exist",
        ),
        pytest.param((charge("a", grant(0, ratio=1, **MANY)),), id="many resources"),
    ],
)
def test_what_hostile_annotations_claim_still_fits_a_status(charges: tuple[Charge, ...]) -> None:
    shown = expected_status(view(gpu(0), charges=charges))
    assert len(shown.devices) <= 256
    assert all(len(use.holders) <= 128 for use in shown.devices)
    assert (shown.devices[0].type, shown.devices[0].minor) == ("gpu", 0)


# --- conditions -------------------------------------------------------------------------------------------------


READY = {
    "all is well": (view(gpu(0)), ("True", "AgentHeard")),
    "agent not heard": (view(gpu(0), alive=False), ("Unknown", "AgentNotHeard")),
    "values of another manager": (view(gpu(0), foreign="field manager x wrote spec.y"), ("False", "ChangedByOther")),
    "no node": (view(gpu(0), has_node=False), ("False", "NodeMissing")),
    "no driver": (
        view(gpu(0), conditions=[condition("DriverLoaded", "False", reason="NoDriver")]),
        ("False", "NoDriver"),
    ),
    "driver loaded": (view(gpu(0), conditions=[condition("DriverLoaded", "True")]), ("True", "AgentHeard")),
    "no driver is an old story when the agent is not heard": (
        view(gpu(0), alive=False, conditions=[condition("DriverLoaded", "False")]),
        ("Unknown", "AgentNotHeard"),
    ),
    "neither": (view(gpu(0), alive=False, has_node=False), ("Unknown", "AgentNotHeard")),
}


@pytest.mark.parametrize(("of", "expected"), READY.values(), ids=READY)
def test_ready(of: NodeView, expected: tuple[str, str]) -> None:
    assert reported_condition(of, "Ready")[:2] == expected


def test_a_silent_agent_is_shown_with_its_last_renewal() -> None:
    silent = replace(view(gpu(0), alive=False), last_renewal="2026-01-02T03:04:05.000000Z")
    _, _, message = reported_condition(silent, "Ready")
    assert message == (
        "the node's Lease is not renewed since 2026-01-02T03:04:05.000000Z; its devices are not allocated"
    )


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        pytest.param([], "", id="no cards"),
        pytest.param(["80Gi", "80Gi"], "80Gi", id="equal cards"),
        pytest.param(["80Gi", "16Gi", "80Gi"], "80Gi, 16Gi", id="two sizes"),
    ],
)
def test_the_memory_of_each_gpu_is_shown(sizes: list[str], text: str) -> None:
    gpus = (gpu(minor, resources={MEMORY: size}) for minor, size in enumerate(sizes))
    assert expected_status(view(*gpus)).memory == text


def test_a_contradiction_is_reported() -> None:
    reported = reported_condition(view(gpu(0, id="X"), gpu(1, id="X")), "Valid")
    assert reported[:2] == ("False", "Contradiction")
    assert "spec.devices[0].id: X" in reported[2]
    assert "; spec.devices[1].id: X" in reported[2]
    assert reported_condition(view(gpu(0)), "Valid") == ("True", "Consistent", "")


def test_pods_of_unknown_allocation_are_named() -> None:
    charges = (charge("b", unknown=("gpu",)), charge("a", unknown=("gpu",)), charge("c", grant(0, **HALF)))
    reported = reported_condition(view(gpu(0), charges=charges), "Accounted")
    assert reported[:2] == ("False", "AllocationUnknown")
    assert reported[2].endswith(": ns/a, ns/b")
    assert reported_condition(view(gpu(0)), "Accounted") == ("True", "AllKnown", "")


def test_long_lists_are_cut() -> None:
    of = view(
        *(gpu(i, id="X") for i in range(100)),
        charges=tuple(charge(f"{'p' * 200}-{i}", unknown=("gpu",)) for i in range(20)),
    )
    assert [len(reported_condition(of, kind)[2]) for kind in ("Valid", "Accounted")] == [1024, 1024]


@pytest.mark.parametrize(
    ("before", "since"),
    [
        pytest.param([], NEW, id="new"),
        pytest.param([condition("Ready", "True", OLD)], OLD, id="the same, if for another reason"),
        pytest.param([condition("Ready", "False", OLD)], NEW, id="flipped"),
        pytest.param([condition("Ready", "Unknown", OLD)], NEW, id="known again"),
    ],
)
def test_a_condition_keeps_its_time_unless_it_flips(before: list[Raw], since: str) -> None:
    shown = expected_status(view(gpu(0), conditions=before))
    assert next(each.last_transition_time for each in shown.conditions if each.type == "Ready") == since


# --- writing ----------------------------------------------------------------------------------------------------


def test_what_was_written_is_what_is_shown_and_differs_no_more() -> None:
    before = view(gpu(0), charges=(charge("a", grant(0, **HALF)),))
    body = status.body("node", expected_status(before))
    after = view(gpu(0), charges=(charge("a", grant(0, **HALF)),), status=body["status"])
    assert status.shown(after) == expected_status(after)


def test_the_agents_conditions_are_not_ours_to_write() -> None:
    of = view(gpu(0), conditions=[condition("DriverLoaded", "True"), condition("InventoryRead", "True")])
    written = status.body("node", expected_status(of))["status"]["conditions"]
    assert [each["type"] for each in written] == ["Ready", "Valid", "Accounted"]
    assert status.shown(of).conditions == []


def test_the_body_is_an_object_to_apply() -> None:
    body = status.body("node", expected_status(view(gpu(0), generation=3)))
    assert (body["apiVersion"], body["kind"], body["metadata"]) == ("berth.dev/v1alpha1", "Device", {"name": "node"})
    assert body["status"]["observedGeneration"] == 3
    assert NVIDIA not in str(body)
    assert None not in body["status"]["conditions"][0].values()


@pytest.mark.parametrize(
    ("held", "text"),
    [pytest.param((), "fpga 0/1, npu 0/2", id="free"), pytest.param((1,), "fpga 0/1, npu 1/2", id="held")],
)
def test_devices_of_other_types_are_counted(held: tuple[int, ...], text: str) -> None:
    others = [
        {"type": kind, "minor": minor, "id": f"{kind}-{minor}"} for kind, minor in (("npu", 0), ("npu", 1), ("fpga", 0))
    ]
    grants = tuple(Grant(type="npu", minor=minor, amounts=(("npu", 50),)) for minor in held)
    charges = tuple(Charge(uid=uid, pod=f"ns/{uid}", node="node", grants=grants) for uid in ("u", "v"))
    crowded = view(*others, charges=charges)
    assert status.wanted(crowded, lambda: "now").others == text


# --- what others added ------------------------------------------------------------------------------------------


def applied_by(*, agent: Raw, operator: Raw, shown: Raw) -> Raw:
    """Return a Device with a status in which operator and agent own what they applied."""
    managed = [
        {"manager": manager, "operation": "Apply", "subresource": "status", "fieldsV1": fields_of({"status": fields})}
        for manager, fields in (("berth-agent", agent), ("berth-operator", operator))
    ]
    return {"metadata": {"name": "node", "resourceVersion": "7", "managedFields": managed}, "status": shown}


def test_cards_amounts_and_conditions_that_others_added_are_removed_and_nothing_else() -> None:
    loaded, ready = condition("DriverLoaded", "True"), condition("Ready", "True")
    ours = {"devices": [{"type": "gpu", "minor": 0}], "conditions": [ready]}
    agent = {"conditions": [loaded]}
    right = {"devices": ours["devices"], "conditions": [loaded, ready], "foreign": []}
    assert status.surplus(applied_by(agent=agent, operator=ours, shown=right), {"status": ours}) is None
    restored = {
        **right,
        "devices": [{"type": "gpu", "minor": 0, "held": 100}, {"type": "gpu", "minor": 9}],
        "conditions": [loaded, ready, condition("ResourcesWritten.npu", "False"), condition("Mine", "False")],
    }
    assert status.surplus(applied_by(agent=agent, operator=ours, shown=restored), {"status": ours}) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"devices": ours["devices"], "conditions": [loaded, ready, condition("Mine", "False")]},
    }
