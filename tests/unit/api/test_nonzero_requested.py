"""kube-scheduler's counts for containers without a request for cpu or memory."""

from typing import Any

import pytest

from berth_api.resources import nonzero_requested
from tests.builders import MI, container

Raw = dict[str, Any]


def spec(*containers: Raw, **fields: Any) -> Raw:
    return {"containers": list(containers), **fields}


BOTH = container(requests={"cpu": "1", "memory": "1Mi"})


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(spec(container()), (100, 200 * MI), id="nothing is named"),
        pytest.param(spec({"name": "main", "resources": None}), (100, 200 * MI), id="null"),
        pytest.param(spec(BOTH), (1000, MI), id="both are named"),
        pytest.param(spec(container(requests={"cpu": "1"})), (1000, 200 * MI), id="one is named"),
        pytest.param(spec(container(requests={"cpu": "0", "memory": "0"})), (0, 0), id="zero is an answer"),
        pytest.param(spec(BOTH, container()), (1100, 201 * MI), id="each container"),
        pytest.param(spec(BOTH, initContainers=[container()]), (1000, 200 * MI), id="an init container"),
        pytest.param(
            spec(BOTH, initContainers=[container(restartPolicy="Always")]), (1100, 201 * MI), id="a sidecar stays"
        ),
        pytest.param(
            spec(container(), resources={"requests": {"cpu": "3"}}), (3000, 200 * MI), id="the pod names one itself"
        ),
        pytest.param(
            spec(BOTH, container(), resources={"requests": {"cpu": "3"}}),
            (3000, MI),
            id="a pod that names one itself, and a container the other",
        ),
        pytest.param(spec(BOTH, overhead={"cpu": "1"}), (2000, MI), id="overhead comes on top"),
    ],
)
def test_a_pod_is_assumed_to_take(pod: Raw, expected: tuple[int, int]) -> None:
    assert nonzero_requested.of_pod(pod, {}) == expected


def test_a_resize_counts() -> None:
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    assert nonzero_requested.of_pod(spec(BOTH), status) == (3000, MI)
