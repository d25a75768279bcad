"""The ResourceClaim for a pod's extended resources that DeviceClasses provide, created when the node is chosen.

As in kube-scheduler, the claim is created before the pod is bound, with the pod as its owner. The pod's status records
which containers get its devices, and kubelet reads it from there. If the pod is not bound, the claim is deleted, and a
new one is created for the next decision. A claim that a former leader left behind is also deleted, and none of it is
used.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from berth_api.values import keys
from berth_client.client import MERGE
from berth_client.errors import CallError
from berth_operator.binding.prebind import claim_objects
from berth_operator.binding.prebind.changes import GoneError
from berth_operator.binding.prebind.claim_objects import Object, ResourceClaimError
from berth_operator.binding.prebind.claim_writer import ClaimWriter
from berth_operator.core.claims.objects.extended import RequestMapping
from berth_operator.core.claims.objects.requests import ResourceClaim
from berth_operator.core.fleet.claims.store import Claims
from berth_operator.core.values.request import PendingPod

TRIES: Final = 5
"""Attempts to write a pod's status while others write it as well."""
STATUS: Final = "extendedResourceClaimStatus"


class ExtendedClaims:
    """Makes, records and deletes these claims."""

    def __init__(self, writer: ClaimWriter, claims: Claims, lease: str) -> None:
        self._writer, self._claims, self._lease = writer, claims, lease
        self._made: dict[str, str] = {}
        """UID of a pod that is being bound -> namespace/name of its claim, which the watch may not have shown yet."""

    def is_new(self, pod: PendingPod, key: str) -> bool:
        """Return whether a claim was made for a bind that is in progress."""
        return self._made.get(pod.uid) == key

    def forget(self, pod: PendingPod) -> None:
        """Forget the claim of a bind that has ended; the watch has shown it, or it was deleted."""
        self._made.pop(pod.uid, None)

    async def make(self, pod: PendingPod, claim: ResourceClaim) -> tuple[str, Object]:
        """Create a pod's claim, and delete the claims of earlier attempts; return its namespace/name and the claim.

        Raises:
            CallError: a write was refused, or not answered.
        """
        await self.delete(pod)
        body = claim_objects.extended(pod, claim, self._lease)
        made = await self._writer.send("POST", claim_objects.collection(pod.namespace), body)
        key = keys.join(pod.namespace, made["metadata"]["name"])
        self._made[pod.uid] = key
        return key, made

    async def record(self, pod: PendingPod, key: str, mappings: Sequence[RequestMapping]) -> None:
        """Record in a pod's status which containers get the devices of its claim.

        Raises:
            CallError: a write was refused, or not answered.
            GoneError: the pod is gone.
            ResourceClaimError: the API server does not keep the field.
        """
        written = {
            "resourceClaimName": keys.split(key)[1],
            "requestMappings": [
                {"containerName": mapping.container, "resourceName": mapping.resource, "requestName": mapping.request}
                for mapping in mappings
            ],
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        for attempt in range(1, TRIES + 1):
            try:
                # The pod as it is now, so that a leader of the past overwrites nothing.
                metadata = (await self._writer.read(path))["metadata"]
                if metadata["uid"] != pod.uid:
                    raise GoneError
                same = {"uid": pod.uid, "resourceVersion": metadata["resourceVersion"]}
                patch = {"metadata": same, "status": {STATUS: written}}
                shown: Object = await self._writer.send("PATCH", f"{path}/status", patch, content_type=MERGE)
            except CallError as error:
                if attempt == TRIES or error.status != HTTPStatus.CONFLICT:
                    raise
            else:
                break
        if (shown.get("status") or {}).get(STATUS) != written:
            raise ResourceClaimError(
                f"the API server does not keep status.{STATUS} of pods: its feature gate DRAExtendedResource is off, "
                "so no DeviceClass provides extended resources (on by default from Kubernetes 1.36)"
            )

    async def delete(self, pod: PendingPod) -> None:
        """Delete the claims of attempts to bind a pod; raise CallError or ResourceClaimError."""
        known = self._claims.extended_of(pod.uid) | ({self._made[pod.uid]} if pod.uid in self._made else set())
        for key in sorted(known):
            try:
                current = await self._writer.change(key, lambda claim: claim_objects.without_finalizer(claim, pod))
                same = {name: current["metadata"][name] for name in ("uid", "resourceVersion")}
                body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same}
                await self._writer.send("DELETE", claim_objects.path(key), body)
            except CallError as error:
                if not error.is_missing:
                    raise
        self._made.pop(pod.uid, None)
