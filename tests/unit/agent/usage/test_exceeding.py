"""Pods that use more memory of a card than their share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.readings import ClaimedPart, Process
from berth_agent.usage.exceeding import ALLOWANCE, exceeding
from berth_api.device import DeviceSpec

GI = 2**30
UIDS = [f"{number}f2e3d4c-5b6a-4788-9900-aabbccddeeff" for number in range(3)]
SPEC = DeviceSpec.model_validate(
    {
        "devices": [
            {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "resources": {"koordinator.sh/gpu-memory": "80Gi"}}
            for minor in range(2)
        ]
    }
)


def grant(minor: int, **amounts: str) -> dict[str, Any]:
    resources = {f"kubernetes.io/gpu-{name.replace('_', '-')}": amount for name, amount in amounts.items()}
    return {"minor": minor, "id": f"GPU-{minor}", "resources": resources}


HALF = grant(0, core="50", memory="40Gi", memory_ratio="50")


def pod(number: int, *grants: dict[str, Any]) -> pods.Pod:
    annotation = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": grants})}
    metadata = {"uid": UIDS[number], "namespace": "ns", "name": f"p{number}", "annotations": annotation}
    return pods.of_object({"metadata": metadata, "spec": {"containers": []}})


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for number, uid in enumerate(UIDS):
        for thread in range(2):
            folder = tmp_path / str(10 * number + thread)
            folder.mkdir()
            (folder / "cgroup").write_text(f"0::/kubepods/pod{uid}/c{thread}\n")
    return tmp_path


def exceeding_uses(
    proc: Path, used: dict[int, int], *listed: pods.Pod, minor: int = 0, claimed: Sequence[ClaimedPart] = ()
) -> list[tuple[str, int, str, str]]:
    processes = {minor: [Process(pid=pid, memory=memory) for pid, memory in used.items()]}
    uses = exceeding(processes, listed, SPEC, proc, claimed)
    return [(use.pod, use.minor, str(use.memory), str(use.limit)) for use in uses]


def by_claim(number: int, key: str, memory: int | None, container: str = "main") -> ClaimedPart:
    return ClaimedPart(namespace="ns", pod=f"p{number}", container=container, key=key, card="GPU-0", memory=memory)


@pytest.mark.parametrize(
    ("claimed", "limit"),
    [
        ([by_claim(0, "c/0", 20 * GI)], "20Gi"),
        ([by_claim(0, "c/0", 20 * GI), by_claim(0, "c/0", 20 * GI, "other")], "20Gi"),
        ([by_claim(0, "c/0", 20 * GI), by_claim(0, "c/1", 10 * GI)], "30Gi"),
        ([by_claim(0, "c/0", None)], None),
        ([by_claim(0, "c/0", 80 * GI)], None),
        ([by_claim(1, "c/0", 20 * GI)], None),
    ],
)
def test_shares_by_claim_are_watched_too(proc: Path, claimed: list[ClaimedPart], limit: str | None) -> None:
    uses = exceeding_uses(proc, {0: 79 * GI}, pod(0), claimed=claimed)
    assert uses == ([("p0", 0, "79Gi", limit)] if limit else [])


def test_the_processes_of_a_pod_are_counted_together(proc: Path) -> None:
    used = {0: 30 * GI, 1: 22 * GI - 5, 10: 40 * GI}
    assert exceeding_uses(proc, used, pod(0, HALF), pod(1, HALF)) == [("p0", 0, "52Gi", "40Gi")]


@pytest.mark.parametrize(("over", "count"), [(ALLOWANCE, 0), (ALLOWANCE + 1, 1)])
def test_the_context_of_a_process_is_allowed(proc: Path, over: int, count: int) -> None:
    assert len(exceeding_uses(proc, {0: 40 * GI + over}, pod(0, HALF))) == count


@pytest.mark.parametrize(
    ("grants", "limit"),
    [
        ([grant(0, core="25", memory_ratio="25")], "20Gi"),
        ([grant(0, memory="10Gi", memory_ratio="13")], "10Gi"),
        ([HALF, grant(1, core="100", memory="80Gi", memory_ratio="100")], "40Gi"),
        ([grant(0, core="100", memory="80Gi", memory_ratio="100")], None),
        ([grant(1, core="50", memory="40Gi", memory_ratio="50")], None),
        ([{**HALF, "id": "GPU-of-before"}], None),
        ([{"minor": 0, "id": "GPU-0::1", "resources": {"nvidia.com/gpu.shared": "1"}}], None),
        ([], None),
    ],
)
def test_only_a_part_of_a_card_has_a_limit(proc: Path, grants: list[dict[str, Any]], limit: str | None) -> None:
    shown = [published for _, _, _, published in exceeding_uses(proc, {0: 79 * GI}, pod(0, *grants))]
    assert shown == ([limit] if limit else [])
