"""Summarize a node's devices in the format of Koordinator's debug API: total, free, and used with the pods.

Amounts are Kubernetes quantities. As in Koordinator, a card that cannot be allocated has no total and nothing free. It
is still listed with what pods use of it. The fields `devices`, `ready` and `unaccounted` are Berth's own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from berth_api import allocation, links, names
from berth_operator.core.advice.card_amounts import offers
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Cards, card_id, is_listed, shown_minors

Resources = dict[str, str]
Amounts = Mapping[str, int]
Detail = dict[str, dict[str, Resources]]
"""Device type -> minor -> resources."""


def nodes(fleet: Fleet) -> list[str]:
    """Return the names of the nodes that have a summary: nodes with devices, even if devices are only charged."""
    return [name for name, row in fleet.rows.items() if _has_devices(fleet, row)]


def summary(fleet: Fleet, node: str) -> dict[str, Any] | None:
    """Return a node's summary; None if no devices of a node of this name are known."""
    row = fleet.rows.get(node)
    if row is None or not _has_devices(fleet, row):
        return None
    report = _Report(fleet, row)
    for device_type in fleet.cards:
        report.add(device_type)
    # Type -> pod -> shown minor -> amounts; of a card in MIG mode a pod may hold several instances.
    held: defaultdict[str, dict[str, dict[int, Counter[str]]]] = defaultdict(dict)
    # The pods that may hold any card of a type, because their allocation is missing or cannot be read.
    unaccounted: defaultdict[str, list[str]] = defaultdict(list)
    shown = shown_minors(grant for charge in fleet.on_node(node) for grant in charge.grants)
    for charge in fleet.on_node(node):
        for grant in charge.grants:
            of_pod, minor = held[grant.type].setdefault(charge.pod, {}), shown[grant.type, grant.minor]
            of_pod.setdefault(minor, Counter()).update(dict(grant.amounts))
        for device_type in charge.unknown:
            unaccounted[device_type].append(charge.pod)
    allocate_set: dict[str, Detail] = {
        device_type: {
            pod: {str(minor): _resources(amounts.items()) for minor, amounts in cards.items()}
            for pod, cards in pods.items()
        }
        for device_type, pods in held.items()
    }
    return {
        "deviceTotal": report.total.sums(),
        "deviceFree": report.free.sums(),
        "deviceUsed": report.used.sums(),
        "deviceTotalDetail": report.total.detail,
        "deviceFreeDetail": report.free.detail,
        "deviceUsedDetail": report.used.detail,
        "allocateSet": allocate_set,
        "devices": report.devices,
        "ready": bool(fleet.present[row] and fleet.has_device[row] and fleet.fresh[row]),
        "unaccounted": unaccounted,
    }


class _Sums:
    """Amounts of each card, and their sums."""

    def __init__(self) -> None:
        self.detail: Detail = {}
        self._all: Counter[str] = Counter()

    def add(self, device_type: str, minor: int, amounts: Amounts) -> None:
        self.detail.setdefault(device_type, {})[str(minor)] = _resources(amounts.items())
        self._all.update(amounts)

    def sums(self) -> Resources:
        return _resources(self._all.items())


class _Report:
    """The amounts and descriptions of the cards of one row."""

    def __init__(self, fleet: Fleet, row: int) -> None:
        self._fleet, self._row, self._only = fleet, row, np.array([row])
        held = [grant for charge in fleet.on_node(fleet.names[row]) for grant in charge.grants]
        self._shown = shown_minors(held)
        self._absent = {(grant.type, grant.minor): card_id(grant) for grant in held if not is_listed(grant)}
        self.total, self.free, self.used = _Sums(), _Sums(), _Sums()
        self.devices: dict[str, dict[str, Any]] = {}

    def add(self, device_type: str) -> None:
        """Add the cards of one type."""
        cards = self._fleet.cards[device_type]
        amounts = [(name, *(column[0].tolist() for column in columns)) for name, *columns in offers(cards, self._only)]
        for slot in cards.slots(self._row):
            minor = int(cards.minor[self._row, slot])
            offered = {name: total[slot] for name, total, _, _ in amounts if total[slot]}
            taken = {name: used[slot] for name, _, used, _ in amounts if used[slot] or name in offered}
            shown = self._shown.get((device_type, minor), minor)
            self.total.add(device_type, shown, offered)
            self.free.add(device_type, shown, {name: free[slot] for name, _, _, free in amounts if name in offered})
            self.used.add(device_type, shown, taken)
            self.devices.setdefault(device_type, {})[str(shown)] = self._card(cards, slot, minor)

    def _card(self, cards: Cards, slot: int, minor: int) -> dict[str, Any]:
        """Return the description of a card; of a removed card that pods still hold, only the id is known."""
        row, intern_table = self._row, self._fleet.intern_table
        if not cards.present[row, slot]:
            return {"id": self._absent.get((cards.device_type, minor), ""), "model": "", "health": False}
        # Its NUMA node, PCIe switch and links, as far as its Device lists them.
        numa, switch = int(cards.numa[row, slot]), intern_table.switches[int(cards.pcie[row, slot])]
        wiring = intern_table.wirings[int(cards.wiring[row])]
        linked = {
            str(other): links.text(link_type, count)
            for _, own, of_card in wiring
            if own == minor
            for other, link_type, count in of_card
        }
        topology = {"nodeID": numa if numa >= 0 else None, "pcieID": switch or None, "links": linked or None}
        return {
            "id": cards.ids[row].get(minor, ""),
            "model": intern_table.models[int(cards.model[row, slot])],
            "health": bool(cards.healthy[row, slot]) or minor in cards.instances.get(row, ()),
            "topology": {name: value for name, value in topology.items() if value is not None},
        }


def _has_devices(fleet: Fleet, row: int) -> bool:
    return bool(fleet.has_device[row]) or any(cards.users[row].any() for cards in fleet.cards.values())


def _resources(amounts: Iterable[tuple[str, int]]) -> Resources:
    return {allocation.long(name, names.PREFIX): allocation.text(name, amount) for name, amount in amounts}
