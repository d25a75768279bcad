"""Which part of a bound pod's allocation is trusted.

The allocation is an annotation, and a pod's creator can write annotations. The annotation `berth.dev/epoch` proves that
Berth's Binding wrote the allocation: the API server allows no other account to set it
(`manifests/base/protection.yaml`). Pods of other schedulers lack this annotation. Their allocations are trusted if
their scheduler is in `trusted_schedulers`, because the same policy allows only the listed accounts to write
allocations.

Containers may read which cards they see from annotations that only Berth's Binding writes. If a pod's allocation is
unknown and the pod has none of these annotations, it holds no GPU.

A trusted allocation only selects the devices. Their number, and the amounts on each GPU, come from the pod's requests,
which are immutable.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_api import allocation, names, request
from berth_api.admission import injection
from berth_api.allocation import Grant
from berth_api.names import FPGA, GPU, RDMA
from berth_api.request import INSTANCE, PLUGIN_UNIT, REPLICA, Kinds, Part, RequestError

Object = Mapping[str, Any]
Believed = tuple[tuple[Grant, ...], tuple[str, ...]]
"""Grants that a pod holds, and the device types of which it may hold any device of its node."""

_SIMPLE: Final = (RDMA, FPGA)
_MIG_ID: Final = "MIG-"
_CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the Pod object of a static pod, which kubelet runs from a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What a pod requests, against which its allocation is checked."""

    types: tuple[str, ...] = ()
    gpus: tuple[Part, ...] | None = None
    """None if only the allocation has the amounts: the pod requests by labels, which can change later."""
    reads: frozenset[str] | None = None
    """The annotations that decide which GPUs the pod sees; None if something else may decide that."""
    least: tuple[tuple[str, int], ...] = ()
    """(type, hundredths) of NICs and FPGAs, as a minimum: hints, which are annotations, can increase the request."""
    of_others: frozenset[str] = frozenset()
    """Types of which another device plugin gives the pod devices. Without an allocation, the pod holds none of them."""

    def of_allocation(self) -> "Requested":
        """Return the same where annotations or labels decided about the GPUs, so that only the allocation has them."""
        return replace(self, gpus=None)


def requested(total: Mapping[str, int], kinds: Kinds, spec: Object) -> Requested:
    """Return what a pod with these total resource requests requests of each device type."""
    built_in = {name: amount for name, amount in total.items() if request.is_device(name) or name in kinds.gpus}
    simple = {allocation.short(name): amount for name, amount in built_in.items() if allocation.short(name) in _SIMPLE}
    gpus = {name: amount for name, amount in built_in.items() if allocation.short(name) not in _SIMPLE}
    others = {name: amount * kinds.nics[name] for name, amount in total.items() if name in kinds.nics}
    if others:
        simple[RDMA] = simple.get(RDMA, 0) + sum(others.values())
    added = (kind.name for kind in kinds.requested(total))
    try:
        parts = request.of_resources(gpus, kinds=kinds).parts
    except RequestError:
        parts = ()  # no allocation satisfies an invalid request
    return Requested(
        types=(*([GPU] if gpus else []), *(device_type for device_type in _SIMPLE if device_type in simple), *added),
        gpus=parts,
        # A device plugin gives devices to kubelet, whatever the containers read.
        reads=injection.annotations_read(spec) if gpus.keys() <= injection.RESOURCES else None,
        least=tuple(simple.items()),
        of_others=frozenset({RDMA} if others else ()),
    )


def of_pod(pod: Object, requested: Requested, trusted: Collection[str]) -> Believed:
    """Return the grants of a bound pod's allocation, and the types for which the allocation is unknown.

    A requested type is unknown if its allocation is missing, cannot be read, was written by an untrusted scheduler or
    names too few devices. The pod may then hold any device of that type, unless it sees none. Types that are not
    requested are ignored.
    """
    annotations = pod["metadata"].get("annotations") or {}
    expected, text = requested, annotations.get(names.ALLOCATED)
    if not expected.types and names.EPOCH in annotations and text is not None:
        # The pod asked by labels, and our Binding recorded what it got. The labels themselves do not count: they can
        # be put on any pod at any time.
        expected = Requested(types=(GPU,))
    is_trusted = names.EPOCH in annotations or pod["spec"].get("schedulerName") in trusted
    if text is None or not expected.types or not is_trusted:
        return (), _unknown(expected, annotations)
    try:
        written = allocation.parse(text)
    except allocation.AllocationError:
        return (), _unknown(expected, annotations)
    grants: list[Grant] = []
    unknown: list[str] = []
    for device_type in expected.types:
        kept = [grant for grant in written if grant.type == device_type]
        if device_type == GPU and expected.gpus is not None:
            kept = _of_gpus(kept, expected.gpus)
            is_enough = 0 < sum(part.count for part in expected.gpus) == len(kept)
        elif (least := dict(expected.least).get(device_type)) is not None:
            is_enough = sum(dict(grant.amounts).get(device_type, 0) for grant in kept) >= least
        else:
            is_enough = bool(kept)  # for a plug-in's type, any grant is enough
        grants += kept
        if not is_enough and device_type not in expected.of_others:
            unknown.append(device_type)
    return tuple(grants), tuple(unknown)


def lacks_cards(pod: Object, reads: frozenset[str] | None) -> bool:
    """Return whether another program bound a pod whose containers see only the GPUs that Berth's Binding names.

    It may be kube-scheduler with a profile of the same name, or with an extender that did not answer. Static pods are
    left out, and pods to which kube-scheduler gave devices of a ResourceClaim for their requests. `reads` is as in
    `Requested`.
    """
    annotations = pod["metadata"].get("annotations") or {}
    is_ours = names.EPOCH in annotations or _CONFIG_MIRROR in annotations
    by_claim = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    return bool(reads and reads.isdisjoint(annotations)) and not is_ours and not by_claim


def _unknown(expected: Requested, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the types of which a pod without a known allocation may hold any device."""
    sees_none = expected.reads is not None and expected.reads.isdisjoint(annotations)
    return tuple(
        device_type
        for device_type in expected.types
        if device_type not in expected.of_others and not (sees_none and device_type == GPU)
    )


def _of_gpus(written: Sequence[Grant], parts: Sequence[Part]) -> list[Grant]:
    """Return as many grants as are requested, each with the requested amounts."""
    grants = []
    for part in parts:
        of_unit = [grant for grant in written if _may_be_of(grant, part)]
        for grant in of_unit[: part.count]:
            # The size of a replica or an instance comes from the Device.
            is_sized = grant.is_subdevice or grant.amounts == part.amounts
            grants.append(grant if is_sized else replace(grant, amounts=part.amounts, parent=""))
    return grants


def _may_be_of(grant: Grant, part: Part) -> bool:
    """Return whether a grant is of the requested unit: a MIG instance, a replica, or else a card."""
    if not grant.is_subdevice:
        return part.unit not in (REPLICA, INSTANCE)
    is_named = grant.id.startswith(_MIG_ID) or allocation.REPLICA_MARK in grant.id
    if part.unit == INSTANCE:
        return is_named and part.amounts[0] in grant.amounts
    return is_named and part.unit in (REPLICA, PLUGIN_UNIT)
