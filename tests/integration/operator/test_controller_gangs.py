"""Gangs that controllers define in objects, which the operator reads with the rights of its components."""

from pathlib import Path

import yaml

from berth_operator.core.values.controller_gangs import OWNED
from devcluster import Cluster
from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

SMALL = {"cpu": "100m"}
GROUP = "LeaderWorkerSet group"
KINDS = {GROUP: "LeaderWorkerSet"}
"""What messages call a gang -> the kind of its object."""
CARD = {"nvidia.com/gpu": "1"}
WORKER = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}


def worker(group: int, index: int) -> dict[str, dict[str, str]]:
    """Return the metadata of a pod of the LeaderWorkerSet `vllm` with groups of three pods."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    labels = {"name": "vllm", "group-index": str(group), "worker-index": str(index)}
    return {
        "labels": {f"{prefix}{name}": value for name, value in labels.items()},
        "annotations": {f"{prefix}size": "3"},
    }


def of_job(name: str) -> dict[str, str]:
    return {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": name}


def define(cluster: Cluster, folder: Path, *kinds: str) -> None:
    """Define kinds that accept every object. The definitions stay for the other tests."""
    folder = folder / "definitions"
    folder.mkdir()
    for kind in kinds:
        owners = OWNED[kind]
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": owners.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        named = KINDS.get(kind, kind)
        names = {"kind": named, "plural": owners.plural, "singular": named.lower(), "listKind": f"{named}List"}
        definition: Manifest = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{owners.plural}.{owners.group}"},
            "spec": {"group": owners.group, "names": names, "scope": "Namespaced", "versions": [version]},
        }
        (folder / f"{owners.plural}.yaml").write_text(yaml.safe_dump(definition))
    before = set(cluster.api.shared)
    cluster.install_crds(folder)
    cluster.api.shared.intersection_update(before)


def test_the_pods_of_a_controller_start_together(world: World, cluster: Cluster, tmp_path: Path) -> None:
    """The cluster serves two of the kinds that the operator may read."""
    define(cluster, tmp_path, "JobSet", GROUP)
    world.operator(grove_gangs=True, jobset_gangs=True, kubeflow_gangs=True, lws_gangs=True, ray_gangs=True)
    world.arena.nodes(1)
    world.arena.apply(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "train"},
            "spec": {"replicatedJobs": [{"name": "node", "replicas": 2, "template": {"spec": {"parallelism": 1}}}]},
        }
    )
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "node"}
    world.pod("first", SMALL, labels=labels)
    assert "JobSet" in world.waits("first", "waiting for members: 1 of 2")
    world.pod("second", SMALL, labels=labels)
    world.bound("first")
    world.bound("second")


def test_pods_that_come_later_get_their_places_with_the_first(world: World, cluster: Cluster, tmp_path: Path) -> None:
    """Two leaders with LeaderReady, and a JobSet with dependsOn: their controllers create the other pods later."""
    define(cluster, tmp_path, "JobSet", GROUP)
    first = world.operator(jobset_gangs=True, lws_gangs=True)
    world.agent()
    world.nodes(2, gpus=4)
    template = {"size": 3, "workerTemplate": WORKER}
    world.arena.apply(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "vllm"},
            "spec": {"replicas": 2, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": template},
        }
    )
    world.pod("vllm-0", CARD, **worker(0, 0))
    world.bound("vllm-0")
    # One card and four for its workers are taken or promised: three are left, and the next group needs five.
    world.pod("vllm-1", CARD, **worker(1, 0))
    assert "2 pod(s) that are created once these run" in world.waits("vllm-1", "This counts")
    [event] = world.wait(lambda: world.events("vllm-0", "PlacesPromised"), what="the Event")
    assert "for 2 pod(s) that come later are kept until" in event["message"]
    # The next leader knows what the first one has promised.
    lease = world.arena.lease_name
    world.wait(lambda: world.arena.get("leaderleases", lease).get("status", {}).get("promisedGangs"), what="the record")
    first.stop()
    world.operator(jobset_gangs=True, lws_gangs=True)
    world.pod("other", {"nvidia.com/gpu": "4"})
    world.waits("other", "too few free GPUs")
    for index in (1, 2):
        world.pod(f"vllm-0-{index}", {"nvidia.com/gpu": "2"}, **worker(0, index))
        world.bound(f"vllm-0-{index}")
    world.arena.apply(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "train"},
            "spec": {
                "replicatedJobs": [
                    {"name": "driver", "template": {"spec": {}}},
                    {
                        "name": "node",
                        "template": {"spec": {"template": WORKER}},
                        "dependsOn": [{"name": "driver", "status": "Ready"}],
                    },
                ]
            },
        }
    )
    world.pod("driver", SMALL, labels=of_job("driver"))
    world.bound("driver")
    world.wait(lambda: world.events("driver", "PlacesPromised"), what="the Event")
    world.pod("small", {"nvidia.com/gpu": "2"})
    world.waits("small", "too few free GPUs")
    world.pod("node", {"nvidia.com/gpu": "2"}, labels=of_job("node"))
    world.bound("node")
