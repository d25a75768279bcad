"""The cluster that `devcluster up --operator` creates, as examples run in it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from devcluster import Cluster, waiting
from devcluster.control_plane.api import Manifest

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
NAMESPACE: Final = "default"
OWNERS: Final = ("deployments", "replicasets", "jobs", "podgroups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One device of a pod: its entry in the allocation, and the card that it is or is a part of."""

    node: str
    id: str
    resources: dict[str, str]
    card: Manifest

    @property
    def model(self) -> str:
        """The full name of the card's model."""
        return str(self.card["model"])

    @property
    def switch(self) -> str:
        """The PCIe switch of the card."""
        return str(self.card["topology"]["pcieID"])

    @property
    def socket(self) -> int:
        """The NUMA node of the card."""
        return int(self.card["topology"]["nodeID"])

    @property
    def ratio(self) -> int:
        """Hundredths of the card's memory."""
        return int(self.resources.get("kubernetes.io/gpu-memory-ratio", 0))

    def is_whole(self) -> bool:
        """Return whether it is a whole GPU."""
        return self.id == self.card["id"] and self.ratio == 100


class Site:
    """A namespace of a running cluster with a fleet and an operator."""

    def __init__(self, cluster: Cluster, *, namespace: str = NAMESPACE) -> None:
        self.cluster, self.api, self.namespace = cluster, cluster.api, namespace

    def pods(self) -> list[Manifest]:
        """Return the pods that are not being deleted."""
        items = self.api.get(self._path("pods"))["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def bound(self, *names: str) -> list[Manifest]:
        """Wait until pods of these names, or with these prefixes, are bound; return one for each."""

        def look() -> list[Manifest] | None:
            pods = [pod for pod in self.pods() if pod["spec"].get("nodeName")]
            chosen: list[Manifest] = []
            for name in names:
                alike = [pod for pod in pods if _is(name, pod) and pod not in chosen]
                chosen += alike[:1]
            return chosen if len(chosen) == len(names) else None

        pods = waiting.until(look, what=f"{', '.join(names)} to be bound", details=lambda: str(self.messages()))
        assert pods is not None
        return pods

    def held(self, *names: str, kind: str = "gpu") -> list[Held]:
        """Wait until pods are bound; return their devices of one type."""
        return [held for pod in self.bound(*names) for held in self.devices_of(pod, kind)]

    def messages(self) -> dict[str, str]:
        """Return why pods wait."""
        conditions = {pod["metadata"]["name"]: pod["status"].get("conditions", ()) for pod in self.pods()}
        return {
            name: str(condition.get("message", ""))
            for name, listed in conditions.items()
            for condition in listed
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        }

    def waiting(self) -> set[str]:
        """Return the names of the pods without a node; of a controller's pods the part that they share."""
        pods = [pod for pod in self.pods() if not pod["spec"].get("nodeName")]
        return {pod["metadata"].get("generateName", pod["metadata"]["name"]) for pod in pods}

    def message(self, name: str) -> str:
        """Wait until a pod shows why it waits; return that."""
        return waiting.until(lambda: self.messages().get(name, ""), what=f"the reason why {name} waits")

    def clear(self) -> None:
        """Delete what examples and pages created in the default namespace, and wait until no pod is left."""
        for plural in OWNERS:
            self.api.delete(self._path(plural))
        self.api.delete(self._path("pods"), grace_seconds=0)
        waiting.until(self._is_empty, what="the pods to go")

    def devices(self) -> list[Manifest]:
        """Return all Devices."""
        items: list[Manifest] = self.api.get(self._path("devices"))["items"]
        return items

    def devices_of(self, pod: Manifest, kind: str = "gpu") -> list[Held]:
        """Return the devices of a bound pod of one type."""
        node = pod["spec"]["nodeName"]
        entries = json.loads(pod["metadata"].get("annotations", {}).get(ALLOCATED, "{}")).get(kind, [])
        if not entries:
            return []
        cards = self.api.get(self._path("devices", node))["spec"]["devices"]
        return [
            Held(node=node, id=entry["id"], resources=entry["resources"], card=_card(cards, kind, entry["minor"]))
            for entry in entries
        ]

    def _is_empty(self) -> bool:
        if not self.api.get(self._path("pods"))["items"]:
            return True
        # A controller may have created one more before it learned that its owner is gone.
        self.api.delete(self._path("pods"), grace_seconds=0)
        return False

    def _path(self, plural: str, name: str | None = None) -> str:
        return self.api.resource(plural).path(namespace=self.namespace, name=name)


def visible(pod: Manifest, container: str) -> list[str]:
    """Return the ids of the GPUs that a container sees."""
    ids: str = pod["metadata"]["annotations"][f"{container}.devices.berth.dev/visible"]
    return ids.split(",")


def linked(cards: Sequence[Held]) -> bool:
    """Return whether any two cards of one node have an NVLink between them."""
    return all(
        any(link["minor"] == other.card["minor"] and link["type"] == "NVLink" for link in one.card["links"])
        for one in cards
        for other in cards
        if one is not other
    )


def count(values: Sequence[Any]) -> list[int]:
    """Return how often values occur, the most frequent first."""
    return [number for _, number in Counter(values).most_common()]


def _is(name: str, pod: Manifest) -> bool:
    own: str = pod["metadata"]["name"]
    return own == name or (name.endswith("-") and own.startswith(name))


def _card(cards: Sequence[Manifest], kind: str, minor: int) -> Manifest:
    [card] = [card for card in cards if card["type"] == kind and card["minor"] == minor]
    return card
