"""The reasons why a row has too few cards for a part of a request."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from berth_api.allocation import message_text
from berth_api.names import CARDS_BY_CLAIMS_AND_NAME, CARDS_KEY, DEVICE_PARTITION, GPU, GPU_MEMORY, GPU_SUBDEVICES, RDMA
from berth_api.request import AMOUNTS, ONLY, PLUGIN_UNIT, Part
from berth_api.values import listing
from berth_api.values.selectors import LabelSelector
from berth_operator.core.allocators import candidates
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values import vendors
from berth_operator.core.values.request import PodRequest

BY_CLAIM: Final = (
    f"node(s) give their GPUs by claims alone (label {CARDS_KEY}: request a DeviceClass, or set "
    f"{CARDS_KEY}={CARDS_BY_CLAIMS_AND_NAME})"
)
WITHHELD: Final = "node(s) have too few GPUs that are offered to kubelet now"
"""The agent offers withheld GPUs to kubelet again after the pods that used them are gone."""
_REFUSES: Final = "failRequestsGreaterThanOne of the device plugin"
_CHOOSES: Final = "agent.devicePlugin: true lets Berth choose"
UNPARTITIONED: Final = "the mode of cards without partitions"
INSTANCE: Final = "MIG instance"
CARD: Final = "GPU"
"""What has slices, in messages."""


def of_cards(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows for which it is true. Locality is not considered."""
    device_type, label = part.type, plural(part.type)
    healthy = fleet.cards[device_type].healthy
    if part.type == GPU and part.unit == AMOUNTS:
        in_mig_mode = fleet.cards[GPU].instance_memory > 0
        only_in_mig_mode = too_few(healthy, part) & ~too_few(healthy | in_mig_mode, part)
        yield f"node(s) have too few GPUs that are not in MIG mode ({part.count} requested)", only_in_mig_mode
    yield f"node(s) have too few healthy {label} {requested_of(part, healthy, rejected)}", too_few(healthy, part)
    if request.model:
        wrong = too_few(healthy & candidates.of_model(fleet, request, part), part)
        yield f"node(s) have too few healthy {label} {of_model(fleet, request, part)}", wrong
    right = healthy & candidates.accepted(fleet, request, part)
    requested = requested_of(part, right, rejected)
    yield f"node(s) have too few healthy {label} that match {selector(part)} {requested}", too_few(right, part)
    if part.unit == PLUGIN_UNIT and (whole := candidates.undivided(fleet.cards[device_type], part, ALL)) is not True:
        yield divided(part), too_few(right & whole, part)
    small = too_few(candidates.suitable(fleet, request, part), part)
    yield _too_small(fleet, part, right, small & rejected), small
    yield unknown(device_type), fleet.cards[device_type].unknown > 0
    amounts = " and ".join(f"{name} {message_text(name, amount)}" for name, amount in part.amounts)
    few = f"node(s) have too few free {label} ({part.count} requested with {amounts})"
    yield few, too_few(candidates.free(fleet, request, part), part)
    if candidates.by_kubelet(part):
        left = candidates.free(fleet, request, part) & ~fleet.cards[device_type].withheld
        withheld = too_few(left, part)
        yield BY_CLAIM, withheld & by_claim(fleet)
        yield WITHHELD, withheld
    if part.exclusive:
        yield kept_by_policy(part), too_few(candidates.fitting(fleet, request, part), part)


def by_claim(fleet: Fleet) -> Mask:
    """Return the rows whose agents offer no GPU to kubelet, because they give all of them by claims."""
    mask: Mask = fleet.cards_by_claim
    return mask & ~fleet.cards[GPU].announced.any(axis=1) if mask.any() else mask


