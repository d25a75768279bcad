"""Gangs on a real control plane: both protocols, waiting, repair, and aborting what cannot be completed."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devcluster import Cluster
from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.proxy import FaultProxy

CARD = {"nvidia.com/gpu": "1"}
LABEL = "scheduling.x-k8s.io/pod-group"

# As Kubeflow's training operator sends it: with an owner, an empty status, and timestamps that are null.
KUBEFLOW = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: pytorch-simple
  annotations: {}
  creationTimestamp: null
spec:
  minMember: 2
  minResources:
    cpu: "2"
    memory: 1Gi
    nvidia.com/gpu: "2"
  scheduleTimeoutSeconds: 100
status:
  scheduleStartTime: null
"""


def pod_group(world: World, name: str, minimum: int, **spec: Any) -> Manifest:
    (group,) = world.arena.apply(
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": minimum, **spec},
        }
    )
    return group


def wait_status(world: World, name: str, **expected: Any) -> Manifest:
    """Wait until a PodGroup has this status."""

    def look() -> Manifest | None:
        status: Manifest = world.arena.get("podgroups", name).get("status") or {}
        return status if all(status.get(key, 0) == value for key, value in expected.items()) else None

    shown = world.arena.wait(
        look, what=f"the status {expected}", details=lambda: str(world.arena.get("podgroups", name).get("status"))
    )
    assert shown is not None
    return shown


def members(count: int, name: str = "m") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def nodes_of(world: World, names: list[str]) -> set[str]:
    return {world.bound(name)["spec"]["nodeName"] for name in names}


@pytest.fixture
def groups(shared: World) -> Iterator[World]:
    yield shared
    for group in shared.arena.list("podgroups"):
        shared.arena.delete("podgroups", group["metadata"]["name"])


def test_gang_waits_for_its_members_and_is_bound_close_together(groups: World) -> None:
    groups.nodes(3)
    pod_group(groups, "g", 4)
    groups.pods(members(3), CARD, labels={LABEL: "g"})
    for name in members(3):
        assert groups.waits(name).endswith("waiting for members: 3 of 4")
    assert not groups.bound_names()
    wait_status(groups, "g", phase="Pending", scheduled=0)

    groups.pod("m3", CARD, labels={LABEL: "g"})

    assert len(nodes_of(groups, members(4))) == 1
    status = wait_status(groups, "g", phase="Running", scheduled=4, running=4)
    assert status["scheduleStartTime"]


def test_gang_by_annotations_waits_and_is_bound(groups: World) -> None:
    groups.nodes(2)
    annotations = {"berth.dev/pod-group": "g", "berth.dev/pod-group-min-member": "2"}
    groups.pod("m0", CARD, annotations=annotations)
    assert groups.waits("m0").endswith("waiting for members: 1 of 2")

    groups.pod("m1", CARD, annotations=annotations)

    assert len(nodes_of(groups, members(2))) == 1


def test_gang_that_does_not_fit_holds_nothing(groups: World) -> None:
    [node] = groups.nodes(gpus=3)
    pod_group(groups, "g", 4)
    groups.pods(members(4), CARD, labels={LABEL: "g"})
    message = groups.waits("m0", "3 of the 4 required members fit")
    assert "0/1 nodes are available: 1 node(s) were taken by other members of the pod group" in message
    # Another pod may use all of it.
    groups.pod("other", {"nvidia.com/gpu": "3"})
    groups.bound("other")
    groups.remove("other")

    groups.change(node, gpus=4)

    assert nodes_of(groups, members(4)) == {node}


def test_member_that_fails_is_replaced_next_to_the_others(groups: World) -> None:
    groups.nodes(3)
    pod_group(groups, "g", 4)
    groups.pods(members(4), CARD, labels={LABEL: "g"})
    nodes = nodes_of(groups, members(4))

    groups.remove("m2")
    groups.wait(lambda: len(groups.arena.list("pods")) == 3, what="the PodGroup to be deleted")
    groups.pod("new", CARD, labels={LABEL: "g"})

    assert nodes_of(groups, ["new"]) == nodes
    wait_status(groups, "g", phase="Running", scheduled=4)


