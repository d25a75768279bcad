"""Pods with ResourceClaims that Berth allocates, next to Kubernetes' resource claim controller and kube-scheduler."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.control_plane.api import Manifest
from tests.integration.operator.test_claims import GROUP, Driver, of_claim
from tests.integration.operator.world import World
from tests.objects.resource_claims import NVIDIA_DRIVER

CARDS = 2


class Claims:
    """Nodes whose pools are Berth's, one of which is `node`, and the driver's objects."""

    def __init__(self, world: World, folder: Path, *, nodes: int = 1) -> None:
        self.world = world
        self.file = folder / "berth.yaml"
        self.nodes = [f"{world.arena.id}-{number}" for number in range(nodes)]
        self.node = self.nodes[0]
        profile = {
            "schedulerName": world.arena.scheduler_name,
            "plugins": {"filters": {"disabled": ["injected"]}},
        }
        configuration = {
            "apiVersion": "config.berth.dev/v1alpha1",
            "kind": "BerthSchedulerConfiguration",
            "profiles": [profile],
            "claims": {"pools": [f"{NVIDIA_DRIVER}/{each}" for each in self.nodes]},
        }
        self.file.write_text(yaml.safe_dump(configuration))
        self.driver = Driver(world)

    def start(self, **flags: Any) -> Any:
        """Start an operator and the agent of the node, whose cards the driver lists; return the operator."""
        process = self.operator(**flags)
        self.world.agent()
        assert self.world.nodes(gpus=CARDS) == [self.node]
        self.driver.lists(self.node, range(CARDS))
        return process

    def operator(self, **flags: Any) -> Any:
        return self.world.operator(config=self.file, scheduler_names=None, **flags)

    def pod(self, name: str, *, claim: str = "", scheduler: str = "", **fields: Any) -> None:
        """Create a pod with a claim by name, or by the template."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "gpu"}
        options: dict[str, Any] = {"scheduler_name": scheduler} if scheduler else {}
        pod = self.world.arena.pod(name, resourceClaims=[{"name": "gpu", **source}], **options, **fields)
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.world.arena.create([pod])

    def create(self, name: str) -> None:
        exactly = {"deviceClassName": self.driver.name}
        # With spaces and `<`, which the API server does not send back as they are.
        opaque = {"driver": NVIDIA_DRIVER, "parameters": {"a": "b < c", "n": 1.0}}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": [{"opaque": opaque}]}}
        self.world.api.post(self._collection, {"metadata": {"name": name}, "spec": spec})

    @property
    def _collection(self) -> str:
        return f"{GROUP}/namespaces/{self.world.arena.namespace}/resourceclaims"

    def all(self) -> list[Manifest]:
        claims: list[Manifest] = self.world.api.get(self._collection)["items"]
        return claims

    def held(self) -> list[str]:
        """Return the devices that are allocated, one for each claim that has it."""
        return sorted(each["device"] for claim in self.all() for each in of_claim(claim))

    def consumers(self) -> dict[str, list[str]]:
        """Return {claim: pods} of the claims that are allocated."""
        found = {each["metadata"]["name"]: each for each in self.all() if of_claim(each)}
        return {name: [pod["name"] for pod in each["status"].get("reservedFor", ())] for name, each in found.items()}


@pytest.fixture
def claims(world: World, tmp_path: Path) -> Iterator[Claims]:
    own = Claims(world, tmp_path)
    yield own
    own.driver.withdraw()


def test_pods_get_devices_share_them_and_give_them_back(claims: Claims) -> None:
    world = claims.world
    claims.start()
    claims.create("shared")
    for name, claim in (("one", "shared"), ("two", "shared"), ("three", "")):
        claims.pod(name, claim=claim)
    for name in ("one", "two", "three"):
        world.bound(name)
    assert claims.held() == ["gpu-0", "gpu-1"]
    assert sorted(claims.consumers()["shared"]) == ["one", "two"]
    claims.pod("four")
    world.waits("four", "cannot allocate all claims")
    world.remove("three")
    world.bound("four")
    for name in ("one", "two", "four"):
        world.remove(name)
    world.wait(lambda: not claims.held(), what="all devices to be given back")


def test_a_pool_that_kube_scheduler_uses_as_well_is_not_served_until_it_has_left(claims: Claims) -> None:
    world = claims.world
    claims.start()
    claims.pod("ours")
    world.bound("ours")
    claims.pod("theirs", scheduler="default-scheduler")
    world.bound("theirs")
    message = world.wait_condition(claims.node, "GivenByName", "False")
    assert "another scheduler allocated devices of driver gpu.nvidia.com" in message
    world.remove("ours")
    claims.pod("later")
    world.waits("later")
    time.sleep(0.5)
    assert claims.held() == ["gpu-1"]
    world.remove("theirs")
    world.bound("later")
