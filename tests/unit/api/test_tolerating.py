"""Tolerations that pods with devices get by the administrator's list."""

from typing import Any

import pytest

from berth_api.admission.tolerating import DEVICES, tolerating
from berth_api.request.amounts import VENDORS

KEY = "nvidia.com/gpu"
ADDED = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}


def pod(requests: dict[str, str], *tolerations: dict[str, str], **metadata: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": requests}}
    return {"metadata": metadata, "spec": {"containers": [container], "tolerations": list(tolerations)}}


@pytest.mark.parametrize(
    ("requests", "metadata", "gets"),
    [
        ({"kubernetes.io/gpu": "50"}, {}, True),
        ({"koordinator.sh/gpu-memory": "8Gi"}, {}, True),
        ({"kubernetes.io/rdma": "1"}, {}, True),
        ({"nvidia.com/mig-1g.5gb": "1"}, {}, True),
        ({"volcano.sh/vgpu-memory": "1024"}, {}, True),
        ({}, {"labels": {"genius/gpu-number": "1"}}, True),
        ({}, {"annotations": {"gpu-fraction": "0.5"}}, True),
        ({"nvidia.com/a100": "1"}, {}, True),
        ({"kubernetes.io/gpu": "0"}, {}, False),
        ({"cpu": "1", "example.com/fuse": "1", "nvidia.com/nic": "1"}, {}, False),
    ],
)
def test_only_pods_that_request_devices_tolerate_the_taints(
    requests: dict[str, str], metadata: dict[str, Any], *, gets: bool
) -> None:
    changed = tolerating(pod(requests, **metadata), [KEY], renamed=["nvidia.com/a100"])
    assert changed["spec"]["tolerations"] == ([ADDED] if gets else [])
    assert tolerating(changed, [KEY]) == changed


@pytest.mark.parametrize(
    ("toleration", "suffices"),
    [
        (ADDED, True),
        ({"operator": "Exists"}, True),
        ({"key": KEY, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": KEY, "value": "present", "effect": "NoSchedule"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_is_added_once(toleration: dict[str, str], *, suffices: bool) -> None:
    changed = tolerating(pod({"kubernetes.io/gpu": "50"}, toleration), [KEY])
    assert changed["spec"]["tolerations"] == ([toleration] if suffices else [toleration, ADDED])


def test_all_vendors_have_devices() -> None:
    assert [name for name in VENDORS if DEVICES.fullmatch(name) is None] == []
