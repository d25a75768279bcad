"""A pod that fits nowhere reports why, once. Freed capacity wakes only the pods that it may help.

`WAITS` in tests/integration/visibility/test_visibility.py has the other changes that wake a pod.
"""

from collections.abc import Iterator

import pytest

from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World

K = "kubernetes.io/"
TAINT = {"key": "example.com/keep-off", "value": "yes", "effect": "NoSchedule"}


def test_reasons_are_counted(shared: World) -> None:
    labels = {"example.com/pool": "gpu"}
    cordoned, tainted, *_ = shared.nodes(4, labels=labels, gpus=1)
    shared.nodes(2, gpus=1)
    shared.bare_nodes(labels=labels)
    shared.cordon(cordoned, on=True)
    shared.close_node(tainted, {"spec": {"taints": [TAINT]}}, why="untolerated taint")

    shared.pod("p", {"nvidia.com/gpu": "2"}, nodeSelector=labels)

    message = shared.waits("p", "unschedulable.*untolerated|untolerated.*unschedulable")
    assert message == (
        "0/7 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) have no Device, "
        "1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector, "
        "2 node(s) have too few healthy GPUs (2 requested, at most 1 on a node)."
    )
    condition = words.condition(shared.arena.get("pods", "p"), "PodScheduled")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    [event] = shared.wait(lambda: shared.events("p"), what="the Event")
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "FailedScheduling", shared.message("p"))


def test_autoscalers_see_unschedulable_only_where_a_node_could_help(shared: World) -> None:
    shared.pod("too-large", {"nvidia.com/gpu": "64"})
    shared.pod("invalid", {K + "gpu": "150"})
    shared.pod("unsupported", {"cpu": "1"}, resourceClaims=[{"name": "gpu", "resourceClaimName": "none"}])
    shared.pod("alone", {"cpu": "1"}, labels={"scheduling.x-k8s.io/pod-group": "none"})

    reasons = {}
    for name in ("too-large", "invalid", "unsupported", "alone"):
        shared.waits(name)
        reasons[name] = words.condition(shared.arena.get("pods", name), "PodScheduled")["reason"]
    assert reasons == {
        "too-large": "Unschedulable",
        "invalid": "InvalidRequest",
        "unsupported": "NotSupported",
        "alone": "PodGroupNotReady",
    }


def test_other_reason_is_reported_in_the_same_series(shared: World) -> None:
    shared.nodes(gpus=1)
    [bare] = shared.arena.nodes()
    shared.pod("p", {"nvidia.com/gpu": "2"})
    shared.waits("p", "1 .*have no Device, 1 .*too few healthy GPUs .2 requested")
    shared.wait(lambda: shared.events("p"), what="the Event")

    shared.device(bare, [words.gpu(0)])

    shared.pod("q", {"nvidia.com/gpu": "3"})
    shared.waits("q", "2 .*too few healthy GPUs .3 requested")
    shared.waits("p", "2 nodes are available: 2 .*too few healthy GPUs .2 requested")
    [event] = shared.wait(lambda: [each for each in shared.events("p") if each.get("series")], what="the second time")
    assert event["series"]["count"] == 2


# --- waking ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bystander(shared: World) -> Iterator[World]:
    """Return a world with a pod that nothing here can help; it must still wait at the end."""
    shared.pod("hopeless", {"nvidia.com/gpu": "64"})
    shared.waits("hopeless", "no nodes available")  # the operator knows that those of the test before are gone
    yield shared
    assert "hopeless" not in shared.bound_names()


def test_pod_that_succeeds_wakes_one_that_waits(bystander: World) -> None:
    bystander.nodes(gpus=1)
    bystander.pod("first", {"nvidia.com/gpu": "1"})
    bystander.bound("first")
    bystander.pod("second", {"nvidia.com/gpu": "1"})
    bystander.waits("second")

    bystander.arena.merge("pods", "first", {"status": {"phase": "Succeeded"}}, subresource="status")

    bystander.bound("second", deadline=words.PROMPT)


def test_node_that_turns_ready_wakes(bystander: World) -> None:
    [node] = bystander.nodes()
    down = "1 node.s. (were not ready|had untolerated taint)"
    bystander.close_node(node, _ready("False"), why=down, subresource="status")
    bystander.pod("p", {"nvidia.com/gpu": "1"})
    bystander.waits("p", down)

    bystander.arena.merge("nodes", node, _ready("True"), subresource="status")

    # The node controller removes its taint a moment later.
    bystander.bound("p", deadline=2 * words.PROMPT)


def _ready(status: str) -> Manifest:
    return {"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test"}]}}


def test_card_that_turns_healthy_wakes(bystander: World) -> None:
    [node] = bystander.nodes(gpus=1, unhealthy=[0])
    bystander.pod("p", {K + "gpu": "50"})
    bystander.waits("p", ".*too few healthy GPUs .1 requested")

    bystander.change(node, unhealthy=[])

    bystander.bound("p", deadline=words.PROMPT)
