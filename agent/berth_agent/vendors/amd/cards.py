"""What sysfs shows of the cards without privilege: who they are, where they are, and how they are partitioned."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from berth_agent.inventory import sysfs
from berth_agent.vendors.amd import kfd, models
from berth_agent.vendors.amd.attributes import Attributes
from berth_agent.vendors.amd.kfd import KfdNode
from berth_api.device import Topology

FIRST_RENDER: Final = 128
"""The number of the first render node."""
MAX_RENDER: Final = FIRST_RENDER + 65535
WHOLE: Final = "SPX"
"""The compute mode of a card that is one device."""
PARTITIONED: Final = frozenset({"DPX", "TPX", "QPX", "CPX"})
MAX_NAME: Final = 256
_MEMORY_MODES: Final = frozenset({"NPS1", "NPS2", "NPS3", "NPS4", "NPS6", "NPS8"})
_RENDER: Final = re.compile(r"renderD([0-9]{3,6})")
_UNIQUE: Final = re.compile(r"[0-9a-f]{16}")
_DEVICE: Final = re.compile(r"0x([0-9a-f]{4})")
_REVISION: Final = re.compile(r"0x([0-9a-f]{2})")
_OWN_BRIDGE: Final = "0x1002"
"""The vendor of the PCIe switch that is on the card itself; it connects no cards with each other, except two of one
board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another card of the same hive, as one card reaches it."""

    hops: int = 0
    """1 is a direct connection; 0 if the driver does not report it."""
    links: int = 0
    """XGMI links; 0 if the driver does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card, or a partition of one."""

    folder: Path
    """Of its PCI device, which partitions share."""
    id: str
    render: int
    """Number of its render node."""
    model: str
    device_id: str
    memory: int | None
    """Bytes."""
    board_memory: int | None
    """Bytes of the whole card."""
    compute_units: int | None
    topology: Topology
    ports: tuple[str, ...]
    """The root complex and the ports above it, without those of the card."""
    mode: str = ""
    """Compute and memory mode as AMD's plugin names them: `spx_nps1`; empty if the card cannot be partitioned."""
    kfd_id: int = 0
    """KFD's number of it; 0 if it cannot be read."""
    is_partition: bool = False
    is_unreadable: bool = False
    """Whether it is partitioned, and its partitions cannot be read."""
    hive: str = ""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    """Cards of the hive by their PCI addresses."""

    @property
    def address(self) -> str:
        """Return its PCI address."""
        return self.folder.name

    @property
    def minor(self) -> int:
        """Return its minor, which is what its render node has."""
        return self.render - FIRST_RENDER


def read(attributes: Attributes, root: Path, folders: Iterable[Path]) -> tuple[list[Card], list[str]]:
    """Return the cards and partitions of these PCI devices, and the addresses of those that cannot be identified."""
    partitions = kfd.nodes(attributes, root)
    whole: list[Card] = []
    unread: list[str] = []
    for folder in folders:
        card = _card(attributes, root, folder)
        if card is None or any(card.render == other.render for other in whole):
            unread.append(folder.name)
        else:
            whole.append(card)
    # An id that two cards claim identifies none of them.
    claims = Counter(card.id for card in whole)
    whole = [card if claims[card.id] == 1 else replace(card, id=_address_id(card.address)) for card in whole]
    cards: list[Card] = []
    for card in whole:
        cards += _divided(card, partitions.get(card.address.rpartition(".")[0], ()))
    return cards, unread


def _card(attributes: Attributes, root: Path, folder: Path) -> Card | None:
    renders = [match[1] for name in attributes.names(folder / "drm") if (match := _RENDER.fullmatch(name))]
    unique = attributes.text(folder / "unique_id").lower()
    if not renders or not FIRST_RENDER <= int(renders[0]) <= MAX_RENDER or folder / "unique_id" in attributes.refused:
        # With another id it would be another card, and the pods that hold it would hold nothing.
        return None
    device_id = _matched(_DEVICE, attributes.text(folder / "device"))
    model = models.of(device_id, _matched(_REVISION, attributes.text(folder / "revision")))
    named = "".join(filter(str.isprintable, attributes.text(folder / "product_name")))
    compute = attributes.text(folder / "current_compute_partition").upper()
    memory_mode = attributes.text(folder / "current_memory_partition").upper()
    ports = _ports(attributes, folder)
    hive = attributes.text(folder / "xgmi_hive_info/xgmi_hive_id")
    memory = max(attributes.number(folder / "mem_info_vram_total") or 0, 0) or None
    return Card(
        folder=folder,
        id=f"GPU-{unique}" if _UNIQUE.fullmatch(unique) and int(unique, 16) else _address_id(folder.name),
        render=int(renders[0]),
        model=named[:MAX_NAME].strip() or model.name,
        device_id=device_id,
        memory=memory,
        board_memory=memory,
        compute_units=model.compute_units,
        topology=_topology(root, folder, ports),
        ports=ports,
        mode=_mode(compute, memory_mode),
        is_unreadable=compute in PARTITIONED,
        hive=hive if hive.strip("0x") else "",
        peers=_peers(attributes, folder) if hive.strip("0x") else {},
    )


