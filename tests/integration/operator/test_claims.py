"""ResourceClaims that kube-scheduler allocates, on nodes where Berth gives cards by name."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World
from tests.objects.resource_claims import NVIDIA_DRIVER

GROUP = "/apis/resource.k8s.io/v1"
BY_NAME = {"kubernetes.io/gpu": "100"}
CARDS = 4
PODS = 20
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


class Driver:
    """A DRA driver, as the API server sees it: a DeviceClass, and a slice for each node."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, f"{world.arena.id}.example.com"
        self.nodes: list[str] = []
        expression = f'device.driver == "{NVIDIA_DRIVER}"'
        self.world.api.post(
            f"{GROUP}/deviceclasses",
            {"metadata": {"name": self.name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}},
        )
        self._templates = f"{GROUP}/namespaces/{world.arena.namespace}/resourceclaimtemplates"
        claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": self.name}}]}}
        self.world.api.post(self._templates, {"metadata": {"name": "gpu"}, "spec": {"spec": claim}})

    def lists(self, node: str, minors: range) -> None:
        """List GPUs of a node, as they are in its Device."""
        cards = {each["minor"]: each for each in self.world.arena.get("devices", node)["spec"]["devices"]}
        devices = [{"name": f"gpu-{minor}", "attributes": {"uuid": {"string": cards[minor]["id"]}}} for minor in minors]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NVIDIA_DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        self.world.api.apply({**kind, "metadata": {"name": f"{node}-gpus"}, "spec": spec})
        self.nodes.append(node)

    def pods(self, count: int) -> list[str]:
        """Create pods of kube-scheduler, each with a claim of one GPU."""
        names = [f"by-claim-{number}" for number in range(count)]
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        arena = self.world.arena
        pods = [arena.pod(each, scheduler_name="default-scheduler", resourceClaims=claims) for each in names]
        for pod in pods:
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        arena.create(pods)
        return names

    def withdraw(self) -> None:
        """Delete the slices and the class, as an uninstalled driver."""
        for node in self.nodes:
            self.world.api.delete(f"{GROUP}/resourceslices/{node}-gpus")
        self.nodes.clear()
        self.world.api.delete(f"{GROUP}/deviceclasses/{self.name}")
        self.world.api.delete(f"{self._templates}/gpu")


@pytest.fixture
def driver(shared: World) -> Iterator[Driver]:
    """Return a driver that lists nothing yet."""
    made = Driver(shared)
    yield made
    made.withdraw()


def holders(world: World) -> dict[tuple[str, str], list[str]]:
    """Return {(node, UUID): pods and claims that hold the card}, read from the API server alone."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in world.arena.list("pods"):
        annotation = (pod["metadata"].get("annotations") or {}).get(ALLOCATED)
        for entry in json.loads(annotation)["gpu"] if annotation and pod["spec"].get("nodeName") else ():
            found[pod["spec"]["nodeName"], entry["id"]].append(pod["metadata"]["name"])
    uuids = {
        (each["spec"]["pool"]["name"], device["name"]): device["attributes"]["uuid"]["string"]
        for each in world.api.get(f"{GROUP}/resourceslices")["items"]
        if each["spec"]["pool"]["name"].startswith(f"{world.arena.id}-")  # those of other tests have other attributes
        for device in each["spec"].get("devices") or ()
    }
    for claim in claims(world):
        for result in of_claim(claim):
            found[result["pool"], uuids[result["pool"], result["device"]]].append(claim["metadata"]["name"])
    return found


def claims(world: World) -> list[Manifest]:
    """Return the ResourceClaims of the namespace."""
    found: list[Manifest] = world.api.get(f"{GROUP}/namespaces/{world.arena.namespace}/resourceclaims")["items"]
    return found


def of_claim(claim: Manifest) -> list[dict[str, Any]]:
    """Return the devices that are allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results: list[dict[str, Any]] = (allocation.get("devices") or {}).get("results") or []
    return results


def bound(world: World, prefix: str) -> set[str]:
    return {name for name in world.bound_names() if name.startswith(prefix)}


def test_no_card_is_given_by_name_and_by_claim(shared: World, driver: Driver) -> None:
    nodes = shared.nodes(2, gpus=CARDS)
    for node in nodes:
        driver.lists(node, range(CARDS // 2))
    for node in nodes:
        shared.wait_condition(node, "GivenByName", "False")
    driver.pods(PODS)
    shared.pods([f"by-name-{number}" for number in range(PODS)], BY_NAME)
    shared.wait(lambda: len(bound(shared, "by-claim")) == CARDS, what="claims to have the listed cards")
    shared.wait(lambda: len(bound(shared, "by-name")) == CARDS, what="names to have the others")
    waiting = sorted({f"by-name-{number}" for number in range(PODS)} - bound(shared, "by-name"))
    shared.waits(waiting[0], "given by name|too few free GPUs")
    found = holders(shared)
    assert sum(map(len, found.values())) == len(nodes) * CARDS
    assert [card for card, pods in found.items() if len(pods) > 1] == []


def test_a_card_is_given_by_name_once_its_driver_lists_it_no_more(shared: World, driver: Driver) -> None:
    [node] = shared.nodes(gpus=CARDS)
    driver.lists(node, range(CARDS))
    shared.wait_condition(node, "GivenByName", "False")
    names = driver.pods(CARDS)
    for name in names:
        shared.bound(name)
    shared.pod("by-name", BY_NAME)
    assert "(1 requested; listed by gpu.nvidia.com for ResourceClaims)" in shared.waits("by-name", "given by name")
    driver.lists(node, range(CARDS - 1))
    # It is not known any more which card the last claim holds.
    shared.waits("by-name", "GPU allocation is unknown")
    for name in names:
        shared.remove(name)
    shared.bound("by-name")
    # Kubernetes deletes the claims some time after their pods.
    shared.wait(lambda: not claims(shared), what="the claims to be deleted")
    cards = shared.arena.get("devices", node)["spec"]["devices"]
    assert holders(shared) == {(node, cards[-1]["id"]): ["by-name"]}
