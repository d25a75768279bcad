"""An arena with devices, and helpers for tests.

There are two kinds of nodes. An agent serves the nodes in its fleet file. For other nodes, the test itself writes the
Device (`device`), for an inventory that no agent would publish.
"""

import itertools
import json
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from demo.audit import audit
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.control_plane.nodes import is_of_plugin
from tests.programs.processes import Process, Processes

T = TypeVar("T")

POLL: Final = 0.03
START: Final = 30.0
"""Longest time in seconds for a process to start on a busy machine."""
PROMPT: Final = 20.0
"""Longest time in seconds until freed capacity is used: a pod that was tried often backs off for up to 10 s."""
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
EPOCH: Final = "berth.dev/epoch"
VISIBLE: Final = "devices.berth.dev/visible"
A100: Final = "NVIDIA A100-SXM4-80GB"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/berth-node-lease/leases"
AGENT_TYPES: Final = {"DriverLoaded", "InventoryRead"}
OPERATOR_TYPES: Final = {"Ready", "Valid", "Accounted"}


class World:
    """One arena, its operators and agents, and the fleet file of the agents."""

    def __init__(self, *, arena: Arena, folder: Path) -> None:
        self.arena = arena
        self.processes = Processes(arena=arena, folder=folder)
        self.api = arena.cluster.api
        self.fleet_file = folder / "fleet.yaml"
        self.fleet: dict[str, dict[str, Any]] = {}
        self._versions = itertools.count()
        self._fleet_lock = threading.Lock()
        self._write_fleet()

    # --- setup ------------------------------------------------------------------------------------------------

    def operator(self, **flags: Any) -> Process:
        """Start an operator and `wait` until it leads."""
        return self.processes.operator(**flags)

    def agent(self, **flags: Any) -> Process:
        """Start an agent for the fleet file."""
        return self.processes.agent(self.fleet_file, **flags)

    def nodes(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        **devices: Any,
    ) -> list[str]:
        """Create nodes whose devices the agent plays; `profile` and `gpus` are as in a fleet file."""
        names = self.arena.nodes(count, labels=labels, capacity=capacity)
        for name in names:
            self.fleet[name] = {"profile": "a100", "gpus": 8, **devices}
        self._write_fleet()
        self.wait(lambda: all(self.ready(name) == "True" for name in names), what="Devices to be ready")
        return names

    def bare_nodes(self, count: int = 1, *, labels: Mapping[str, str] | None = None) -> list[str]:
        """Create nodes without devices, and wait until the operator knows them, and which are gone."""
        names = self.arena.nodes(count, labels=labels)
        self.pod("first", {"cpu": "1m"}, nodeSelector={"kubernetes.io/hostname": names[-1]})
        self.bound("first")
        self.remove("first")
        return names

    def change(self, node: str, **devices: Any) -> None:
        """Change a node's entry in the fleet file, or add it."""
        self.fleet[node] = {**self.fleet.get(node, {}), **devices}
        self._write_fleet()

    def forget(self, node: str) -> None:
        """Remove a node from the fleet file."""
        del self.fleet[node]
        self._write_fleet()

    def _write_fleet(self) -> None:
        with self._fleet_lock:
            if self.fleet:
                self.processes.agents.place(self.fleet)
            groups = [{"names": name, **group} for name, group in dict(self.fleet).items()]
            draft = self.fleet_file.with_suffix(f".{next(self._versions)}")
            draft.write_text(yaml.safe_dump({"nodes": groups}))
            draft.replace(self.fleet_file)

    def device(self, node: str, cards: Sequence[Manifest], *, beating: bool = True) -> Manifest:
        """Write a Device, with a Lease that lasts for the whole test unless it is not `beating`."""
        if beating:
            self.renew(node, seconds=3600)
        return self.api.apply(
            {
                "apiVersion": "berth.dev/v1alpha1",
                "kind": "Device",
                "metadata": {"name": node},
                "spec": {"driverVersion": "570.1", "devices": list(cards)},
            }
        )

    def renew(self, node: str, *, seconds: int, time: str = "2026-01-01T00:00:00.000000Z") -> None:
        """Renew a node's Lease as its agent would, with any timestamp."""
        self._lease_namespace()
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node, "namespace": "berth-node-lease"},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": seconds, "renewTime": time},
        }
        self.api.apply(lease)

    def _lease_namespace(self) -> None:
        if not self.api.exists("/api/v1/namespaces/berth-node-lease"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "berth-node-lease"}}
            self.api.apply(namespace)

    def pod(self, name: str, requests: Mapping[str, str], **options: Any) -> Manifest:
        """Create a pod of this arena's scheduler."""
        manifest = self.arena.pod(name, requests=requests, limits=requests, **options)
        return self.arena.create([manifest])[0]

    def pods(self, names: Iterable[str], requests: Mapping[str, str], **options: Any) -> None:
        """Create several equal pods."""
        self.arena.create(
            [self.arena.pod(each, requests=requests, limits=requests, **options) for each in names],
        )

    # --- state ------------------------------------------------------------------------------------------------

    def wait(self, predicate: Callable[[], T], *, deadline: float = waiting.PATIENCE, what: str = "a condition") -> T:
        """Wait for a condition, with a short poll interval."""
        return self.arena.wait(predicate, deadline=deadline, what=what, poll=POLL)

    def bound(self, name: str, *, deadline: float = waiting.PATIENCE) -> Manifest:
        """Wait until a pod is bound; return it."""

        def look() -> Manifest | None:
            pod = self.arena.get("pods", name)
            return pod if pod["spec"].get("nodeName") else None

        bound = self._wait_for_pod(name, look, deadline=deadline, what="to be bound")
        assert bound is not None
        return bound

    def bound_names(self) -> set[str]:
        """Return the names of the bound pods."""
        return {each["metadata"]["name"] for each in self.arena.list("pods") if each["spec"].get("nodeName")}

    def message(self, name: str) -> str:
        """Return the message of a waiting pod's condition."""
        scheduled = condition(self.arena.get("pods", name), "PodScheduled")
        return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""

    def waits(self, name: str, pattern: str = ".", *, deadline: float = waiting.PATIENCE) -> str:
        """Wait until a pod's message matches, up to 10 s after another; return it without its preemption part."""
        self._wait_for_pod(
            name, lambda: re.search(pattern, self.message(name)), deadline=deadline, what=f"to report {pattern!r}"
        )
        return self.message(name).partition(" preemption: ")[0]

    def _wait_for_pod(self, name: str, predicate: Callable[[], T], *, deadline: float, what: str) -> T:
        return self.wait(predicate, deadline=deadline, what=f"pod {name} {what}")

    def events(self, name: str, reason: str = "") -> list[Manifest]:
        """Return the Events of an existing pod, of one reason or all, oldest first."""
        uid = self.arena.get("pods", name)["metadata"]["uid"]
        events = [event for event in self.arena.list("events") if event["involvedObject"].get("uid") == uid]
        return sorted(
            (event for event in events if reason in ("", event["reason"])), key=lambda event: event["eventTime"]
        )

    def shown(self, node: str) -> Manifest:
        """Return a Device; empty if there is none."""
        try:
            return self.arena.get("devices", node)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return {}

    def ready(self, node: str) -> str:
        """Return a Device's condition Ready."""
        return str(condition(self.shown(node), "Ready").get("status", ""))

    def wait_ready(self, node: str, status: str, *, deadline: float = waiting.PATIENCE) -> Manifest:
        """Wait until a Device's Ready has a status; return the condition."""
        self.wait(lambda: self.ready(node) == status, deadline=deadline, what=f"Ready={status} of {node}")
        return condition(self.shown(node), "Ready")

    def wait_condition(self, node: str, kind: str, status: str, *, deadline: float = waiting.PATIENCE) -> str:
        """Wait until a Device has a condition; return its message."""
        self.wait(
            lambda: condition(self.shown(node), kind).get("status") == status,
            deadline=deadline,
            what=f"{kind}={status} of {node}",
        )
        return str(condition(self.shown(node), kind)["message"])

    def wait_allocated(self, node: str, cards: str) -> None:
        """Wait until a Device shows this many cards in use."""
        self.wait(
            lambda: self.shown(node).get("status", {}).get("allocated") == cards,
            what=f"{cards} cards allocated on {node}; it shows {self.shown(node).get('status', {}).get('allocated')}",
        )

    def allocatable(self, node: str) -> dict[str, str]:
        """Return a Node's sums of devices, without the resources of device plugins."""
        sums: dict[str, str] = self.arena.get("nodes", node)["status"]["allocatable"]
        return {name: amount for name, amount in sums.items() if "/" in name and not is_of_plugin(name)}

    def wait_sum(self, node: str, name: str, amount: str) -> None:
        """Wait until a Node shows a sum."""
        self.wait(
            lambda: self.allocatable(node).get(name) == amount,
            what=f"{name}: {amount} on {node}; it shows {self.allocatable(node)}",
        )

    # --- changes ----------------------------------------------------------------------------------------------

    def audit(self, *nodes: str) -> None:
        """Audit all pods and these nodes with code that the operator does not share."""
        devices = {each["metadata"]["name"]: each for each in self.arena.list("devices")}
        findings = audit(
            pods=self.arena.list("pods"),
            nodes=self.arena.list("nodes", labelSelector=self.arena.selector),
            devices=[devices.get(each, {}) for each in nodes],
            scheduler=self.arena.scheduler_name,
        )
        assert not findings, "\n".join(map(str, findings))

    def write_until(self, revision: int) -> None:
        """Write until versions exceed this one, as a busy cluster does within seconds after etcd was restored."""
        self.arena.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: counter}}")
        for number in range(10_000):
            written = self.arena.merge("configmaps", "counter", {"data": {"number": str(number)}})
            if int(written["metadata"]["resourceVersion"]) > revision:
                return

    def cordon(self, node: str, *, on: bool) -> None:
        """Cordon a node and wait until the operator knows, or uncordon it and wait until its taint is gone too."""
        if on:
            self.close_node(node, {"spec": {"unschedulable": True}}, why="were unschedulable")
        else:
            self.arena.merge("nodes", node, {"spec": {"unschedulable": None}})
            self.wait(lambda: not self._is_cordoned(node), what=f"{node} to lose the taint of its cordon")

    def close_node(
        self, node: str, patch: Manifest, *, why: str, requests: Mapping[str, str] | None = None, subresource: str = ""
    ) -> None:
        """Change a node, and wait until a pod with these requests waits because of that.

        The operator watches nodes and pods separately: a pod that is created right after the change may be bound.
        """
        self.arena.merge("nodes", node, patch, subresource=subresource)
        self.wait(lambda: self._refuses(node, requests or {"cpu": "1m"}, why), what=f"{node} to be refused: {why}")

    def _refuses(self, node: str, requests: Mapping[str, str], why: str) -> bool:
        self.pod("pinned", requests, nodeSelector={"kubernetes.io/hostname": node})
        self.wait(lambda: self.message("pinned") or "pinned" in self.bound_names(), what="pinned to be decided")
        message = self.message("pinned")
        self.remove("pinned")
        return re.search(why, message) is not None

    def _is_cordoned(self, node: str) -> bool:
        taints = self.arena.get("nodes", node)["spec"].get("taints", ())
        return any(each["key"] == "node.kubernetes.io/unschedulable" for each in taints)

    def remove(self, name: str) -> None:
        """Delete a pod at once."""
        self.arena.delete("pods", name, grace_seconds=0)

    def free_lease(self) -> None:
        """Release the LeaderLease of an operator that is certainly dead."""
        self.arena.merge("leaderleases", self.arena.lease_name, {"spec": {"holderIdentity": ""}})

    def clear(self) -> None:
        """Delete all pods, nodes and Devices, so that the next test starts with none."""
        mine = {each["metadata"]["name"] for each in self.arena.list("nodes", labelSelector=self.arena.selector)}
        self.fleet = {}
        self._write_fleet()
        pods = f"/api/v1/namespaces/{self.arena.namespace}/pods"
        self.api.delete(pods, grace_seconds=0)
        self.api.delete("/api/v1/nodes", labelSelector=self.arena.selector)
        left = {each["metadata"]["name"] for each in self.arena.list("devices")}
        for name in {each for each in left if each in mine or each.startswith(f"{self.arena.id}-")}:
            self.arena.delete("devices", name)
        self.wait(lambda: not self.arena.list("pods"), what="pods to go")

    def close(self) -> None:
        """Stop all programs."""
        self.processes.close()


