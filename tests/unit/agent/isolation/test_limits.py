import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.vendors.nvidia.isolation import limits
from berth_agent.vendors.nvidia.isolation.limits import DefaultLimits
from tests.objects.devices import spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0=4096M", {0: 4096}),
        ("0=4096M,1=512M", {0: 4096, 1: 512}),
        ("", {}),
        ("0=4G", {}),
        ("0=0M", {}),
        ("0=4096M,", {}),
        ("0=4096M;1=1M", {}),
        ("0=٤M", {}),
        (f"0={'9' * 40}M", {}),
    ],
)
def test_limits_of_memory_are_read_or_none_are(text: str, expected: dict[int, int]) -> None:
    assert limits.memory_limits(text) == expected


@pytest.mark.parametrize(
    ("threads", "expected"), [("25", 25), ("100", 100), ("101", 0), ("0", 0), ("", 0), ("2.5", 0), ("²", 0), ("-1", 0)]
)
def test_percentages_outside_of_their_range_count_as_none(threads: str, expected: int) -> None:
    assert (
        limits.largest([pod(ContainerSpec(name="main", by_mps=True, mps_threads=threads))], spec(1)).threads == expected
    )


def pod(*containers: ContainerSpec, ended: bool = False) -> Pod:
    return Pod(uid="uid", namespace="ns", name="pod", containers=containers, ended=ended)


def container(memory: str, *visible: str, by_mps: bool = True) -> ContainerSpec:
    return ContainerSpec(name="main", by_mps=by_mps, mps_memory=memory, visible=visible)


def test_limits_belong_to_the_cards_that_the_container_sees_in_its_order() -> None:
    largest = limits.largest(
        [
            pod(container("0=1024M,1=2048M", "GPU-3", "GPU-1"), container("0=4096M", "GPU-1")),
            pod(container("0=8192M", "GPU-0"), ended=True),
            pod(container("0=8192M", "GPU-0", by_mps=False)),
            pod(container("0=8192M,1=8192M", "GPU-9")),
        ],
        spec(4),
    )
    assert largest == DefaultLimits(memory={3: 1024, 1: 4096})


def test_commands_set_what_queries_ask_for() -> None:
    default_limits = DefaultLimits(memory={1: 4096, 0: 512}, threads=30)
    assert list(default_limits.defaults()) == [
        "set_default_device_pinned_mem_limit 0 512M",
        "set_default_device_pinned_mem_limit 1 4096M",
        "set_default_active_thread_percentage 30",
    ]
    assert list(default_limits.of_server(7)) == [
        "set_device_pinned_mem_limit 7 0 512M",
        "set_device_pinned_mem_limit 7 1 4096M",
        "set_active_thread_percentage 7 30",
    ]
    assert list(default_limits.queries()) == [
        "get_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit 0",
        "get_default_device_pinned_mem_limit 1",
    ]
    assert list(DefaultLimits().defaults()) == []


def test_a_pod_is_read_with_its_limits_and_starts() -> None:
    annotations = {
        "main.devices.berth.dev/visible": "GPU-1",
        "main.devices.berth.dev/mps-memory-limit": "0=4096M",
        "main.devices.berth.dev/mps-threads": "25",
    }
    read = pods.of_object(
        {
            "metadata": {"uid": "uid", "namespace": "ns", "name": "pod", "annotations": annotations},
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": {"berth.dev/mps": "1"}}}, {"name": "log"}]
            },
            "status": {
                "containerStatuses": [
                    {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
                    {"name": "log", "state": {"waiting": {}}},
                ]
            },
        }
    )
    main = ContainerSpec(name="main", visible=("GPU-1",), by_mps=True, mps_memory="0=4096M", mps_threads="25")
    assert read.containers == (main, ContainerSpec(name="log"))
    assert read.started_at == {"main": "2026-01-01T00:00:00Z"}
