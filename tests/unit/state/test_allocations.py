"""Which allocations count: by their author, for which types, and how much of each card."""

from typing import Any

import pytest

from berth_api import names
from berth_api.request import Kind, Kinds
from berth_operator.core.values.charge import Charge
from berth_operator.state.objects import pods
from tests.objects.builders import FPGA, GPU, NVIDIA, RDMA, pod

Raw = dict[str, Any]

SLICES, MIG, OTHER_MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
MEMORY = "kubernetes.io/gpu-memory"
KOORDINATOR = "koord-scheduler"


def claim(minor: int, name: str = "", **amounts: Any) -> Raw:
    """Return an entry of an allocation: `claim(0, core=100)`."""
    long = {"core": "gpu-core", "ratio": "gpu-memory-ratio", "memory": "gpu-memory"}
    resources = {f"kubernetes.io/{long.get(key, key)}": str(amount) for key, amount in amounts.items()}
    return {"minor": minor, "id": name or f"GPU-{minor}", "resources": resources}


def subdevice(minor: int, name: str, resource: str) -> Raw:
    return {"minor": minor, "id": name, "resources": {resource: "1"}}


CARD = claim(0, core=100, ratio=100, memory="80Gi")
HALF = claim(0, core=50, ratio=50, memory="40Gi")


def charged(requests: Raw, claims: Any, *, ours: bool = True, trusted: tuple[str, ...] = (), **fields: Any) -> Charge:
    """Return the charge of a bound pod; its allocation is from one of Berth's Bindings, or claimed by its author."""
    how = {"allocated" if ours else "claims": claims, "bare": True}
    return pods.charge(pod("a", requests, on="node", **how, **fields), trusted=trusted)


def held(charge: Charge) -> list[tuple[str, dict[str, int]]]:
    return [(grant.id, dict(grant.amounts)) for grant in charge.grants]


# --- trusted writers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "annotations", "trusted", "believed"),
    [
        pytest.param("default-scheduler", {}, (), False, id="a pod's own claim"),
        pytest.param("berth-scheduler", {}, (), False, id="a pod of ours that no Binding of ours bound"),
        pytest.param("default-scheduler", {"berth.dev/pod-group": "g"}, (), False, id="annotations of users"),
        pytest.param("berth-scheduler", {names.EPOCH: "7"}, (), True, id="our Binding"),
        pytest.param(KOORDINATOR, {}, (), False, id="another scheduler"),
        pytest.param(KOORDINATOR, {}, (KOORDINATOR,), True, id="one that is trusted"),
        pytest.param("default-scheduler", {}, (KOORDINATOR,), False, id="another is trusted"),
    ],
)
def test_an_allocation_counts_with_our_binding_or_of_a_trusted_scheduler(
    scheduler: str, annotations: Raw, trusted: tuple[str, ...], *, believed: bool
) -> None:
    charge = charged(
        {GPU: "50"}, {"gpu": [HALF]}, ours=False, trusted=trusted, schedulerName=scheduler, annotations=annotations
    )
    assert (len(charge.grants), charge.unknown) == ((1, ()) if believed else (0, ("gpu",)))


def test_a_label_is_no_mark() -> None:
    charge = charged({NVIDIA: "1"}, {"gpu": [CARD]}, ours=False, labels={names.FENCED_BY: "berth-operator"})
    assert (charge.grants, charge.unknown) == ((), ("gpu",))


VISIBLE = f"main{names.VISIBLE_SUFFIX}"


@pytest.mark.parametrize(
    ("requests", "fields", "unknown"),
    [
        pytest.param({GPU: "50"}, {}, (), id="a share"),
        pytest.param({MEMORY: "8Gi"}, {"schedulerName": "default-scheduler"}, (), id="another scheduler"),
        pytest.param({GPU: "50"}, {"claims": {"gpu": [HALF]}}, (), id="with an allocation of its author"),
        pytest.param({GPU: "50"}, {"claims": "{"}, (), id="with one that cannot be read"),
        pytest.param({GPU: "50", RDMA: "50"}, {}, ("rdma",), id="NICs are not seen by a variable"),
        pytest.param({GPU: "50"}, {"bare": True}, ("gpu",), id="its image decides"),
        pytest.param({GPU: "50"}, {"annotations": {VISIBLE: "GPU-0"}}, ("gpu",), id="a card is named"),
        pytest.param({NVIDIA: "1"}, {}, ("gpu",), id="kubelet's"),
        pytest.param({"amd.com/gpu": "1"}, {}, ("gpu",), id="of another vendor"),
    ],
)
def test_a_pod_without_an_allocation_that_sees_no_card_blocks_none(
    requests: Raw, fields: Raw, unknown: tuple[str, ...]
) -> None:
    assert pods.charge(pod("a", requests, on="node", **fields)).unknown == unknown


