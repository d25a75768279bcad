"""One test's pods, and the nodes that Karpenter adds for them."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest

EXAMPLES: Final = Path(__file__).parents[2] / "manifests/examples/autoscalers"
CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
POOLS: Final = "/apis/karpenter.sh/v1/nodepools"
DEADLINE: Final = 300.0
"""Seconds: Karpenter batches pods for some seconds, and a node takes some more to start."""
SETTLE: Final = 25.0
"""Seconds in which Karpenter would add further nodes: it considers each pending pod every ten seconds."""


class Scaled:
    """The pods of a namespace, and the nodes of the cluster."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.api = arena, arena.cluster.api
        self._started = time.monotonic()
        self.conditions: dict[str, list[str]] = {}
        """Pod -> the reasons of its condition PodScheduled that were seen, in order."""
        self.claims_seen: set[str] = set()

    # --- pods -----------------------------------------------------------------------------------------------------

    def pod(self, name: str, limits: Mapping[str, str], **options: Any) -> None:
        """Create a pod of Berth's."""
        manifest = self.arena.pod(name, requests=limits, limits=limits, scheduler_name="berth-scheduler", **options)
        self.arena.create([manifest])

    def example(self, name: str) -> None:
        """Apply a file of the examples."""
        for manifest in yaml.safe_load_all((EXAMPLES / name).read_text()):
            self.api.apply(manifest, namespace=self.arena.namespace)

    def pods(self) -> list[Manifest]:
        """Return the pods, and record what they show."""
        pods = self.arena.list("pods")
        for pod in pods:
            reason = condition(pod, "PodScheduled").get("reason", "")
            seen = self.conditions.setdefault(pod["metadata"]["name"], [])
            if reason and seen[-1:] != [reason]:
                seen.append(reason)
        self.claims_seen |= {claim["metadata"]["name"] for claim in self.claims()}
        return pods

    def wait_bound(self, count: int, *, other_than: Collection[str] = ()) -> list[Manifest]:
        """Wait until so many pods are bound and none has one of these UIDs; return them."""

        def bound() -> list[Manifest] | None:
            pods = [pod for pod in self.pods() if pod["spec"].get("nodeName")]
            are_other = all(pod["metadata"]["uid"] not in other_than for pod in pods)
            return pods if len(pods) == count and are_other else None

        pods: list[Manifest] = self._until(bound, f"{count} pods to be bound")
        return pods

    def wait_reason(self, name: str, reason: str) -> None:
        """Wait until a pod's condition has a reason."""
        self._until(lambda: self.pods() and reason in self.conditions.get(name, ()), f"{name} to show {reason}")

    # --- nodes ----------------------------------------------------------------------------------------------------

    def claims(self) -> list[Manifest]:
        """Return Karpenter's NodeClaims, of which each stands for one purchase."""
        return list(self.api.get(CLAIMS)["items"])

    def nodes(self) -> list[Manifest]:
        """Return the Nodes that Karpenter has added."""
        return list(self.api.get("/api/v1/nodes", labelSelector="karpenter.sh/nodepool")["items"])

    def wait_node(self) -> None:
        """Wait until Karpenter has added a node and has seen it itself."""
        registered = {"labelSelector": "karpenter.sh/registered=true"}
        self._until(lambda: self.api.get("/api/v1/nodes", **registered)["items"], "a node")

    def devices(self) -> list[str]:
        """Return the names of all Devices."""
        return [each["metadata"]["name"] for each in self.api.get(self.api.resource("devices").path())["items"]]

    def holders(self) -> set[str]:
        """Return the UIDs of the pods that hold cards according to the Devices."""
        devices = self.api.get(self.api.resource("devices").path())["items"]
        cards = [card for device in devices for card in device["status"]["devices"]]
        return {holder["uid"] for card in cards for holder in card.get("holders", ())}

    def delete_claim(self, name: str) -> None:
        """Have Karpenter remove a node, with its pods."""
        self.api.delete(f"{CLAIMS}/{name}")

    def settle(self) -> None:
        """Wait for the nodes that Karpenter still adds."""
        end = time.monotonic() + SETTLE
        while time.monotonic() < end:
            self.pods()
            time.sleep(0.5)

    def wait_gone(self) -> None:
        """Wait until no node, NodeClaim and Device is left."""
        self._until(
            lambda: not (self.nodes() or self.claims() or self.devices()), "all nodes and their Devices to be gone"
        )

    def set_consolidation(self, after: str) -> None:
        """Set how long a node must be empty before Karpenter removes it."""
        for pool in self.api.get(POOLS)["items"]:
            disruption = {"consolidateAfter": after, "budgets": [{"nodes": "100%"}]}
            self.api.merge(f"{POOLS}/{pool['metadata']['name']}", {"spec": {"disruption": disruption}})

    def clear(self) -> None:
        """Remove the pods, their owners and all nodes."""
        for kind in ("deployments", "jobs", "pods"):
            self.api.delete(self.api.resource(kind).path(namespace=self.arena.namespace), grace_seconds=0)
        self._until(lambda: not self.arena.list("pods"), "the pods to be gone")
        self.api.delete(CLAIMS)
        self.wait_gone()

    def _until(self, predicate: Callable[[], Any], what: str) -> Any:
        return waiting.until(predicate, deadline=DEADLINE, what=what, poll=0.2, details=self._details)

    def _details(self) -> str:
        log = (self.arena.cluster.folder / "karpenter.log").read_text().splitlines()[-15:]
        return "\n".join([str(self.conditions), *log])


def condition(obj: Manifest, kind: str) -> Manifest:
    """Return a condition of an object; empty if it has none of this type."""
    found = (each for each in obj.get("status", {}).get("conditions", ()) if each["type"] == kind)
    return next(found, {})