def _address_id(address: str) -> str:
    """Return the id of a card that has none of its own: its PCI address, in the form of the ids of GPUs."""
    return f"GPU-{address.replace(':', '-')}"


def _mode(compute: str, memory: str) -> str:
    is_known = compute == WHOLE or compute in PARTITIONED
    return f"{compute}_{memory if memory in _MEMORY_MODES else 'NPS1'}".lower() if is_known else ""


def _divided(card: Card, partitions: Iterable[KfdNode]) -> list[Card]:
    """Return the partitions of a card that is divided; the card itself otherwise, or if they cannot be read."""
    parts = [part for part in partitions if FIRST_RENDER <= part.render <= MAX_RENDER]
    own = next((part for part in parts if part.render == card.render), None)
    if own is None:
        return [card]
    if not card.is_unreadable:
        return [replace(card, kfd_id=own.kfd_id)]
    return [
        replace(
            card,
            id=f"{card.id}-{number}",
            render=part.render,
            kfd_id=part.kfd_id,
            memory=part.memory or (card.memory and card.memory // len(parts)),
            compute_units=part.compute_units or (card.compute_units and card.compute_units // len(parts)),
            is_partition=True,
            is_unreadable=False,
        )
        for number, part in enumerate(parts)
    ]


# --- where it is ------------------------------------------------------------------------------------------------


def _ports(attributes: Attributes, folder: Path) -> tuple[str, ...]:
    """Return the root complex and the ports above a card, from the top, without the ports of the card itself."""
    above = folder.resolve().parents
    bridges: list[str] = []
    for parent in above:
        if sysfs.ROOT_COMPLEX.fullmatch(parent.name):
            return (parent.name, *reversed(bridges))
        if bridges or attributes.text(parent / "vendor") != _OWN_BRIDGE:
            bridges.append(parent.name)
    return ()


def _topology(root: Path, folder: Path, ports: tuple[str, ...]) -> Topology:
    try:
        place = sysfs.place(root, folder.name)
    except (OSError, ValueError):
        # The kernel refuses the file, or reports something else than a number.
        place = Topology(bus_id=folder.name)
    # Behind a switch there are its root port, its upstream port and its downstream port.
    below_root = ports[1:]
    switch = below_root[-2] if len(below_root) >= sysfs.BEHIND_SWITCH - 1 else next(iter(ports), "")
    return place.model_copy(update={"pcie_id": switch})


def _peers(attributes: Attributes, folder: Path) -> dict[str, Peer]:
    """Return the cards of a card's hive.

    `node1` and so on link to the cards of the hive, and the numbers of hops and links stand in this order, as the
    kernel's source says. No hardware has confirmed the order.
    """
    nodes = [name for name in attributes.names(folder / "xgmi_hive_info") if re.fullmatch("node[0-9]{1,3}", name)]
    hops, links = (_bytes(attributes.text(folder / name)) for name in ("xgmi_num_hops", "xgmi_num_links"))
    peers = {}
    for name in nodes:
        address, position = attributes.target(folder / "xgmi_hive_info" / name), int(name[4:]) - 1
        if address != folder.name:
            peers[address] = Peer(hops=_at(hops, position), links=_at(links, position))
    return peers


def _bytes(text: str) -> list[int]:
    return [int(part, 16) for part in text.split() if re.fullmatch("[0-9a-f]{2}", part)]


def _at(numbers: list[int], position: int) -> int:
    return numbers[position] if 0 <= position < len(numbers) else 0


def _matched(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.fullmatch(text)
    return match[1] if match else ""
