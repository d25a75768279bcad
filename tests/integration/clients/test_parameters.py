"""The parameters for drivers in claims, whose bytes no write may change, on the real API server."""

from typing import Any

import orjson
import pytest

from berth_client import wire
from berth_client.client import PROTOBUF
from berth_operator.binding.prebind import claim_objects, stored_claims
from berth_operator.binding.prebind.claim_writer import ClaimWriter
from berth_operator.clients import kube
from berth_operator.core.values.request import PendingPod
from devcluster import Arena
from tests.objects.builders import waiting

Raw = dict[str, Any]

FORMS = {
    "space": b'{"v": "a"}',
    "lines": b'{\n "v": [1,\t2] }',
    "escaped": rb'{"v":"\u003c"}',
    "html": '{"v":"a < b & c \u2028"}'.encode(),
    "decimal": b'{"v":1.50}',
    "exponent": b'{"v":1e3,"w":-0.0}',
    "big": b'{"v":123456789012345678901234567890}',
    "surrogate": rb'{"v":"\ud800"}',
    "bytes": b'{"v":"\xff"}',
    "deep": b'{"v":' + b"[" * 3000 + b"]" * 3000 + b"}",
}
RESULT = {"driver": "x.io", "pool": "p", "device": "d", "request": "gpu"}


class Claims:
    """Claims of an arena."""

    def __init__(self, arena: Arena, client: kube.KubeClient) -> None:
        self.arena, self.client = arena, client
        self.path = claim_objects.collection(arena.namespace)
        self.writer = ClaimWriter(api=client, lease="berth", term=lambda: 1, fenced=False)

    def body(self, name: str, parameters: bytes) -> bytes:
        opaque = {"driver": "x.io", "parameters": orjson.Fragment(parameters)}
        request = {"name": "gpu", "exactly": {"deviceClassName": "x"}}
        spec = {"devices": {"requests": [request], "config": [{"opaque": opaque}]}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        return orjson.dumps({**kind, "metadata": {"name": name, "labels": {"a": ""}}, "spec": spec})

    async def spec(self, name: str) -> bytes:
        [spec] = wire.values(wire.opened(await self.client.get_protobuf(f"{self.path}/{name}")), 2)
        return spec

    async def copied(self, name: str, copy: str) -> None:
        """Create a claim as Go's clients do, in protobuf."""
        stored = await self.client.get_protobuf(f"{self.path}/{name}")
        message = wire.encoded(1, wire.texts(1, [copy])) + wire.encoded(2, await self.spec(name))
        await self.client.request("POST", self.path, body=wire.enclosed(stored, message), content_type=PROTOBUF)

    async def released(self, name: str, pods: list[PendingPod]) -> Raw:
        """Release a claim, and return it."""
        for each in pods:
            written = await self.writer.change(
                f"{self.arena.namespace}/{name}",
                lambda current, pod=each: claim_objects.released(current, pod),  # type: ignore[misc]
                subresource="/status",
            )
        return written

    async def used(self, name: str, pods: list[PendingPod]) -> Raw:
        """Allocate a claim for a pod and reserve it for another, as the operator does, and return it."""
        key, first, second = f"{self.arena.namespace}/{name}", *pods
        await self.writer.change(key, lambda current: claim_objects.protected(current, "berth"))
        [config] = stored_claims.configs_of_claim(await self.client.get_protobuf(f"{self.path}/{name}"))
        opaque = {"driver": config.driver, "parameters": orjson.Fragment(config.parameters)}
        allocation = {"devices": {"results": [RESULT], "config": [{"source": "FromClaim", "opaque": opaque}]}}
        time = "2026-01-01T00:00:00Z"
        for change in (
            lambda current: claim_objects.allocated(current, allocation, first, time),
            lambda current: claim_objects.reserved(current, (second,)),
        ):
            written = await self.writer.change(key, change, subresource="/status")
        return written


@pytest.fixture
def claims(arena: Arena, admin: kube.KubeClient) -> Claims:
    return Claims(arena, admin)


async def test_parameters_of_any_form_and_client_are_kept_byte_by_byte(claims: Claims) -> None:
    made = {f"json-{name}": parameters for name, parameters in FORMS.items()}
    for name, parameters in made.items():
        await claims.client.request("POST", claims.path, body=claims.body(name, parameters))
    manifests = b"\n---\n".join(claims.body(f"kubectl-{name}", FORMS[name]) for name in ("space", "html", "big"))
    claims.arena.cluster.kubectl(
        "create", "--namespace", claims.arena.namespace, "--filename=-", input=manifests.decode()
    )
    for name in FORMS:
        await claims.copied(f"json-{name}", f"proto-{name}")
    # Kubernetes deallocates what is reserved for pods that do not exist.
    created = claims.arena.create([claims.arena.pod("p"), claims.arena.pod("q")])
    pods = [waiting(each["metadata"]["name"], uid=each["metadata"]["uid"]) for each in created]
    listed = await claims.client.get(claims.path)
    names = sorted(each["metadata"]["name"] for each in listed["items"])
    assert len(names) == 2 * len(FORMS) + 3
    for name in names:
        before = await claims.spec(name)
        assert name not in made or made[name] in before
        written = await claims.used(name, pods)
        assert await claims.spec(name) == before
        assert [each["name"] for each in written["status"]["reservedFor"]] == ["p", "q"]
        assert written["metadata"]["labels"]["berth.dev/fenced-by"] == "berth"
        stored = wire.opened(await claims.client.get_protobuf(f"{claims.path}/{name}"))
        [given] = wire.values(stored, 3, 1, 1, 2, 3)
        assert given == wire.values(before, 1, 3, 2)[0]
        assert "allocation" not in (await claims.released(name, pods))["status"]
        assert await claims.spec(name) == before
