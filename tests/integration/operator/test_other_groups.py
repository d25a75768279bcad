"""PodGroups of other systems, whose kinds a cluster serves or does not."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from berth_api.words import TABLE, PodGroupKind, Role
from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from tests.conftest import CRDS
from tests.integration.operator.world import World

SMALL: Final = {"cpu": "100m"}
OTHERS: Final = tuple(kind for kind in TABLE.pod_groups if not kind.has_status)


def definition(kind: PodGroupKind) -> Manifest:
    """Return a definition of a kind of PodGroups that accepts every object."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    # The API server accepts groups of the Kubernetes project only with an approval.
    approval = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{kind.group}", "annotations": approval},
        "spec": {"group": kind.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def naming(kind: PodGroupKind, group: str) -> dict[str, dict[str, str]]:
    """Return annotations or labels of a pod that names a group of a kind."""
    [system] = (each for each in TABLE.systems if kind in each.pod_groups)
    word = next((each for each in system.words if each.role == Role.GROUP_OBJECT), None)
    if word is None:
        return {"labels": {f"pod-group.{kind.group}": group}}
    return {"annotations": {word.name: group}}


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


def test_a_group_of_another_system_is_read(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    for kind in OTHERS:
        (folder / f"{kind.group}.yaml").write_text(yaml.safe_dump(definition(kind)))
    world.arena.cluster.install_crds(folder)
    world.operator()
    world.arena.nodes(1)
    for number, kind in enumerate(OTHERS):
        world.pod(f"first{number}", SMALL, **naming(kind, f"g{number}"))
        assert "does not exist" in world.waits(f"first{number}")
        world.arena.apply(
            {
                "apiVersion": f"{kind.group}/{kind.version}",
                "kind": "PodGroup",
                "metadata": {"name": f"g{number}"},
                "spec": {"minMember": 2, **dict.fromkeys(kind.lost, "x")},
            }
        )
        assert world.waits(f"first{number}", "waiting for members: 1 of 2")

    for number, kind in enumerate(OTHERS):
        world.pod(f"second{number}", SMALL, **naming(kind, f"g{number}"))

    for number, kind in enumerate(OTHERS):
        world.bound(f"first{number}")
        world.bound(f"second{number}")
        for name in (f"first{number}", f"second{number}"):
            notes = world.wait(partial(world.events, name, "WordsRead"), what="the Event")
            assert any(f"g{number} of {kind.group}: spec." in each["message"] for each in notes), notes
