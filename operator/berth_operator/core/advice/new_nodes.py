"""Nodes that could be added for a pod: a copy of an existing node, or a copy with changes that the pod needs.

A new node is in service and has no pods. It has the same Device as the other node. It has all labels except the node's
own name, and all taints except the ones that mark a node as out of service.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_api.names import DEVICE_PARTITION, GPU, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import AMOUNTS, CARD, PLUGIN_UNIT, Part, is_device
from berth_api.resources import PODS
from berth_api.values.selectors import DOES_NOT_EXIST, EXISTS, GT, IN, LT, NOT_IN, Requirement
from berth_operator.core import filters
from berth_operator.core.advice.assumptions import NewNode
from berth_operator.core.allocators import candidates, joint, locality, shortage
from berth_operator.core.allocators.locality import Locality
from berth_operator.core.decision.reservation_note import amounts_text
from berth_operator.core.filters import Filter, namespace_limits, node_affinity, node_selector, resources, taints
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import RESOURCES, Column, Mask
from berth_operator.core.values import vendors
from berth_operator.core.values.inventory import DEFAULT_VENDOR, CardInfo, DeviceInventory, NodeInfo
from berth_operator.core.values.request import PodRequest, Taint

NAME: Final = "new-node.berth.dev"
"""No Node that the fleet has."""
HOSTNAME: Final = "kubernetes.io/hostname"
OUT_OF_SERVICE: Final = "node.kubernetes.io/"
"""The prefix of the taints that Kubernetes sets on a node that is out of service."""
_LABELS: Final = frozenset({node_selector.NAME, node_affinity.NAME})
_ADAPTED: Final = frozenset({*_LABELS, taints.NAME, resources.NAME, DeviceFilter.NAME})
"""The filters for which a variant of a node is changed."""
LITTLE: Final = 2**30
"""Bytes of memory of a card for a pod that requests no amount. Other members of its gang may request one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A node that differs from an existing node, and the words for the difference."""

    node: NewNode
    what: str
    labels_only: bool


def suiting(fleet: Fleet, request: PodRequest, order: Sequence[Filter]) -> dict[str, Mask]:
    """Return, for each filter that a new node may fail, the rows whose copies would pass."""
    masks = {}
    for filter_ in order:
        if filter_.NAME == namespace_limits.NAME:
            masks[filter_.NAME] = namespace_limits.could_pass(fleet, request)
            continue
        if filter_.TRAITS.transient:
            continue
        if filter_.NAME == taints.NAME:
            mask = fleet.present
            for taint, rows in fleet.taints().items():
                if taints.repels(taint, request) and not _is_out_of_service(taint):
                    mask = mask & ~rows
        else:
            mask = filters.could_pass(filter_, fleet, request)
        masks[filter_.NAME] = mask
    return masks


def best_model(fleet: Fleet, request: PodRequest, order: Sequence[Filter]) -> str:
    """Return the node whose copy would suit the pod best; empty if there are no nodes.

    This node lacks the fewest things that a variant could have. Among equal nodes, a node with a GPU of the pod's model
    comes first, then the first by name.
    """
    rows = np.flatnonzero(fleet.present)
    if not rows.size:
        return ""
    # A pod selects its nodes on purpose: one that has the labels resembles what is wanted more than one that has not.
    lacks = len(_ADAPTED) * missing_labels(fleet, request)[rows]
    for name, passes in suiting(fleet, request, order).items():
        if name != node_selector.NAME:
            lacks += np.where(passes[rows], 0, 1 if name in _ADAPTED else len(order))
    least = rows[lacks == lacks.min()]
    cards, accepted = fleet.cards[GPU], np.flatnonzero(fleet.accepted_models(request.model))
    of_model = least[np.any(np.isin(cards.model[least], accepted) & cards.present[least], axis=1)]
    return str(min(fleet.names[row] for row in (of_model if of_model.size else least).tolist()))


def missing_labels(fleet: Fleet, request: PodRequest) -> Column:
    """Return how many labels of the pod's selector each row does not have."""
    masks = [~fleet.labels.meeting(requirement) for requirement in request.node_selector]
    return np.sum(masks, axis=0, dtype=np.int64) if masks else np.zeros(len(fleet.names), np.int64)


