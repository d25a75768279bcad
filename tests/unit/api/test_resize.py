"""What a bound pod takes while it is resized in place."""

from typing import Any

import pytest

from berth_api import resources
from berth_api.resources import resize
from tests.objects.builders import container

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


BOUND_POD_TAKES_BEFORE_1_37 = {
    "nothing is reported": (pod(), {}, 2000),
    "nothing is reported of the container": (pod(), status(), 2000),
    "another container's": (pod(), status(reported("other", real=THREE)), 2000),
    "no resize": (pod(), status(reported(real=TWO, allocated=TWO)), 2000),
    "up, not yet allocated": (pod(), status(reported(real=ONE, allocated=ONE)), 2000),
    "down, not yet done": (pod(), status(reported(real=THREE, allocated=TWO)), 3000),
    "down, still allocated": (pod(), status(reported(real=TWO, allocated=THREE)), 3000),
    "only allocated is reported: an old kubelet": (pod(), status(reported(allocated=THREE)), 2000),
    "nothing is real yet": (pod(), status(reported(real={})), 2000),
    "infeasible": (pod(), status(reported(real=ONE, allocated=ONE), pending="Infeasible"), 1000),
    "deferred": (pod(), status(reported(real=ONE, allocated=ONE), pending="Deferred"), 2000),
    "infeasible, but nothing is reported": (pod(), status(pending="Infeasible"), 2000),
    "a sidecar that shrinks": (pod(initContainers=SIDECAR), status(inits=(reported("side", real=THREE),)), 5000),
    "an init container is not": (pod(initContainers=INIT), status(inits=(reported("side", real=THREE),)), 2000),
    "the pod's own request shrinks": (pod("1", resources=LEVEL), status(resources={"requests": THREE}), 3000),
    "the pod's own request, still allocated": (
        pod("1", resources=LEVEL),
        status(resources={"requests": ONE}, allocatedResources=THREE),
        3000,
    ),
    "the pod's own request, infeasible": (
        pod("1", resources=LEVEL),
        status(resources={"requests": ONE}, pending="Infeasible"),
        1000,
    ),
    "the pod's, nothing real": (pod("1", resources=LEVEL), status(allocatedResources=THREE), 2000),
    "the pod asks nothing at its own level": (pod(), status(resources={"requests": THREE}), 2000),
    "overhead comes on top": (pod(overhead={"cpu": "1"}), status(reported(real=THREE, allocated=TWO)), 4000),
}


@pytest.mark.parametrize(
    ("spec", "status_", "cpu"), BOUND_POD_TAKES_BEFORE_1_37.values(), ids=BOUND_POD_TAKES_BEFORE_1_37
)
def test_a_bound_pod_takes_before_1_37(spec: Raw, status_: Raw, cpu: int) -> None:
    assert resize.held(spec, status_, by_sums=False) == {"cpu": cpu}


TWINS = {"containers": [container("main", {"cpu": "1"}), container("second", {"cpu": "3"})]}


BOUND_POD_TAKES = {
    "nothing is reported": (pod(), {}, 2000),
    "up, not yet allocated": (pod(), status(reported(real=ONE, allocated=ONE)), 2000),
    "down, not yet done": (pod(), status(reported(real=THREE, allocated=TWO)), 3000),
    "only allocated is reported": (pod(), status(reported(allocated=THREE)), 3000),
    "nothing is real yet": (pod(), status(reported(real={})), 2000),
    "really nothing": (pod(), status(reported(real={"cpu": "0"}), pending="Infeasible"), 0),
    "infeasible": (pod(), status(reported(real=ONE, allocated=ONE), pending="Infeasible"), 1000),
    "one grows and one shrinks: the sums are equal": (
        TWINS,
        status(reported("main", real=THREE, allocated=ONE), reported("second", real=ONE, allocated=THREE)),
        4000,
    ),
    "the largest sum": (
        TWINS,
        status(reported("main", real=THREE, allocated=THREE), reported("second", real=TWO, allocated=TWO)),
        5000,
    ),
    "an init container too": (pod(initContainers=INIT), status(inits=(reported("side", real=THREE),)), 3000),
    "a sidecar": (pod(initContainers=SIDECAR), status(inits=(reported("side", real=THREE),)), 5000),
    "the sums of the pod's status count, not those of its containers": (
        pod(),
        status(reported(real=THREE), resources={"requests": ONE}, allocatedResources=ONE),
        2000,
    ),
    "the pod's own request shrinks": (pod("1", resources=LEVEL), status(resources={"requests": THREE}), 3000),
    "the pod's own request, infeasible": (
        pod("1", resources=LEVEL),
        status(resources={"requests": ONE}, pending="Infeasible"),
        1000,
    ),
    "the pod's, nothing real": (pod("1", resources=LEVEL), status(allocatedResources=THREE), 2000),
    "overhead comes on top": (pod(overhead={"cpu": "1"}), status(reported(real=THREE, allocated=TWO)), 4000),
}


@pytest.mark.parametrize(("spec", "status_", "cpu"), BOUND_POD_TAKES.values(), ids=BOUND_POD_TAKES)
def test_a_bound_pod_takes(spec: Raw, status_: Raw, cpu: int) -> None:
    assert resize.held(spec, status_) == ({"cpu": cpu} if cpu else {})


def test_a_resource_that_vanishes_from_the_spec_is_still_held() -> None:
    assert resize.held(pod(), status(reported(real={"memory": "5"}))) == {"cpu": 2000, "memory": 5}


def test_without_a_status_it_is_what_the_pod_asks() -> None:
    spec = pod(resources=LEVEL, initContainers=SIDECAR, overhead={"memory": "1"})
    assert resize.held(spec, {}) == resources.total(spec)
