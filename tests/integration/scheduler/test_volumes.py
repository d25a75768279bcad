"""Pods with VolumeClaims on a real control plane: its volume controller binds the volumes of the decision."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.integration.operator.world import World

Raw = dict[str, Any]

STORAGE: Final = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES: Final = "/api/v1/persistentvolumes"
ZONE: Final = "berth.dev/test-zone"
SELECTED: Final = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Volumes, claims and classes of one arena."""

    world: World

    @property
    def claims(self) -> str:
        return f"/api/v1/namespaces/{self.world.arena.namespace}/persistentvolumeclaims"

    def named(self, name: str) -> str:
        """Return a name that is unique to this arena."""
        return f"{self.world.arena.id}-{name}"

    def storage_class(self, name: str, provisioner: str = "kubernetes.io/no-provisioner") -> None:
        body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        self.world.api.post(STORAGE, {"metadata": self._metadata(name), **body})

    def volume(self, name: str, zone: str, *, storage_class: str = "local", **spec: Any) -> None:
        """Create a volume of 10 GiB that the nodes of a zone reach."""
        terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
        base = {
            "storageClassName": self.named(storage_class),
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "local": {"path": "/none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        self.world.api.post(VOLUMES, {"metadata": self._metadata(name), "spec": {**base, **spec}})
        path = f"{VOLUMES}/{self.named(name)}"
        self.world.wait(lambda: self._phase(path) not in ("", "Pending"), what=f"the volume {name} to be available")

    def _phase(self, path: str) -> str:
        phase: str = self.world.api.get(path).get("status", {}).get("phase", "")
        return phase

    def claim(self, name: str, *, storage_class: str = "local", mode: str = "ReadWriteOnce", size: str = "5Gi") -> None:
        self.world.api.post(
            self.claims, {"metadata": {"name": name}, "spec": self.claim_spec(storage_class, mode, size)}
        )

    def claim_spec(self, storage_class: str = "local", mode: str = "ReadWriteOnce", size: str = "5Gi") -> Raw:
        return {
            "storageClassName": self.named(storage_class),
            "accessModes": [mode],
            "resources": {"requests": {"storage": size}},
        }

    def pod(self, name: str, *claims: str) -> None:
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
        self.world.pod(name, {"cpu": "1"}, volumes=volumes)

    def shown(self, claim: str) -> Raw:
        return self.world.api.get(f"{self.claims}/{claim}")

    def holds(self, volume: str) -> str:
        """Return the name of the claim that a volume is bound to."""
        volume_object = self.world.api.get(f"{VOLUMES}/{self.named(volume)}")
        return str(volume_object["spec"].get("claimRef", {}).get("name", ""))

    def clear(self) -> None:
        self.world.api.delete(self.claims)
        for path in (VOLUMES, STORAGE):
            self.world.api.delete(path, labelSelector=self.world.arena.selector)

    def _metadata(self, name: str) -> Raw:
        return {"name": self.named(name), "labels": self.world.arena.labels}


@pytest.fixture
def shelf(shared: World) -> Iterator[Shelf]:
    made = Shelf(world=shared)
    made.storage_class("local")
    made.storage_class("made", "csi.example")
    yield made
    shared.api.delete(f"/api/v1/namespaces/{shared.arena.namespace}/pods", grace_seconds=0)
    made.clear()


@pytest.fixture
def nodes(shared: World) -> Callable[..., dict[str, str]]:
    def make(*zones: str) -> dict[str, str]:
        return {zone: shared.bare_nodes(labels={ZONE: zone})[0] for zone in zones}

    return make


def test_a_pod_gets_the_smallest_volume_and_goes_where_it_is(
    shared: World, shelf: Shelf, nodes: Callable[..., dict[str, str]]
) -> None:
    there = nodes("a", "b")
    shelf.volume("large", "b", capacity={"storage": "20Gi"})
    shelf.volume("small", "b")
    shelf.volume("too-small", "a", capacity={"storage": "1Gi"})
    # The watches of volumes and pods are apart. Once a pod has the last volume, the operator knows those before it.
    shelf.storage_class("of-the-last")
    shelf.volume("last", "a", storage_class="of-the-last")
    shelf.claim("first", storage_class="of-the-last")
    shelf.pod("first", "first")
    shared.bound("first")

    shelf.claim("data")
    shelf.pod("p", "data")

    assert shared.bound("p")["spec"]["nodeName"] == there["b"]
    assert shelf.shown("data")["spec"]["volumeName"] == shelf.named("small")
    volume = shared.api.get(f"{VOLUMES}/{shelf.named('small')}")
    assert volume["metadata"]["annotations"][BOUND_BY_CONTROLLER] == "yes"
    assert volume["spec"]["claimRef"]["uid"] == shelf.shown("data")["metadata"]["uid"]
    assert shelf.holds("large") == ""


def test_a_volume_is_made_for_the_node_that_was_chosen(
    shared: World, shelf: Shelf, nodes: Callable[..., dict[str, str]]
) -> None:
    """The test acts as the provisioner: it refuses once, and then creates the volume."""
    there = nodes("a")
    shelf.claim("data", storage_class="made")
    shelf.pod("p", "data")

    def selected() -> bool:
        return bool(shelf.shown("data")["metadata"].get("annotations", {}).get(SELECTED) == there["a"])

    shared.wait(selected, what="the claim to name the node")
    path = f"{shelf.claims}/data"
    shared.api.merge(path, {"metadata": {"annotations": {SELECTED: None}}})
    shared.wait(lambda: shared.events("p", "FailedBinding"), what="the Event on the pod")
    assert "provisioning failed" in shared.events("p", "FailedBinding")[0]["message"]
    shared.wait(selected, what="the claim to name the node again")
    assert shared.bound_names() == set()
    claim = shelf.shown("data")["metadata"]
    ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": "data", "uid": claim["uid"]}
    shelf.volume("v", "a", storage_class="made", claimRef={**ref, "namespace": shared.arena.namespace})

    assert shared.bound("p")["spec"]["nodeName"] == there["a"]
    assert shelf.shown("data")["spec"]["volumeName"] == shelf.named("v")


def test_a_generic_ephemeral_volume(shared: World, shelf: Shelf, nodes: Callable[..., dict[str, str]]) -> None:
    there = nodes("a", "b")
    shelf.volume("v", "b")
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": shelf.claim_spec()}}}]
    shared.pod("p", {"cpu": "1"}, volumes=volumes)

    assert shared.bound("p")["spec"]["nodeName"] == there["b"]
    assert shelf.holds("v") == "p-scratch"