BY_CLAIM = {"extendedResourceClaimStatus": {"resourceClaimName": "a", "requestMappings": []}}


@pytest.mark.parametrize(
    ("requests", "fields", "lacks"),
    [
        pytest.param({GPU: "50"}, {}, True, id="a share"),
        pytest.param({GPU: "50"}, {"annotations": {names.EPOCH: "7"}}, False, id="Berth bound it"),
        pytest.param({GPU: "50"}, {"annotations": {"kubernetes.io/config.mirror": "0f"}}, False, id="a static pod"),
        pytest.param({GPU: "50"}, {"status": BY_CLAIM}, False, id="a claim has its devices"),
        pytest.param({GPU: "50"}, {"bare": True}, False, id="its image decides"),
        pytest.param({NVIDIA: "1"}, {}, False, id="kubelet's"),
        pytest.param({"cpu": "1"}, {}, False, id="no GPU"),
    ],
)
def test_a_pod_that_another_program_bound_lacks_its_cards(requests: Raw, fields: Raw, *, lacks: bool) -> None:
    status = fields.get("status", {})
    raw = pod("a", requests, on="node", **{name: value for name, value in fields.items() if name != "status"})
    assert pods.charge({**raw, "status": {**raw.get("status", {}), **status}}).lacks_cards == lacks


# --- which types, and how many ----------------------------------------------------------------------------------

BOTH = {"gpu": [CARD, claim(1, core=100)], "rdma": [claim(0, "rdma-0", rdma=1)], "fpga": [claim(0, "f", fpga=9)]}


@pytest.mark.parametrize(
    ("requests", "types"),
    [
        pytest.param({RDMA: "1"}, {"rdma"}, id="a NIC and no GPU"),
        pytest.param({FPGA: "9"}, {"fpga"}, id="an FPGA and no GPU"),
        pytest.param({GPU: "100"}, {"gpu"}, id="a GPU and no NIC"),
        pytest.param({GPU: "100", RDMA: "1"}, {"gpu", "rdma"}, id="both"),
        pytest.param({"cpu": "1"}, set(), id="nothing"),
    ],
)
@pytest.mark.parametrize("trusted", [(), (KOORDINATOR,)], ids=["ours", "trusted"])
def test_types_that_are_not_requested_do_not_count(requests: Raw, types: set[str], trusted: tuple[str, ...]) -> None:
    ours = not trusted and "cpu" not in requests  # Berth's Binding writes no allocation on a pod that requests nothing
    charge = charged(requests, BOTH, ours=ours, trusted=trusted, schedulerName=KOORDINATOR)
    assert ({grant.type for grant in charge.grants}, charge.unknown) == (types, ())


REPLICA = subdevice(0, "GPU-0::3", SLICES)
INSTANCE = subdevice(1, "MIG-1-0", MIG)


@pytest.mark.parametrize(
    ("requests", "claims", "kept", "unknown"),
    [
        pytest.param({NVIDIA: "1"}, [CARD], ["GPU-0"], (), id="a card"),
        pytest.param({NVIDIA: "1"}, [CARD, claim(1, core=100)], ["GPU-0"], (), id="one more than requested"),
        pytest.param({NVIDIA: "2"}, [CARD], ["GPU-0"], ("gpu",), id="one less"),
        pytest.param({NVIDIA: "1"}, [REPLICA], ["GPU-0::3"], (), id="a slice as a card"),
        pytest.param({NVIDIA: "1"}, [INSTANCE], ["MIG-1-0"], (), id="an instance as a card"),
        pytest.param({NVIDIA: "1"}, [subdevice(0, "GPU-0", SLICES)], [], ("gpu",), id="a card that poses as a slice"),
        pytest.param({NVIDIA: "1"}, [subdevice(0, "GPU-0", MIG)], [], ("gpu",), id="a card that poses as an instance"),
        pytest.param({SLICES: "1"}, [REPLICA], ["GPU-0::3"], (), id="a slice"),
        pytest.param({SLICES: "1"}, [CARD], [], ("gpu",), id="a card for a slice"),
        pytest.param({MIG: "1"}, [INSTANCE], ["MIG-1-0"], (), id="an instance"),
        pytest.param({MIG: "1"}, [subdevice(1, "MIG-1-0", OTHER_MIG)], [], ("gpu",), id="of another profile"),
        pytest.param(
            {MIG: "1", OTHER_MIG: "1"},
            [subdevice(1, "MIG-1-1", OTHER_MIG), INSTANCE],
            ["MIG-1-0", "MIG-1-1"],
            (),
            id="two profiles",
        ),
        pytest.param(
            {MIG: "1", OTHER_MIG: "1"}, [INSTANCE, CARD], ["MIG-1-0"], ("gpu",), id="one of two profiles, and a card"
        ),
        pytest.param({GPU: "50"}, [REPLICA], [], ("gpu",), id="a slice for a share"),
        pytest.param({"kubernetes.io/gpu-core": "150"}, [CARD], [], ("gpu",), id="a request that means nothing"),
    ],
)
def test_as_many_devices_count_as_are_requested(
    requests: Raw, claims: list[Raw], kept: list[str], unknown: tuple[str, ...]
) -> None:
    charge = charged(requests, {"gpu": claims})
    assert ([grant.id for grant in charge.grants], charge.unknown) == (kept, unknown)


