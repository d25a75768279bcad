"""Compare what kubelet allocated with the allocation annotation, and compute the pods' charges from both.

kubelet's device plugin API does not name the pod, so a pod may get other devices than its annotation names. Devices are
charged to the pod that holds them: what kubelet allocated, plus the part of the annotation that kubelet may still
allocate.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from berth_api.allocation import MAX_MINOR, Grant
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import Kinds, is_counted_on_node, vendor_of
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge

FOREIGN: Final = "processes that hold no card"
"""The pod name in charges for processes outside Kubernetes, for pods that use cards which they do not hold, and for
cards that containers may have by ids which do not show the card."""
BEYOND: Final = 2**31 - 1
"""A priority above any pod's priority, for charges without an existing pod, so that they are never victims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletDevice:
    """A device that kubelet allocated: a card, an instance or a replica."""

    type: str
    minor: int
    id: str

    def __str__(self) -> str:
        if self.minor > MAX_MINOR:
            return f"{self.type} {self.id}, which the Device lists no more"
        return f"{self.type} {self.minor} ({self.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActualAllocation:
    """The devices that kubelet allocated to one pod."""

    uid: str
    pod: str
    """namespace/name."""
    node: str
    containers: tuple[tuple[str, tuple[KubeletDevice, ...]], ...] = ()

    @property
    def devices(self) -> tuple[KubeletDevice, ...]:
        """Return the devices of all containers, each once; a container may reuse an init container's devices."""
        return tuple(dict.fromkeys(device for _, devices in self.containers for device in devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A pod that holds other devices of a type than its allocation annotation names."""

    promised: Charge
    actual: ActualAllocation


def is_pod(charge: Charge) -> bool:
    """Return whether a charge is of a pod that exists in the API server."""
    return charge.priority != BEYOND


def count_plugin_devices(charge: Charge, kinds: Kinds) -> int:
    """Return the number of GPUs that kubelet must allocate to a pod."""
    return sum(amount for name, amount in charge.plugin_requests if is_counted_on_node(name) and vendor_of(name, kinds))


def is_grant_of(grant: Grant, device: KubeletDevice) -> bool:
    """Return whether a grant is of this device; a grant without an id is compared by minor."""
    same = grant.id == device.id if grant.id else grant.minor == device.minor
    return same and grant.type == device.type


def unexpected_devices(promised: Charge, actual: ActualAllocation) -> list[KubeletDevice]:
    """Return the devices of a pod that its annotation does not name."""
    return [device for device in actual.devices if not any(is_grant_of(grant, device) for grant in promised.grants)]


def missing_grants(promised: Charge, actual: ActualAllocation, kinds: Kinds) -> list[Grant]:
    """Return the pod's grants of kubelet's devices that kubelet has not allocated to it."""
    if not count_plugin_devices(promised, kinds):
        return []
    of_kubelet = (grant for grant in promised.grants if grant.type == GPU)
    return [grant for grant in of_kubelet if not any(is_grant_of(grant, device) for device in actual.devices)]


def is_complete(promised: Charge, actual: ActualAllocation, kinds: Kinds) -> bool:
    """Return whether kubelet has allocated all devices that a pod requests; it does so container by container."""
    return 0 < count_plugin_devices(promised, kinds) <= sum(device.type == GPU for device in actual.devices)


# --- what is charged --------------------------------------------------------------------------------------------


def effective_charge(fleet: Fleet, promised: Charge, actual: ActualAllocation, *, claimed: bool) -> Charge:
    """Return what a pod is charged for.

    The pod is charged for all of each card that kubelet allocated to it. The grants of its annotation stay charged,
    too, while kubelet has not allocated all of its devices. They also stay charged if they are `claimed` by a pod to
    which kubelet has allocated nothing yet, because that pod will get them.
    """
    whole_cards = {
        device: fleet.grant_of_device(actual.node, device.type, device.minor, device.id)
        for device in actual.devices
        if device.type in fleet.cards
    }
    grants = tuple(_at_least(grant, whole_cards) for grant in promised.grants)
    promised = promised if grants == promised.grants else replace(promised, grants=grants)
    new = [device for device in unexpected_devices(promised, actual) if device.type in fleet.cards]
    if not new:
        return promised
    whole = is_complete(promised, actual, fleet.kinds)
    left = [] if claimed or not whole else missing_grants(promised, actual, fleet.kinds)
    kept = tuple(grant for grant in promised.grants if grant not in left)
    unknown = tuple(device_type for device_type in promised.unknown if not (whole and device_type == GPU))
    return replace(promised, grants=(*kept, *_grants(fleet, actual.node, new)), unknown=unknown)


def _at_least(grant: Grant, whole: Mapping[KubeletDevice, Grant]) -> Grant:
    """Return a grant, or kubelet's allocation of its card if that is larger. Subdevices have the Device's size."""
    if grant.is_subdevice:
        return grant
    amounts = dict(grant.amounts)
    for device, whole_grant in whole.items():
        # Memory and ratio are one amount in two units, and a grant may have either, so one is compared.
        if is_grant_of(grant, device) and any(amounts.get(n, 0) < a for n, a in whole_grant.amounts if n != GPU_MEMORY):
            return whole_grant
    return grant


def leftover_charge(fleet: Fleet, actual: ActualAllocation, grants: tuple[Grant, ...] | None = None) -> Charge | None:
    """Return a charge for a deleted pod's devices, because its containers may still run; None if it holds nothing.

    Without `grants`, what it had of each card is not known, and the cards are charged as a whole.
    """
    if grants is None:
        grants = _grants(fleet, actual.node, (device for device in actual.devices if device.type in fleet.cards))
    uid = leftover_uid(actual.node, actual.uid)
    return Charge(uid=uid, pod=actual.pod, node=actual.node, grants=grants, priority=BEYOND) if grants else None


def leftover_uid(node: str, uid: str) -> str:
    """Return the UID of the charge for what a deleted pod still holds.

    It is not the pod's own UID, because an agent's report must not affect a pod that is pending or on another node.
    """
    return f"{node}/{uid}"


def is_leftover(charge: Charge) -> bool:
    """Return whether a charge is for what a deleted pod still holds, which it releases as its containers end."""
    return charge.priority == BEYOND and charge.uid == leftover_uid(charge.node, charge.uid.rpartition("/")[2])


def leaves_soon(fleet: Fleet, charge: Charge) -> bool:
    """Return whether a charge is expected to end soon because its pod was deleted, so that it counts as free."""
    return (fleet.is_leaving(charge) or is_leftover(charge)) and charge.uid not in fleet.overdue


def foreign_charge(fleet: Fleet, node: str, used: Iterable[KubeletDevice]) -> Charge | None:
    """Return a charge for the cards, as a whole, that are in use without a known holder; None if there are none."""
    grants = _grants(fleet, node, (device for device in used if device.type in fleet.cards))
    if not grants:
        return None
    return Charge(uid=foreign_uid(node), pod=FOREIGN, node=node, grants=grants, priority=BEYOND, ends=ending.NEVER)


def foreign_uid(node: str) -> str:
    """Return the UID of the charge for a node's processes that hold no card; no pod has a UID of this form."""
    return f"{node}//foreign"


def _grants(fleet: Fleet, node: str, devices: Iterable[KubeletDevice]) -> tuple[Grant, ...]:
    return tuple(fleet.grant_of_device(node, device.type, device.minor, device.id) for device in devices)


# --- messages ---------------------------------------------------------------------------------------------------


def difference(promised: Charge, actual: ActualAllocation, kinds: Kinds) -> str:
    """Return a message on how the devices of a pod differ from its annotation; empty if they do not.

    Types that the annotation does not name are ignored, because Berth did not allocate them.
    """
    device_types = {grant.type for grant in promised.grants}
    new = [device for device in unexpected_devices(promised, actual) if device.type in device_types]
    if not new:
        return ""
    instead = missing_grants(promised, actual, kinds) or [
        grant for grant in promised.grants if grant.type in {device.type for device in new}
    ]
    allocated = [KubeletDevice(type=grant.type, minor=grant.minor, id=grant.id) for grant in instead]
    return f"kubelet gave it {_named(new)}; allocated was {_named(allocated)}"


def _named(devices: Iterable[KubeletDevice]) -> str:
    return ", ".join(sorted(map(str, devices)))


# --- exchanges --------------------------------------------------------------------------------------------------


def to_be_rewritten(
    fleet: Fleet, mismatches: Sequence[Mismatch], others: Iterable[ActualAllocation]
) -> Iterator[tuple[Mismatch, Mapping[str, Grant]]]:
    """Yield the pods of one node whose annotations must be rewritten, each with its substitutes: id -> grant.

    `mismatches` has all pods of the node with a mismatch. `others` has what kubelet allocated to the node's other pods.

    An annotation is rewritten to name the devices that the pod holds if they are equivalent and another pod is
    involved. Either the other pod holds a device of this annotation, or its annotation names a device that this pod
    holds and it got another one. This covers both pods of a swap, each pod of a longer cycle, and the second pod if
    only the first was rewritten.
    """
    of_pods = (*(mismatch.actual for mismatch in mismatches), *others)
    held = [device for actual in of_pods for device in actual.devices]
    lacking = [
        grant for mismatch in mismatches for grant in missing_grants(mismatch.promised, mismatch.actual, fleet.kinds)
    ]
    for mismatch in mismatches:
        lost = missing_grants(mismatch.promised, mismatch.actual, fleet.kinds)
        new = unexpected_devices(mismatch.promised, mismatch.actual)
        # No need to exclude the pod itself: it does not hold what it lost, and does not lack what it holds.
        is_swapped = any(is_grant_of(grant, device) for grant in lost for device in held)
        is_swapped |= any(is_grant_of(grant, device) for grant in lacking for device in new)
        if is_swapped and (substitutes := _substitutes(fleet, mismatch, lost, new)):
            yield mismatch, substitutes


def _substitutes(
    fleet: Fleet, mismatch: Mismatch, lost: Sequence[Grant], new: Sequence[KubeletDevice]
) -> dict[str, Grant]:
    """Return id -> equivalent grant for each device that the pod did not get; empty if one has no equivalent."""
    node = mismatch.actual.node
    grants_by_key: defaultdict[Hashable, list[Grant]] = defaultdict(list)
    for grant in _grants(fleet, node, new):
        grants_by_key[fleet.equivalence_key(node, grant)].append(grant)
    substitutes = {
        grant.id: grants_by_key[key].pop() for grant in lost if grants_by_key[key := fleet.equivalence_key(node, grant)]
    }
    # If kubelet has not allocated everything yet, more devices are lost than new.
    return substitutes if len(substitutes) == len(lost) == len(new) and "" not in substitutes else {}
