"""Objects and definitions that Berth depends on are deleted and return."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import yaml

from devcluster import waiting
from devcluster.additions import fleet
from tests.chaos.faults.base import Family, Healed
from tests.chaos.site import DEVICES
from tests.integration.operator.world import LEASES

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SOON: Final = 60.0


class ObjectFaults(Family):
    """Faults of what is stored."""

    weights: ClassVar[Mapping[str, int]] = {
        "device_deleted": 6,
        "node_deleted": 5,
        "agents_lease_deleted": 5,
        "leader_lease_deleted": 2,
        "devices_definition_deleted": 0,
        "leader_leases_definition_deleted": 0,
    }

    def device_deleted(self) -> Healed:
        """Delete a Device, which its agent publishes again."""
        node = self.any_node()
        path = f"{DEVICES}/{node}"
        self._delete(path)
        return Healed(path=path, node=node)

    def node_deleted(self) -> Healed:
        """Delete a Node, and create it again under its pods."""
        node = self.any_node()
        path, manifest = f"/api/v1/nodes/{node}", self.again(node)
        self._delete(path)
        self.last(0.1, 2.0)
        self.site.insist(lambda: self.site.cluster.api.post("/api/v1/nodes", manifest))
        return Healed(path=path, node=node)

    def agents_lease_deleted(self) -> Healed:
        """Delete the Lease of a node's agent."""
        node = self.any_node()
        self._delete(f"{LEASES}/{node}")
        return Healed(node=node)

    def leader_lease_deleted(self) -> Healed:
        """Delete the LeaderLease under its holder."""
        self.site.replicas.leader(with_standby=True)
        path = f"{self._leader_leases}/{self.site.arena.lease_name}"
        self._delete(path)
        return Healed(path=path)

    def devices_definition_deleted(self) -> Healed:
        """Delete the definition of Devices, and with it all Devices, and apply it again."""
        return self._redefined("devices", DEVICES)

    def leader_leases_definition_deleted(self) -> Healed:
        """Delete the definition of LeaderLeases, by which leaders are elected, and apply it again."""
        return self._redefined("leaderleases", self._leader_leases)

    @property
    def _leader_leases(self) -> str:
        return f"/apis/berth.dev/v1alpha1/namespaces/{self.site.arena.namespace}/leaderleases"

    def _redefined(self, plural: str, path: str) -> Healed:
        file = fleet.CRDS / f"{plural}.berth.dev.yaml"
        definition: dict[str, Any] = yaml.safe_load(file.read_text())
        self._delete(f"{DEFINITIONS}/{plural}.berth.dev")
        waiting.until(lambda: not self.site.control_plane.serves(path), deadline=SOON, what=f"the end of {plural}")
        self.last(0.5, 4.0)
        self.site.insist(lambda: self.site.cluster.api.post(DEFINITIONS, definition))
        return Healed(path=path, node="" if path != DEVICES else self.any_node(), returned=True)

    def _delete(self, path: str) -> None:
        self.site.insist(lambda: self.site.cluster.api.delete(path))
