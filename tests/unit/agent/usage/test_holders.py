"""Which pods hold which card, and how much of it."""

from dataclasses import replace
from typing import Any

import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.readings import ClaimedPart
from berth_agent.usage import holders
from berth_api import names
from berth_api.device import DeviceSpec, MigInstance


def card(minor: int, **fields: Any) -> dict[str, Any]:
    resources = {"koordinator.sh/gpu-memory": "80Gi"}
    return {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "resources": resources, **fields}


INSTANCE = {"id": "MIG-2", "profile": "3g.40gb", "gpuInstance": 1, "computeInstance": 0, "memory": "40Gi"}
MIG = {"enabled": True, "instances": [INSTANCE, {**INSTANCE, "id": "MIG-3", "replicas": 2}]}
SPEC = DeviceSpec.model_validate({"devices": [card(0), card(1, replicas=4), card(2, mig=MIG)]})
GI = 2**30
SMALL = MigInstance(id="MIG-9", profile="1g.10gb", gpu_instance=9, compute_instance=0, memory="10Gi")
Row = tuple[str, str, str, float, str]


def rows(listed: tuple[holders.Holder, ...]) -> list[Row]:
    return [
        (holder.container, holder.card, holder.instance.id if holder.instance else "", holder.share, holder.text)
        for holder in listed
    ]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("GPU-0", [("main", "GPU-0", "", 1.0, "whole")]),
        ("GPU-1::3", [("main", "GPU-1", "", 0.25, "replica 4 of 4")]),
        ("MIG-2", [("main", "GPU-2", "MIG-2", 0.5, "MIG 3g.40gb")]),
        ("MIG-3::0", [("main", "GPU-2", "MIG-3", 0.25, "MIG 3g.40gb, replica 1 of 2")]),
        pytest.param("GPU-gone", [], id="a card that is gone"),
    ],
)
def test_what_kubelet_gave_a_container(unit: str, expected: list[Row]) -> None:
    holding = Holding(uid="u", namespace="ns", pod="a", container="main", ids=(unit,))
    assert rows(holders.holders([holding], [], SPEC)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("main", "GPU-0", "", 1.0, "whole")),
        ({"memory": 20 * GI, "cores": 40}, ("main", "GPU-0", "", 0.25, "core 40, memory 20Gi")),
        ({"memory": GI // 2}, ("main", "GPU-0", "", 0.01, "memory 512Mi")),
        pytest.param({"memory": 80 * GI}, ("main", "GPU-0", "", 1.0, "whole"), id="a share of all memory"),
        # Of a card that the Device shows as a whole.
        ({"instance": SMALL}, ("main", "GPU-0", "MIG-9", 0.125, "MIG 1g.10gb")),
    ],
)
def test_what_a_container_has_by_claim(fields: dict[str, Any], expected: Row) -> None:
    claimed = ClaimedPart(namespace="ns", pod="a", container="main", key="c/0", card="GPU-0", **fields)
    gone = replace(claimed, card="GPU-gone")
    [holder] = holders.holders([], [], SPEC, [claimed, gone])
    assert rows((holder,)) == [expected]
    assert holder.memory == (fields.get("memory") if expected[3] < 1 else None)


def pod(allocated: str, *containers: str, limits: dict[str, str] | None = None, **visible: str) -> pods.Pod:
    return pods.of_object(
        {
            "metadata": {
                "uid": "u",
                "namespace": "ns",
                "name": "a",
                "annotations": {
                    "scheduling.koordinator.sh/device-allocated": allocated,
                    **{f"{name}{names.VISIBLE_SUFFIX}": ids for name, ids in visible.items()},
                },
            },
            "spec": {"containers": [{"name": name, "resources": {"limits": limits or {}}} for name in containers]},
            "status": {"containerStatuses": [{"name": "main", "containerID": "containerd://1f2e"}]},
        }
    )


HALF = """{"gpu":[{"minor":0,"id":"GPU-0","resources":
    {"kubernetes.io/gpu-core":"50","kubernetes.io/gpu-memory":"40Gi","kubernetes.io/gpu-memory-ratio":"50"}}]}"""
REPLICA = """{"gpu":[{"minor":1,"id":"GPU-1::2","resources":{"nvidia.com/gpu.shared":"1"}}]}"""
WHOLE = """{"gpu":[{"minor":0,"id":"GPU-0","resources":
    {"kubernetes.io/gpu-core":"100","kubernetes.io/gpu-memory":"80Gi","kubernetes.io/gpu-memory-ratio":"100"}}]}"""


WHAT_AN_ALLOCATION_THAT_KUBELET_DOES_NOT_KNOW_GAVE = {
    "the container that sees it": (
        pod(HALF, "main", "other", main="GPU-0"),
        [("main", "GPU-0", "", 0.5, "core 50, memory 40Gi")],
    ),
    "both see it": (
        pod(HALF, "main", "other", main="GPU-0", other="GPU-0"),
        [("main", "GPU-0", "", 0.5, "core 50, memory 40Gi"), ("other", "GPU-0", "", 0.5, "core 50, memory 40Gi")],
    ),
    "no container is named": (pod(HALF, "main"), [("", "GPU-0", "", 0.5, "core 50, memory 40Gi")]),
    "a replica": (pod(REPLICA, "main", main="GPU-1"), [("main", "GPU-1", "", 0.25, "replica 3 of 4")]),
    "a whole card": (pod(WHOLE, "main", main="GPU-0"), [("main", "GPU-0", "", 1.0, "whole")]),
    "kubelet knows what it has": (pod(WHOLE, "main", main="GPU-0", limits={"nvidia.com/gpu": "1"}), []),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    WHAT_AN_ALLOCATION_THAT_KUBELET_DOES_NOT_KNOW_GAVE.values(),
    ids=WHAT_AN_ALLOCATION_THAT_KUBELET_DOES_NOT_KNOW_GAVE,
)
def test_what_an_allocation_that_kubelet_does_not_know_gave(given: pods.Pod, expected: list[Row]) -> None:
    listed = holders.holders([], [given], SPEC)
    assert rows(listed) == expected
    assert all(holder.memory == (40 * 2**30 if holder.text == "core 50, memory 40Gi" else None) for holder in listed)


def test_a_pod_is_known_by_the_uid_of_its_cgroups_also_after_its_object_is_gone() -> None:
    gone = Holding(uid="gone", namespace="ns", pod="b", container="main", ids=("GPU-0",))
    static = replace(pod(HALF, "main"), uid="object", name="c", static_uid="of-kubelet", container_ids={})
    named = holders.pod_names([gone], [pod(HALF, "main"), static])
    assert {uid: (pod.namespace, pod.name, dict(pod.containers)) for uid, pod in named.items()} == {
        "gone": ("ns", "b", {}),
        "u": ("ns", "a", {"1f2e": "main"}),
        "of-kubelet": ("ns", "c", {}),
    }


def test_another_id_of_a_container_is_no_change_of_its_pod() -> None:
    given = pod(HALF, "main")
    assert given == replace(given, container_ids={})
