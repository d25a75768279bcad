"""ResourceClaims as Berth writes them: with an allocation, reserved for a pod, or released again.

Berth writes whole objects, as kube-scheduler does. A JSON merge patch would lose the nulls in the parameters of
configurations. Each object keeps the resourceVersion that was read, so that no change in between is overwritten. An
object with free JSON is written in its stored form, in protobuf (`stored_claims`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from berth_api import names
from berth_api.values import keys
from berth_operator.binding.prebind.changes import PreBindError
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.objects import requests, status
from berth_operator.core.claims.objects.extended import spec
from berth_operator.core.claims.objects.fields import Field, FieldError
from berth_operator.core.claims.objects.requests import ResourceClaim
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.values.request import PendingPod

Object = dict[str, Any]

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""The finalizer of allocated claims. The resource claim controller of Kubernetes removes it."""


MAX_CONSUMERS: Final = 256
"""Maximum number of pods and other objects for which the API allows reserving a claim."""


class ResourceClaimError(PreBindError):
    """A ResourceClaim could not be allocated to a pod, or reserved for it."""


def path(key: str) -> str:
    """Return the path of a claim (namespace/name) on the API server."""
    namespace, name = keys.split(key)
    return f"{collection(namespace)}/{name}"


def collection(namespace: str) -> str:
    """Return the path of a namespace's claims."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"


def key_of(claim: ResourceClaim) -> str:
    """Return namespace/name."""
    return keys.join(claim.namespace, claim.name)


def version(claim: Object) -> int:
    """Return the resourceVersion."""
    return int(claim["metadata"]["resourceVersion"])


def read(raw: Object) -> ClaimState:
    """Read a claim.

    Raises:
        ResourceClaimError: a field cannot be read.
    """
    try:
        return status.read(raw)
    except FieldError as error:
        raise ResourceClaimError(str(error)) from error


def protected(current: Object, lease: str) -> Object | None:
    """Return a claim with the finalizer and the label by which the fence selects it; None if the claim has both."""
    metadata = current["metadata"]
    finalizers, labels = metadata.get("finalizers") or [], metadata.get("labels") or {}
    if FINALIZER in finalizers and labels.get(names.FENCED_BY) == lease:
        return None
    more = {
        "finalizers": [*finalizers, *({FINALIZER} - {*finalizers})],
        "labels": {**labels, names.FENCED_BY: lease},
    }
    return {**current, "metadata": {**metadata, **more}}


def extended(pod: PendingPod, claim: ResourceClaim, lease: str) -> Object:
    """Return the claim for a pod's extended resources, ready to create."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": f"{pod.name}-extended-resources-",
            "namespace": pod.namespace,
            "annotations": {status.EXTENDED: "true"},
            "labels": {names.FENCED_BY: lease},
            "finalizers": [FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": spec(claim.requests),
    }


def without_finalizer(current: Object, pod: PendingPod) -> Object | None:
    """Return a pod's claim for extended resources without our finalizer, before its deletion; None if it has none.

    Raises:
        ResourceClaimError: another claim has taken its name.
    """
    state = read(current)
    if not (state.extended and state.owner == pod.uid):
        raise ResourceClaimError(f"claim {state.key} got replaced in the meantime")
    metadata = current["metadata"]
    kept = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer != FINALIZER]
    if len(kept) == len(metadata.get("finalizers") or ()):
        return None
    return {**current, "metadata": {**metadata, "finalizers": kept}}


def check_unallocated(current: Object, allocation: Allocation) -> None:
    """Check that a claim is the claim for which an allocation was made, and still waits for it.

    Raises:
        ResourceClaimError: it is another claim, or no longer waits.
    """
    metadata, key = current["metadata"], key_of(allocation.claim)
    if metadata.get("deletionTimestamp"):
        raise ResourceClaimError(f"claim {key} got deleted in the meantime")
    if (current.get("status") or {}).get("allocation"):
        raise ResourceClaimError(f"claim {key} got allocated elsewhere in the meantime")
    if not _is_same(current, allocation.claim):
        raise ResourceClaimError(f"claim {key} got replaced in the meantime")


def check_same(current: Object, written: Object, node: str) -> None:
    """Check that a claim which a pod has reserved already holds what is to be written (as `Allocation.written`).

    A write whose answer was lost may be of an earlier decision, for other devices or another node.

    Raises:
        ResourceClaimError: it holds something else, or cannot be used on the node.
    """
    state = read(current)
    check_usable(state, node)
    try:
        is_same = _taken(state.allocation) == _taken(written)
    except FieldError as error:
        raise ResourceClaimError(str(error)) from error
    if not is_same:
        raise ResourceClaimError(f"claim {state.key} got allocated by an earlier attempt, with other devices")


