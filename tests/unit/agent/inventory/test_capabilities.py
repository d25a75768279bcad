import pytest

from berth_agent.vendors.nvidia import capabilities
from berth_api.resources import quantity


@pytest.mark.parametrize(
    ("cores", "capability", "multiprocessors"),
    [
        pytest.param(6912, (8, 0), 108, id="A100"),
        pytest.param(16896, (9, 0), 132, id="H100"),
        pytest.param(2560, (7, 5), 40, id="T4"),
        pytest.param(18176, (8, 9), 142, id="L40S"),
        pytest.param(5120, (7, 0), 80, id="V100"),
        pytest.param(0, (8, 0), None, id="cores not reported"),
        pytest.param(100, (8, 0), None, id="no multiple"),
        pytest.param(6912, (99, 0), None, id="a capability that is not known"),
    ],
)
def test_multiprocessors_follow_from_cores_and_compute_capability(
    cores: int, capability: tuple[int, int], multiprocessors: int | None
) -> None:
    assert capabilities.multiprocessors(cores, capability) == multiprocessors


@pytest.mark.parametrize(
    ("bits", "mhz", "gigabytes"),
    [
        pytest.param(5120, 1593, 2039, id="A100-SXM4-80GB"),
        pytest.param(5120, 2619, 3352, id="H100"),
        pytest.param(256, 5001, 320, id="T4"),
        pytest.param(384, 9001, 864, id="L40S"),
    ],
)
def test_memory_bandwidth_is_that_of_the_data_sheet(bits: int, mhz: int, gigabytes: int) -> None:
    text = capabilities.memory_bandwidth(bits, mhz)
    assert text is not None
    assert quantity.parse(text) // 10**9 == gigabytes


def test_memory_bandwidth_of_a_card_that_does_not_report_it_is_not_known() -> None:
    assert capabilities.memory_bandwidth(0, 1593) is None
    assert capabilities.memory_bandwidth(5120, 0) is None


@pytest.mark.parametrize(
    ("model", "engines"),
    [
        ("NVIDIA A100-SXM4-80GB", (0, 5)),
        ("NVIDIA A100 80GB PCIe", (0, 5)),
        ("NVIDIA H100 80GB HBM3", (0, 7)),
        ("NVIDIA GH200 480GB", (0, 7)),
        ("NVIDIA A10", (1, 2)),
        ("NVIDIA RTX A6000", (1, 2)),
        ("NVIDIA RTX 6000 Ada Generation", (3, 3)),
        ("NVIDIA L4", (2, 4)),
        ("NVIDIA L40S", (3, 3)),
        ("Tesla T4", (1, 2)),
        ("Tesla V100-SXM2-32GB", (3, 1)),
        pytest.param("NVIDIA A10G", None, id="another model that begins like a known one"),
        pytest.param("NVIDIA RTX A400", None, id="one that a known one begins like"),
        pytest.param("", None, id="no name"),
    ],
)
def test_video_engines_are_those_of_the_model(model: str, engines: tuple[int, int] | None) -> None:
    assert capabilities.video_engines(model) == engines
