"""Gangs that controllers define in objects, which the operator reads with the rights of its components."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from berth_operator.core.values.controller_gangs import OWNED, Owners
from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from tests.conftest import CRDS
from tests.integration.operator.world import World

SMALL = {"cpu": "100m"}


def definition(kind: str, owners: Owners) -> Manifest:
    """Return a definition of a kind that accepts every object."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": owners.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": owners.plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    # The API server accepts groups of the Kubernetes project only with an approval.
    approval = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{owners.plural}.{owners.group}", "annotations": approval},
        "spec": {"group": owners.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a cluster of its own: a kind that is served there is served to all its arenas."""
    with Cluster(folder=tmp_path / "cluster") as running:
        running.install_crds(CRDS)
        arena = Arena(cluster=running, folder=tmp_path)
        arena.open()
        own = World(arena=arena, folder=tmp_path)
        yield own
        own.close()


def test_the_pods_of_a_controller_start_together(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    for kind, owners in OWNED.items():
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(definition(kind, owners)))
    world.arena.cluster.install_crds(folder)
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