def test_group_that_does_not_exist_is_reported_and_waited_for(groups: World) -> None:
    groups.nodes()
    groups.pod("m0", CARD, labels={LABEL: "g"})
    assert "PodGroup " in groups.waits("m0", "does not exist: create it")
    [event] = groups.wait(lambda: groups.events("m0"), what="the Event")
    assert event["reason"] == "FailedScheduling"

    pod_group(groups, "g", 1)

    groups.bound("m0")


def test_pods_and_group_as_kubeflow_writes_them(groups: World) -> None:
    groups.nodes()
    (group,) = groups.arena.create([yaml.safe_load(KUBEFLOW)])
    assert group["spec"]["minResources"]["nvidia.com/gpu"] == "2"
    owner = {"app": "pytorch-simple", "training.kubeflow.org/job-name": "pytorch-simple", LABEL: "pytorch-simple"}
    for role in ("master", "worker"):
        labels = {**owner, "training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": "0"}
        groups.pod(f"pytorch-simple-{role}-0", CARD, labels=labels)

    for role in ("master", "worker"):
        groups.bound(f"pytorch-simple-{role}-0")
    wait_status(groups, "pytorch-simple", phase="Running")


def test_refused_member_undoes_its_group(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(3)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    refused = proxy.answer("POST", "/pods/m1/binding", status=403)
    others = ["m0", "m2"]
    pod_group(world, "g", 3, scheduleTimeoutSeconds=8)
    world.pods(members(3), CARD, labels={LABEL: "g"})
    for name in others:
        world.bound(name)
    wait_status(world, "g", phase="Scheduling", scheduled=2)
    # It keeps its card while its bind is retried.
    world.pod("other", CARD)
    world.waits("other", "too few free GPUs")

    world.wait(
        lambda: {each["metadata"]["name"] for each in world.arena.list("pods")} == {"m1", "other"},
        what="the members to be deleted",
    )

    world.bound("other", deadline=words.PROMPT)
    refused.wait(2)

    def notes() -> list[str]:
        return [event["message"] for event in world.arena.list("events") if event["reason"] == "PodGroupTimedOut"]

    world.wait(lambda: len(notes()) == 2, what="an Event for each")
    assert all("could not be completed within 8 s: 2 of 3 members were bound" in each for each in notes())
    world.waits("m1", "waiting for members: 1 of 3")
    # Created again, and no bind is refused any more.
    refused.remove()
    world.remove("other")
    world.pods(others, CARD, labels={LABEL: "g"})
    assert nodes_of(world, members(3)) == {node}


def test_new_leader_undoes_only_what_has_not_formed(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(6)])
    kubeconfig = proxy.kubeconfig(cluster.token)
    first = world.operator(kubeconfig=kubeconfig)
    proxy.answer("POST", "/pods/half1/binding", status=403)
    for name in ("full", "half"):
        annotations = {"berth.dev/pod-group": name, "berth.dev/pod-group-min-member": "3"}
        world.pods(members(3, name), CARD, annotations=annotations)
    for name in (*members(3, "full"), "half0", "half2"):
        world.bound(name)
    first.kill()
    world.free_lease()
    world.remove("full1")

    world.operator(kubeconfig=kubeconfig, gang_timeout=2)

    remaining = {"full0", "full2", "half1"}
    world.wait(
        lambda: {each["metadata"]["name"] for each in world.arena.list("pods")} == remaining,
        what="the half to be undone",
    )
    [event] = world.wait(lambda: world.events("full0", "PodGroupUnknown"), what="the Event")
    assert "are bound, and nothing records whether enough of them were" in event["message"]


def test_cluster_without_the_definition_has_pods_all_the_same(
    proxy: FaultProxy, world: World, cluster: Cluster
) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(2)])
    proxy.answer("GET", "/podgroups", status=404)
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    world.pod("plain", CARD)
    world.bound("plain")
    pod_group(world, "g", 1)
    world.pod("m0", CARD, labels={LABEL: "g"})
    world.waits("m0", "does not exist")
