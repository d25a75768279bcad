"""Helm takes over the previous version, upgrades it and rolls back while pods come and go, and nothing is lost.

This version is a release, whose chart and images are used. Berth runs as pods of a real node, from images of both
versions. Half of the load runs on this node, in real containers. The other half runs on simulated nodes. `make
upgrade-e2e` does this several times.
"""

import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devcluster import Arena, Cluster
from devcluster.building import images
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.components import PLUGINS
from devcluster.control_plane.nodes import Strings
from devcluster.real_node import RealNode
from tests.integration.operator.world import EPOCH
from tests.node.boxes import box
from tests.node.installed import Kustomization, Place, chart_values
from tests.node.site import Site
from tests.node.stage import SHARE
from tests.programs import previous, released
from tests.programs.chart import NAMESPACE, helm
from tests.programs.load import BOUND, Load, check
from tests.programs.processes import Processes

ROUNDS: Final = int(os.environ.get("BERTH_ROUNDS", "1"))
NODES: Final = 3
CARDS: Final = 4
TAINT: Final = {"key": "simulated", "effect": "NoSchedule"}
"""Keeps the pods of Berth off the simulated nodes."""
OLD, NEW = "old", "new"
LEASE: Final = "berth-operator"
AGENTS: Final = "berth-agent-system"
"""Namespace of the agents."""


class Releases:
    """The version before by its manifests, and releases of the chart with its images and with ours."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._cluster = place.cluster
        tagged = [{"name": f"{images.PREFIX}/{name}", "newTag": previous.TAG} for name in images.IMAGES]
        self._before = Kustomization(
            place, folder, root=previous.unpacked(), components=["device-plugin"], images=tagged
        )
        self._values = {**chart_values(place), "admission": {"by": "policies"}}
        self._chart = released.file(released.CHART)

    def install(self) -> None:
        """Install the version before as its users did."""
        self._before.install()

    def adopt(self) -> None:
        """Make what runs the first revision of a release, with the same programs; they know no `crds` and `cleanup`."""
        tags = {side: {"tag": previous.TAG, "digest": ""} for side in ("operator", "agent")}
        own = {
            "image": {**self._values["image"], **tags},
            "crds": {"install": False},
            "cleanup": {"enabled": False},
        }
        self._helm("install", "berth", self._chart, "--take-ownership", values={**self._values, **own})

    def upgrade(self) -> None:
        """Upgrade to this version."""
        self._helm("upgrade", "berth", self._chart, values=self._values)

    def roll_back(self) -> None:
        """Go back to the first revision."""
        self._helm("rollback", "berth", "1")

    def uninstall(self) -> None:
        """Uninstall the release, and what of the version before is not in it."""
        self._helm("uninstall", "berth", "--ignore-not-found")
        self._before.uninstall()

    def until_rolled_out(self) -> None:
        """Wait until all pods are those of the newest manifests; Helm waits only for those that may not be missing."""
        workloads = {"deployment/berth-operator": NAMESPACE, "daemonset/berth-agent": AGENTS}
        for workload, namespace in workloads.items():
            self._cluster.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=300s")

    def _helm(self, *arguments: str | Path, values: dict[str, Any] | None = None) -> None:
        options = ("--wait", "--timeout=300s", f"--namespace={NAMESPACE}")
        helm(*arguments, *options, values=values, kubeconfig=self._cluster.kubeconfig)


@pytest.fixture
def own_cluster(image_archives: list[Path]) -> Iterator[Cluster]:  # noqa: ARG001 - built before its timeout runs
    """A cluster of the test's own: the names in the chart belong to the whole cluster.

    The version before works in it: OwnerReferencesPermissionEnforcement is off, with which its agents publish nothing,
    and PodTopologyLabels, with which it binds no pod to a node with a zone.
    """
    arguments = [f"{PLUGINS}=NamespaceLifecycle", "--disable-admission-plugins=PodTopologyLabels"]
    with Cluster(extra_args={"kube-apiserver": arguments}) as running:
        running.install_crds(previous.unpacked() / "crds")
        running.play_device_plugins()
        yield running


@pytest.fixture
def own_node(image_archives: list[Path], own_cluster: Cluster) -> Iterator[RealNode]:
    with RealNode(cluster=own_cluster) as running:
        running.import_images(*image_archives, *previous.image_archives())
        yield running


@pytest.fixture
def arena(own_cluster: Cluster, own_node: RealNode, tmp_path: Path) -> Iterator[Arena]:
    """An arena whose pods Berth's own scheduler places, and to which the real node belongs."""
    arena = Arena(cluster=own_cluster, folder=tmp_path)
    arena.scheduler_name = "berth-scheduler"
    arena.open()
    arena.merge("nodes", own_node.name, {"metadata": {"labels": arena.labels}})
    yield arena
    arena.merge("nodes", own_node.name, {"metadata": {"labels": dict.fromkeys(arena.labels)}})
    arena.close()


