"""kube-scheduler's counts for containers without a request for cpu or memory."""

from typing import Any

import pytest

from berth_api.resources import nonzero_requested
from tests.objects.builders import MI, container

Raw = dict[str, Any]


def spec(*containers: Raw, **fields: Any) -> Raw:
    return {"containers": list(containers), **fields}


BOTH = container(requests={"cpu": "1", "memory": "1Mi"})


POD_IS_ASSUMED_TO_TAKE = {
    "nothing is named": (spec(container()), (100, 200 * MI)),
    "null": (spec({"name": "main", "resources": None}), (100, 200 * MI)),
    "both are named": (spec(BOTH), (1000, MI)),
    "one is named": (spec(container(requests={"cpu": "1"})), (1000, 200 * MI)),
    "zero is an answer": (spec(container(requests={"cpu": "0", "memory": "0"})), (0, 0)),
    "each container": (spec(BOTH, container()), (1100, 201 * MI)),
    "an init container": (spec(BOTH, initContainers=[container()]), (1000, 200 * MI)),
    "a sidecar stays": (spec(BOTH, initContainers=[container(restartPolicy="Always")]), (1100, 201 * MI)),
    "the pod names one itself": (spec(container(), resources={"requests": {"cpu": "3"}}), (3000, 200 * MI)),
    "a pod that names one itself, and a container the other": (
        spec(BOTH, container(), resources={"requests": {"cpu": "3"}}),
        (3000, MI),
    ),
    "overhead comes on top": (spec(BOTH, overhead={"cpu": "1"}), (2000, MI)),
}


@pytest.mark.parametrize(("pod", "expected"), POD_IS_ASSUMED_TO_TAKE.values(), ids=POD_IS_ASSUMED_TO_TAKE)
def test_a_pod_is_assumed_to_take(pod: Raw, expected: tuple[int, int]) -> None:
    assert nonzero_requested.of_pod(pod, {}) == expected


def test_a_resize_counts() -> None:
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    assert nonzero_requested.of_pod(spec(BOTH), status) == (3000, MI)
