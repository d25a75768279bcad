"""A pod's requests to its node, by Kubernetes' rules."""

from typing import Any

import pytest

from berth_api import resources
from berth_api.resources import quantity
from tests.objects.builders import GPU, NVIDIA, container

Raw = dict[str, Any]


def init(requests: Raw, *, sidecar: bool = False) -> Raw:
    return container("init", requests, **({"restartPolicy": "Always"} if sidecar else {}))


def spec(*containers: Raw, inits: tuple[Raw, ...] = (), **fields: Any) -> Raw:
    return {"containers": list(containers), "initContainers": list(inits), **fields}


ONE = container(requests={"cpu": "1"})


POD_ASKS_FOR = {
    "nothing": (spec(container()), {}),
    "no resources at all": (spec({"name": "main"}), {}),
    "null resources": (spec({"name": "main", "resources": None}), {}),
    "null init containers": ({"containers": [ONE], "initContainers": None}, {"cpu": 1000}),
    "cpu in thousandths": (spec(ONE), {"cpu": 1000}),
    "one thousandth": (spec(container(requests={"cpu": "1m"})), {"cpu": 1}),
    "less is rounded up": (spec(container(requests={"cpu": "100u"})), {"cpu": 1}),
    "memory in bytes": (spec(container(requests={"memory": "128Mi"})), {"memory": 128 * 2**20}),
    "part of a byte": (spec(container(requests={"memory": "1.5"})), {"memory": 2}),
    "zeros are left out": (spec(container(requests={"cpu": "0", NVIDIA: "0"})), {}),
    "containers add up": (spec(ONE, ONE), {"cpu": 2000}),
    "different resources": (spec(ONE, container(requests={NVIDIA: "1"})), {"cpu": 1000, NVIDIA: 1}),
    "a larger init container": (spec(ONE, inits=(init({"cpu": "3"}),)), {"cpu": 3000}),
    "a smaller init container": (spec(ONE, inits=(init({"cpu": "500m"}),)), {"cpu": 1000}),
    "init containers take turns": (spec(ONE, inits=(init({"cpu": "2"}), init({"cpu": "3"}))), {"cpu": 3000}),
    "a sidecar stays": (spec(ONE, inits=(init({"cpu": "2"}, sidecar=True),)), {"cpu": 3000}),
    "an init container with the sidecar before it": (
        spec(ONE, inits=(init({"cpu": "2"}, sidecar=True), init({"cpu": "4"}))),
        {"cpu": 6000},
    ),
    "an init container is gone before the sidecar after it": (
        spec(ONE, inits=(init({"cpu": "4"}), init({"cpu": "2"}, sidecar=True))),
        {"cpu": 4000},
    ),
    "sidecars add up": (
        spec(container(), inits=(init({"cpu": "2"}, sidecar=True), init({"cpu": "3"}, sidecar=True))),
        {"cpu": 5000},
    ),
    "overhead adds up": (spec(ONE, overhead={"cpu": "250m", GPU: "1"}), {"cpu": 1250, GPU: 1}),
    "the pod's own request replaces": (spec(ONE, ONE, resources={"requests": {"cpu": "5"}}), {"cpu": 5000}),
    "only the resources that it names": (
        spec(container(requests={"cpu": "1", "memory": "1Gi"}), resources={"requests": {"cpu": "5"}}),
        {"cpu": 5000, "memory": 2**30},
    ),
    "the pod's own huge pages": (
        spec(ONE, resources={"requests": {"hugepages-2Mi": "4Mi"}}),
        {"cpu": 1000, "hugepages-2Mi": 4 * 2**20},
    ),
    "other resources have no request of the pod's own": (
        spec(ONE, resources={"requests": {"example.com/x": "5", "ephemeral-storage": "1Gi"}}),
        {"cpu": 1000},
    ),
    "the pod's own request is nothing": (spec(ONE, resources={"requests": {"cpu": "0"}}), {}),
    "the pod's own request counts for init containers too": (
        spec(ONE, inits=(init({"cpu": "9"}),), resources={"requests": {"cpu": "5"}}),
        {"cpu": 5000},
    ),
    "overhead comes on top": (spec(ONE, resources={"requests": {"cpu": "5"}}, overhead={"cpu": "1"}), {"cpu": 6000}),
    "a sum is cut off too": (spec(*[container(requests={"memory": "8Ei"})] * 2000), {"memory": quantity.MAX}),
}


@pytest.mark.parametrize(("pod", "total"), POD_ASKS_FOR.values(), ids=POD_ASKS_FOR)
def test_a_pod_asks_for(pod: Raw, total: dict[str, int]) -> None:
    assert resources.total(pod) == total


BAD_QUANTITY_IS_NAMED_BY_ITS_PLACE = {
    "container": (spec(ONE, container(requests={"cpu": "abc"})), "spec.containers[1].resources.requests.cpu"),
    "init container": (spec(ONE, inits=(init({GPU: ""}),)), f"spec.initContainers[0].resources.requests.{GPU}"),
    "overhead": (spec(ONE, overhead={"cpu": "-1"}), "spec.overhead.cpu"),
    "pod": (spec(ONE, resources={"requests": {"cpu": "-1m"}}), "spec.resources.requests.cpu"),
    "device": (spec(container(requests={NVIDIA: "-1"})), f"spec.containers[0].resources.requests.{NVIDIA}"),
}


@pytest.mark.parametrize(
    ("pod", "place"), BAD_QUANTITY_IS_NAMED_BY_ITS_PLACE.values(), ids=BAD_QUANTITY_IS_NAMED_BY_ITS_PLACE
)
def test_a_bad_quantity_is_named_by_its_place(pod: Raw, place: str) -> None:
    with pytest.raises(resources.ResourceError) as caught:
        resources.total(pod)
    assert str(caught.value).startswith(f"{place}: ")


def test_a_negative_quantity_is_reported_with_what_is_allowed() -> None:
    with pytest.raises(resources.ResourceError, match=r'spec\.overhead\.cpu: "-1" is negative; allowed are amounts'):
        resources.amounts({"cpu": "-1"}, "spec.overhead")


def test_containers_come_in_the_order_of_admission() -> None:
    pod = spec(container("a"), container("b"), inits=(container("c"), container("d", restartPolicy="Always")))
    kinds = [(container.name, container.init, container.sidecar) for container in resources.containers(pod)]
    assert kinds == [("c", True, False), ("d", True, True), ("a", False, False), ("b", False, False)]


def test_only_an_init_container_is_a_sidecar() -> None:
    (sidecar,) = resources.containers(spec(container("a", restartPolicy="Always")))
    assert not sidecar.sidecar
