"""The allocation annotation: Berth reads Koordinator's JSON, Koordinator can read Berth's, and nothing is lost."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from berth_api.allocation import AllocationError, Function, Grant, parse, render
from tests.objects.builders import A100_BYTES, CORE, GI, MEMORY, RATIO, grant, instance, replica

MIG_1G, MIG_2G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
SLICES = "nvidia.com/gpu.shared"


def nic(minor: int, *functions: Function) -> Grant:
    return Grant(type="rdma", minor=minor, amounts=(("rdma", 1),), id=f"0000:{minor}f:00.0", functions=functions)


QUARTER = {CORE: "25", MEMORY: "20Gi", RATIO: "25", SLICES: "1"}

BOTH_WAYS = [
    pytest.param(
        [grant(0, core=100, memory=16 * GI, ratio=100)],
        {"gpu": [{"minor": 0, "resources": {CORE: "100", MEMORY: "16Gi", RATIO: "100"}, "id": "GPU-0"}]},
        id="a card",
    ),
    pytest.param(
        [grant(3, core=50, memory=A100_BYTES // 2, ratio=50)],
        {"gpu": [{"minor": 3, "resources": {CORE: "50", MEMORY: "41600608Ki", RATIO: "50"}, "id": "GPU-3"}]},
        id="memory in the largest unit that is exact",
    ),
    pytest.param(
        [grant(0, memory=3)],
        {"gpu": [{"minor": 0, "resources": {MEMORY: "3"}, "id": "GPU-0"}]},
        id="a few bytes",
    ),
    pytest.param(
        [Grant(type="gpu", minor=1, amounts=(("gpu-core", 5),))],
        {"gpu": [{"minor": 1, "resources": {CORE: "5"}}]},
        id="no id",
    ),
    pytest.param(
        [replace(grant(1, core=5), exclusive="PCIeLevel")],
        {"gpu": [{"minor": 1, "resources": {CORE: "5"}, "id": "GPU-1", "extension": {"exclusivePolicy": "PCIeLevel"}}]},
        id="a pod that keeps others away",
    ),
    pytest.param(
        [replace(nic(1, Function(minor=3, bus_id="0000:1f:00.2")), exclusive="DeviceLevel")],
        {
            "rdma": [
                {
                    "minor": 1,
                    "resources": {"kubernetes.io/rdma": "1"},
                    "id": "0000:1f:00.0",
                    "extension": {"vfs": [{"minor": 3, "busID": "0000:1f:00.2"}], "exclusivePolicy": "DeviceLevel"},
                }
            ]
        },
        id="a virtual function of a NIC from which others are kept away",
    ),
    pytest.param(
        [Grant(type="gpu", minor=1, amounts=(("huawei.com/npu-core", 5),))],
        {"gpu": [{"minor": 1, "resources": {"huawei.com/npu-core": "5"}}]},
        id="a vendor's own resource",
    ),
    pytest.param(
        [grant(0, core=1), grant(7, core=1), nic(1)],
        {
            "gpu": [
                {"minor": 0, "resources": {CORE: "1"}, "id": "GPU-0"},
                {"minor": 7, "resources": {CORE: "1"}, "id": "GPU-7"},
            ],
            "rdma": [{"minor": 1, "resources": {"kubernetes.io/rdma": "1"}, "id": "0000:1f:00.0"}],
        },
        id="several cards of several types",
    ),
    pytest.param(
        [nic(1, Function(minor=3, bus_id="0000:1f:00.2"))],
        {
            "rdma": [
                {
                    "minor": 1,
                    "resources": {"kubernetes.io/rdma": "1"},
                    "id": "0000:1f:00.0",
                    "extension": {"vfs": [{"minor": 3, "busID": "0000:1f:00.2"}]},
                }
            ]
        },
        id="a virtual function",
    ),
    pytest.param(
        [nic(0, Function(minor=0, bus_id="a"), Function(minor=-1, bus_id="b"), Function(minor=2))],
        {
            "rdma": [
                {
                    "minor": 0,
                    "resources": {"kubernetes.io/rdma": "1"},
                    "id": "0000:0f:00.0",
                    "extension": {"vfs": [{"minor": 0, "busID": "a"}, {"minor": -1, "busID": "b"}, {"minor": 2}]},
                }
            ]
        },
        id="virtual functions, and the first keeps its minor 0",
    ),
    pytest.param(
        [instance(0, 0), instance(0, 1), instance(0, 2, "2g.20gb"), instance(1, 0)],
        {
            "gpu": [
                {"minor": 0, "resources": {MIG_1G: "1"}, "id": "MIG-0-0", "extension": {"parent": "GPU-0"}},
                {"minor": 0, "resources": {MIG_1G: "1"}, "id": "MIG-0-1", "extension": {"parent": "GPU-0"}},
                {"minor": 0, "resources": {MIG_2G: "1"}, "id": "MIG-0-2", "extension": {"parent": "GPU-0"}},
                {"minor": 1, "resources": {MIG_1G: "1"}, "id": "MIG-1-0", "extension": {"parent": "GPU-1"}},
            ]
        },
        id="instances, several of one card",
    ),
    pytest.param(
        [replica(2, 0), replica(2, 3)],
        {
            "gpu": [
                {"minor": 2, "resources": QUARTER, "id": "GPU-2::0", "extension": {"parent": "GPU-2"}},
                {"minor": 2, "resources": QUARTER, "id": "GPU-2::3", "extension": {"parent": "GPU-2"}},
            ]
        },
        id="replicas, two of one card",
    ),
]


@pytest.mark.parametrize(("grants", "body"), BOTH_WAYS)
def test_what_is_written_and_read_back(grants: list[Grant], body: Any) -> None:
    text = render(grants)
    assert orjson.loads(text) == body
    assert parse(text) == tuple(grants)


def test_types_stand_in_the_order_of_their_names() -> None:
    text = render([nic(0), grant(0, core=1)])
    assert list(orjson.loads(text)) == ["gpu", "rdma"]


@pytest.mark.parametrize("grants", [pytest.param(case.values[0], id=case.id) for case in BOTH_WAYS])
def test_the_other_prefix_means_the_same(grants: list[Grant]) -> None:
    text = render(grants, "koordinator.sh/")
    assert "kubernetes.io/" not in text
    assert parse(text) == tuple(grants)


ONE: Any = {"resources": {"koordinator.sh/rdma": "1"}}


@pytest.mark.parametrize(
    ("entry", "functions_"),
    [
        pytest.param(ONE, (), id="no extension"),
        pytest.param({**ONE, "extension": None}, (), id="null"),
        pytest.param({**ONE, "extension": {}}, (), id="empty"),
        pytest.param({**ONE, "extension": {"gpuSharedResourceTemplate": "vir04"}}, (), id="a template"),
        pytest.param({**ONE, "extension": {"later": [1, {"a": "b"}]}}, (), id="something of a later version"),
        pytest.param({**ONE, "extension": {"vfs": None}}, (), id="null for functions"),
        pytest.param({**ONE, "extension": {"vfs": []}}, (), id="no function"),
        pytest.param({**ONE, "extension": {"vfs": [{}]}}, (Function(minor=0),), id="the first, all left out"),
        pytest.param(
            {**ONE, "extension": {"vfs": [{"busID": "a"}]}}, (Function(minor=0, bus_id="a"),), id="a 0 left out"
        ),
        pytest.param(
            {**ONE, "extension": {"vfs": [{"minor": 1, "busID": "a", "x": 1}], "y": 2}},
            (Function(minor=1, bus_id="a"),),
            id="fields of a later version",
        ),
    ],
)
def test_an_extension_is_read_as_far_as_it_is_known(entry: Any, functions_: tuple[Function, ...]) -> None:
    (read,) = parse(orjson.dumps({"rdma": [entry]}).decode())
    assert (read.minor, read.amounts, read.functions) == (0, (("rdma", 1),), functions_)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        pytest.param([{**ONE, "extension": {"vfs": {}}}], "rdma[0].extension.vfs: not a list", id="no list"),
        pytest.param([{**ONE, "extension": {"vfs": [1]}}], "rdma[0].extension.vfs[0]: not an object", id="a number"),
        pytest.param([{**ONE, "extension": {"vfs": [{"minor": -2}]}}], "minor must be", id="a minor below none"),
        pytest.param([{**ONE, "extension": {"vfs": [{"minor": "1"}]}}], "minor must be", id="a minor as text"),
        pytest.param([{**ONE, "extension": {"vfs": [{"minor": True}]}}], "minor must be", id="a minor as truth"),
        pytest.param([{**ONE, "extension": {"vfs": [{"busID": 1}]}}], "busID text", id="a bus id as number"),
        pytest.param([{**ONE, "extension": {"vfs": [{}] * 257}}], "not a list of up to 256", id="too many"),
        pytest.param([ONE, ONE], "rdma: minor 0 has more than one entry", id="one card twice"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(entries: Any, words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse(orjson.dumps({"rdma": entries}).decode())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        pytest.param([instance(), instance()], "needs an id of its own", id="an instance twice"),
        pytest.param([instance(), replace(instance(), id="")], "needs an id of its own", id="an instance without id"),
        pytest.param([replica(0, 1), replica(0, 1)], "needs an id of its own", id="a replica twice"),
        pytest.param([instance(), grant(0, core=50)], "has more than one entry", id="instance and share"),
        pytest.param([replica(0, 1), grant(0, core=50)], "has more than one entry", id="replica and share"),
        pytest.param(
            [replace(instance(), amounts=((MIG_1G, 2),))], "gpu[0].resources: an entry", id="two in one entry"
        ),
        pytest.param([replace(instance(), amounts=((MIG_1G, 0), ("gpu-core", 1)))], "must name exactly one", id="none"),
        pytest.param(
            [replace(instance(), amounts=((MIG_1G, 1), ("nvidia.com/gpu.shared", 1)))],
            "must name exactly one",
            id="instance and replica in one entry",
        ),
    ],
)
def test_parts_of_one_card_that_cannot_be(grants: list[Grant], words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse(render(grants))
    assert words in str(caught.value)