def like(fleet: Fleet, name: str) -> NodeInfo:
    """Return another Node like an existing Node, in service."""
    info = fleet.node_info(name)
    labels = {key: NAME if key == HOSTNAME else value for key, value in info.labels.items()}
    left = tuple(taint for taint in info.taints if not _is_out_of_service(taint))
    return replace(info, name=NAME, labels=labels, taints=left, cordoned=False, ready=True, unreachable=False)


def variants(fleet: Fleet, request: PodRequest, order: Sequence[Filter], model: str) -> Iterator[Variant]:
    """Yield nodes like `model` that have what the pod needs, for each set of labels that it accepts."""
    base = like(fleet, model) if model else NodeInfo(name=NAME, labels={}, allocatable={PODS: 1})
    suits = suiting(fleet, request, order)
    row = fleet.rows[model] if model else -1
    fits = {name: bool(model) and bool(rows[row]) for name, rows in suits.items()}
    for labels in labels_for(request, base.labels):
        if is_renamed(base.labels, labels):
            continue
        words, info, inventory = [], replace(base, labels=labels), None
        if labels != base.labels:
            words.append(f"with {labels_text(base.labels, labels)}")
        if repelling := [taint for taint in base.taints if taints.repels(taint, request)]:
            info = replace(info, taints=tuple(taint for taint in base.taints if taint not in repelling))
            words.append(f"without the taint{'s' if len(repelling) > 1 else ''} {' and '.join(map(str, repelling))}")
        labels_only = len(words) == 1 and labels != base.labels
        if not fits[resources.NAME]:
            short = {name: amount for name, amount in request.resources if base.allocatable.get(name, 0) < amount}
            info = replace(info, allocatable={**base.allocatable, **short})
            shown = tuple(
                (name, amount) for name, amount in short.items() if name != PODS and not is_device(name, fleet.kinds)
            )
            words += [f"with {amounts_text(shown)}"] if shown else []
        if request.devices and not fits[DeviceFilter.NAME]:
            inventory = _inventory(fleet, request, row)
            is_default = row < 0 or not fleet.has_device[row] or bool(fleet.of_vendor(DEFAULT_VENDOR)[row])
            suitable = row < 0 or bool(fleet.suits_vendor(request.devices)[row])
            vendor = request.devices.vendor or ("" if suitable else DEFAULT_VENDOR)
            words.append(f"with {_devices_text(request, '' if is_default and vendor == DEFAULT_VENDOR else vendor)}")
        labels_only &= inventory is None and info.allocatable == base.allocatable
        if words and (inventory is not None or fits.get(DeviceFilter.NAME, True) or not request.devices):
            node = NewNode(node=info, like=model if inventory is None else "", inventory=inventory)
            yield Variant(node=node, what=" and ".join(words), labels_only=labels_only)


# --- labels -------------------------------------------------------------------------------------------------------


