"""The annotations that record a placement. All are written with the Binding: see docs/allocations.md."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api import allocation, names
from berth_api.allocation import Grant
from berth_api.request.kinds import HUAWEI
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.kubelet_allocation import Mismatch
from berth_operator.core.fleet.nodes.cards import is_listed
from berth_operator.core.values import limits

MAX_OWN: Final = 200 * 1024
MAX_ALL: Final = 250 * 1024
"""Bytes of annotations: Berth's alone, and all of the pod. The API server does not check the size of a Binding's
annotations, but rejects every later update of a pod with more than 256 KiB. The rest is for the term and `BOUND_WITH`,
which takes at most 2 KiB."""


class RecordError(ValueError):
    """A placement cannot be recorded on its pod."""


def annotations(placement: Placement) -> dict[str, str]:
    """Return the annotations that record the pod's cards, and those of each container.

    Raises:
        RecordError: The annotations are too large for the pod.
    """
    if not (placement.grants or placement.claims.mappings):
        return {}
    # Which extended resources each container gets by DeviceClasses, so that they are not taken of the node.
    by_class: dict[str, set[str]] = {}
    for mapping in placement.claims.mappings:
        by_class.setdefault(mapping.container, set()).add(mapping.resource)
    record = {container + names.BY_CLASS_SUFFIX: ",".join(sorted(given)) for container, given in by_class.items()}
    request, gpus = placement.pod.request, [grant for grant in placement.grants if grant.type == names.GPU]
    if placement.grants:
        record[names.ALLOCATED] = allocation.render(placement.grants, request.devices.prefix)
    seen: dict[str, list[Grant]] = {}
    for share in request.shares:
        seen.setdefault(share.container, []).extend(gpus[share.first : share.end])
    for container, grants in seen.items():
        # Each once: two replicas of a card are one id.
        record[container + names.VISIBLE_SUFFIX] = ",".join(dict.fromkeys(grant.visible for grant in grants))
    for limit in request.limits:
        record |= limits.annotations(limit, seen.get(limit.container, ()), len(gpus))
    if request.devices.vendor == HUAWEI and gpus:
        # As Koordinator writes it. Huawei's device plugin gives the pod with the earliest time these cards.
        record[names.NPU_MINORS] = ",".join(str(grant.minor) for grant in gpus)
    allowed = min(MAX_OWN, MAX_ALL - placement.pod.annotation_bytes)
    size = sum(len(key) + len(value) for key, value in record.items())
    if size > allowed:
        raise RecordError(f"the allocation takes {size} bytes of annotations; this pod can hold {allowed} more")
    return record


def rewritten(
    recorded: Mapping[str, str], mismatch: Mismatch, replacements: Mapping[str, Grant]
) -> dict[str, str] | None:
    """Return the annotations of a bound pod that record the devices that the pod actually holds.

    `replacements` maps the id of a promised device to the device that replaces it.

    The result is None if the annotations no longer match what the pod was promised. It is also None if the Device no
    longer lists one of the cards, because the card's minor is then unknown.
    """
    try:
        grants = allocation.parse(recorded[names.ALLOCATED])
    except allocation.AllocationError:
        return None
    held = {(grant.type, grant.id): replacements.get(grant.id, grant) for grant in mismatch.promised.grants}
    if {(grant.type, grant.id) for grant in grants} != held.keys() or not all(map(is_listed, held.values())):
        return None
    prefix = names.OTHER_PREFIX if names.OTHER_PREFIX in recorded[names.ALLOCATED] else names.PREFIX
    pairs = ((grant, held[grant.type, grant.id]) for grant in grants)
    exchanged = (replace(grant, minor=device.minor, id=device.id, parent=device.parent) for grant, device in pairs)
    record = {names.ALLOCATED: allocation.render(exchanged, prefix)}
    # Each container sees the devices that kubelet reports, or the replacements if it reports none.
    reported = {
        name + names.VISIBLE_SUFFIX: [allocation.visible(device.id) for device in devices if device.type == names.GPU]
        for name, devices in mismatch.actual.containers
    }
    seen = {allocation.visible(name): allocation.visible(grant.id) for name, grant in replacements.items()}
    for key, value in recorded.items():
        if key.endswith(names.VISIBLE_SUFFIX):
            ids = reported.get(key) or [seen.get(before, before) for before in value.split(",")]
            record[key] = ",".join(dict.fromkeys(ids))
    return record


def binding(placement: Placement, term: int, lease: str, bound_with: str = "", *, now: int) -> dict[str, Any]:
    """Return the Binding: node, cards and the leader's term in one object, valid only for this pod's UID.

    `bound_with` is the record of a gang's member, and `now` is the Unix time in nanoseconds.
    """
    pod = placement.pod
    of_gang = {names.BOUND_WITH: bound_with} if bound_with else {}
    record = annotations(placement)
    if names.NPU_MINORS in record:
        record[names.PREDICATE_TIME] = str(now)
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "labels": {names.FENCED_BY: lease},
            "annotations": {names.EPOCH: str(term), **of_gang, **record},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
    }
