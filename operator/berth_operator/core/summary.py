"""What one node's devices are, what is free of them and who holds the rest, in the form of Koordinator's debug API.

Amounts are quantities as Kubernetes writes them. Of a card that cannot be handed out nothing counts as offered or free,
as in Koordinator; what pods hold of it is told all the same. `devices`, `ready` and `unaccounted` are ours.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from berth_api import allocation, names
from berth_operator.core.cards import Cards
from berth_operator.core.fleet import Fleet

Resources = dict[str, str]
Amounts = Mapping[str, int]
Detail = dict[str, dict[str, Resources]]
"""Device type -> minor -> resources."""


def nodes(fleet: Fleet) -> list[str]:
    """Give the names of the nodes of which there is a summary: those with devices, be they only charged."""
    return [name for name, row in fleet.rows.items() if _has_devices(fleet, row)]


def summary(fleet: Fleet, node: str) -> dict[str, Any] | None:
    """Give a node's summary; None if nothing is known of devices on a node of this name."""
    row = fleet.rows.get(node)
    if row is None or not _has_devices(fleet, row):
        return None
    report = _Report(fleet, row)
    for kind in fleet.cards:
        report.add(kind)
    return {
        "deviceTotal": report.total.sums(),
        "deviceFree": report.free.sums(),
        "deviceUsed": report.used.sums(),
        "deviceTotalDetail": report.total.detail,
        "deviceFreeDetail": report.free.detail,
        "deviceUsedDetail": report.used.detail,
        "allocateSet": _allocate_set(fleet, node),
        "devices": report.devices,
        "ready": bool(fleet.present[row] and fleet.has_device[row] and fleet.fresh[row]),
        "unaccounted": _unaccounted(fleet, node),
    }


class _Sums:
    """Amounts card by card, and all together."""

    def __init__(self) -> None:
        self.detail: Detail = {}
        self._all: Counter[str] = Counter()

    def add(self, kind: str, minor: int, amounts: Amounts) -> None:
        self.detail.setdefault(kind, {})[str(minor)] = _resources(amounts.items())
        self._all.update(amounts)

    def sums(self) -> Resources:
        return _resources(self._all.items())


class _Report:
    """The cards of one row."""

    def __init__(self, fleet: Fleet, row: int) -> None:
        self._fleet, self._row = fleet, row
        self.total, self.free, self.used = _Sums(), _Sums(), _Sums()
        self.devices: dict[str, dict[str, Any]] = {}

    def add(self, kind: str) -> None:
        """Take in the cards of one type."""
        cards, row = self._fleet.cards[kind], self._row
        for slot in cards.slots(row):
            minor, healthy = int(cards.minor[row, slot]), bool(cards.healthy[row, slot])
            offered, taken = cards.total[:, row, slot].tolist(), cards.used[:, row, slot].tolist()
            known = {name: offered[index] for name, index in cards.index.items() if healthy and offered[index]}
            used = {name: taken[index] for name, index in cards.index.items() if taken[index] or name in known}
            self.total.add(kind, minor, known)
            self.free.add(kind, minor, {name: max(0, amount - used[name]) for name, amount in known.items()})
            self.used.add(kind, minor, used)
            self.devices.setdefault(kind, {})[str(minor)] = {
                "id": cards.ids[row].get(minor, ""),
                "model": self._model(cards, slot),
                "health": healthy,
            }

    def _model(self, cards: Cards, slot: int) -> str:
        """Give a card's model; of a card that is gone and still held, nobody knows."""
        there = cards.present[self._row, slot]
        return self._fleet.model_names[cards.model[self._row, slot]] if there else ""


def _has_devices(fleet: Fleet, row: int) -> bool:
    return bool(fleet.has_device[row]) or any(each.users[row].any() for each in fleet.cards.values())


def _resources(amounts: Iterable[tuple[str, int]]) -> Resources:
    return {allocation.long(name, names.PREFIX): allocation.text(name, amount) for name, amount in amounts}


def _allocate_set(fleet: Fleet, node: str) -> dict[str, Detail]:
    found: defaultdict[str, Detail] = defaultdict(dict)
    for charge in fleet.on_node(node):
        for grant in charge.grants:
            found[grant.type].setdefault(charge.pod, {})[str(grant.minor)] = _resources(grant.amounts)
    return found


def _unaccounted(fleet: Fleet, node: str) -> dict[str, list[str]]:
    """Name the pods that may hold any card of a type, because their allocation is missing or cannot be read."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for charge in fleet.on_node(node):
        for kind in charge.unknown:
            found[kind].append(charge.pod)
    return found
