"""What kubelet gave, beside what was promised, and what pods are therefore charged for.

kubelet names no pod when it hands out devices, so a pod may come to hold others than its allocation says. Devices are
charged to who holds them: what kubelet gave counts, and of a promise what kubelet may still give by it.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from berth_api.allocation import MAX_MINOR, Grant
from berth_api.names import GPU, GPU_MEMORY, NVIDIA_PREFIX
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge

FOREIGN: Final = "processes outside Kubernetes"
"""Stands for a pod where there is none."""
BEYOND: Final = 2**31 - 1
"""A priority above that of any pod: who holds something and is no pod that lives is nobody's victim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that kubelet gave: a card, an instance or a replica."""

    type: str
    minor: int
    id: str

    def __str__(self) -> str:
        if self.minor > MAX_MINOR:
            return f"{self.type} {self.id}, which the Device lists no more"
        return f"{self.type} {self.minor} ({self.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActualAllocation:
    """What kubelet gave one pod."""

    uid: str
    pod: str
    """namespace/name."""
    node: str
    containers: tuple[tuple[str, tuple[Device, ...]], ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices of all containers, each once: one container may take over what another had."""
        return tuple(dict.fromkeys(each for _, devices in self.containers for each in devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A pod that holds something else than it was promised of the same type."""

    promised: Charge
    actual: ActualAllocation


def is_pod(charge: Charge) -> bool:
    """Return whether a charge is that of a pod that lives, as far as the API server knows."""
    return charge.priority != BEYOND


def by_kubelet(charge: Charge) -> int:
    """Count the devices that kubelet has to give a pod, by names of which its agent announces devices."""
    return sum(amount for name, amount in charge.plugin_requests if name.startswith(NVIDIA_PREFIX))


def is_of(grant: Grant, device: Device) -> bool:
    """Return whether a grant is of this very device; one without an id names a card by its minor."""
    same = grant.id == device.id if grant.id else grant.minor == device.minor
    return same and grant.type == device.type


def surprising(promised: Charge, given: ActualAllocation) -> list[Device]:
    """Return the devices that a pod was not promised."""
    return [each for each in given.devices if not any(is_of(grant, each) for grant in promised.grants)]


def missing(promised: Charge, given: ActualAllocation) -> list[Grant]:
    """Return what a pod was promised of kubelet's devices and has not been given."""
    if not by_kubelet(promised):
        return []
    of_kubelet = (grant for grant in promised.grants if grant.type == GPU)
    return [grant for grant in of_kubelet if not any(is_of(grant, each) for each in given.devices)]


def is_whole(promised: Charge, given: ActualAllocation) -> bool:
    """Return whether kubelet has given a pod all that it asked for: it does so container by container."""
    return 0 < by_kubelet(promised) <= sum(each.type == GPU for each in given.devices)


# --- what is charged --------------------------------------------------------------------------------------------


def charged(fleet: Fleet, promised: Charge, given: ActualAllocation, *, claimed: bool) -> Charge:
    """Return what a pod is charged for.

    What it was promised stays charged beside what it was given, if that is less, or `claimed` by a pod that kubelet has
    given nothing yet: that one will get what is left. Of a card that it was given it is charged for all.
    """
    promised = _at_least_given(fleet, promised, given)
    new = [each for each in surprising(promised, given) if each.type in fleet.cards]
    if not new:
        return promised
    whole = is_whole(promised, given)
    left = [] if claimed or not whole else missing(promised, given)
    kept = tuple(grant for grant in promised.grants if grant not in left)
    unknown = tuple(kind for kind in promised.unknown if not (whole and kind == GPU))
    return replace(promised, grants=(*kept, *_grants(fleet, given.node, new)), unknown=unknown)


def _at_least_given(fleet: Fleet, promised: Charge, given: ActualAllocation) -> Charge:
    """Return what a pod was promised, but all of each card that kubelet gave it."""
    whole = {
        each: fleet.given(given.node, each.type, each.minor, each.id)
        for each in given.devices
        if each.type in fleet.cards
    }
    grants = tuple(_at_least(grant, whole) for grant in promised.grants)
    return promised if grants == promised.grants else replace(promised, grants=grants)


def _at_least(grant: Grant, whole: Mapping[Device, Grant]) -> Grant:
    """Return a grant, or what kubelet gave of its card if that is more; how large a piece is, the Device says."""
    if grant.is_subdevice:
        return grant
    amounts = dict(grant.amounts)
    for device, whole_grant in whole.items():
        # Memory and ratio are one amount in two units, and a grant may have either, so one is compared.
        if is_of(grant, device) and any(amounts.get(n, 0) < a for n, a in whole_grant.amounts if n != GPU_MEMORY):
            return whole_grant
    return grant


def left_behind(fleet: Fleet, given: ActualAllocation) -> Charge | None:
    """Return what a pod that is gone still holds, if anything: its containers may run on."""
    grants = _grants(fleet, given.node, (each for each in given.devices if each.type in fleet.cards))
    uid = left_uid(given.node, given.uid)
    return Charge(uid=uid, pod=given.pod, node=given.node, grants=grants, priority=BEYOND) if grants else None


def left_uid(node: str, uid: str) -> str:
    """Return what the charge of what a pod has left behind has for a UID.

    It is not the pod's own: what an agent says of a pod must not touch one that waits, or lives on another node.
    """
    return f"{node}/{uid}"


def foreign(fleet: Fleet, node: str, used: Iterable[Device]) -> Charge | None:
    """Return what processes outside Kubernetes take of a node, if anything: whole cards."""
    grants = _grants(fleet, node, (each for each in used if each.type in fleet.cards))
    return Charge(uid=foreign_uid(node), pod=FOREIGN, node=node, grants=grants, priority=BEYOND) if grants else None


def foreign_uid(node: str) -> str:
    """Return what the charge of a node's foreign processes has for a UID; no pod has one of this form."""
    return f"{node}//foreign"


def _grants(fleet: Fleet, node: str, devices: Iterable[Device]) -> tuple[Grant, ...]:
    return tuple(fleet.given(node, each.type, each.minor, each.id) for each in devices)


# --- messages ---------------------------------------------------------------------------------------------------


def difference(promised: Charge, given: ActualAllocation) -> str:
    """Tell in words how what a pod holds differs from what it was promised; empty where it does not.

    Of types of which nothing was promised anything may be held: who chose it did not ask us.
    """
    kinds = {grant.type for grant in promised.grants}
    new = [each for each in surprising(promised, given) if each.type in kinds]
    if not new:
        return ""
    instead = missing(promised, given) or [grant for grant in promised.grants if grant.type in {d.type for d in new}]
    return f"kubelet gave it {_named(new)}; allocated was {_named(map(_device, instead))}"


def _device(grant: Grant) -> Device:
    return Device(type=grant.type, minor=grant.minor, id=grant.id)


def _named(devices: Iterable[Device]) -> str:
    return ", ".join(sorted(map(str, devices)))


# --- exchanges --------------------------------------------------------------------------------------------------


def to_be_rewritten(
    fleet: Fleet, cases: Sequence[Mismatch], others: Iterable[ActualAllocation]
) -> Iterator[tuple[Mismatch, Mapping[str, Grant]]]:
    """Return the pods of one node whose allocations were exchanged, each with what stands for what: id -> grant.

    `cases` are all that hold something else than they were promised, and `beside` what others of the node were given.
    Such a pod's allocation is to say what it holds, if that is worth the same and another pod is in it: it holds what
    this one was promised, or was promised what this one holds and has got other devices. So it is for both halves of a
    swap, for each member of a longer cycle, and for the half that is left when only one was written.
    """
    held = [each for given in (*(case.actual for case in cases), *others) for each in given.devices]
    lacking = [grant for case in cases for grant in missing(case.promised, case.actual)]
    for case in cases:
        lost, new = missing(case.promised, case.actual), surprising(case.promised, case.actual)
        # No need to exclude the pod itself: it does not hold what it lost, and does not lack what it holds.
        is_swapped = any(is_of(grant, each) for grant in lost for each in held)
        is_swapped |= any(is_of(grant, each) for grant in lacking for each in new)
        if is_swapped and (substitutes := _instead(fleet, case, lost, new)):
            yield case, substitutes


def _instead(fleet: Fleet, case: Mismatch, lost: Sequence[Grant], new: Sequence[Device]) -> dict[str, Grant]:
    """Return for the id of each device that kubelet did not give an equivalent one; nothing if one has none."""
    node = case.actual.node
    by_worth: defaultdict[Hashable, list[Grant]] = defaultdict(list)
    for grant in _grants(fleet, node, new):
        by_worth[fleet.worth(node, grant)].append(grant)
    substitutes = {grant.id: by_worth[worth].pop() for grant in lost if by_worth[worth := fleet.worth(node, grant)]}
    # If kubelet has not allocated everything yet, more devices are lost than new.
    return substitutes if len(substitutes) == len(lost) == len(new) and "" not in substitutes else {}
