"""Cards of vendors that Koordinator's files list: which pods get them, what their Binding says, and the reasons."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from berth_api import names
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import binding
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.objects import devices
from tests.objects.builders import CORE, GPU, MEMORY, NVIDIA, RATIO, RDMA, add, asks, device, entry, node_info, waiting

Raw = dict[str, Any]

NPU: Final = "huawei.com/npu-core"
WHOLE_NPU: Final = {NPU: 20, RATIO: 100}


def machine(vendor: str, *, model: str = "Ascend-910B3", count: int = 4) -> Raw:
    """Return the Device of a machine with these cards and a NIC."""
    resources = {"kubernetes.io/gpu-memory": "64Gi", "kubernetes.io/gpu-memory-ratio": 100, NPU: "20"}
    cards = [
        entry(
            minor,
            model=model,
            resources=resources,
            # Only 1 and 3, and 0 and 2, are linked.
            links=[{"minor": (minor + 2) % count, "type": "HCCS"}],
        )
        for minor in range(count)
    ]
    nic = {"type": "rdma", "minor": 0, "id": "0000:1f:00.0", "health": True, "resources": {RDMA: 100}}
    return device("node", *cards, nic, labels={names.VENDOR_LABEL: vendor})


def fleet_of(raw: Raw) -> Fleet:
    record = devices.record(raw)
    assert record.problems == ()
    made = Fleet()
    add(made, node_info("node"), record.inventory)
    return made


def decided(vendor: str, amounts: Mapping[str, int], **fields: Any) -> Placement | Failure:
    return decide(fleet_of(machine(vendor, **fields)), waiting("pod", asks(amounts)), Policy())


def test_whole_npus_get_the_annotations_of_huaweis_plugin_in_the_binding() -> None:
    placement = decided("huawei", {NPU: 40, RATIO: 200})
    assert isinstance(placement, Placement)
    annotations = binding(placement, 7, "berth", now=1_785_000_000_000_000_000)["metadata"]["annotations"]
    # Linked by HCCS.
    assert annotations["huawei.com/npu-core"] == "0,2"
    assert annotations["predicate-time"] == "1785000000000000000"
    assert '"id":"GPU-2"' in annotations[names.ALLOCATED]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_other_pods_do_not_get_these_annotations(vendor: str) -> None:
    placement = decided(vendor, {NVIDIA: 1} if vendor == "nvidia" else {"amd.com/gpu": 1})
    assert isinstance(placement, Placement)
    annotations = binding(placement, 7, "berth", now=1)["metadata"]["annotations"]
    assert not annotations.keys() & {"huawei.com/npu-core", "predicate-time"}


@pytest.mark.parametrize(
    "resources",
    [
        {"kubernetes.io/gpu-memory": "40Gi"},
        {"kubernetes.io/gpu-memory": "40Gi", NPU: "20"},
        {"kubernetes.io/gpu-memory": "40Gi", "kubernetes.io/gpu-core": 100},
        {"kubernetes.io/gpu-memory": "40Gi", "kubernetes.io/gpu-memory-ratio": 100},
    ],
)
def test_a_card_has_a_hundred_of_what_its_device_leaves_out(resources: Raw) -> None:
    # In Koordinator, it would fit any number of these pods.
    fleet = fleet_of(device("node", entry(0, resources=resources), labels={names.VENDOR_LABEL: "nvidia"}))
    half = asks({CORE: 50, RATIO: 50})
    for name in ("first", "second"):
        placement = decide(fleet, waiting(name, half), Policy())
        assert isinstance(placement, Placement)
        assert dict(placement.grants[0].amounts)["gpu-core"] == 50
        fleet.charge(placement.charge)
    assert isinstance(decide(fleet, waiting("third", half), Policy()), Failure)


WITHHELD: Final = "node(s) have too few GPUs that are given by name (1 requested; {})"
BY_NPU: Final = "node(s) have GPUs of Huawei, which pods request by huawei.com/npu-core"


@pytest.mark.parametrize(
    ("vendor", "model", "amounts", "reason"),
    [
        ("cambricon", "MLU370", {GPU: 100}, WITHHELD.format("the device plugin of cambricon needs a lock on the node")),
        ("metax", "C500", {MEMORY: 2**30}, WITHHELD.format("the device plugin of metax needs a lock on the node")),
        ("baidu", "P800", {GPU: 100}, WITHHELD.format("Berth knows no device plugin of baidu")),
        (
            "huawei",
            "Ascend-310P3-300I-DUO",
            WHOLE_NPU,
            WITHHELD.format("Berth does not support Ascend-310P3-300I-DUO"),
        ),
        ("huawei", "Ascend-910B3", {GPU: 100}, BY_NPU),
        ("huawei", "Ascend-910B3", {GPU: 50}, BY_NPU),
        ("huawei", "Ascend-910B3", {NVIDIA: 1}, "node(s) have no GPUs of NVIDIA"),
        ("nvidia", "NVIDIA H100", WHOLE_NPU, "node(s) have no GPUs of Huawei"),
    ],
)
def test_cards_that_no_plugin_could_give_are_not_allocated(
    vendor: str, model: str, amounts: Mapping[str, int], reason: str
) -> None:
    outcome = decided(vendor, amounts, model=model)
    assert isinstance(outcome, Failure)
    assert [text for text, _ in outcome.reasons] == [reason]


@pytest.mark.parametrize("vendor", ["huawei", "metax"])
def test_nics_next_to_these_cards_are_allocated(vendor: str) -> None:
    assert isinstance(decided(vendor, {RDMA: 50}), Placement)


def test_why_a_card_is_not_given_is_shown_and_follows_the_label() -> None:
    raw = machine("metax")
    record = devices.record(raw)
    detail = record.fault_texts["gpu", "GPU-0"]
    assert detail.startswith("the device plugin of metax needs the annotation hami.io/mutex.lock on the Node")
    raw["metadata"]["labels"][names.VENDOR_LABEL] = "huawei"
    again = devices.record(raw, record)
    assert again.fault_texts == {}
    assert all(card.healthy for card in again.inventory.cards)
