"""Nodes are drained, rebooted and renamed, and cards fail for longer."""

import http.client
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from berth_api.names import AGENT
from berth_api.objects import ownership
from devcluster.control_plane.api import ApiError
from tests.chaos.faults.base import Family
from tests.chaos.life_auditor import NOT_HELD
from tests.chaos.live import LivePod
from tests.chaos.machines import CARDS
from tests.chaos.site import DEVICES, MISUSES

EVICTION_SECONDS: Final = 5.0
"""Longest time in which a budget keeps a node from being drained; then the pods are deleted."""
REPORT_SECONDS: Final = 20.0
"""How long a pod uses a card that it does not hold, unless that is reported before."""
_NUMBERS: Final[Iterator[int]] = itertools.count()


class NodeFaults(Family):
    """Events in the life of nodes."""

    weights: ClassVar[Mapping[str, int]] = {
        "node_drained": 5,
        "node_rebooted": 4,
        "node_renamed": 2,
        "card_failed": 5,
        "card_used_by_another_pod": 4,
    }

    def node_drained(self) -> None:
        """Cordon a node, evict its pods, and let it take pods again."""
        node = self.any_node()
        self._cordon(node, on=True)
        self._drain(node)
        self.last(0.5, 3.0)
        self._cordon(node, on=False)

    def node_rebooted(self) -> None:
        """Let a node and its agent be away for some seconds; its cards may get other minors."""
        node = self.any_node()
        machine = next((each for each in self.site.machines.with_nvml if each.node == node), None)
        self._set_ready(node, "False")
        if machine is None:
            self.site.world.change(node, heartbeat=False)
        else:
            machine.kill()
        self.last(1.0, 4.0)
        if machine is None:
            self.site.world.change(node, heartbeat=True)
        else:
            machine.permute(self.chance)
            machine.start()
        self._set_ready(node, "True")

    def node_renamed(self) -> None:
        """Drain a node, and let the same machine join with another name."""
        node, new = self.any_node(), f"{self.site.arena.id}-renamed-{next(_NUMBERS)}"
        manifest = self.again(node, name=new)
        self._cordon(node, on=True)
        self._drain(node)
        self._insist_gone(node)
        self.site.insist(lambda: self.site.cluster.api.delete(f"/api/v1/nodes/{node}"))
        self.site.insist(lambda: self.site.cluster.api.post("/api/v1/nodes", manifest))
        self.site.machines.rename(node, new)
        self.last(0.5, 1.5)

    def card_failed(self) -> None:
        """Report some cards of a node as failed for some seconds."""
        node = self.chance.choice(self.site.machines.simulated)
        self.site.world.change(node, unhealthy=self.chance.sample(range(CARDS), self.chance.randint(1, CARDS)))
        self.last(3.0, 8.0)
        self.site.world.change(node, unhealthy=[])

    def card_used_by_another_pod(self) -> None:
        """Report, as an agent next to a kubelet does, that a pod uses a card for probes, which it does not hold."""
        node = self.chance.choice(self.site.machines.simulated)
        path = f"{DEVICES}/{node}"
        pods, since = [*filter(_runs, self._pods_on(node))], time.monotonic()
        if not pods:
            return
        pod, namespace = self.chance.choice(pods), self.site.arena.namespace
        card = self.site.cluster.api.get(path)["spec"]["devices"][CARDS]
        use = {"type": "gpu", "minor": card["minor"], "id": card["id"], "memory": "2Gi"}
        use |= {"namespace": namespace, "pod": pod.name, "podUID": pod.uid}
        end = time.monotonic() + REPORT_SECONDS
        while time.monotonic() < end and not self._is_reported(pod):
            # Again: the node's simulated agent has written its own status meanwhile.
            self._show(path, [use])
            time.sleep(0.5)
        self._show(path, [])
        known = self.site.live.pods.get(pod.name)
        if known is not None and known.uid == pod.uid and _runs(known):
            misuse = {"uid": pod.uid, "name": f"{namespace}/{pod.name}", "node": node, "since": since}
            with (self.site.world.processes.folder / MISUSES).open("a") as file:
                file.write(json.dumps(misuse) + "\n")

    def _is_reported(self, pod: LivePod) -> bool:
        events = self.site.arena.list("events", fieldSelector=f"involvedObject.uid={pod.uid}")
        return any(event["reason"] == NOT_HELD for event in events)

    def _show(self, path: str, uses: Sequence[Mapping[str, Any]]) -> None:
        """Apply what the agent of a real node would; the simulated agent soon applies its own status again."""

        def apply() -> None:
            device = self.site.cluster.api.get(path)
            own = ownership.condition_types(ownership.applied(device, AGENT).status)
            conditions = [each for each in device["status"]["conditions"] if each["type"] in own]
            head = {key: device[key] for key in ("apiVersion", "kind")} | {
                "metadata": {"name": device["metadata"]["name"]}
            }
            self.site.cluster.api.request(
                "PATCH",
                f"{path}/status",
                body={**head, "status": {"conditions": conditions, "unheld": uses}},
                query={"fieldManager": AGENT, "force": "true"},
                content_type="application/apply-patch+yaml",
            )

        self.site.insist(apply)

    def _cordon(self, node: str, *, on: bool) -> None:
        self._patch(node, {"spec": {"unschedulable": True if on else None}})

    def _set_ready(self, node: str, status: str) -> None:
        """Set the condition that kubelet writes; the others of the node stay."""
        path = f"/api/v1/nodes/{node}"
        conditions = self.site.cluster.api.get(path)["status"]["conditions"]
        changed = [{**each, "status": status} if each["type"] == "Ready" else each for each in conditions]
        self.site.insist(lambda: self.site.cluster.api.merge(f"{path}/status", {"status": {"conditions": changed}}))

    def _patch(self, node: str, change: Mapping[str, Any]) -> None:
        self.site.insist(lambda: self.site.cluster.api.merge(f"/api/v1/nodes/{node}", change))

    def _drain(self, node: str) -> None:
        """Evict the pods of a node, and delete those that a budget protects for too long."""
        end = time.monotonic() + EVICTION_SECONDS
        while (left := self._pods_on(node)) and time.monotonic() < end + EVICTION_SECONDS:
            for pod in left:
                if time.monotonic() > end or not self._evicts(pod):
                    self.site.remove(pod)
            time.sleep(0.3)

    def _insist_gone(self, node: str) -> None:
        self.site.live.until(lambda: not self._pods_on(node), what=f"the pods of {node} to leave")

    def _pods_on(self, node: str) -> list[LivePod]:
        return [pod for pod in self.site.live.pods.values() if pod.node == node]

    def _evicts(self, pod: LivePod) -> bool:
        """Evict a pod, unless its budget forbids that now; return False if it has to be deleted."""
        path = f"/api/v1/namespaces/{self.site.arena.namespace}/pods/{pod.name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.name}}
        try:
            self.site.cluster.api.post(path, body)
        except ApiError as error:
            return error.status in (http.client.TOO_MANY_REQUESTS, http.client.NOT_FOUND)
        return True


def _runs(pod: LivePod) -> bool:
    """Return whether a pod may have a process on a card: one that has ended has none."""
    return not pod.is_leaving and pod.raw.get("status", {}).get("phase") == "Running"
