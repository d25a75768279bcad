"""The units that kubelet allocates by its ids (whole cards, instances and replicas), and which share a card.

The agent's device plugin offers cards and instances by their UUIDs. Other device plugins have ids of their own, such as
a PCI address or a device node. Such an id may stand for several cards, or for none that is known.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from berth_api.allocation import visible
from berth_api.device import DeviceSpec

_UUID: Final = re.compile(
    r"((MIG-)?GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/[0-9]{1,3}/[0-9]{1,3})?"
    r"|GPU-[0-9a-f]{16}(-[0-9]{1,3})?",
    re.IGNORECASE,
)
"""The forms of ids that no two cards or instances share. One that was never seen is of none of the known cards."""
_MARK: Final = re.compile(r"[^0-9A-Za-z]")
"""What may follow the name of a card in the id of a part of it: `<name>/vgpu1`, `GPU-<UUID>-3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The cards of a node by the ids that kubelet knows. A card is its id: its minor may be another card's by now."""

    minors: Mapping[str, int] = field(default_factory=dict)
    """Id of a card or instance -> minor of the card when it was last seen."""
    cards: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Id of an instance -> id of its card."""
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Name by which a device plugin may offer a card or instance, in lower case -> the ids that it may stand for."""

    @classmethod
    def of(cls, spec: DeviceSpec, names: Iterable[tuple[str, str]] = ()) -> Self:
        """Return the units of a Device; `names` are the vendor's names, each with the id of a card or instance.

        Some device plugins name cards by their PCI addresses.
        """
        cards = [card for card in spec.devices if card.type == "gpu"]
        instances = [(instance.id, card) for card in cards if card.mig for instance in card.mig.instances]
        minors = {card.id: card.minor for card in cards} | {instance: card.minor for instance, card in instances}
        at = ((card.topology.bus_id, card.id) for card in cards if card.topology and card.topology.bus_id)
        ids_by_name: dict[str, frozenset[str]] = {}
        for name, unit in (*((unit, unit) for unit in minors), *at, *names):
            ids_by_name[name.lower()] = ids_by_name.get(name.lower(), frozenset()) | {unit}
        return cls(
            minors=minors,
            cards=frozenset(card.id for card in cards),
            parents={instance: card.id for instance, card in instances},
            names=ids_by_name,
        )

    def joined(self, more: "Units") -> "Units":
        """Return these and others: an id keeps its meaning when its card or instance is gone.

        If another card has the name of a card that is gone, the name stands for both.
        """
        names = {name: self.names.get(name, frozenset()) | ids for name, ids in more.names.items()}
        return Units(
            minors={**self.minors, **more.minors},
            cards=self.cards | more.cards,
            parents={**self.parents, **more.parents},
            names={**self.names, **names},
        )

    def minor(self, unit: str) -> int | None:
        """Return the minor of the card that a unit lies on, or None if the unit was never seen."""
        return self.minors.get(visible(unit))

    def card(self, unit: str) -> str:
        """Return the id of the card that a unit lies on; a unit that was never seen stands for itself."""
        device = visible(unit)
        return self.parents.get(device, device)

    def matched(self, unit: str) -> str | None:
        """Return the unit by the UUID of its card or instance, if it can only be this one; None otherwise."""
        device = visible(unit)
        if device in self.minors or _UUID.fullmatch(device):
            return unit
        ids = self._named(device)
        if len(ids) == 1:
            return next(iter(ids))
        cards = frozenset(map(self.card, ids))
        return next(iter(cards)) if len(cards) == 1 else None

    def is_named(self, unit: str) -> bool:
        """Return whether the id of a unit stands for any card or instance."""
        return bool(self._named(visible(unit)))

    def candidates(self, unit: str) -> frozenset[str]:
        """Return the ids of the cards that an unmatched unit may lie on: all cards if its id stands for none."""
        return frozenset(map(self.card, self._named(visible(unit)))) or self.cards

    def _named(self, device: str) -> frozenset[str]:
        """Return the cards and instances that an id may stand for: the longest name with which it begins counts."""
        device = device.lower()
        for end in (len(device), *sorted((mark.start() for mark in _MARK.finditer(device)), reverse=True)):
            # A number with something behind it, such as 3-1, need not begin with the number of a card.
            if (ids := self.names.get(device[:end])) and (end == len(device) or not device[:end].isdecimal()):
                return ids
        return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What is taken of a node's cards."""

    ids: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    """Ids of the cards with nothing left, or with an unknown rest."""
    touched: frozenset[str] = frozenset()
    """Ids of the cards that are taken in part."""

    @classmethod
    def of(cls, ids: Iterable[str], units: Units, *, whole: Iterable[str] = ()) -> Self:
        """Return what these ids take, and these whole cards. An unmatched id takes all cards that it may lie on."""
        listed, full = frozenset(ids), frozenset(map(units.card, whole))
        full = full.union(*(units.candidates(unit) for unit in listed if units.matched(unit) is None))
        return cls(
            ids=listed, whole=full.union(listed & units.cards), touched=full.union(units.card(unit) for unit in listed)
        )

    def leaves(self, unit: str, units: Units) -> bool:
        """Return whether a unit is still there."""
        taken = self.touched if unit in units.cards else self.whole
        return unit not in self.ids and units.card(unit) not in taken