def _taken(allocation: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, int]]]:
    """Return for each request its device and what it takes of the device's capacity; raise FieldError."""
    return [
        (
            tuple(result.at(name).text() for name in ("request", "driver", "pool", "device", "shareID")),
            {name: amount.quantity().amount for name, amount in result.at("consumedCapacity").entries()},
        )
        for result in Field(allocation, "status.allocation").at("devices").at("results").items()
    ]


def check_conditions(written: Object, allocation: Allocation) -> None:
    """Check that the API server has kept the binding conditions of an allocation.

    Raises:
        ResourceClaimError: it has not, so nothing would show when the devices can be used.
    """
    if any(result.device.binding_conditions for result in allocation.results):
        results = (written.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", ())
        if not any(result.get("bindingConditions") for result in results):
            raise ResourceClaimError(
                "the API server does not keep bindingConditions of ResourceClaims: its feature gate "
                "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus is off"
            )


def allocated(current: Object, written: Object, pod: PendingPod, time: str) -> Object:
    """Return a claim with an allocation (as `Allocation.written`) of this time, reserved for a pod."""
    return reserved(_with_status(current, allocation={**written, "allocationTimestamp": time}), (pod,))


def check_usable(state: ClaimState, node: str) -> None:
    """Check that a claim is allocated, and can be used on a node.

    Raises:
        ResourceClaimError: it is not allocated any more, or to another node.
    """
    if state.deleting:
        raise ResourceClaimError(f"claim {state.key} got deleted in the meantime")
    if not state.allocation:
        raise ResourceClaimError(f"claim {state.key} got deallocated elsewhere in the meantime")
    if state.nodes and node not in state.nodes:
        raise ResourceClaimError(f"claim {state.key} got allocated on another node in the meantime")


def reserved(current: Object, pods: Iterable[PendingPod]) -> Object:
    """Return a claim that is reserved for pods as well."""
    more = ({"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in pods)
    return _with_status(current, reservedFor=[*_references(current), *more])


def is_reserved(current: Object, pod: PendingPod) -> bool:
    """Return whether a claim is reserved for a pod."""
    return any(reference.get("uid") == pod.uid for reference in _references(current))


def released(current: Object, pod: PendingPod) -> Object | None:
    """Return a claim without the reservation for a pod, deallocated if no other pod uses it; None if unchanged.

    The API server removes drivers' reports of deallocated devices.
    """
    others = [reference for reference in _references(current) if reference.get("uid") != pod.uid]
    if others:
        return _with_status(current, reservedFor=others) if is_reserved(current, pod) else None
    status_ = current.get("status") or {}
    if not status_.get("allocation") and not status_.get("reservedFor"):
        return None
    return {**current, "status": {key: value for key, value in status_.items() if key not in _OF_SCHEDULERS}}


_OF_SCHEDULERS: Final = ("allocation", "reservedFor", "devices")


def keeps_free_json(current: Object, changed: Object, subresource: str) -> bool:
    """Return whether a write has free JSON that the API server has already, and which must not change by a byte."""
    if not subresource:
        return _has_parameters(current["spec"])
    before, after = (claim.get("status") or {} for claim in (current, changed))
    stays = before.get("allocation") and after.get("allocation")
    return bool(stays) and (
        _has_parameters(before["allocation"]) or any("data" in device for device in before.get("devices") or ())
    )


def without_parameters(claim: Object) -> Object:
    """Return a claim without the configurations in its spec, to write its status. The stored ones stay."""
    if not _has_parameters(claim["spec"]):
        return claim
    devices = {key: value for key, value in claim["spec"]["devices"].items() if key != "config"}
    return {**claim, "spec": {**claim["spec"], "devices": devices}}


def _has_parameters(owner: Object) -> bool:
    return any(config.get("opaque") for config in (owner.get("devices") or {}).get("config") or ())


def _is_same(current: Object, claim: ResourceClaim) -> bool:
    if claim.uid:
        return bool(current["metadata"]["uid"] == claim.uid)
    # A claim for extended resources, which did not exist when it was decided.
    now = requests.read_claim(current)
    return (now.requests, now.constraints, now.config) == (claim.requests, claim.constraints, claim.config)


def _references(current: Object) -> list[Object]:
    return (current.get("status") or {}).get("reservedFor") or []


def _with_status(current: Object, **fields: Any) -> Object:
    return {**current, "status": {**(current.get("status") or {}), **fields}}