def labels_for(request: PodRequest, labels: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield labels with which a node matches the pod's selector and a term of its affinity, with few changes."""
    selected = _meeting(labels, request.node_selector)
    if selected is None:
        return
    if request.node_affinity is None:
        yield selected
        return
    for term in request.node_affinity:
        made = _meeting(selected, term.labels)
        if made is None or not (term.labels or term.names):
            continue
        if all(requirement.holds(made) for requirement in request.node_selector):
            yield made


def is_renamed(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether labels differ in the node's own name, which no one should give another node."""
    return before.get(HOSTNAME) != after.get(HOSTNAME)


def _meeting(labels: Mapping[str, str], requirements: Sequence[Requirement]) -> dict[str, str] | None:
    """Return labels that meet all requirements; None if two requirements exclude each other."""
    made = dict(labels)
    for requirement in requirements:
        if requirement.holds(made):
            continue
        # The label comes last.
        operator, value = requirement.operator, made.pop(requirement.key, None)
        if operator == IN and requirement.values:
            value = requirement.values[0]
        elif operator == EXISTS:
            value = "true"
        elif operator in (NOT_IN, DOES_NOT_EXIST):
            value = None
        elif operator in (GT, LT):
            value = str(int(requirement.values[0]) + (1 if operator == GT else -1))
        if value is not None:
            made[requirement.key] = value
    return made if all(requirement.holds(made) for requirement in requirements) else None


def labels_text(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return in words which labels one node has and the other has not: `the label pool=b`."""
    more = [f"{key}={value}" for key, value in after.items() if before.get(key) != value]
    fewer = [key for key in before if key not in after]
    parts = [f"the label{'s' if len(more) > 1 else ''} {' and '.join(more)}"] if more else []
    parts += [f"no label{'s' if len(fewer) > 1 else ''} {' and '.join(fewer)}"] if fewer else []
    return " and ".join(parts)


# --- devices ------------------------------------------------------------------------------------------------------


def _inventory(fleet: Fleet, request: PodRequest, row: int) -> DeviceInventory | None:
    """Return a Device with the cards that the pod requests and no others; None if it requests subdevices.

    None, too, if only another vendor has GPUs of the model. The node's NVSwitch, if any, is copied from the row. Row -1
    means no row.
    """
    if not all(part.unit in (AMOUNTS, PLUGIN_UNIT) and part.type in RESOURCES for part in request.devices.parts):
        return None
    # A model that the pod's constraint names.
    constraint = request.model
    model = constraint.exact or (constraint.globs[0] if constraint.globs else constraint.regex)
    for part in request.devices.parts if model else ():
        of_model = candidates.of_model(fleet, request, part).any(axis=1)
        if part.type == GPU and of_model.any() and not (of_model & fleet.suits_vendor(request.devices)).any():
            return None
    model = model.strip("*^$").replace("*", " ").replace("?", "x")
    switches, cards = joint.bound(request), []
    for part in request.devices.parts:
        within = _within(request, part)
        amounts = {name: _memory(part) or LITTLE if name == GPU_MEMORY else 100 for name in RESOURCES[part.type]}
        labels = tuple(sorted((_meeting({}, part.selector.requirements) or {}).items()))
        cards += [
            CardInfo(
                type=part.type,
                minor=minor,
                id=f"{part.type}-{minor}",
                model=model if part.type == GPU else "",
                amounts=tuple(amounts.items()),
                numa=0 if within or switches else minor,
                pcie="0" if "pcie" in within.places or switches else f"{part.type}-{minor}",
                labels=labels,
            )
            for minor in range(part.count)
        ]
    made = DeviceInventory(cards=tuple(cards), vendor=request.devices.vendor or DEFAULT_VENDOR)
    if row < 0:
        return made
    table = fleet.intern_table.tables[int(fleet.partitions[row])]
    return replace(made, partitions=table, partitions_only=bool(fleet.partitions_only[row]))


def _within(request: PodRequest, part: Part) -> Locality:
    """Return what the cards of a part must have in common."""
    topology = request.devices.topology
    return locality.of(part, topology if part.type == GPU and topology is not None and topology.required else None)


def _memory(part: Part) -> int:
    """Return the minimum memory in bytes of a card that can give the pod its part; 0 if any card can."""
    amounts = dict(part.amounts)
    return max(-(-part.min_memory * CARD // amounts.get(GPU_MEMORY_RATIO, CARD)), amounts.get(GPU_MEMORY, 0))


def _devices_text(request: PodRequest, vendor: str) -> str:
    """Return all devices that the pod requests, in words: `9 GPUs of model *H100*`.

    `vendor` is empty if a node like the named node has devices of a vendor that suits.
    """
    devices, texts = request.devices, []
    for part in devices.parts:
        plural = shortage.plural(part.type)
        words = [f"{part.count} {plural if part.count > 1 else plural.removesuffix('s')}"]
        words += [f"of model {request.model}"] if part.type == GPU and request.model else []
        words += [f"of {vendors.title(vendor)}"] if part.type == GPU and vendor else []
        requirements = [each for each in part.selector.requirements if each.key != DEVICE_PARTITION]
        modes = [each.values for each in part.selector.requirements if each.key == DEVICE_PARTITION and each.values]
        words += [f"in the partition mode {' or '.join(values)}" for values in modes]
        words += [f"with device labels {' and '.join(map(str, requirements))}"] if requirements else []
        words += [f"with {amounts_text((('memory', memory),))}"] if (memory := _memory(part)) else []
        words += [str(within)] if (within := _within(request, part)) else []
        texts.append(" ".join(words))
    return " and ".join(texts) + (" under the same PCIe switches" if joint.bound(request) else "")


def _is_out_of_service(taint: Taint) -> bool:
    return taint.key.startswith(OUT_OF_SERVICE)
