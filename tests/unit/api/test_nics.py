"""The resource by which containers get the device files of RDMA NICs."""

import pytest

from berth_api import names
from berth_api.admission.nics import with_device_files

UNIT = names.RDMA_RESOURCE


@pytest.mark.parametrize(
    ("requests", "limits", "given"),
    [
        ({"kubernetes.io/rdma": "1"}, {"kubernetes.io/rdma": "1"}, True),
        ({"koordinator.sh/rdma": "100"}, {"koordinator.sh/rdma": "100"}, True),
        ({"kubernetes.io/rdma": "1"}, None, True),
        ({"kubernetes.io/rdma": "0"}, {"kubernetes.io/rdma": "0"}, False),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1"}, False),
        ({}, None, False),
    ],
)
def test_a_container_that_requests_nics_gets_one_unit(
    requests: dict[str, str], limits: dict[str, str] | None, *, given: bool
) -> None:
    resources = {"requests": requests, **({"limits": limits} if limits is not None else {})}
    pod = {"spec": {"initContainers": [{"name": "i", "resources": resources}], "containers": [{"name": "c"}]}}
    changed = with_device_files(pod)
    [initial], [main] = changed["spec"]["initContainers"], changed["spec"]["containers"]
    assert main == {"name": "c"}
    assert [initial["resources"].get(kind, {}).get(UNIT) for kind in ("requests", "limits")] == [
        "1" if given else None
    ] * 2
    assert with_device_files(changed) == changed
