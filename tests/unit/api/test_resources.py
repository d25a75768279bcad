"""A pod's requests to its node, by Kubernetes' rules."""

from typing import Any

import pytest

from berth_api import resources
from berth_api.resources import quantity
from tests.builders import GPU, NVIDIA, container

Raw = dict[str, Any]


def init(requests: Raw, *, sidecar: bool = False) -> Raw:
    return container("init", requests, **({"restartPolicy": "Always"} if sidecar else {}))


def spec(*containers: Raw, inits: tuple[Raw, ...] = (), **fields: Any) -> Raw:
    return {"containers": list(containers), "initContainers": list(inits), **fields}


ONE = container(requests={"cpu": "1"})


@pytest.mark.parametrize(
    ("pod", "total"),
    [
        pytest.param(spec(container()), {}, id="nothing"),
        pytest.param(spec({"name": "main"}), {}, id="no resources at all"),
        pytest.param(spec({"name": "main", "resources": None}), {}, id="null resources"),
        pytest.param({"containers": [ONE], "initContainers": None}, {"cpu": 1000}, id="null init containers"),
        pytest.param(spec(ONE), {"cpu": 1000}, id="cpu in thousandths"),
        pytest.param(spec(container(requests={"cpu": "1m"})), {"cpu": 1}, id="one thousandth"),
        pytest.param(spec(container(requests={"cpu": "100u"})), {"cpu": 1}, id="less is rounded up"),
        pytest.param(spec(container(requests={"memory": "128Mi"})), {"memory": 128 * 2**20}, id="memory in bytes"),
        pytest.param(spec(container(requests={"memory": "1.5"})), {"memory": 2}, id="part of a byte"),
        pytest.param(spec(container(requests={"cpu": "0", NVIDIA: "0"})), {}, id="zeros are left out"),
        pytest.param(spec(ONE, ONE), {"cpu": 2000}, id="containers add up"),
        pytest.param(spec(ONE, container(requests={NVIDIA: "1"})), {"cpu": 1000, NVIDIA: 1}, id="different resources"),
        pytest.param(spec(ONE, inits=(init({"cpu": "3"}),)), {"cpu": 3000}, id="a larger init container"),
        pytest.param(spec(ONE, inits=(init({"cpu": "500m"}),)), {"cpu": 1000}, id="a smaller init container"),
        pytest.param(
            spec(ONE, inits=(init({"cpu": "2"}), init({"cpu": "3"}))), {"cpu": 3000}, id="init containers take turns"
        ),
        pytest.param(spec(ONE, inits=(init({"cpu": "2"}, sidecar=True),)), {"cpu": 3000}, id="a sidecar stays"),
        pytest.param(
            spec(ONE, inits=(init({"cpu": "2"}, sidecar=True), init({"cpu": "4"}))),
            {"cpu": 6000},
            id="an init container with the sidecar before it",
        ),
        pytest.param(
            spec(ONE, inits=(init({"cpu": "4"}), init({"cpu": "2"}, sidecar=True))),
            {"cpu": 4000},
            id="an init container is gone before the sidecar after it",
        ),
        pytest.param(
            spec(container(), inits=(init({"cpu": "2"}, sidecar=True), init({"cpu": "3"}, sidecar=True))),
            {"cpu": 5000},
            id="sidecars add up",
        ),
        pytest.param(spec(ONE, overhead={"cpu": "250m", GPU: "1"}), {"cpu": 1250, GPU: 1}, id="overhead adds up"),
        pytest.param(
            spec(ONE, ONE, resources={"requests": {"cpu": "5"}}), {"cpu": 5000}, id="the pod's own request replaces"
        ),
        pytest.param(
            spec(container(requests={"cpu": "1", "memory": "1Gi"}), resources={"requests": {"cpu": "5"}}),
            {"cpu": 5000, "memory": 2**30},
            id="only the resources that it names",
        ),
        pytest.param(
            spec(ONE, resources={"requests": {"hugepages-2Mi": "4Mi"}}),
            {"cpu": 1000, "hugepages-2Mi": 4 * 2**20},
            id="the pod's own huge pages",
        ),
        pytest.param(
            spec(ONE, resources={"requests": {"example.com/x": "5", "ephemeral-storage": "1Gi"}}),
            {"cpu": 1000},
            id="other resources have no request of the pod's own",
        ),
        pytest.param(spec(ONE, resources={"requests": {"cpu": "0"}}), {}, id="the pod's own request is nothing"),
        pytest.param(
            spec(ONE, inits=(init({"cpu": "9"}),), resources={"requests": {"cpu": "5"}}),
            {"cpu": 5000},
            id="the pod's own request counts for init containers too",
        ),
        pytest.param(
            spec(ONE, resources={"requests": {"cpu": "5"}}, overhead={"cpu": "1"}),
            {"cpu": 6000},
            id="overhead comes on top",
        ),
        pytest.param(
            spec(*[container(requests={"memory": "8Ei"})] * 2000),
            {"memory": quantity.MAX},
            id="a sum is cut off too",
        ),
    ],
)
def test_a_pod_asks_for(pod: Raw, total: dict[str, int]) -> None:
    assert resources.total(pod) == total


@pytest.mark.parametrize(
    ("pod", "place"),
    [
        pytest.param(
            spec(ONE, container(requests={"cpu": "abc"})), "spec.containers[1].resources.requests.cpu", id="container"
        ),
        pytest.param(
            spec(ONE, inits=(init({GPU: ""}),)), f"spec.initContainers[0].resources.requests.{GPU}", id="init container"
        ),
        pytest.param(spec(ONE, overhead={"cpu": "-1"}), "spec.overhead.cpu", id="overhead"),
        pytest.param(spec(ONE, resources={"requests": {"cpu": "-1m"}}), "spec.resources.requests.cpu", id="pod"),
        pytest.param(
            spec(container(requests={NVIDIA: "-1"})), f"spec.containers[0].resources.requests.{NVIDIA}", id="device"
        ),
    ],
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
