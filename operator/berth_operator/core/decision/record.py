"""The annotations that record a placement, all written with the Binding: see docs/allocations.md."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from berth_api import allocation, names
from berth_api.allocation import Grant
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
    prefix = placement.pod.request.devices.prefix
    record = _by_class(placement)
    if placement.grants:
        record[names.ALLOCATED] = allocation.render(placement.grants, prefix)
    seen = _seen(placement)
    record |= {container + names.VISIBLE_SUFFIX: _visible(grants) for container, grants in seen.items()}
    cards = sum(grant.type == names.GPU for grant in placement.grants)
    for limit in placement.pod.request.limits:
        record |= limits.annotations(limit, seen.get(limit.container, ()), cards)
    allowed = min(MAX_OWN, MAX_ALL - placement.pod.annotation_bytes)
    size = sum(len(key) + len(value) for key, value in record.items())
    if size > allowed:
        raise RecordError(f"the allocation takes {size} bytes of annotations; this pod can hold {allowed} more")
    return record


def _by_class(placement: Placement) -> dict[str, str]:
    """Return which extended resources each container gets by DeviceClasses, so that they are not taken of the node."""
    resources: dict[str, set[str]] = {}
    for mapping in placement.claims.mappings:
        resources.setdefault(mapping.container, set()).add(mapping.resource)
    return {container + names.BY_CLASS_SUFFIX: ",".join(sorted(each)) for container, each in resources.items()}


def _seen(placement: Placement) -> dict[str, list[Grant]]:
    """Return the pod's cards that each container sees."""
    gpus = [grant for grant in placement.grants if grant.type == names.GPU]
    seen: dict[str, list[Grant]] = {}
    for share in placement.pod.request.shares:
        seen.setdefault(share.container, []).extend(gpus[share.first : share.end])
    return seen


def _visible(grants: Sequence[Grant]) -> str:
    """Return the ids that a container sees, each once: two replicas of a card are one id."""
    return ",".join(dict.fromkeys(grant.visible for grant in grants))


def rewritten(
    recorded: Mapping[str, str], mismatch: Mismatch, replacements: Mapping[str, Grant]
) -> dict[str, str] | None:
    """Return the annotations of a bound pod that record the devices that it holds in fact.

    `replacements` maps the id of a promised device to the device that replaces it. The result is None if the
    annotations no longer match what the pod was promised, or if the Device no longer lists one of the cards, because
    its minor is then unknown.
    """
    try:
        grants = allocation.parse(recorded[names.ALLOCATED])
    except allocation.AllocationError:
        return None
    held = {(each.type, each.id): replacements.get(each.id, each) for each in mismatch.promised.grants}
    if {(each.type, each.id) for each in grants} != held.keys() or not all(map(is_listed, held.values())):
        return None
    prefix = names.OTHER_PREFIX if names.OTHER_PREFIX in recorded[names.ALLOCATED] else names.PREFIX
    return {
        names.ALLOCATED: allocation.render((_exchanged(each, held[each.type, each.id]) for each in grants), prefix),
        **_visible_instead(recorded, mismatch, replacements),
    }


def _visible_instead(
    recorded: Mapping[str, str], mismatch: Mismatch, replacements: Mapping[str, Grant]
) -> dict[str, str]:
    """Return what each container sees: the devices that kubelet reports, or the replacements if it reports none."""
    reported = {
        name + names.VISIBLE_SUFFIX: [allocation.visible(each.id) for each in devices if each.type == names.GPU]
        for name, devices in mismatch.actual.containers
    }
    seen = {allocation.visible(name): allocation.visible(each.id) for name, each in replacements.items()}
    before = {key: value.split(",") for key, value in recorded.items() if key.endswith(names.VISIBLE_SUFFIX)}
    return {
        key: ",".join(dict.fromkeys(reported.get(key) or [seen.get(each, each) for each in ids]))
        for key, ids in before.items()
    }


def _exchanged(grant: Grant, device: Grant) -> Grant:
    return replace(grant, minor=device.minor, id=device.id, parent=device.parent)


def binding(placement: Placement, term: int, lease: str, bound_with: str = "") -> dict[str, Any]:
    """Return the Binding: node, cards and the leader's term in one object, valid only for this pod's UID.

    `bound_with` is the record of a gang's member.
    """
    pod = placement.pod
    of_gang = {names.BOUND_WITH: bound_with} if bound_with else {}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "labels": {names.FENCED_BY: lease},
            "annotations": {names.EPOCH: str(term), **of_gang, **annotations(placement)},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
    }
