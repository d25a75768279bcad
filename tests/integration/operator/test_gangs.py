"""Gangs on a real control plane: they wait and are bound, and a new leader aborts only what has not formed.

tests/component/gangs/test_gangs.py has the rest: gangs that do not fit, members that are refused, fail or are replaced.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from devcluster import Cluster
from devcluster.control_plane.api import Manifest
from tests.differential.evictions import UNPLAYED
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.stand_ins.proxy import FaultProxy

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


# --- pods that controllers create ---------------------------------------------------------------------------------


def template(world: World, minimum: int, **spec: Any) -> Manifest:
    """Return the template of pods of one card, whose gang needs a minimum of members."""
    annotations = {"berth.dev/pod-group": "g", "berth.dev/pod-group-min-member": str(minimum)}
    pod = world.arena.pod(requests=CARD, limits=CARD, labels={"app": "g"}, annotations=annotations, **spec)
    metadata = {name: pod["metadata"][name] for name in ("labels", "annotations")}
    return {"metadata": metadata, "spec": pod["spec"]}


def pods_of_gang(world: World) -> list[Manifest]:
    return [
        pod for pod in world.arena.list("pods", labelSelector="app=g") if "deletionTimestamp" not in pod["metadata"]
    ]


def with_cards(world: World, cards: int) -> None:
    """Create a node on which pods neither run nor end by themselves."""
    [node] = world.arena.nodes(annotations=UNPLAYED)
    world.device(node, [words.gpu(number) for number in range(cards)])
    world.wait_ready(node, "True")


def test_the_last_pod_of_a_job_is_replaced_after_the_other_has_succeeded_and_gone(groups: World) -> None:
    with_cards(groups, 2)
    spec = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": template(groups, 2, restartPolicy="Never"),
    }
    groups.arena.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec})
    groups.wait(lambda: len(groups.bound_names()) == 2, what="both pods to be bound")
    first, second = sorted(
        pods_of_gang(groups),
        key=lambda pod: str(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]),
    )

    done, lost = first["metadata"]["name"], second["metadata"]["name"]
    groups.arena.merge("pods", done, {"status": {"phase": "Succeeded"}}, subresource="status")
    groups.wait(lambda: groups.arena.get("jobs", "job")["status"].get("succeeded") == 1, what="the Job to count it")
    groups.remove(done)
    groups.remove(lost)

    def is_replaced() -> bool:
        return bool(groups.bound_names() - {done, lost})

    # The Job waits for 10 s before it creates a pod again.
    groups.wait(is_replaced, deadline=60, what="the replacement to be bound")
    groups.arena.delete("jobs", "job")


@pytest.mark.parametrize(("replicas", "minimum"), [(2, 2), (1, 2)], ids=["scaled down", "typo"])
def test_a_deployment_whose_minimum_is_lowered_while_it_waits(groups: World, replicas: int, minimum: int) -> None:
    with_cards(groups, 1)

    def deploy(replicas: int, minimum: int) -> None:
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "g"}},
            "template": template(groups, minimum),
        }
        manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
        groups.arena.apply(manifest)

    deploy(replicas, minimum)
    groups.wait(lambda: len(pods_of_gang(groups)) == replicas, what="the pods to be created")
    for pod in pods_of_gang(groups):
        groups.waits(pod["metadata"]["name"])

    deploy(1, 1)

    groups.wait(groups.bound_names, deadline=words.PROMPT, what="the new pod to be bound")
    [bound] = groups.bound_names()
    annotations = groups.arena.get("pods", bound)["metadata"]["annotations"]
    assert annotations["berth.dev/pod-group-min-member"] == "1"
    groups.arena.delete("deployments", "web")
    groups.wait(lambda: not pods_of_gang(groups), what="the pods to go")
