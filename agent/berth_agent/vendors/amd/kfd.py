"""The topology of KFD, AMD's driver for computing: which render node each partition of a card has.

The kernel refuses the files of a card (EPERM) to readers whose device cgroup lacks its render node, whatever their user
is. So only a privileged agent can read them, and everything but partitions is read without them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from berth_agent.vendors.amd.attributes import Attributes

NODES: Final = Path("class/kfd/kfd/topology/nodes")
MAX_UNITS: Final = 65536
"""SIMD units of a card; a larger number is a mistake of the driver's."""
_PROPERTY: Final = re.compile(r"^(\S+) ([0-9]{1,19})$", re.MULTILINE)
"""A name and a number of 64 bits."""
_PARTITION: Final = 0x7
"""The bits of a location that count partitions."""


class KfdNode(NamedTuple):
    """A partition, or a card that is not partitioned."""

    render: int
    """Number of its render node, from 128."""
    compute_units: int | None
    memory: int | None
    """Bytes."""
    kfd_id: int
    """KFD's own number of it; 0 if it has none."""


def nodes(attributes: Attributes, root: Path) -> Mapping[str, list[KfdNode]]:
    """Return the partitions of the cards that may be read, by their slots (`0000:c1:00`), sorted by render node."""
    by_slot: dict[str, list[KfdNode]] = {}
    for name in attributes.names(root / NODES):
        properties = root / NODES / name / "properties"
        facts = _properties(attributes.text(properties))
        if properties in attributes.refused:
            # Which card it belongs to is not known, and without it the partitions of its card would be numbered wrong.
            return {}
        render, units = facts.get("drm_render_minor", 0), facts.get("simd_count", 0)
        if render <= 0 or units <= 0:
            continue
        per_unit = facts.get("simd_per_cu", 0)
        bank = _properties(attributes.text(root / NODES / name / "mem_banks/0/properties"))
        compute_units = units // per_unit if 0 < per_unit <= units < MAX_UNITS else None
        kfd_id = attributes.number(root / NODES / name / "gpu_id") or 0
        node = KfdNode(render, compute_units, bank.get("size_in_bytes") or None, kfd_id)
        by_slot.setdefault(_slot(facts.get("domain", 0), facts.get("location_id", 0)), []).append(node)
    return {slot: sorted(of_slot) for slot, of_slot in by_slot.items()}


def _slot(domain: int, location: int) -> str:
    """Return the slot of a location, which is the bus, the device and, where there are several, the partition."""
    location &= 0xFFFF & ~_PARTITION
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}"


def _properties(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _PROPERTY.findall(text)}
