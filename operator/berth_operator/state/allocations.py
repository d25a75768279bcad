"""What is believed of the allocation that a bound pod carries.

It is an annotation, and whoever creates a pod writes its annotations. That our Binding wrote this one shows by a mark
which the API server lets nobody else set (`manifests/base/protection.yaml`): the annotation `berth.dev/epoch`. Pods of
other schedulers have no such mark; theirs counts if their scheduler is trusted, because the same policy lets only the
accounts that it lists write it.

Even then it says only which devices a pod holds. How many, and how much of each GPU, the pod's requests say, which
nobody can change after the pod was created.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import allocation, names, request
from berth_api.allocation import Grant
from berth_api.names import FPGA, GPU, RDMA
from berth_api.request import INSTANCE, PLUGIN_UNIT, REPLICA, Kinds, Part, RequestError

Object = Mapping[str, Any]
Believed = tuple[tuple[Grant, ...], tuple[str, ...]]
"""What a pod holds, and the device types of which it may hold any device of its node."""

_SIMPLE: Final = (RDMA, FPGA)
_MIG_ID: Final = "MIG-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What a pod's requests leave to its allocation."""

    types: tuple[str, ...] = ()
    gpus: tuple[Part, ...] | None = None
    """None if only the allocation says how much: the pod asks by labels, which anybody may change later."""
    least: tuple[tuple[str, int], ...] = ()
    """(type, hundredths) of NICs and FPGAs. Hints make more of a request, and are annotations themselves."""


def requested(total: Mapping[str, int], kinds: Kinds) -> Requested:
    """Return what a pod's total of resource requests leaves to its allocation."""
    built_in = {name: amount for name, amount in total.items() if request.is_device(name)}
    simple = {allocation.short(name): amount for name, amount in built_in.items() if allocation.short(name) in _SIMPLE}
    gpus = {name: amount for name, amount in built_in.items() if allocation.short(name) not in _SIMPLE}
    added = (each.name for each in kinds.requested(total))
    return Requested(
        types=(*([GPU] if gpus else []), *(kind for kind in _SIMPLE if kind in simple), *added),
        gpus=_parts(gpus),
        least=tuple(simple.items()),
    )


def _parts(gpus: Mapping[str, int]) -> tuple[Part, ...]:
    """Return the parts of a request for GPUs; none if it means nothing, for no allocation can satisfy it."""
    try:
        return request.of_resources(gpus).parts
    except RequestError:
        return ()


def of_pod(pod: Object, requested: Requested, trusted: Collection[str]) -> Believed:
    """Return what a bound pod holds by its allocation.

    A type that is requested, and of which the allocation is missing, cannot be read, was written by somebody who is not
    trusted, or names too few devices, is unknown: the pod may hold any device of it. Types that are not requested do
    not count, whatever is written.
    """
    annotations = pod["metadata"].get("annotations") or {}
    wanted = requested if requested.types else _by_label(annotations, pod["metadata"].get("labels") or {})
    text = annotations.get(names.ALLOCATED)
    if text is None or not wanted.types or not _is_trusted(pod, annotations, trusted):
        return (), wanted.types
    try:
        claims = allocation.parse(text)
    except allocation.AllocationError:
        return (), wanted.types
    return _believed(claims, wanted)


def _is_trusted(pod: Object, annotations: Mapping[str, str], trusted: Collection[str]) -> bool:
    return names.EPOCH in annotations or pod["spec"].get("schedulerName") in trusted


def _by_label(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Requested:
    """Return the same of a pod that requests no device; one that Berth gave some keeps them, whatever its labels."""
    is_given = names.EPOCH in annotations and names.ALLOCATED in annotations
    return Requested(types=(GPU,)) if is_given or any(name in labels for name in request.LABELS) else Requested()


def _believed(claims: Sequence[Grant], wanted: Requested) -> Believed:
    grants: list[Grant] = []
    unknown: list[str] = []
    for kind in wanted.types:
        of_kind = [grant for grant in claims if grant.type == kind]
        kept = _of_gpus(of_kind, wanted.gpus) if kind == GPU and wanted.gpus is not None else of_kind
        grants += kept
        if not _is_enough(kind, kept, wanted):
            unknown.append(kind)
    return tuple(grants), tuple(unknown)


def _is_enough(kind: str, grants: Sequence[Grant], wanted: Requested) -> bool:
    """Return whether grants are all that a pod requests of a type; what a plug-in's request means, only it knows."""
    if kind == GPU and wanted.gpus is not None:
        return 0 < sum(part.count for part in wanted.gpus) == len(grants)
    if (least := dict(wanted.least).get(kind)) is not None:
        return sum(dict(grant.amounts).get(kind, 0) for grant in grants) >= least
    return bool(grants)


def _of_gpus(claims: Sequence[Grant], parts: Sequence[Part]) -> list[Grant]:
    """Return as many claims as are requested, each with what is requested of a card."""
    return [
        _of_part(grant, part)
        for part in parts
        for grant in [each for each in claims if _may_be_of(each, part)][: part.count]
    ]


def _may_be_of(grant: Grant, part: Part) -> bool:
    """Return whether a grant is of the unit that is requested: an instance, a replica, or else a card."""
    if not grant.is_subdevice:
        return part.unit not in (REPLICA, INSTANCE)
    is_named = grant.id.startswith(_MIG_ID) or allocation.REPLICA_MARK in grant.id
    if part.unit == INSTANCE:
        return is_named and part.amounts[0] in grant.amounts
    return is_named and part.unit in (REPLICA, PLUGIN_UNIT)


def _of_part(grant: Grant, part: Part) -> Grant:
    if grant.is_subdevice or grant.amounts == part.amounts:
        return grant  # how large a replica or an instance is, the Device says
    return Grant(
        type=grant.type,
        minor=grant.minor,
        amounts=part.amounts,
        id=grant.id,
        functions=grant.functions,
        exclusive=grant.exclusive,
    )