def barred(fleet: Fleet, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the reason for rows that have too few cards only because some are not given by name, and these rows."""
    cards = fleet.cards[part.type]
    if not cards.bar.any():
        return
    count = part.count if part.unit in (AMOUNTS, PLUGIN_UNIT) else 1
    given, barred = cards.healthy | (cards.instance_memory > 0), cards.bar > 0
    rows: Mask = (given.sum(axis=1) < count) & ((given | barred).sum(axis=1) >= count)
    numbers = np.unique(cards.bar[rows & rejected]).tolist()
    why = listing.first_of(sorted(fleet.intern_table.bars[number] for number in numbers if number))
    yield f"node(s) have too few {plural(part.type)} that are given by name ({count} requested; {why})", rows


def requested_of(part: Part, units: Column | Mask, rejected: Mask) -> str:
    """Return the end of a reason: how many units the part requests, and how many the best rejected row has.

    Args:
        part: the part.
        units: number of units of each card.
        rejected: the rows for which this or a later reason is given.
    """
    if part.count == 1:
        return "(1 requested)"
    counts = units.sum(axis=1)[rejected]
    return f"({part.count} requested, at most {int(counts[counts < part.count].max(initial=0))} on a node)"


def selector(part: Part) -> str:
    """Return the part's device selector for messages: the partition mode of AMD's cards, and its keys."""
    modes = [requirement for requirement in part.selector.requirements if requirement.key == DEVICE_PARTITION]
    others = tuple(requirement for requirement in part.selector.requirements if requirement.key != DEVICE_PARTITION)
    words = [f"the partition mode {' or '.join(mode.values)}" if mode.values else UNPARTITIONED for mode in modes]
    words += [f"the pod's device selector {LabelSelector(requirements=others)}"] if others else []
    return " and ".join(words)


def of_model(fleet: Fleet, request: PodRequest, part: Part) -> str:
    """Return the end of a reason: the models that the pod accepts, the existing models, and what to write."""
    cards, suits = fleet.cards[part.type], fleet.suits_vendor(request.devices)
    numbers = np.flatnonzero(np.bincount(cards.model[cards.present & suits[:, np.newaxis]]))
    models = sorted(filter(None, (fleet.intern_table.models[number] for number in numbers.tolist())))
    there = f"models: {listing.first_of(models)}" if models else "no GPU has a model"
    details = [f"{part.count} requested", there, request.model.hint(models)]
    for vendor in fleet.vendors_of(candidates.of_model(fleet, request, part).any(axis=1) & ~suits):
        resource = vendors.resource_of(vendor, fleet.kinds)
        by = f", which pods request by {resource}" if resource else ""
        details.append(f"there are such GPUs of {vendors.title(vendor)}{by}")
    return f"of model {request.model} ({'; '.join(filter(None, details))})"


def plural(device_type: str) -> str:
    """Return the plural of a device type for messages."""
    return "RDMA devices" if device_type == RDMA else f"{device_type.upper()}s"


def unknown(device_type: str) -> str:
    """Return the reason for rows with pods that have devices of the type, but it is not known which."""
    return f"node(s) have pods whose {device_type.upper()} allocation is unknown"


def divided(part: Part) -> str:
    """Return the reason for rows whose GPUs are sliced or in MIG mode, for a part that gets whole cards there."""
    return f"node(s) have too few GPUs that are neither sliced nor in MIG mode ({part.count} requested)"


def _several(of: str) -> str:
    return f"annotation {GPU_SUBDEVICES}: {ONLY} allows several slices of one {of}"


def of_one_card(part: Part, of: str = CARD) -> str:
    """Return the reason for rows that have enough slices, but of too few GPUs or instances, with the setting."""
    return f"node(s) have too few {of}s for one slice of each ({part.count} requested; {_several(of)})"


def one_replica(part: Part) -> str:
    """Return the reason for rows whose device plugin refuses containers with several slices."""
    return f"node(s) refuse containers with several slices ({part.count} requested; {_REFUSES})"


def chosen_by_kubelet(part: Part, of: str = CARD) -> str:
    """Return the reason for rows where kubelet may choose slices of one GPU or instance, with the settings."""
    requested = f"{part.count} requested; {_CHOOSES}, {_several(of)}"
    return f"node(s) let kubelet choose the slices, maybe of one {of} ({requested})"


def of_gang(part: Part, of: str = CARD) -> str:
    """Return the reason for rows that have enough slices, but of what other members of the gang have a slice of."""
    requested = f"{part.count} requested; {_several(of)}"
    return f"node(s) have too few {of}s of which no other member of the pod group has a slice ({requested})"


def kept_by_policy(part: Part) -> str:
    """Return the reason for rows where other pods' exclusive policies block too many devices."""
    return f"node(s) have too few {plural(part.type)} free of an exclusivePolicy ({part.exclusive} requested)"


def too_few(mask: Mask, part: Part) -> Mask:
    """Return the rows with fewer of these cards than the part requests."""
    rows: Mask = mask.sum(axis=1) < part.count
    return rows


def _too_small(fleet: Fleet, part: Part, right: Mask, rows: Mask) -> str:
    """Return the reason for cards that are too small, with the memory that each of the requested cards could have."""
    required = part.min_memory or dict(part.amounts).get(GPU_MEMORY, 0)
    if part.type != GPU or not required:
        return f"node(s) have {plural(part.type)} that are too small"
    cards = fleet.cards[part.type]
    total = cards.total[cards.index[GPU_MEMORY]]
    memory = np.where(right, candidates.unit_memory(fleet, part, ALL) if part.min_memory else total, 0)
    # The smallest of several cards is the limit. Rows with fewer cards than requested have another reason.
    last = min(part.count, memory.shape[1])
    largest = int(np.sort(memory, axis=1)[rows, -last].max(initial=0))
    if largest >= required:
        return "node(s) have GPUs that are too small"
    of = message_text(GPU_MEMORY, required)
    return f"node(s) have GPUs with too little memory (at most {message_text(GPU_MEMORY, largest)} of {of})"
