"""A pod's request for devices. tests/unit/koordinator has Koordinator's protocol."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import links, names, request
from berth_api.request import DeviceRequest, GpuTopology, RequestError, of_pod, of_resources
from berth_api.resources import quantity
from tests.objects.builders import CORE, FPGA, GI, GPU, MEMORY, MI, NVIDIA, RATIO, RDMA, SHARED, gpus

AMD, DCU = "amd.com/gpu", "dcu.com/gpu"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
GPU_NAMES = (NVIDIA, AMD, DCU, GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP)
SLICES = "nvidia.com/gpu.shared"


def test_all_types_of_a_request_stand_side_by_side() -> None:
    devices = of_resources({NVIDIA: 1, RDMA: 100, FPGA: 50, "cpu": 4000})
    assert [part.type for part in devices.parts] == ["gpu", "rdma", "fpga"]


@pytest.mark.parametrize(
    ("asked", "prefix"),
    [
        pytest.param({GPU: 50}, "kubernetes.io/", id="kubernetes"),
        pytest.param({"koordinator.sh/gpu": 50}, "koordinator.sh/", id="koordinator"),
        pytest.param({CORE: 50, "koordinator.sh/gpu-memory-ratio": 50}, "koordinator.sh/", id="mixed"),
        pytest.param({NVIDIA: 1}, "kubernetes.io/", id="none"),
    ],
)
def test_the_prefix_of_the_pod_is_remembered(asked: dict[str, int], prefix: str) -> None:
    assert of_resources(asked).prefix == prefix


@pytest.mark.parametrize(
    ("count", "hint"),
    [
        pytest.param(99, "", id="not yet suspicious"),
        pytest.param(100, "did you mean kubernetes.io/gpu: 100?", id="a hundred cards"),
        pytest.param(200, "did you mean kubernetes.io/gpu: 200?", id="two hundred"),
    ],
)
def test_cards_by_the_hundred_are_taken_for_a_mistake(count: int, hint: str) -> None:
    devices = of_resources({NVIDIA: count})
    assert (devices.parts[0].count, devices.hint) == (count, hint)


@pytest.mark.parametrize(
    ("requested", "hint"),
    [
        pytest.param({GPU: 2}, "did you mean kubernetes.io/gpu: 200?", id="two"),
        pytest.param({"koordinator.sh/gpu": 8}, "did you mean koordinator.sh/gpu: 800?", id="as many as a node has"),
        pytest.param({GPU: 9}, "", id="more"),
        pytest.param({GPU: 200}, "", id="two cards"),
        pytest.param({RATIO: 2}, "", id="memory"),
    ],
)
def test_few_hundredths_may_be_meant_as_cards(requested: dict[str, int], hint: str) -> None:
    assert of_resources(requested).hint == hint


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        *[pytest.param(name, True, id=name) for name in (*GPU_NAMES, RDMA, FPGA)],
        pytest.param("koordinator.sh/gpu-core", True, id="koordinator"),
        pytest.param("nvidia.com/mig-1g.10gb", True, id="MIG"),
        pytest.param("nvidia.com/gpu.shared", True, id="time slices"),
        pytest.param("cpu", False, id="cpu"),
        pytest.param("nvidia.com/gpumem", False, id="another name of the vendor"),
        pytest.param("example.com/fpga", False, id="another vendor"),
        pytest.param("kubernetes.io/batch-cpu", False, id="another name with our prefix"),
    ],
)
def test_devices_are_known_by_name(name: str, *, counted: bool) -> None:
    assert request.is_device(name) is counted


AMOUNTS = st.dictionaries(
    st.sampled_from([*GPU_NAMES, SLICES, RDMA, FPGA, "koordinator.sh/gpu-core", "cpu", "nvidia.com/mig-1g.10gb"]),
    st.one_of(st.integers(1, 500), st.sampled_from([100, 200, 300]), st.integers(1, quantity.MAX)),
    max_size=4,
)


@given(AMOUNTS)
def test_any_request_is_normalised_or_refused_and_never_asks_more_than_a_card(asked: dict[str, int]) -> None:
    try:
        devices: DeviceRequest = of_resources(asked)
    except RequestError:
        return
    for part in devices.parts:
        amounts = dict(part.amounts)
        assert part.count >= 1
        assert all(0 <= amounts.get(name, 0) <= 100 for name in ("gpu-core", "gpu-memory-ratio", "rdma", "fpga"))
        assert "gpu.shared" not in amounts


# --- MIG and slices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        pytest.param(
            {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2},
            {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb": 1},
            id="two profiles, by name",
        ),
        pytest.param({"nvidia.com/mig-1g.24gb-me": 1}, {"nvidia.com/mig-1g.24gb-me": 1}, id="without media engines"),
        pytest.param({"nvidia.com/mig-1c.2g.20gb": 1}, {"nvidia.com/mig-1c.2g.20gb": 1}, id="part of the compute"),
    ],
)
def test_instances_are_parts_by_profile(asked: dict[str, int], parts: dict[str, int]) -> None:
    devices = of_resources(asked)
    assert {name: part.count for part in devices.parts for name, _ in part.amounts} == parts
    assert {part.unit for part in devices.parts} == {"instance"}
    assert devices.vendor == "nvidia"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param({"nvidia.com/mig-": 1}, "nvidia.com/mig-: 1 names no MIG profile", id="no profile"),
        pytest.param({"nvidia.com/mig-small": 2}, "nvidia.com/mig-small: 2 names no MIG", id="a word"),
        pytest.param({"nvidia.com/mig-1g": 1}, "allowed are names such as nvidia.com/mig-1g.10gb", id="no memory"),
        pytest.param({"nvidia.com/mig-0g.10gb": 1}, "names no MIG profile", id="no compute"),
        pytest.param({"nvidia.com/mig-1g.10GB": 1}, "names no MIG profile", id="large letters"),
    ],
)
def test_instances_and_slices_that_mean_nothing(asked: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_resources(asked)
    assert words in str(caught.value)


# --- Genius -------------------------------------------------------------------------------------------------------

NUMBER, EACH, TOTAL = names.GENIUS_NUMBER, names.GENIUS_MEMORY_EACH, names.GENIUS_MEMORY_TOTAL


@pytest.mark.parametrize(
    ("labels", "count", "amounts"),
    [
        pytest.param({NUMBER: "1"}, 1, {"core": 100, "ratio": 100}, id="a card"),
        pytest.param({NUMBER: "4"}, 4, {"core": 100, "ratio": 100}, id="four cards"),
        pytest.param({EACH: "8192"}, 1, {"memory": 8 * GI}, id="memory of one card"),
        pytest.param({NUMBER: "2", EACH: "8192"}, 2, {"memory": 8 * GI}, id="memory of each of two"),
        pytest.param({TOTAL: "8192"}, 1, {"memory": 8 * GI}, id="a total of one card"),
        pytest.param({NUMBER: "2", TOTAL: "8192"}, 2, {"memory": 4 * GI}, id="a total of two"),
        pytest.param({NUMBER: "3", TOTAL: "4"}, 3, {"memory": 2 * MI}, id="a total that does not come out even"),
        pytest.param({NUMBER: "2", TOTAL: "8192", EACH: "1"}, 2, {"memory": 4 * GI}, id="the total is more"),
        pytest.param({NUMBER: "2", TOTAL: "2", EACH: "8192"}, 2, {"memory": 8 * GI}, id="each is more"),
        pytest.param({NUMBER: "007"}, 7, {"core": 100, "ratio": 100}, id="with zeros before it"),
    ],
)
def test_labels_are_a_request(labels: dict[str, str], count: int, amounts: dict[str, Any]) -> None:
    devices = of_pod({"cpu": 1000}, {}, labels)
    assert (devices.parts, devices.labelled, devices.vendor) == ((gpus(count, **amounts),), True, "")


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in (NUMBER, EACH, TOTAL)])
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=text or "empty") for text in ("", "0", "-1", "1.5", "8Gi", "two", "\u0664", "9" * 5000)],
)
def test_a_label_that_is_no_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_pod({}, {}, {name: text})
    assert str(caught.value).startswith(f'label {name}: "{text}"; allowed are whole numbers from 1 to ')


@pytest.mark.parametrize("resource", [pytest.param(name, id=name) for name in (NVIDIA, GPU, RDMA, SLICES)])
def test_labels_and_resources_are_not_mixed(resource: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_pod({"cpu": 1, resource: 1}, {}, {EACH: "1"})
    assert str(caught.value) == f"label {EACH} and resource {resource}; request devices by one of the two"


# --- constraints of our own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        pytest.param({}, None, id="none"),
        *[
            pytest.param({names.GPU_TOPOLOGY: level}, GpuTopology(level=level), id=level)
            for level in (*links.LEVELS, "pcie", "numa")
        ],
        pytest.param(
            {names.GPU_TOPOLOGY: "numa", names.GPU_TOPOLOGY_POLICY: "required"},
            GpuTopology(level="numa"),
            id="required",
        ),
        pytest.param(
            {names.GPU_TOPOLOGY: "numa", names.GPU_TOPOLOGY_POLICY: "preferred"},
            GpuTopology(level="numa", required=False),
            id="preferred",
        ),
    ],
)
def test_how_gpus_must_reach_each_other(annotations: dict[str, str], found: GpuTopology | None) -> None:
    assert of_pod({NVIDIA: 2}, annotations, {}).topology == found


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        pytest.param({NVIDIA: 2}, True, id="two cards"),
        pytest.param({SHARED: 2, MEMORY: 2}, True, id="shares of two"),
        pytest.param({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-2g.20gb": 1}, True, id="an instance and another"),
        pytest.param({NVIDIA: 1}, False, id="one card"),
        pytest.param({GPU: 50}, False, id="half a card"),
        pytest.param({RDMA: 200}, False, id="NICs"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_what_has_none_to_reach_need_not_reach_it(asked: dict[str, int], *, kept: bool) -> None:
    assert (of_pod(asked, {names.GPU_TOPOLOGY: "nvlink"}, {}).topology is not None) is kept


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        pytest.param("20Gi", 20 * GI, id="binary"),
        pytest.param("20G", 20 * 10**9, id="decimal"),
        pytest.param(" 1 ", 1, id="a byte, with spaces"),
    ],
)
def test_each_gpu_must_be_so_large(text: str, memory: int) -> None:
    devices = of_pod({NVIDIA: 2, RDMA: 100}, {names.MIN_GPU_MEMORY: text}, {})
    assert [(part.type, part.min_memory) for part in devices.parts] == [("gpu", memory), ("rdma", 0)]


@pytest.mark.parametrize(
    ("annotations", "rule"),
    [
        pytest.param({}, "", id="as the profile has it"),
        pytest.param({names.GPU_SUBDEVICES: "last"}, "last", id="last"),
        pytest.param({names.GPU_SUBDEVICES: "equal"}, "equal", id="equal"),
        pytest.param({names.GPU_SUBDEVICES: "never"}, "never", id="never"),
        pytest.param({names.GPU_SUBDEVICES: "only"}, "only", id="only"),
        pytest.param({names.GPU_TOPOLOGY: "numa"}, "never", id="a topology"),
        pytest.param({names.GPU_TOPOLOGY: "numa", names.GPU_TOPOLOGY_POLICY: "preferred"}, "", id="a preference"),
        pytest.param({names.PARTITION_SPEC: "{}", names.GPU_SUBDEVICES: "last"}, "never", id="a partition"),
        pytest.param({names.ALLOCATE_HINT: '{"gpu": {"requiredTopologyScope": "PCIe"}}'}, "never", id="a scope"),
        pytest.param({names.ALLOCATE_HINT: '{"gpu": {"requiredTopologyScope": "Node"}}'}, "", id="the node"),
    ],
)
def test_whether_a_gpu_may_be_a_subdevice(annotations: dict[str, str], rule: str) -> None:
    assert of_pod({NVIDIA: 1}, annotations, {}).parts[0].subdevices == rule
    for name in ("nvidia.com/gpu.shared", GPU):
        assert of_pod({name: 1}, annotations, {}).parts[0].subdevices == ""
    of_instance = "only" if rule == "only" else ""
    assert of_pod({"nvidia.com/mig-1g.10gb": 1}, annotations, {}).parts[0].subdevices == of_instance


@pytest.mark.parametrize(("text", "mixed"), [("true", True), ("false", False), (None, False)])
def test_whether_gpus_may_be_a_mixture(text: str | None, *, mixed: bool) -> None:
    annotations = {} if text is None else {names.MIXED_GPUS: text}
    assert of_pod({NVIDIA: 2}, annotations, {}).mixed is mixed
    assert of_pod({RDMA: 1}, annotations, {}).mixed is False


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param(
            {names.GPU_SUBDEVICES: "first"},
            'gpu-subdevices: "first"; allowed are last, equal, never, only',
            id="rule for subdevices",
        ),
        pytest.param({names.MIXED_GPUS: "yes"}, 'mixed-gpus: "yes"; allowed are true, false', id="mixture"),
        pytest.param(
            {names.GPU_SUBDEVICES: "only", names.PARTITION_SPEC: "{}"},
            "gpu-subdevices: only; the pod's topology, scope or partition is for whole cards, allowed is never",
            id="subdevices in a partition",
        ),
        pytest.param(
            {names.GPU_TOPOLOGY: "nvswitch"},
            'gpu-topology: "nvswitch"; allowed are nvlink, xgmi, hccs, xelink, metaxlink, mlulink, pcie, numa',
            id="level",
        ),
        pytest.param({names.GPU_TOPOLOGY: ""}, 'gpu-topology: ""; allowed are', id="empty level"),
        pytest.param(
            {names.GPU_TOPOLOGY: "pcie", names.GPU_TOPOLOGY_POLICY: "best"},
            'gpu-topology-policy: "best"; allowed are required, preferred',
            id="policy",
        ),
        pytest.param({names.GPU_TOPOLOGY_POLICY: "required"}, "it needs berth.dev/gpu-topology", id="no level"),
        pytest.param({names.MIN_GPU_MEMORY: "large"}, '"large" is not a quantity', id="a word for memory"),
        pytest.param({names.MIN_GPU_MEMORY: "0"}, "0; allowed are amounts above 0 such as 20Gi", id="no memory"),
        pytest.param({names.MIN_GPU_MEMORY: "-1Gi"}, "-1Gi; allowed are amounts above 0", id="less than none"),
    ],
)
@pytest.mark.parametrize("asked", [pytest.param({NVIDIA: 1}, id="a GPU"), pytest.param({}, id="no GPU")])
def test_a_constraint_that_means_nothing_is_refused(
    asked: dict[str, int], annotations: dict[str, str], words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        of_pod(asked, annotations, {})
    assert str(caught.value).startswith("annotation berth.dev/")
    assert words in str(caught.value)


# --- classes ------------------------------------------------------------------------------------------------------


def test_equal_requests_are_one_key_and_different_ones_are_not() -> None:
    hints = [{}, {names.ALLOCATE_HINT: '{"gpu":{"selector":{"matchLabels":{"a":"b"}}}}'}, {names.MIN_GPU_MEMORY: "1Gi"}]
    hints += [{names.PARTITION_SPEC: "{}"}, {names.GPU_TOPOLOGY: "pcie"}, {names.ALLOCATE_HINT: '{"gpu":{}}'}]
    hints += [{names.GPU_SUBDEVICES: "never"}, {names.MIXED_GPUS: "true"}]
    requests = {of_pod({NVIDIA: 2}, hint, {}) for hint in hints}
    assert len(requests) == len(hints) - 1
    assert requests == {of_pod({NVIDIA: 2}, hint, {}) for hint in hints}
