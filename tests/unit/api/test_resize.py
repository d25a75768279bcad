"""What a bound pod takes while it is resized in place."""

from typing import Any

import pytest

from berth_api import resources
from berth_api.resources import resize
from tests.builders import container

Raw = dict[str, Any]


def pod(cpu: str = "2", **fields: Any) -> Raw:
    return {"containers": [container("main", {"cpu": cpu})], **fields}


def reported(name: str = "main", *, real: Raw | None = None, allocated: Raw | None = None) -> Raw:
    status: Raw = {"name": name}
    if real is not None:
        status["resources"] = {"requests": real}
    if allocated is not None:
        status["allocatedResources"] = allocated
    return status


def status(*containers: Raw, inits: tuple[Raw, ...] = (), pending: str = "", **fields: Any) -> Raw:
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if pending:
        conditions.append({"type": "PodResizePending", "status": "True", "reason": pending})
    return {
        "containerStatuses": list(containers),
        "initContainerStatuses": list(inits),
        "conditions": conditions,
        **fields,
    }


ONE, TWO, THREE = {"cpu": "1"}, {"cpu": "2"}, {"cpu": "3"}
SIDECAR = [container("side", {"cpu": "1"}, restartPolicy="Always")]
INIT = [container("side", {"cpu": "1"})]
LEVEL = {"requests": {"cpu": "2"}}


@pytest.mark.parametrize(
    ("spec", "status_", "cpu"),
    [
        pytest.param(pod(), {}, 2000, id="nothing is reported"),
        pytest.param(pod(), status(), 2000, id="nothing is reported of the container"),
        pytest.param(pod(), status(reported("other", real=THREE)), 2000, id="another container's"),
        pytest.param(pod(), status(reported(real=TWO, allocated=TWO)), 2000, id="no resize"),
        pytest.param(pod(), status(reported(real=ONE, allocated=ONE)), 2000, id="up, not yet allocated"),
        pytest.param(pod(), status(reported(real=THREE, allocated=TWO)), 3000, id="down, not yet done"),
        pytest.param(pod(), status(reported(real=TWO, allocated=THREE)), 3000, id="down, still allocated"),
        pytest.param(pod(), status(reported(allocated=THREE)), 2000, id="only allocated is reported: an old kubelet"),
        pytest.param(pod(), status(reported(real={})), 2000, id="nothing is real yet"),
        pytest.param(pod(), status(reported(real=ONE, allocated=ONE), pending="Infeasible"), 1000, id="infeasible"),
        pytest.param(pod(), status(reported(real=ONE, allocated=ONE), pending="Deferred"), 2000, id="deferred"),
        pytest.param(pod(), status(pending="Infeasible"), 2000, id="infeasible, but nothing is reported"),
        pytest.param(
            pod(initContainers=SIDECAR),
            status(inits=(reported("side", real=THREE),)),
            5000,
            id="a sidecar that shrinks",
        ),
        pytest.param(
            pod(initContainers=INIT), status(inits=(reported("side", real=THREE),)), 2000, id="an init container is not"
        ),
        pytest.param(
            pod("1", resources=LEVEL), status(resources={"requests": THREE}), 3000, id="the pod's own request shrinks"
        ),
        pytest.param(
            pod("1", resources=LEVEL),
            status(resources={"requests": ONE}, allocatedResources=THREE),
            3000,
            id="the pod's own request, still allocated",
        ),
        pytest.param(
            pod("1", resources=LEVEL),
            status(resources={"requests": ONE}, pending="Infeasible"),
            1000,
            id="the pod's own request, infeasible",
        ),
        pytest.param(pod("1", resources=LEVEL), status(allocatedResources=THREE), 2000, id="the pod's, nothing real"),
        pytest.param(pod(), status(resources={"requests": THREE}), 2000, id="the pod asks nothing at its own level"),
        pytest.param(
            pod(overhead={"cpu": "1"}), status(reported(real=THREE, allocated=TWO)), 4000, id="overhead comes on top"
        ),
    ],
)
def test_a_bound_pod_takes_before_1_37(spec: Raw, status_: Raw, cpu: int) -> None:
    assert resize.held(spec, status_, by_sums=False) == {"cpu": cpu}


TWINS = {"containers": [container("main", {"cpu": "1"}), container("second", {"cpu": "3"})]}


@pytest.mark.parametrize(
    ("spec", "status_", "cpu"),
    [
        pytest.param(pod(), {}, 2000, id="nothing is reported"),
        pytest.param(pod(), status(reported(real=ONE, allocated=ONE)), 2000, id="up, not yet allocated"),
        pytest.param(pod(), status(reported(real=THREE, allocated=TWO)), 3000, id="down, not yet done"),
        pytest.param(pod(), status(reported(allocated=THREE)), 3000, id="only allocated is reported"),
        pytest.param(pod(), status(reported(real={})), 2000, id="nothing is real yet"),
        pytest.param(pod(), status(reported(real={"cpu": "0"}), pending="Infeasible"), 0, id="really nothing"),
        pytest.param(pod(), status(reported(real=ONE, allocated=ONE), pending="Infeasible"), 1000, id="infeasible"),
        pytest.param(
            TWINS,
            status(reported("main", real=THREE, allocated=ONE), reported("second", real=ONE, allocated=THREE)),
            4000,
            id="one grows and one shrinks: the sums are equal",
        ),
        pytest.param(
            TWINS,
            status(reported("main", real=THREE, allocated=THREE), reported("second", real=TWO, allocated=TWO)),
            5000,
            id="the largest sum",
        ),
        pytest.param(
            pod(initContainers=INIT), status(inits=(reported("side", real=THREE),)), 3000, id="an init container too"
        ),
        pytest.param(pod(initContainers=SIDECAR), status(inits=(reported("side", real=THREE),)), 5000, id="a sidecar"),
        pytest.param(
            pod(),
            status(reported(real=THREE), resources={"requests": ONE}, allocatedResources=ONE),
            2000,
            id="the sums of the pod's status count, not those of its containers",
        ),
        pytest.param(
            pod("1", resources=LEVEL), status(resources={"requests": THREE}), 3000, id="the pod's own request shrinks"
        ),
        pytest.param(
            pod("1", resources=LEVEL),
            status(resources={"requests": ONE}, pending="Infeasible"),
            1000,
            id="the pod's own request, infeasible",
        ),
        pytest.param(pod("1", resources=LEVEL), status(allocatedResources=THREE), 2000, id="the pod's, nothing real"),
        pytest.param(
            pod(overhead={"cpu": "1"}), status(reported(real=THREE, allocated=TWO)), 4000, id="overhead comes on top"
        ),
    ],
)
def test_a_bound_pod_takes(spec: Raw, status_: Raw, cpu: int) -> None:
    assert resize.held(spec, status_) == ({"cpu": cpu} if cpu else {})


def test_a_resource_that_vanishes_from_the_spec_is_still_held() -> None:
    assert resize.held(pod(), status(reported(real={"memory": "5"}))) == {"cpu": 2000, "memory": 5}


def test_without_a_status_it_is_what_the_pod_asks() -> None:
    spec = pod(resources=LEVEL, initContainers=SIDECAR, overhead={"memory": "1"})
    assert resize.held(spec, {}) == resources.total(spec)
