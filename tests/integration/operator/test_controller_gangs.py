"""Gangs that controllers define in objects, which the operator reads with the rights of its components."""

from pathlib import Path

import yaml

from berth_operator.core.values.controller_gangs import OWNED
from devcluster import Cluster
from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

SMALL = {"cpu": "100m"}


def definition(kind: str) -> Manifest:
    """Return a definition of a kind that accepts every object."""
    owners = OWNED[kind]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": owners.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": owners.plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{owners.plural}.{owners.group}"},
        "spec": {"group": owners.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def test_the_pods_of_a_controller_start_together(world: World, cluster: Cluster, tmp_path: Path) -> None:
    """The cluster serves one of the kinds that the operator may read. The definition stays for the other tests."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "jobset.yaml").write_text(yaml.safe_dump(definition("JobSet")))
    before = set(cluster.api.shared)
    cluster.install_crds(folder)
    cluster.api.shared.intersection_update(before)
    world.operator(jobset_gangs=True, kubeflow_gangs=True, ray_gangs=True)
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
