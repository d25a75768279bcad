"""Extended resources that a DeviceClass provides, next to kube-scheduler and the resource claim controller."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from berth_operator.core.claims.objects import status
from devcluster.control_plane.api import Manifest
from tests.integration.operator.test_claims import GROUP
from tests.integration.operator.test_claims_of_pods import Claims
from tests.integration.operator.world import World
from tests.objects.resource_claims import NVIDIA_DRIVER


class Extended(Claims):
    """Nodes without an agent, of which one has devices that a driver lists; a class names a resource of its own."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world, folder)
        self.resource = f"example.com/{world.arena.id}"
        self.implicit = f"deviceclass.resource.kubernetes.io/{self.driver.name}"
        path = f"{GROUP}/deviceclasses/{self.driver.name}"
        current = world.api.get(path)
        world.api.request(
            "PUT", path, body={**current, "spec": {**current["spec"], "extendedResourceName": self.resource}}
        )

    def start_with(self, *devices: str) -> None:
        """Start an operator, and list devices of the node that has no agent."""
        self.operator()
        pool = {"name": self.node, "generation": 1, "resourceSliceCount": 1}
        listed = [{"name": each} for each in devices]
        spec = {"driver": NVIDIA_DRIVER, "nodeName": self.node, "pool": pool, "devices": listed}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        self.world.api.apply({**kind, "metadata": {"name": f"{self.node}-gpus"}, "spec": spec})
        self.driver.nodes.append(self.node)

    def by_pod(self) -> dict[str, Manifest]:
        """Return {pod: the claim that is made for it}."""
        made = [each for each in self.all() if status.EXTENDED in (each["metadata"].get("annotations") or {})]
        return {each["metadata"]["ownerReferences"][0]["name"]: each for each in made}


@pytest.fixture
def claims(world: World, tmp_path: Path) -> Iterator[Extended]:
    world.arena.nodes(1)
    own = Extended(world, tmp_path)
    yield own
    own.driver.withdraw()


def test_a_class_provides_a_resource_by_both_of_its_names(claims: Extended) -> None:
    world = claims.world
    claims.start_with("a", "b")
    for name, resource in (("explicit", claims.resource), ("implicit", claims.implicit)):
        world.pod(name, {resource: "1"})
        world.bound(name)
        pod, claim = world.arena.get("pods", name), claims.by_pod()[name]
        request = claim["spec"]["devices"]["requests"][0]
        assert request["exactly"]["deviceClassName"] == claims.driver.name
        shown = pod["status"]["extendedResourceClaimStatus"]
        [container] = pod["spec"]["containers"]
        assert shown["resourceClaimName"] == claim["metadata"]["name"]
        mapping = {"containerName": container["name"], "resourceName": resource, "requestName": request["name"]}
        assert shown["requestMappings"] == [mapping]
        assert claims.consumers()[claim["metadata"]["name"]] == [name]
        assert pod["metadata"]["annotations"][f"{container['name']}{names.BY_CLASS_SUFFIX}"] == resource
    assert claims.held() == ["a", "b"]
    world.pod("third", {claims.resource: "1"})
    world.waits("third", "cannot allocate all claims")
    world.remove("explicit")
    world.bound("third")
    assert claims.held() == ["a", "b"]
    for name in ("implicit", "third"):
        world.remove(name)
    world.wait(lambda: not claims.all(), what="no claim to be left")


def test_kube_scheduler_makes_an_equal_claim_and_a_plugin_of_the_node_comes_first(claims: Extended) -> None:
    world, resource = claims.world, claims.resource
    claims.start_with("a", "b", "c")
    amounts = {resource: "2"}
    init = {"name": "init", "image": "none", "resources": {"requests": amounts, "limits": amounts}}

    def made(name: str, scheduler: str) -> Any:
        """Return what is made for a pod of a scheduler, which gives it back."""
        world.pod(name, {resource: "1"}, initContainers=[init], scheduler_name=scheduler)
        world.bound(name)
        claim, pod = claims.by_pod()[name], world.arena.get("pods", name)
        allocation = {**claim["status"]["allocation"], "allocationTimestamp": ""}
        mappings = pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
        world.remove(name)
        world.wait(lambda: not claims.all(), what="no claim to be left")
        return claim["spec"], mappings, allocation, claim["metadata"]["finalizers"]

    assert made("ours", world.arena.scheduler_name) == made("theirs", "default-scheduler")
    both = {field: {resource: "5"} for field in ("capacity", "allocatable")}
    world.arena.merge("nodes", claims.node, {"status": both}, subresource="status")
    world.pod("by-plugin", {resource: "4"})
    world.bound("by-plugin")
    assert not claims.all()
