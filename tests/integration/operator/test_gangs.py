"""Gangs on a real control plane: they wait and are bound, and a new leader aborts only what has not formed.

tests/component/test_gangs.py has the rest: gangs that do not fit, members that are refused, fail or are replaced.
"""

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
