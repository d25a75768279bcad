"""Pods with extended resources that a DeviceClass provides: the claim that is created for each pod, and its end."""

import asyncio
from typing import Any

import pytest

from berth_api import names
from berth_api.allocation import mig
from berth_operator.core.claims.objects import status
from tests.component.claims.claim_server import LAG
from tests.component.claims.test_scheduling_with_claims import Claims
from tests.component.world import Raw, refusal
from tests.objects.builders import NVIDIA, bare_node, device, entry, pod, pod_group
from tests.objects.resource_claims import NVIDIA_DRIVER, gpu, listed, resource_slice

pytestmark = pytest.mark.looptime

IMPLICIT = f"deviceclass.resource.kubernetes.io/{NVIDIA_DRIVER}"
BY_CLASS = f"main{names.BY_CLASS_SUFFIX}"


class Extended(Claims):
    """Nodes of two GPUs that a driver lists, without an agent or a device plugin, and a DeviceClass for them."""

    def add(self, node: str, gpus: int = 2) -> None:
        self.world.cluster.node_cache.put_node(bare_node(node))
        self.watch.put_slice(resource_slice(*map(gpu, range(gpus)), node=node))
        self.watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": {"extendedResourceName": NVIDIA}})

    def submit(self, name: str, requests: Raw | None = None, **fields: Any) -> None:
        self.world.submit(pod(name, requests or {NVIDIA: 1}, bare=True, **fields))

    def devices(self) -> dict[str, list[str]]:
        """Return {pod: devices} of the claims that are made for pods."""
        owned = {each["metadata"]["ownerReferences"][0]["name"]: name for name, each in self.claims.claims.items()}
        return {owner: self._devices(name) for owner, name in owned.items()}

    def annotations(self, name: str) -> Raw:
        found: Raw = self.world.api.pods[name]["metadata"]["annotations"]
        return found


@pytest.mark.parametrize("resource", [NVIDIA, IMPLICIT])
async def test_a_claim_is_made_for_each_pod_and_its_status_names_it(resource: str) -> None:
    claims = Extended()
    async with claims.world.running() as api:
        for name in ("one", "two", "three"):
            claims.submit(name, {resource: 1, "cpu": "1"})
        await asyncio.sleep(5)
        assert api.bound() == {"one": "node", "two": "node"}
        assert claims.devices() == {"one": ["node/gpu-0"], "two": ["node/gpu-1"]}
        assert "1 cannot allocate all claims" in api.messages("three")[-1]
        [made] = [each for each in claims.claims.claims.values() if each["metadata"]["name"].startswith("one-")]
        metadata = made["metadata"]
        assert metadata["annotations"] == {status.EXTENDED: "true"}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": "uid-one", "controller": True}
        assert metadata["ownerReferences"] == [owner]
        exactly = {"deviceClassName": NVIDIA_DRIVER, "allocationMode": "ExactCount", "count": 1}
        assert made["spec"] == {"devices": {"requests": [{"name": "container-0-request-1", "exactly": exactly}]}}
        assert claims.claims.pod_statuses["one"] == {
            "extendedResourceClaimStatus": {
                "resourceClaimName": metadata["name"],
                "requestMappings": [
                    {"containerName": "main", "resourceName": resource, "requestName": "container-0-request-1"}
                ],
            }
        }
        assert claims.annotations("one")[BY_CLASS] == resource
        assert names.ALLOCATED not in claims.annotations("one")
        claims.world.delete("one")
        claims.claims.remove(metadata["name"])
        await asyncio.sleep(30)
        assert api.bound()["three"] == "node"
        assert claims.devices() == {"two": ["node/gpu-1"], "three": ["node/gpu-0"]}


async def test_a_node_with_a_device_plugin_serves_a_pod_by_it_and_others_by_the_class() -> None:
    claims = Extended("by-class")
    resource = "example.com/gpu"
    claims.watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": {"extendedResourceName": resource}})
    claims.world.cluster.node_cache.put_node(bare_node("plugin", allocatable={resource: "1"}))
    async with claims.world.running() as api:
        for number in range(4):
            claims.submit(f"p{number}", {resource: 1})
        await asyncio.sleep(5)
        placed = api.bound()
        assert sorted(placed.values()) == ["by-class", "by-class", "plugin"]
        [by_plugin] = [name for name, node in placed.items() if node == "plugin"]
        assert by_plugin not in claims.devices()
        assert BY_CLASS not in claims.annotations(by_plugin)
        [waiting] = {f"p{number}" for number in range(4)} - placed.keys()
        assert "1 Insufficient example.com/gpu" in api.messages(waiting)[-1]


async def test_where_the_agent_lists_cards_they_are_given_by_name() -> None:
    claims = Extended("by-class", gpus=1)
    claims.world.add_node("agent", cards=1, allocatable={NVIDIA: "1"})
    claims.world.add_node("restarting", cards=1, allocatable={NVIDIA: "0"})
    async with claims.world.running() as api:
        for name in ("one", "two", "three"):
            claims.submit(name)
        await asyncio.sleep(5)
        assert sorted(api.bound().values()) == ["agent", "by-class"]
        [by_name] = [name for name, node in api.bound().items() if node == "agent"]
        assert names.ALLOCATED in claims.annotations(by_name)
        assert by_name not in claims.devices()