# --- how much of each -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "entry", "amounts"),
    [
        pytest.param({NVIDIA: "1"}, claim(0, core=1), {"gpu-core": 100, "gpu-memory-ratio": 100}, id="too little core"),
        pytest.param({GPU: "50"}, claim(0, core=1, ratio=1), {"gpu-core": 50, "gpu-memory-ratio": 50}, id="too little"),
        pytest.param({GPU: "50"}, CARD, {"gpu-core": 50, "gpu-memory-ratio": 50}, id="too much"),
        pytest.param({GPU: "50"}, HALF, {"gpu-core": 50, "gpu-memory-ratio": 50}, id="as much"),
        pytest.param({MEMORY: "8Gi"}, claim(0, memory=1, ratio=99), {"gpu-memory": 8 << 30}, id="bytes"),
    ],
)
def test_of_a_card_the_request_is_charged_whatever_is_claimed(
    requests: Raw, entry: Raw, amounts: dict[str, int]
) -> None:
    charge = charged(requests, {"gpu": [entry]})
    assert (held(charge), charge.unknown) == ([("GPU-0", amounts)], ())


@pytest.mark.parametrize(
    ("requests", "amounts", "unknown"),
    [
        pytest.param({RDMA: "50"}, [50], (), id="a part of one"),
        pytest.param({RDMA: "200"}, [100, 100], (), id="two"),
        pytest.param({RDMA: "4"}, [1, 1, 1, 1], (), id="a hundredth of each"),
        pytest.param({RDMA: "4"}, [100, 100, 100, 100], (), id="all of each"),
        pytest.param({RDMA: "50"}, [50, 50, 50], (), id="of every one"),
        pytest.param({RDMA: "200"}, [100], ("rdma",), id="one of two"),
        pytest.param({RDMA: "50"}, [1], ("rdma",), id="too little"),
        pytest.param({RDMA: "50"}, [], ("rdma",), id="none"),
    ],
)
def test_nics_may_be_more_than_requested_and_not_less(requests: Raw, amounts: list[int], unknown: Any) -> None:
    entries = [claim(minor, f"rdma-{minor}", rdma=amount) for minor, amount in enumerate(amounts)]
    charge = charged(requests, {"rdma": entries})
    assert ([dict(grant.amounts)["rdma"] for grant in charge.grants], charge.unknown) == (amounts, unknown)


def test_nics_of_another_plugin_are_charged_by_our_allocation_alone() -> None:
    kinds, requests = Kinds(nics={"rdma/hca": 100}), {"rdma/hca": "2"}
    for claims, ours, expected in (
        ([claim(0, rdma=100), claim(1, rdma=100)], True, ["GPU-0", "GPU-1"]),
        ([claim(0, rdma=100), claim(1, rdma=100)], False, []),
        (None, True, []),
    ):
        how = {"allocated" if ours else "claims": claims and {"rdma": claims}, "bare": True}
        charge = pods.charge(pod("a", requests, on="node", **how), kinds)
        # Which NICs such a pod has is unknown, so Berth keeps no pod off them.
        assert ([grant.id for grant in charge.grants], charge.unknown) == (expected, ())


def test_an_amount_of_something_else_is_no_amount_of_a_nic() -> None:
    charge = charged({RDMA: "1"}, {"rdma": [claim(0, "rdma-0", core=100)]})
    assert charge.unknown == ("rdma",)


def test_how_much_a_plug_ins_request_means_only_the_plug_in_knows() -> None:
    kinds = Kinds((Kind(name="npu", resources={"example.com/npu": 1}),))
    raw = pod("a", {"example.com/npu": "2"}, on="node", allocated={"npu": [claim(0, "npu-0", npu=1)], "gpu": [CARD]})
    charge = pods.charge(raw, kinds)
    assert ([grant.type for grant in charge.grants], charge.unknown) == (["npu"], ())


def test_what_was_given_by_label_stays_whatever_the_labels_say_now() -> None:
    charge = charged({}, {"gpu": [HALF]}, labels={names.GENIUS_NUMBER: "8"})
    assert (len(charge.grants), dict(charge.grants[0].amounts)["gpu-core"], charge.unknown) == (1, 50, ())
