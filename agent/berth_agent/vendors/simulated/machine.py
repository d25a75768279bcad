"""The wiring of a simulated machine: which card is on which PCIe switch, and how cards reach each other.

Switches are spread over two sockets. Each switch has sixteen buses: one for the root port, one for its upstream port,
then GPUs, NICs and FPGAs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth_agent.vendors.simulated.profiles import CardProfile
from berth_api.device import Link, Topology

SOCKETS: Final = 2
BUSES: Final = range(0x10, 0xF0, 0x10)
"""First bus of each switch; as many fit in one PCI domain."""
UPSTREAM: Final = 0x1
FIRST_GPU: Final = 0x2
FIRST_NIC: Final = 0x8
FIRST_FPGA: Final = 0xC
SLOTS: Final = 4
"""Buses for NICs, and as many for FPGAs. Further devices become functions of one device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """The wiring of one node, given by its cards."""

    cards: Sequence[CardProfile]

    @property
    def per_switch(self) -> int:
        """Cards behind one switch, or at one root complex."""
        return max(1, self.cards[0].per_switch) if self.cards else 1

    @property
    def switches(self) -> int:
        """Switches, or root complexes where there are none."""
        return max(1, -(-len(self.cards) // self.per_switch))

    def gpu(self, minor: int) -> Topology:
        """Place a GPU."""
        switch, slot = divmod(minor, self.per_switch)
        return self._place(switch=switch, bus=FIRST_GPU + slot, function=0)

    def other(self, minor: int, *, first: int) -> Topology:
        """Place a NIC or FPGA; they are dealt out to the switches in turn."""
        slot, switch = divmod(minor, self.switches)
        return self._place(switch=switch, bus=first + slot % SLOTS, function=slot // SLOTS)

    def _place(self, *, switch: int, bus: int, function: int) -> Topology:
        domain, index = divmod(switch, len(BUSES))
        base = BUSES[index]
        switched = bool(self.cards and self.cards[0].per_switch)
        socket = switch * SOCKETS // self.switches
        return Topology(
            socket_id=socket,
            node_id=socket,
            pcie_id=f"{domain:04x}:{base + UPSTREAM:02x}:00.0" if switched else f"pci{domain:04x}:{base:02x}",
            bus_id=f"{domain:04x}:{base + bus:02x}:00.{function}",
        )

    def links(self, minor: int) -> list[Link]:
        """Return how a GPU reaches each other one."""
        card, near = self.cards[minor], self.gpu(minor)
        mesh = {frozenset(pair): count for *pair, count in card.mesh}
        links = []
        for other in range(len(self.cards)):
            if other == minor:
                continue
            far = self.gpu(other)
            nvlinks = mesh.get(frozenset((minor, other)), 0) + min(card.nvlinks, self.cards[other].nvlinks)
            if card.hive and minor // card.hive == other // card.hive:
                links.append(Link(minor=other, type="XGMI", count=1, peer_to_peer=True))
            elif nvlinks:
                links.append(Link(minor=other, type="NVLink", count=nvlinks, peer_to_peer=True))
            elif near.pcie_id == far.pcie_id:
                links.append(Link(minor=other, type="SingleSwitch", peer_to_peer=True))
            else:
                links.append(Link(minor=other, type="SameNUMANode" if near.node_id == far.node_id else "System"))
        return links
