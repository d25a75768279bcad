"""The annotations that control the choice of devices: how they are parsed, and what is refused."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from berth_api import names
from berth_api.names import ALLOCATE_HINT, JOINT_ALLOCATE, PARTITION_SPEC
from berth_api.request import DeviceRequest, Joint, Part, PartitionSpec, RequestError, of_pod
from berth_api.values.selectors import EVERYTHING, LabelSelector
from tests.objects.builders import FPGA, GI, GPU, MEMORY, NVIDIA, RDMA, SHARED, label

ALL_TYPES = {NVIDIA: 2, RDMA: 100, FPGA: 100}


def asked(resources: Mapping[str, int], **annotations: object) -> DeviceRequest:
    """Return the request of a pod with these resources and annotations (`hint`, `joint`, `partition`), as JSON."""
    keys = {"hint": ALLOCATE_HINT, "joint": JOINT_ALLOCATE, "partition": PARTITION_SPEC}
    texts = {
        keys[name]: body if isinstance(body, str) else orjson.dumps(body).decode() for name, body in annotations.items()
    }
    return of_pod(resources, texts, {})


def part(device_request: DeviceRequest, kind: str) -> Part:
    return next(each for each in device_request.parts if each.type == kind)


A_IS_B = LabelSelector(requirements=(label("a", "In", "b"),))


@pytest.mark.parametrize(
    ("raw", "selector"),
    [
        pytest.param({}, EVERYTHING, id="empty"),
        pytest.param({"matchLabels": {"a": "b"}}, A_IS_B, id="labels"),
    ],
)
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind) for kind in ("gpu", "rdma", "fpga")])
def test_a_selector_is_read_for_each_type(kind: str, raw: Any, selector: LabelSelector) -> None:
    device_request = asked(ALL_TYPES, hint={kind: {"selector": raw}})
    assert {each.type: each.selector for each in device_request.parts} == {
        each.type: selector if each.type == kind else EVERYTHING for each in device_request.parts
    }


@pytest.mark.parametrize(
    ("hint", "functions"),
    [
        pytest.param({}, None, id="left out, none is wanted"),
        pytest.param({"vfSelector": None}, None, id="null, none is wanted"),
        pytest.param({"vfSelector": {}}, EVERYTHING, id="empty, any will do"),
        pytest.param({"vfSelector": {"matchLabels": {"a": "b"}}}, A_IS_B, id="by labels"),
    ],
)
def test_whether_a_virtual_function_is_wanted(hint: Any, functions: LabelSelector | None) -> None:
    assert part(asked({RDMA: 1}, hint={"rdma": hint}), "rdma").functions == functions


def test_gpus_have_no_virtual_functions_to_give() -> None:
    assert part(asked({NVIDIA: 1}, hint={"gpu": {"vfSelector": {}}}), "gpu").functions is None


@pytest.mark.parametrize("scope", [pytest.param(scope, id=scope) for scope in ("Device", "PCIe", "NUMANode", "Node")])
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind) for kind in ("gpu", "rdma", "fpga")])
def test_a_scope_is_read(kind: str, scope: str) -> None:
    assert part(asked(ALL_TYPES, hint={kind: {"requiredTopologyScope": scope}}), kind).scope == scope


@pytest.mark.parametrize("policy", [pytest.param(policy, id=policy) for policy in ("DeviceLevel", "PCIeLevel")])
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind) for kind in ("gpu", "rdma", "fpga")])
def test_an_exclusive_policy_is_read(kind: str, policy: str) -> None:
    assert part(asked(ALL_TYPES, hint={kind: {"exclusivePolicy": policy}}), kind).exclusive == policy


@pytest.mark.parametrize(
    "hint",
    [
        pytest.param({}, id="no type"),
        pytest.param({"gpu": {}}, id="an empty hint"),
        pytest.param({"gpu": None}, id="null for a hint"),
        pytest.param({"gpu": {"selector": None, "allocateStrategy": "", "exclusivePolicy": ""}}, id="empty fields"),
        pytest.param({"rdma": {"selector": {"matchLabels": {"a": "b"}}}}, id="a type that is not asked for"),
        pytest.param({"fpga": {"allocateStrategy": "ApplyForAll"}, "rdma": {"vfSelector": {}}}, id="two such types"),
        pytest.param({"gpu": {"allocateStrategy": "RequestsAsCount"}}, id="a strategy for GPUs"),
    ],
)
def test_what_a_hint_leaves_as_it_is(hint: Any) -> None:
    assert asked({NVIDIA: 2}, hint=hint) == of_pod({NVIDIA: 2}, {}, {})


# --- joint allocation -------------------------------------------------------------------------------------------

APPLY = {"allocateStrategy": "ApplyForAll"}


WHICH_TYPES_LIE_TOGETHER = {
    "two": (["gpu", "rdma"], {}, ("gpu", "rdma")),
    "the first comes first": (["rdma", "gpu"], {}, ("rdma", "gpu")),
    "three": (["fpga", "gpu", "rdma"], {}, ("fpga", "gpu", "rdma")),
    "one twice": (["gpu", "gpu", "rdma"], {}, ("gpu", "rdma")),
    "none": ([], {}, None),
    "a single type has no other to be near": (["gpu"], {}, None),
    "all of one are taken anyway": (["gpu", "rdma"], {"rdma": APPLY}, None),
    "the next becomes the first": (["gpu", "rdma", "fpga"], {"gpu": APPLY}, ("rdma", "fpga")),
    "a count stays": (["gpu", "rdma"], {"rdma": {"allocateStrategy": "RequestsAsCount"}}, ("gpu", "rdma")),
    "another type's strategy": (["gpu", "rdma"], {"fpga": APPLY}, ("gpu", "rdma")),
}


@pytest.mark.parametrize(("joint", "hint", "types"), WHICH_TYPES_LIE_TOGETHER.values(), ids=WHICH_TYPES_LIE_TOGETHER)
def test_which_types_lie_together(joint: list[str], hint: Any, types: tuple[str, ...] | None) -> None:
    joint_ = asked(ALL_TYPES, joint={"deviceTypes": joint}, hint=hint).joint
    assert joint_ == (None if types is None else Joint(types=types))


@pytest.mark.parametrize(
    ("resources", "types"),
    [
        pytest.param({NVIDIA: 1, RDMA: 1}, ("gpu", "rdma"), id="both asked for"),
        pytest.param({NVIDIA: 1, FPGA: 1}, ("gpu", "fpga"), id="one is passed over"),
        pytest.param({NVIDIA: 1}, None, id="one left"),
        pytest.param({"cpu": 1}, None, id="none left"),
    ],
)
def test_types_without_a_request_are_passed_over(resources: dict[str, int], types: tuple[str, ...] | None) -> None:
    joint_ = asked(resources, joint={"deviceTypes": ["gpu", "rdma", "fpga"]}).joint
    assert joint_ == (None if types is None else Joint(types=types))


@pytest.mark.parametrize(
    ("more", "same"),
    [
        pytest.param({}, False, id="left out"),
        pytest.param({"requiredScope": ""}, False, id="empty"),
        pytest.param({"requiredScope": "SamePCIe"}, True, id="SamePCIe"),
    ],
)
def test_whether_they_must_share_their_switches(more: Any, *, same: bool) -> None:
    joint_ = asked(ALL_TYPES, joint={"deviceTypes": ["gpu", "rdma"], **more}).joint
    assert joint_ is not None
    assert joint_.same_pcie is same


# --- partitions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "partition_spec"),
    [
        pytest.param({}, PartitionSpec(), id="to be there is enough"),
        pytest.param({"allocatePolicy": "BestEffort"}, PartitionSpec(), id="BestEffort"),
        pytest.param({"allocatePolicy": "Restricted"}, PartitionSpec(restricted=True), id="Restricted"),
        pytest.param({"ringBusBandwidth": "200Gi"}, PartitionSpec(bandwidth=200 * GI), id="bandwidth"),
        pytest.param({"ringBusBandwidth": 5}, PartitionSpec(bandwidth=5), id="bandwidth as a number"),
        pytest.param({"ringBusBandwidth": "0"}, PartitionSpec(bandwidth=0), id="bandwidth of nothing"),
        pytest.param({"ringBusBandwidth": None}, PartitionSpec(), id="null bandwidth"),
    ],
)
def test_what_a_pod_wants_of_its_partition(spec: Any, partition_spec: PartitionSpec) -> None:
    assert asked({NVIDIA: 2}, partition=spec).partition == partition_spec


@pytest.mark.parametrize(
    ("resources", "kept"),
    [
        pytest.param({NVIDIA: 1}, True, id="a card"),
        pytest.param({GPU: 400}, True, id="four cards"),
        pytest.param({GPU: 50}, False, id="half a card"),
        pytest.param({SHARED: 2, MEMORY: 2 * GI}, False, id="shares of two"),
        pytest.param({RDMA: 100}, False, id="a NIC"),
        pytest.param({}, False, id="nothing"),
        pytest.param({"nvidia.com/gpu.shared": 2}, False, id="slices"),
    ],
)
def test_partitions_are_of_whole_cards(resources: dict[str, int], *, kept: bool) -> None:
    assert (asked(resources, partition={}).partition is not None) is kept


def test_without_the_annotation_the_pod_does_not_mind() -> None:
    assert asked({NVIDIA: 2}).partition is None


# --- what is refused --------------------------------------------------------------------------------------------


WHAT_MEANS_NOTHING_IS_REFUSED_BY_ITS_PLACE = {
    "hint, cut off": ("hint", "{", "not JSON"),
    "hint, a list": ("hint", [], "not a JSON object"),
    "hint, another type": ("hint", {"tpu": {}}, '"tpu"; allowed are gpu, rdma, fpga'),
    "hint, a list for a type": ("hint", {"gpu": []}, "gpu: not an object"),
    "hint, a typo": ("hint", {"gpu": {"select": {}}}, 'gpu: "select"; allowed are selector, vfSelector'),
    "selector, a number": ("hint", {"gpu": {"selector": 1}}, "gpu.selector: labelSelector: not an object"),
    "selector, bare labels": ("hint", {"gpu": {"selector": {"a": "b"}}}, '"a"; allowed are matchLabels'),
    "label, a number": ("hint", {"gpu": {"selector": {"matchLabels": {"a": 1}}}}, "matchLabels.a: 1 is not a string"),
    "labels, a list": ("hint", {"gpu": {"selector": {"matchLabels": ["a"]}}}, "matchLabels: not an object"),
    "no list": ("hint", {"gpu": {"selector": {"matchExpressions": {"a": 1}}}}, "matchExpressions: not a list"),
    "operator of nodes": (
        "hint",
        {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}},
        'operator "Gt"; allowed are In, NotIn, Exists, DoesNotExist',
    ),
    "In nothing": (
        "hint",
        {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
        "In and NotIn need values",
    ),
    "Exists with a value": (
        "hint",
        {"gpu": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}},
        "others none",
    ),
    "no key": (
        "hint",
        {"rdma": {"vfSelector": {"matchExpressions": [{"operator": "Exists"}]}}},
        "key must be a string",
    ),
    "strategy": (
        "hint",
        {"rdma": {"allocateStrategy": "All"}},
        'rdma: allocateStrategy "All"; allowed are ApplyForAll, RequestsAsCount',
    ),
    "scope": (
        "hint",
        {"gpu": {"requiredTopologyScope": "Socket"}},
        'gpu: requiredTopologyScope "Socket"; allowed are Device, PCIe, NUMANode, Node',
    ),
    "exclusive policy, in small letters": (
        "hint",
        {"gpu": {"exclusivePolicy": "pcielevel"}},
        'gpu: exclusivePolicy "pcielevel"; allowed are DeviceLevel, PCIeLevel',
    ),
    "joint, a number": ("joint", "1", "not a JSON object"),
    "joint, a word": ("joint", {"deviceTypes": "gpu"}, "deviceTypes is not a list"),
    "joint, a type": ("joint", {"deviceTypes": ["gpu", "npu"]}, 'deviceTypes "npu"; allowed are gpu'),
    "joint, a number for a type": ("joint", {"deviceTypes": [1]}, 'deviceTypes "1"; allowed are gpu'),
    "joint, scope": ("joint", {"requiredScope": "SameNUMA"}, 'requiredScope "SameNUMA"; allowed are SamePCIe'),
    "joint, a typo": ("joint", {"types": []}, '"types"; allowed are deviceTypes, requiredScope'),
    "partition, policy": ("partition", {"allocatePolicy": "Strict"}, 'allocatePolicy "Strict"; allowed are Restricted'),
    "partition, a word": ("partition", {"ringBusBandwidth": "fast"}, '"fast" is not a quantity'),
    "partition, less": ("partition", {"ringBusBandwidth": "-1"}, "allowed are quantities such as 200Gi"),
    "partition, a fraction": ("partition", {"ringBusBandwidth": 1.5}, "allowed are quantities"),
    "partition, a truth": ("partition", {"ringBusBandwidth": True}, "allowed are quantities"),
    "partition, a typo": ("partition", {"bandwidth": "1"}, '"bandwidth"; allowed are allocatePolicy'),
}


@pytest.mark.parametrize(
    ("annotation", "body", "words"),
    WHAT_MEANS_NOTHING_IS_REFUSED_BY_ITS_PLACE.values(),
    ids=WHAT_MEANS_NOTHING_IS_REFUSED_BY_ITS_PLACE,
)
@pytest.mark.parametrize(
    "resources", [pytest.param(ALL_TYPES, id="devices"), pytest.param({"cpu": 1}, id="no devices")]
)
def test_what_means_nothing_is_refused_by_its_place(
    resources: Mapping[str, int], annotation: str, body: object, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        asked(resources, **{annotation: body})
    key = {"hint": names.ALLOCATE_HINT, "joint": names.JOINT_ALLOCATE, "partition": names.PARTITION_SPEC}[annotation]
    assert str(caught.value).startswith(f"annotation {key}: ")
    assert words in str(caught.value)
