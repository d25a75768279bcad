"""The status of a ResourceClaim: the devices that are allocated to it, and the pods that may use them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from berth_operator.core.claims.objects import allocated, nodes
from berth_operator.core.claims.objects.allocated import NOTHING_ALLOCATED, Allocated
from berth_operator.core.claims.objects.fields import Field
from berth_operator.core.claims.objects.nodes import NAME, NodeSelector
from berth_operator.core.claims.objects.requests import ResourceClaim, read_claim
from berth_operator.core.claims.objects.slices import DeviceID

EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim for the extended resources of the pod that owns it; its value is `true`."""
OLDEST_MANAGERS: Final = "ancient-changes"
"""The manager under which the API server counts the oldest writers of an object with more than ten."""
NO_ALLOCATION: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """A ResourceClaim as the API server shows it."""

    key: str
    """namespace/name."""
    uid: str
    version: str = field(default="", compare=False)
    """The resourceVersion that was read."""
    claim: ResourceClaim = field(compare=False)
    """Its spec."""
    reserved_for: frozenset[str] = frozenset()
    """UIDs of the pods that may use it."""
    allocation: Mapping[str, Any] = field(default_factory=lambda: NO_ALLOCATION)
    """`status.allocation`; empty if nothing is allocated."""
    devices: tuple[DeviceID, ...] = ()
    """The allocated devices, except devices with admin access, which others may hold at the same time."""
    held: Allocated = field(default=NOTHING_ALLOCATED, compare=False)
    """What the allocation takes of devices."""
    writers: frozenset[str] = frozenset()
    """The field managers that wrote the allocation."""
    nodes: frozenset[str] = frozenset()
    """The nodes that the allocation names; none if its devices can be reached from several nodes."""
    selector: NodeSelector | None = field(default=None, compare=False)
    """The nodes where the allocation can be used; None for all nodes."""
    owner: str = ""
    """UID of the object that controls it: for a claim that was made of a template, its pod."""
    pending: tuple[str, ...] = field(default=(), compare=False)
    """Binding conditions of its devices that are not true yet, each with its device."""
    failure: str = field(default="", compare=False)
    """A binding failure condition of its devices that is true, with the driver's words."""
    allocated_at: str = ""
    """When the devices were allocated, in RFC 3339; empty if the allocation does not record it."""
    extended: bool = False
    """Whether it was made for the extended resources of the pod that owns it."""
    deleting: bool = False
    raw: Mapping[str, Any] | None = field(default=None, compare=False)
    """The object, if nothing is allocated: it is written from this."""


def read(raw: Mapping[str, Any], known: ResourceClaim | None = None) -> ClaimState:
    """Read a ResourceClaim of `resource.k8s.io/v1`, after `with_writers`.

    `known` is the claim that was read under its name before.

    Raises:
        FieldError: a field cannot be read.
    """
    metadata, status = Field(raw, "").at("metadata"), Field(raw, "").at("status")
    uid = metadata.at("uid").text()
    claim = known if known is not None and known.uid == uid != "" else read_claim(raw)
    conditions = tuple(_conditions(status))
    allocation, owners = status.at("allocation"), metadata.at("ownerReferences").items()
    return ClaimState(
        key=f"{claim.namespace}/{claim.name}",
        uid=uid,
        version=metadata.at("resourceVersion").text(),
        claim=claim,
        reserved_for=frozenset(consumer.at("uid").text() for consumer in status.at("reservedFor").items()),
        allocation=allocation.value or NO_ALLOCATION,
        devices=tuple(
            DeviceID(*_share(result)[:3])
            for result in allocation.at("devices").at("results").items()
            if not result.at("adminAccess").boolean()
        ),
        held=allocated.of_claims([allocation.value] if allocation.value else ()),
        writers=frozenset(entry.at("manager").text() for entry in metadata.at("managedFields").items()),
        nodes=frozenset(_nodes(allocation)),
        selector=nodes.read(allocation).terms,
        owner=next((owner.at("uid").text() for owner in owners if owner.at("controller").boolean()), ""),
        pending=tuple(text for text, is_failure in conditions if not is_failure),
        failure=next((text for text, is_failure in conditions if is_failure), ""),
        allocated_at=allocation.at("allocationTimestamp").text(),
        extended=metadata.at("annotations").at(EXTENDED).value == "true",
        deleting=metadata.at("deletionTimestamp").value is not None,
        raw=None if allocation.value else raw,
    )


def used_by(state: ClaimState, pod: str, allocation: Mapping[str, Any] | None) -> ClaimState:
    """Return a claim that is also reserved for a pod (UID), with this allocation if it has none yet."""
    reserved_for = state.reserved_for | {pod}
    if allocation is None:
        return replace(state, reserved_for=reserved_for)
    where = Field(allocation, "status.allocation")
    terms = nodes.read(where).terms
    return replace(
        state, reserved_for=reserved_for, allocation=allocation, nodes=frozenset(_nodes(where)), selector=terms
    )


def with_writers(raw: dict[str, Any]) -> dict[str, Any]:
    """Keep of `managedFields` only who wrote the allocation, because all of it is often half of an object."""
    entries = raw["metadata"].pop("managedFields", None) or ()
    writers = (
        entry.get("manager", "")
        for entry in entries
        if "f:allocation" in (entry.get("fieldsV1") or {}).get("f:status", {})
    )
    if managers := [manager for manager in writers if manager != OLDEST_MANAGERS]:
        raw["metadata"]["managedFields"] = [{"manager": manager} for manager in managers]
    return raw


def _conditions(status: Field) -> Iterator[tuple[str, bool]]:
    """Yield what keeps pods from being bound to the allocated devices, and whether it has failed for good."""
    reported = {}
    for device in status.at("devices").items():
        # Those that are true, each with its reason and message.
        reported[_share(device)] = {
            condition.at("type").text(): f"{condition.at('reason').text()} {condition.at('message').text()}".strip()
            for condition in device.at("conditions").items()
            if condition.at("status").text() == "True"
        }
    for result in status.at("allocation").at("devices").at("results").items():
        share, awaited = _share(result), result.at("bindingConditions").texts()
        if awaited:
            of_device, true = f"of device {DeviceID(*share[:3])}", reported.get(share, {})
            for condition in result.at("bindingFailureConditions").texts():
                if condition in true:
                    yield f"{condition} {of_device}: {true[condition]}", True
            for condition in awaited:
                if condition not in true:
                    yield f"{condition} {of_device}", False


def _share(item: Field) -> tuple[str, str, str, str]:
    driver, pool, device, share = (item.at(key).text() for key in ("driver", "pool", "device", "shareID"))
    return driver, pool, device, share


def _nodes(allocation: Field) -> Iterator[str]:
    """Yield the node names that the node selector selects. Devices of one node have such a selector."""
    for term in allocation.at("nodeSelector").at("nodeSelectorTerms").items():
        for item in term.at("matchFields").items():
            if item.at("key").text() == NAME and item.at("operator").text() == "In":
                yield from item.at("values").texts()