def condition(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return one condition of an object; empty if it has none of that type."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each["type"] == kind), {})


def allocation(pod: Manifest) -> dict[str, list[dict[str, Any]]]:
    """Return a pod's allocation annotation."""
    allocated: dict[str, list[dict[str, Any]]] = json.loads(pod["metadata"]["annotations"][ALLOCATED])
    return allocated


def minors(pod: Manifest, kind: str = "gpu") -> list[int]:
    """Return the minors of a pod's cards."""
    return [each["minor"] for each in allocation(pod).get(kind, [])]


def gpu(minor: int, **fields: Any) -> Manifest:
    """Return a healthy A100 as an agent would publish it."""
    return {
        "type": "gpu",
        "minor": minor,
        "id": f"GPU-{minor:08d}-0000-0000-0000-{os.getpid():012d}",
        "health": True,
        "model": A100,
        "resources": {
            "kubernetes.io/gpu-core": 100,
            "kubernetes.io/gpu-memory": "80Gi",
            "kubernetes.io/gpu-memory-ratio": 100,
        },
        **fields,
    }


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def metrics(port: int, name: str) -> list[str]:
    """Return a metric's lines without its name, as an operator of this machine serves them."""
    lines = fetch(f"http://127.0.0.1:{port}/metrics").splitlines()
    return [line.removeprefix(name).strip() for line in lines if line.startswith(name)]


def fetch(url: str) -> str:
    """Return the response body of an address of this machine."""
    with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - loopback
        return str(response.read(), "utf-8")
