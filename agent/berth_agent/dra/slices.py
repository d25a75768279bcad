"""The node's ResourceSlices: one for each card, so that a changed card costs one write. Pure functions.

All of a node's slices form one pool. A pool counts only if all of its slices have the newest generation, and if there
are as many as they say. So a change of one slice keeps the generation, and a change of their number raises it in all.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from berth_agent.dra import shares
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.partitions import PartitionedCard
from berth_api.allocation.device_ids import device_name
from berth_api.names import DRA_DRIVER, HELD_BY_NAME

API_VERSION: Final = "resource.k8s.io/v1"
CARD: Final = f"{DRA_DRIVER}/card"
"""Label of a slice: the name of its card."""
TAINT: Final = f"{DRA_DRIVER}/unhealthy"
MAX_DEVICES: Final = 64
"""Devices of a slice whose devices have taints."""
MAX_TAINT_VALUE: Final = 63
COUNTERS: Final = "-counters"
"""What the label of a slice with a card's counter set has after the name of the card."""
MAX_LABEL: Final = 63
PROBED: Final = {"type": {"string": "probe"}}
"""The attributes of devices of a dry run: the policy `berth-agent-slices` demands a type."""

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A slice on the API server."""

    name: str
    uid: str
    version: str
    card: str
    """Its label; empty if it has none."""
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a slice of a card."""

    card: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Replace the spec of a slice."""

    known: Known
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a slice."""

    known: Known


def known(raw: Mapping[str, Any]) -> Known:
    """Read a slice of the API server."""
    metadata = raw["metadata"]
    return Known(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        card=(metadata.get("labels") or {}).get(CARD) or "",
        spec=raw["spec"],
    )


def by_card(
    devices: Sequence[ListedDevice],
    *,
    with_taints: bool,
    partitioned: Mapping[str, PartitionedCard] = MappingProxyType({}),
) -> dict[str, list[dict[str, Any]]]:
    """Return the devices of each slice, by the name of its card.

    Args:
        devices: the devices of the node.
        with_taints: whether the API server keeps taints. If not, devices that need one are left out.
        partitioned: what can be made on cards, by their UUIDs: their devices are listed instead of the card.
    """
    slices: dict[str, list[dict[str, Any]]] = {}
    for card, group in itertools.groupby(devices, key=lambda device: device.card):
        shown = [_device(device) for device in group if with_taints or not (device.fault or device.by_name)]
        if card in partitioned:
            shown = [dict(device) for device in partitioned[card].devices]
        if shown:
            slices[device_name(card)] = shown[:MAX_DEVICES]
    return slices


def plan(
    wanted: Mapping[str, Sequence[Any]],
    existing: Sequence[Known],
    *,
    node: str,
    counters: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[Create | Update | Delete]:
    """Return the writes that make the slices of a node what they should be; none if they are.

    Args:
        wanted: the devices of each slice, by card.
        existing: the slices of the node and of this driver.
        node: the node, which is also the pool.
        counters: further slices, which have one counter set each and no devices, by their labels.
    """
    contents: dict[str, dict[str, Any]] = {
        **{card: {"devices": list(devices)} for card, devices in wanted.items()},
        **{label: {"sharedCounters": [counter_set]} for label, counter_set in counters.items()},
    }
    kept: dict[str, Known] = {}
    for one in existing:
        if one.card in contents and one.spec.get("pool", {}).get("name") == node:
            kept.setdefault(one.card, one)
    pools = [one.spec.get("pool", {}) for one in existing]
    generations = [pool.get("generation", 0) for pool in pools if pool.get("name") == node]
    # Slices that are only missing complete the pool when they are there again.
    is_consistent = (
        len(kept) == len(existing)
        and len(set(generations)) <= 1
        and all(pool["resourceSliceCount"] == len(contents) for pool in pools)
    )
    generation = max(1, max(generations, default=0) + (not is_consistent))
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(contents)}
    specs: dict[str, dict[str, Any]] = {
        card: {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, **content} for card, content in contents.items()
    }
    return [
        *(Delete(known=one) for one in existing if kept.get(one.card) is not one),
        *(
            Update(known=kept[card], spec=spec)
            for card, spec in specs.items()
            if card in kept and _differs(kept[card], spec)
        ),
        *(Create(card=card, spec=spec) for card, spec in specs.items() if card not in kept),
    ]


