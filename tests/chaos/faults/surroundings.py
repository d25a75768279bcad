"""What others do in a cluster: taint a pool, reject requests by a priority level, write the objects of Berth."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from devcluster import waiting
from tests.attacks.accounts import HEARTBEATS
from tests.chaos.faults.base import Family, Healed
from tests.chaos.machines import CARDS
from tests.chaos.site import DEVICES
from tests.chaos.workload import Failed
from tests.integration.operator.world import LEASES
from tests.objects.clouds import CLOUDS, GFD, NFD
from tests.programs.surroundings import REJECT, priority_level, refusing_policy

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
REFUSED: Final = (("", "pods/binding"), ("", "pods/status"), ("", "nodes"), ("berth.dev", "devices/status"))
"""(API group, resource) of which the writes are refused."""
TAKEN_BACK: Final = 60.0
"""Longest time in seconds until a field is the agent's or the operator's again."""


class Surroundings(Family):
    """Events that other programs cause."""

    weights: ClassVar[Mapping[str, int]] = {
        "pool_tainted": 3,
        "requests_rejected": 3,
        "writes_refused": 3,
        "device_taken_over": 4,
        "status_taken_over": 3,
        "heartbeat_taken_over": 2,
        "leader_lease_taken_over": 2,
    }

    def pool_tainted(self) -> Healed:
        """Add to a node the taint and labels of a cloud's pool for some seconds, and labels of feature discovery."""
        node, cloud = self.any_node(), self.chance.choice([*CLOUDS.values()])
        labels = {**cloud.labels, **NFD, **GFD}
        self._write_node(node, labels=labels, taint=cloud.taint, is_tainted=True)
        self.last(1.0, 5.0)
        self._write_node(node, labels=dict.fromkeys(labels), taint=cloud.taint, is_tainted=False)
        return Healed(node=node)

    def requests_rejected(self) -> Healed:
        """Reject the requests of the operator and the agents for less than a term."""
        arena = self.site.arena
        rejecting, _ = priority_level(arena, REJECT, shares=0)
        usual, _ = priority_level(arena)
        self.site.insist(lambda: arena.apply(rejecting))
        self.last(0.5, 3.0)
        self.site.insist(lambda: arena.apply(usual))
        return Healed()

    def writes_refused(self) -> Healed:
        """Refuse what Berth writes of one resource for some seconds, by a policy."""
        arena = self.site.arena
        policies = refusing_policy(arena, *self.chance.choice(REFUSED))
        self.site.insist(lambda: arena.apply(policies))
        self.last(2.0, 8.0)
        name = policies[0]["metadata"]["name"]
        for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            self.site.insist(functools.partial(arena.delete, plural, name))
        return Healed()

    def device_taken_over(self) -> Healed:
        """Apply a Device as it is by another manager, and let cards fail, which the Device has to show."""
        node = self.chance.choice(self.site.machines.simulated)
        device = self.site.cluster.api.get(f"{DEVICES}/{node}")
        body = {**{key: device[key] for key in ("apiVersion", "kind", "spec")}, "metadata": {"name": node}}
        self._write(f"{DEVICES}/{node}", body, manager="argocd", content_type=APPLY)
        failed = self.chance.sample(range(CARDS), self.chance.randint(1, CARDS))
        for minors in (set(failed), set[int]()):
            self.site.world.change(node, unhealthy=sorted(minors))
            is_shown = functools.partial(self._shows, node, minors)
            self._until(is_shown, what=f"{minors} of {node} to be shown")
        return Healed(node=node)

    def status_taken_over(self) -> Healed:
        """Write another sum into the status of a Device, as a restored backup does."""
        node = self.any_node()
        path, wrong = f"{DEVICES}/{node}/status", "99"
        self._write(path, {"status": {"allocated": wrong}}, manager="velero", content_type=MERGE)
        self._until(
            lambda: self.site.cluster.api.get(f"{DEVICES}/{node}")["status"].get("allocated") != wrong,
            what=f"the operator's sum in the Device of {node}",
        )
        return Healed(node=node)

    def heartbeat_taken_over(self) -> Healed:
        """Apply the holder of an agent's Lease by another manager."""
        node = self.any_node()
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node, "namespace": HEARTBEATS},
            "spec": {"holderIdentity": "another"},
        }
        self._write(f"{LEASES}/{node}", body, manager="argocd", content_type=APPLY)
        return Healed(node=node)

    def leader_lease_taken_over(self) -> None:
        """Write an annotation into the LeaderLease under its holder."""
        arena, since = self.site.arena, time.monotonic()
        self.site.replicas.leader(with_standby=True)
        path = f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/leaderleases/{arena.lease_name}"
        change = {"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": str(time.monotonic_ns())}}}
        self._write(path, change, manager="argocd", content_type=MERGE)
        self.site.measure_failover("leader_lease_taken_over", since)

    def _shows(self, node: str, unhealthy: set[int]) -> bool:
        """Return whether a Device shows these cards, by their minors, as unhealthy and no others."""
        cards = self.site.cluster.api.get(f"{DEVICES}/{node}")["spec"]["devices"]
        return {card["minor"] for card in cards if not card["health"]} == unhealthy

    def _until(self, predicate: Callable[[], bool], *, what: str) -> None:
        waiting.until(predicate, deadline=TAKEN_BACK, what=what)

    def _write_node(
        self, node: str, *, labels: Mapping[str, str | None], taint: Mapping[str, str], is_tainted: bool
    ) -> None:
        """Write labels, and a taint next to those of others, until no other write comes between."""
        api, path = self.site.cluster.api, f"/api/v1/nodes/{node}"

        def is_written() -> bool:
            try:
                known = api.get(path)
                taints = [each for each in known["spec"].get("taints", ()) if each["key"] != taint["key"]]
                metadata = {"resourceVersion": known["metadata"]["resourceVersion"], "labels": labels}
                api.merge(path, {"metadata": metadata, "spec": {"taints": [*taints, *([taint] if is_tainted else ())]}})
            except Failed:
                return False
            return True

        waiting.until(is_written, what=f"the taint of {node} to be written")

    def _write(self, path: str, body: Mapping[str, Any], *, manager: str, content_type: str) -> None:
        query = {"fieldManager": manager, **({"force": "true"} if content_type == APPLY else {})}
        self.site.insist(
            lambda: self.site.cluster.api.request("PATCH", path, body=body, query=query, content_type=content_type)
        )
