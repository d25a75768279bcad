"""The node's cards and MIG instances as devices of ResourceSlices. Pure functions.

Attributes have the names that the vendors' own drivers use, so that their selectors need only another driver.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from berth_agent.conditions import HEALTHY
from berth_agent.readings import NodeFacts
from berth_api.allocation import device_ids
from berth_api.allocation.device_ids import device_name
from berth_api.device import DeviceInfo, DeviceSpec
from berth_api.names import GPU, GPU_MEMORY, PREFIX

MAX_TEXT: Final = 64
"""Characters of a text in an attribute."""
STANDARD: Final = "resource.kubernetes.io/"

Attributes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """A whole card, a MIG instance, an RDMA NIC, or a virtual function of one."""

    name: str
    """Its name in the slice, made of its id: minors and indices may be another card's after a reboot."""
    type: str = GPU
    """The type of its card."""
    id: str
    """UUID; the PCI address of a NIC or function."""
    card: str
    """The id of its card, or of its NIC."""
    place: str
    """PCI address of its card."""
    attributes: Attributes = field(default_factory=dict)
    memory: str = ""
    """Quantity."""
    fault: str = ""
    """Reason of the card's fault; empty if it is healthy."""
    message: str = ""
    """The fault in words."""
    by_name: bool = False
    """Whether it is listed although a pod has it by name, and so needs a taint."""
    shared: bool = False
    """Whether claims may have shares of it."""


def listed(
    spec: DeviceSpec, facts: NodeFacts | None, *, roots: Mapping[str, str], hidden: frozenset[str] = frozenset()
) -> tuple[ListedDevice, ...]:
    """Return the devices of a node by their PCI addresses: the instances of a card in MIG mode, else the card.

    Args:
        spec: the node's cards.
        facts: further facts about them.
        roots: PCIe root complex by PCI address.
        hidden: UUIDs of the cards that are not listed.
    """
    cards = [card for card in spec.devices if card.type == GPU and device_ids.is_valid(GPU, card.id)]
    groups = link_groups(cards)
    devices: dict[str, ListedDevice] = {}
    for card in sorted(cards, key=_place):
        if card.id in hidden:
            continue
        common = {
            "productName": {"string": card.model[:MAX_TEXT]},
            **(facts.attributes(spec, card.id) if facts else {}),
            **_located(card, roots),
        }
        for device in _parts(card, common, groups):
            devices.setdefault(device.name, device)
    return tuple(devices.values())


def fault_of(card: DeviceInfo) -> dict[str, Any]:
    """Return the fields of a listed device that describe the fault of its card."""
    if card.health:
        return {}
    fault = next((condition for condition in card.conditions if condition.type == HEALTHY), None)
    return {"fault": fault.reason if fault else "Unhealthy", "message": fault.message if fault else ""}


def _parts(card: DeviceInfo, common: Attributes, groups: Mapping[str, str]) -> Iterable[ListedDevice]:
    same: dict[str, Any] = {"card": card.id, "place": _place(card), **fault_of(card)}
    if card.mig is None or not card.mig.enabled:
        linked = {"linkGroup": {"string": groups[card.id]}} if card.id in groups else {}
        own = {"type": {"string": "gpu"}, "uuid": {"string": card.id}, **linked}
        memory = str(card.resources.get(PREFIX + GPU_MEMORY, ""))
        yield ListedDevice(name=device_name(card.id), id=card.id, attributes={**own, **common}, memory=memory, **same)
        return
    for instance in card.mig.instances:
        own = {
            "type": {"string": "mig"},
            "uuid": {"string": instance.id},
            "parentUUID": {"string": card.id},
            "profile": {"string": instance.profile},
        }
        yield ListedDevice(
            name=device_name(instance.id),
            id=instance.id,
            attributes={**own, **common},
            memory=str(instance.memory),
            **same,
        )


def link_groups(cards: Sequence[DeviceInfo]) -> dict[str, str]:
    """Return a name for the group of each card that NVLink connects with all others of its group, and with no others.

    If groups overlap, as on machines whose cards form a mesh, equal values could not express them. These cards have no
    group.
    """
    by_minor = {card.minor: card.id for card in cards}
    peers = {
        card.id: {by_minor[link.minor] for link in card.links if link.type == "NVLink" and link.minor in by_minor}
        | {card.id}
        for card in cards
    }
    closed = {
        card: group for card, group in peers.items() if len(group) > 1 and all(peers[peer] == group for peer in group)
    }
    return {card: device_name(min(group)) for card, group in closed.items()}


def _place(card: DeviceInfo) -> str:
    return card.topology.bus_id if card.topology else ""


def _located(card: DeviceInfo, roots: Mapping[str, str]) -> Attributes:
    located: dict[str, dict[str, Any]] = {}
    if place := _place(card):
        located[f"{STANDARD}pciBusID"] = {"string": place}
    if root := roots.get(place):
        located[f"{STANDARD}pcieRoot"] = {"string": root}
    if card.topology and card.topology.node_id >= 0:
        located[f"{STANDARD}numaNode"] = {"int": card.topology.node_id}
    return located
