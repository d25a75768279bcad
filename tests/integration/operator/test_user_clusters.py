"""Berth with its shipped rights and policies, in clusters as users have them."""

import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.attacks.accounts import OPERATOR, Accounts
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.clouds import CLOUDS
from tests.programs.surroundings import REJECT, priority_level

HALF: Final = {"kubernetes.io/gpu": "50"}
OFFERED: Final = {"nvidia.com/gpu": "1"}
PODS: Final = 24
REST: Final = 0.01
"""Shortest time in seconds between two lists of a thread of the flood."""
STRICT: Final = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""A pod's securityContext that the level `restricted` demands."""


@pytest.fixture
def accounts(arena: Arena) -> Iterator[Accounts]:
    """Apply the shipped accounts with their rights and policies."""
    installed = Accounts(arena)
    installed.open()
    yield installed
    installed.close()


@pytest.fixture
def shipped(world: World, accounts: Accounts) -> World:
    """Return a world with an operator of the shipped account."""
    world.operator(kubeconfig=accounts.operator(), lease=OPERATOR)
    return world


def test_nodes_of_three_clouds_get_pods_and_keep_the_labels_of_others(shipped: World, tmp_path: Path) -> None:
    nodes = {}
    for number, (name, cloud) in enumerate(CLOUDS.items()):
        [node] = shipped.arena.nodes(labels=cloud.all_labels(), capacity=OFFERED, taints=[cloud.taint])
        machine = NvmlFixture(tmp_path / name, gpus=[a100(number)])
        machine.write()
        kubeconfig = shipped.processes.agents.kubeconfig_on(node)
        shipped.processes.node_agent(node, machine, kubeconfig=kubeconfig, poll_interval=0.2)
        nodes[name] = node

    for name, cloud in CLOUDS.items():
        place = {"kubernetes.io/hostname": nodes[name]}
        toleration = {"key": cloud.taint["key"], "operator": "Exists", "effect": "NoSchedule"}
        shipped.pod(name, HALF, nodeSelector=place, tolerations=[toleration])
        shipped.pod(f"{name}-without", HALF, nodeSelector=place)
    for name, cloud in CLOUDS.items():
        labels = shipped.bound(name)["metadata"]["labels"]
        assert labels["topology.kubernetes.io/zone"] == cloud.zone
        shipped.waits(f"{name}-without", r"3 node\(s\) had untolerated taint")
        shipped.wait_sum(nodes[name], "kubernetes.io/gpu", "100")
        shown = shipped.arena.get("nodes", nodes[name])
        assert cloud.all_labels().items() <= shown["metadata"]["labels"].items()
        assert cloud.taint.items() <= shown["spec"]["taints"][0].items()
    shipped.audit(*nodes.values())


def test_rules_of_a_namespace_apply_to_pods_of_berth(shipped: World) -> None:
    """LimitRange and ResourceQuota decide what pods request, and PodSecurity which pods there are."""
    arena = shipped.arena
    shipped.agent()
    [node] = shipped.nodes(gpus=2)
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": level}})
    limits = {"type": "Container", "defaultRequest": {"cpu": "40"}, "default": {"cpu": "60"}}
    arena.apply(
        [
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "own"}, "spec": {"limits": [limits]}},
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "own"},
                "spec": {"hard": {"requests.cpu": "100", "pods": "10"}},
            },
        ]
    )

    def strict(name: str) -> Manifest:
        pod = arena.pod(name, requests=HALF, limits=HALF, securityContext=STRICT)
        drops = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        pod["spec"]["containers"][0]["securityContext"] = drops
        return pod

    def is_limited() -> bool:
        [container] = arena.admitted(strict("probe"))["spec"]["containers"]
        return "cpu" in container["resources"]["requests"]

    arena.wait(is_limited, what="the LimitRange")
    assert "violates PodSecurity" in arena.refusal(arena.pod("open", requests=HALF, limits=HALF))
    arena.create([strict("first")])
    assert shipped.bound("first")["spec"]["nodeName"] == node
    arena.create([strict("second")])
    # 40 of 64 cores are taken by the default of the LimitRange.
    shipped.waits("second", "1 Insufficient cpu")
    arena.wait(lambda: "exceeded quota" in arena.refusal(strict("third")), what="the quota")
    shipped.remove("first")
    shipped.bound("second")
    shipped.audit(node)


def test_all_pods_are_bound_while_the_api_server_rejects_requests(shipped: World, accounts: Accounts) -> None:
    """The operator and the agents have three seats of a priority level, which a flood of lists takes as well."""
    arena = shipped.arena
    shipped.agent()
    nodes = shipped.nodes(2, gpus=8)
    arena.apply(priority_level(arena, REJECT, shares=1))
    flood = Flood(accounts.client(OPERATOR))
    try:
        arena.wait(lambda: flood.rejected, what="a request to be rejected")
        names = [f"pod-{number}" for number in range(PODS)]
        shipped.pods(names, HALF)
        shipped.wait(lambda: shipped.bound_names() == set(names), what="all pods to be bound")
        shipped.audit(*nodes)
    finally:
        flood.stop()
        for plural in ("flowschemas", "prioritylevelconfigurations"):
            arena.delete(plural, arena.id)


class Flood:
    """Lists of all pods by a client: four threads that rest as long as they waited for the last answer.

    So they take their part of the seats, however slow the API server is, and leave the others theirs.
    """

    def __init__(self, client: Api) -> None:
        self.rejected = 0
        self._client, self._stop = client, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        took = REST
        while not self._stop.wait(max(took, REST)):
            started = time.monotonic()
            try:
                self._client.get("/api/v1/pods")
            except ApiError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                self.rejected += 1
            took = time.monotonic() - started