def manifest(card: str, spec: Spec, owner: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a slice to be created. The API server names it, so that no other node can occupy the name."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": f"{spec['nodeName'][:180]}-{DRA_DRIVER}-",
            "labels": {CARD: card},
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": spec,
    }


def replacement(change: Update, owner: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a slice that replaces a known one."""
    body = manifest(change.known.card, change.spec, owner)
    del body["metadata"]["generateName"]
    body["metadata"] |= {
        "name": change.known.name,
        "uid": change.known.uid,
        "resourceVersion": change.known.version,
    }
    return body


def keeps_taints(sent: Spec, answer: Spec) -> bool:
    """Return whether the API server kept the taints that were sent."""
    return _tainted(sent) == _tainted(answer)


def keeps_shares(sent: Spec, answer: Spec) -> bool:
    """Return whether the API server kept the shares that were sent."""
    return _shared(sent) == _shared(answer)


def _shared(spec: Spec) -> list[str]:
    return [
        device["name"]
        for device in spec.get("devices") or ()
        if device.get("allowMultipleAllocations") and "requestPolicy" in device["capacity"][shares.MEMORY]
    ]


def _tainted(spec: Spec) -> list[str]:
    return [device["name"] for device in spec.get("devices") or () if device.get("taints")]


def _differs(one: Known, spec: Spec) -> bool:
    return _without_times(one.spec) != spec


def _without_times(spec: Spec) -> Spec:
    """Return a spec without the times that the API server adds to taints."""
    devices = [
        {**device, "taints": [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in taints]}
        if (taints := device.get("taints"))
        else device
        for device in spec.get("devices") or ()
    ]
    return {**spec, "devices": devices} if devices else spec


def _device(device: ListedDevice) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": device.name, "attributes": device.attributes}
    if device.shared:
        shown |= shares.fields(device)
    elif device.memory:
        shown["capacity"] = {"memory": {"value": device.memory}}
    taints = []
    if device.fault:
        taints.append({"key": TAINT, "value": device.fault[:MAX_TAINT_VALUE], "effect": "NoSchedule"})
    if device.by_name:
        taints.append({"key": HELD_BY_NAME, "effect": "NoSchedule"})
    return {**shown, "taints": taints} if taints else shown


def probe(node: str) -> dict[str, Any]:
    """Return a slice with a taint and shares, to be created as a dry run: the API server may drop both."""
    device = ListedDevice(
        name="probe",
        id="probe",
        card="probe",
        place="",
        attributes=PROBED,
        by_name=True,
        memory="1Gi",
        shared=True,
    )
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return manifest("probe", {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": [_device(device)]}, None)


def counters_of(partitioned: Mapping[str, PartitionedCard]) -> dict[str, Mapping[str, Any]]:
    """Return the counter sets of cards by the labels of their slices."""
    return {f"{card.counters['name']}{COUNTERS}"[-MAX_LABEL:]: card.counters for card in partitioned.values()}


def counter_probe(node: str) -> dict[str, Any]:
    """Return a slice whose device uses counters, to be created as a dry run: the API server may drop that."""
    counters = {"counterSet": "probe", "counters": {"probe": {"value": "1"}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    device = {"name": "probe", "attributes": PROBED, "consumesCounters": [counters]}
    return manifest("probe", {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": [device]}, None)


def keeps_counters(answer: Spec) -> bool:
    """Return whether the API server kept the counters of a probe."""
    return any(device.get("consumesCounters") for device in answer.get("devices") or ())