async def test_a_class_of_a_profile_gives_instances_where_cards_are_given_to_claims() -> None:
    """Pods that were written for NVIDIA's plugin request the profile; the node's agent lists the same instances."""
    claims = Extended()
    resource = mig.resource("1g.10gb")
    instances = [{"id": f"MIG-{number}", "profile": "1g.10gb", "memory": "9856Mi"} for number in range(2)]
    for name, labels in (("node", {names.CARDS_KEY: names.CARDS_BY_CLAIMS}), ("by-name", {})):
        claims.world.cluster.node_cache.put_node(bare_node(name, labels=labels))
        card = entry(0, mig={"enabled": True, "instances": instances})
        claims.world.cluster.node_cache.put_device(device(name, card))
    of_profile = listed("mig-0", {"type": "mig", "profile": "1g.10gb"})
    claims.watch.put_slice(resource_slice(of_profile, listed("gpu-0", {"type": "gpu", "uuid": "GPU-0"})))
    selects = f'device.attributes["{NVIDIA_DRIVER}"].type == "mig"'
    spec = {"extendedResourceName": resource, "selectors": [{"cel": {"expression": selects}}]}
    claims.watch.put_class({"metadata": {"name": NVIDIA_DRIVER}, "spec": spec})
    async with claims.world.running() as api:
        for name in ("one", "two"):
            claims.submit(name, {resource: 1})
        await asyncio.sleep(5)
        assert api.bound() == {"one": "node"}
        assert claims.devices() == {"one": ["node/mig-0"]}
        assert names.ALLOCATED not in claims.annotations("one")


async def test_what_annotations_say_of_cards_is_not_left_to_a_class() -> None:
    claims = Extended()
    async with claims.world.running() as api:
        claims.submit("p", annotations={names.MODEL_GLOBS: "H100"})
        await asyncio.sleep(5)
        assert api.bound() == {}


async def left_by_the_leader_before(claims: Extended, *devices: str) -> None:
    """Put a claim that was made for pod `p`, with these devices."""
    results = [{"request": "r", "driver": NVIDIA_DRIVER, "pool": "node", "device": each} for each in devices]
    metadata = {
        "name": "left",
        "uid": "uid-left",
        "annotations": {status.EXTENDED: "true"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}],
        "managedFields": [{"manager": "berth/1", "fieldsV1": {"f:status": {"f:allocation": {}}}}],
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "labels": {names.FENCED_BY: "berth"},
    }
    named = {"key": "metadata.name", "operator": "In", "values": ["node"]}
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [named]}]},
    }
    shown = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}]}
    claims.claims.change("left", metadata=metadata, status=shown)
    await asyncio.sleep(LAG + 0.01)


@pytest.mark.parametrize("devices", [("gpu-0",), ("gpu-0", "gpu-1"), ()])
async def test_a_claim_that_is_left_is_deleted_and_another_one_made(devices: tuple[str, ...]) -> None:
    claims = Extended()
    async with claims.world.running() as api:
        await left_by_the_leader_before(claims, *devices)
        claims.submit("p", {NVIDIA: 2} if len(devices) == 2 else {NVIDIA: 1})
        await asyncio.sleep(30)
        assert api.bound() == {"p": "node"}
        assert "left" not in claims.claims.claims
        [held] = claims.devices().values()
        assert len(held) == max(1, len(devices))


async def test_a_claim_whose_pod_is_not_bound_is_deleted() -> None:
    claims = Extended()
    async with claims.world.running() as api:
        api.faults["bind p"] = [refusal(403, "a policy says no")]
        claims.submit("p")
        await asyncio.sleep(30)
        assert api.bound() == {"p": "node"}
        assert claims.devices() == {"p": ["node/gpu-0"]}
        assert len([each for each in claims.claims.writes if each == "POST create"]) == 2


async def test_a_claim_that_is_not_allocated_is_deleted() -> None:
    claims = Extended()
    claims.claims.faults["PATCH pods/p/status"] = [refusal(403, "a policy says no")]
    async with claims.world.running() as api:
        claims.submit("p")
        await asyncio.sleep(30)
        assert api.bound() == {"p": "node"}
        assert claims.devices() == {"p": ["node/gpu-0"]}


async def test_an_api_server_without_the_feature_is_named() -> None:
    claims = Extended()
    claims.claims.keeps_extended = False
    async with claims.world.running() as api:
        claims.submit("p", {IMPLICIT: 1})
        await asyncio.sleep(10)
        assert api.bound() == {}
        assert "feature gate DRAExtendedResource is off" in api.messages("p")[-1]
        assert claims.devices() == {}


async def test_pods_with_claims_of_both_kinds_get_different_devices() -> None:
    claims = Extended()
    async with claims.world.running() as api:
        claims.claims.change("c")
        await asyncio.sleep(LAG + 0.01)
        claims.submit("p", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
        await asyncio.sleep(5)
        assert api.bound() == {"p": "node"}
        assert claims._devices("c") == ["node/gpu-0"]
        made = next(name for name in claims.claims.claims if name.startswith("p-extended-resources-"))
        assert claims._devices(made) == ["node/gpu-1"]


async def test_members_of_a_gang_get_a_claim_each() -> None:
    claims = Extended("one", "two")
    async with claims.world.running() as api:
        claims.world.groups.apply("ADDED", pod_group(minimum=3))
        for number in range(3):
            claims.submit(f"m{number}", labels={names.POD_GROUP_LABEL: "g"})
        await asyncio.sleep(30)
        assert sorted(api.bound()) == ["m0", "m1", "m2"]
        assert len({device for held in claims.devices().values() for device in held}) == 3


async def test_a_pod_that_needs_processors_as_well_takes_them_of_one_with_a_lower_priority() -> None:
    claims = Extended()
    async with claims.world.running() as api:
        claims.world.submit(pod("low", {"cpu": "60"}, priority=1))
        await asyncio.sleep(1)
        claims.submit("high", {NVIDIA: 1, "cpu": "60"}, priority=9)
        await asyncio.sleep(30)
        assert api.bound()["high"] == "node"
        assert [name for _, name in api.deletions] == ["low"]
