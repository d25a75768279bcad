"""A release is installed from its files alone, runs as pods with only their rights, gives pods cards, and is removed.

The test has its own cluster, because the names in manifests/ belong to the whole cluster.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devcluster import Arena, Cluster
from devcluster.building import oci
from devcluster.control_plane.components import AGGREGATOR_ROUTING
from devcluster.real_node import Container, RealNode
from tests.node.installed import Installation, Kustomization, Place, Release
from tests.node.nics import NIC, files, files_of, plug_in
from tests.node.site import PROGRAMS, Site
from tests.node.stage import GPU, SHARE
from tests.objects.sysfs_tree import SysfsTree

INSTALLATIONS: dict[str, Callable[[Place, Path], Installation]] = {"kustomize": Kustomization, "helm": Release}
BOUND_SECONDS = 45
"""Longest time from an installation to the first bound pod."""
READY_SECONDS = 10
"""Longest time from a ready operator to the first bound pod."""
MAX_BYTES = {"berth-operator": 300_000_000, "berth-agent": 220_000_000}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster whose API server calls webhooks at the addresses of their pods: there is no kube-proxy."""
    with Cluster(extra_args={"kube-apiserver": [AGGREGATOR_ROUTING]}) as running:
        yield running


@pytest.fixture(scope="module")
def own_node(image_archives: list[Path], own_cluster: Cluster) -> Iterator[RealNode]:
    with RealNode(cluster=own_cluster) as running:
        running.import_images(*image_archives)
        yield running


@dataclass(frozen=True, slots=True)
class Times:
    """When something happened, in seconds after the installation began."""

    applied: float
    ready: float
    bound: float

    def __str__(self) -> str:
        return f"applied {self.applied:.1f} s, operator ready {self.ready:.1f} s, pod bound {self.bound:.1f} s"


def install(site: Site, name: str) -> Times:
    """Install Berth and create a pod as soon as it is accepted; return when the pod was bound."""
    began = time.monotonic()
    site.installation.install()
    seen = {"applied": time.monotonic() - began}
    steps = {
        "accepted": lambda: site.is_accepted(name, {GPU: "1"}),
        "ready": lambda: site.is_ready("operator"),
        "bound": lambda: "accepted" in seen and site.is_bound(name),
    }

    def are_all_seen() -> bool:
        for step in steps.keys() - seen:
            if steps[step]():
                seen[step] = time.monotonic() - began
        return steps.keys() <= seen.keys()

    site.wait(are_all_seen, what=f"{name} to be bound by a ready operator")
    return Times(seen["applied"], seen["ready"], seen["bound"])


@pytest.fixture(params=INSTALLATIONS)
def site(
    request: pytest.FixtureRequest,
    helm: Path,  # noqa: ARG001 - asked for, so that it is built before the first test
    own_node: RealNode,
    own_cluster: Cluster,
    tmp_path: Path,
) -> Iterator[Site]:
    arena = Arena(cluster=own_cluster, folder=tmp_path)
    arena.scheduler_name = "berth-scheduler"
    arena.open()
    with Site(own_node, arena, tmp_path, INSTALLATIONS[request.param]) as installed:
        yield installed
    arena.close()


def test_images_are_small(image_archives: list[Path]) -> None:
    sizes = {path.name.rpartition("-")[0]: oci.unpacked_bytes(path) for path in image_archives}
    assert {name: size < MAX_BYTES[name] for name, size in sizes.items()} == dict.fromkeys(MAX_BYTES, True), sizes


def test_pods_get_their_cards_from_an_installation_an_upgrade_and_a_reinstallation(site: Site) -> None:
    plug_in(SysfsTree(site.machine.sysfs), site.machine.gpus)
    first = install(site, "first")
    site.submit({SHARE: "50"}, "half", scheduler_name="default-scheduler", nodeSelector={})
    site.hold("first", "half")
    assert site.read("half")["spec"]["schedulerName"] == "berth-scheduler"  # routed
    assert {name: confinement(site.node.container(site.pod_of(name), name)) for name in PROGRAMS} == {
        "operator": AS_USER,
        "webhook": AS_USER,
        "agent": AS_ROOT,
    }
    site.submit({NIC: "1"}, "nic")
    site.wait(lambda: site.is_running("nic"), what="the pod with a NIC to run")
    assert files(site, "nic") in (files_of("mlx5_0"), files_of("mlx5_1"))
    containers = site.containers("first", "half")

    site.installation.upgrade()
    site.submit({GPU: "1"}, "second")
    site.hold("second")
    site.installation.uninstall()
    again = install(site, "third")

    site.hold("first", "half", "second", "third")
    assert site.containers("first", "half") == containers
    sys.stdout.write(f"first: {first}\nagain: {again}\n")
    for times in (first, again):
        assert times.bound - times.ready <= READY_SECONDS
        assert times.bound <= BOUND_SECONDS


def confinement(container: Container) -> dict[str, str]:
    """Return by what the kernel confines a container."""
    status = Path(f"/proc/{container.pid}/status").read_text()
    fields = dict(re.findall(r"^(Uid|CapEff|NoNewPrivs|Seccomp):\s+(\w+)", status, re.MULTILINE))
    root = re.search(r" / / (\w+)", Path(f"/proc/{container.pid}/mountinfo").read_text())
    return {**fields, "root": root[1] if root else ""}


AS_USER = {"Uid": "65532", "CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2", "root": "ro"}
AS_ROOT = {**AS_USER, "Uid": "0"}