@pytest.fixture
def simulated(arena: Arena, tmp_path: Path) -> Iterator[None]:
    """Nodes that kwok plays, and an agent that publishes their Devices."""
    names = arena.nodes(NODES, taints=[TAINT])
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump({"nodes": [{"names": name, "profile": "a100", "gpus": CARDS} for name in names]}))
    processes = Processes(arena=arena, folder=tmp_path)
    processes.agent(fleet, as_administrator=True)  # its account comes with the chart, later
    yield
    sys.stdout.write(processes.tails())
    processes.close()


@pytest.fixture
def site(own_node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    with Site(own_node, arena, folder, Releases) as installed:
        yield installed


def real_pod(arena: Arena, name: str, requests: Strings) -> Manifest:
    """Return the manifest of a pod for the real node."""
    return box(arena, name, limits=requests)


def simulated_pod(arena: Arena, name: str, requests: Strings) -> Manifest:
    """Return the manifest of a pod for the simulated nodes."""
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}]
    pod = arena.pod(name, requests=requests, limits=requests)
    pod["spec"] |= {"nodeSelector": {"type": "kwok"}, "tolerations": tolerations}
    return pod


@pytest.mark.usefixtures("simulated")
@pytest.mark.timeout(600 + 300 * ROUNDS)
def test_an_upgrade_by_helm_and_the_rollback_lose_nothing(site: Site, arena: Arena) -> None:
    releases = site.installation
    assert isinstance(releases, Releases)
    real = Load(arena, functools.partial(real_pod, arena), prefix="real-", period=1, life=8, grace_seconds=None)
    played = Load(arena, functools.partial(simulated_pod, arena), prefix="p", period=0.2, life=40)
    terms: dict[int, str] = {}
    refused: set[str] = set()
    """Pods that kubelet refused while an agent of the version before ended, which does not wait for them."""

    def settle(version: str, *, ended: str) -> None:
        """Wait until this version has bound pods of both kinds; audit what it finds after an agent `ended`."""
        releases.until_rolled_out()
        if ended == OLD:
            refused.update(failed(real))
        assert running_images(arena) == {image(name, version) for name in ("operator", "agent")}
        real.until_bound()
        played.until_bound()
        terms[term(arena)] = version
        check(arena)

    started = time.monotonic()
    releases.install()
    site.wait(site.is_injected, what="the injection to be in force")
    # Until then kubelet refuses the first pods, which that version binds.
    site.wait(lambda: site.node.allocatable(SHARE) == CARDS * 100, what="the Node to offer shares")
    with ExitStack() as loads:
        loads.enter_context(real.running())
        loads.enter_context(played.running())
        settle(OLD, ended=OLD)
        releases.adopt()
        settle(OLD, ended=OLD)
        for _ in range(ROUNDS):
            releases.upgrade()
            settle(NEW, ended=OLD)
            releases.roll_back()
            settle(OLD, ended=NEW)
    site.hold(*sorted(real.bound_names() - real.ended.keys() - refused))
    check(arena)
    real.check_nothing_is_lost()
    played.check_nothing_is_lost()
    pods = [*real.pods(), *played.pods()]
    assert {name: reason for name, reason in failed(real).items() if name not in refused} == {}
    bound = Counter(terms.get(int(pod["metadata"]["annotations"][EPOCH]), "between") for pod in pods)
    seconds = time.monotonic() - started
    created = f"{len(real.created)} + {len(played.created)} pods"
    sys.stdout.write(f"{created}, bound by {dict(bound)}, refused from the old agent {len(refused)}, {seconds:.1f} s\n")
    assert min(bound[OLD], bound[NEW]) >= BOUND * ROUNDS


def failed(load: Load) -> dict[str, str]:
    """Return why pods of a load have failed, by name."""
    statuses = {pod["metadata"]["name"]: pod["status"] for pod in load.pods()}
    return {name: str(status.get("message")) for name, status in statuses.items() if status.get("phase") == "Failed"}


def running_images(arena: Arena) -> set[str]:
    """Return the images of Berth's pods on the real node that are not ending."""
    programs = "app.kubernetes.io/name in (berth-operator,berth-agent)"
    pods = arena.cluster.api.get("/api/v1/pods", fieldSelector="spec.nodeName=real-0", labelSelector=programs)["items"]
    live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"]
    return {container["image"] for pod in live for container in pod["spec"]["containers"]}


def image(side: str, version: str) -> str:
    """Return the name of a version's image."""
    name = f"berth-{side}"
    return images.name(name, previous.TAG) if version == OLD else released.image(name)


def term(arena: Arena) -> int:
    """Return the term of the leader."""
    path = f"/apis/berth.dev/v1alpha1/namespaces/{NAMESPACE}/leaderleases/{LEASE}"
    return int(arena.cluster.api.get(path)["spec"]["term"])
