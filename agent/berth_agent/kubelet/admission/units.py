"""The units that kubelet allocates by its ids (whole cards, instances and replicas), and which share a card."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from berth_api.allocation import visible
from berth_api.device import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The cards of a node by the ids that kubelet knows. A card is its id: its minor may be another card's by now."""

    minors: Mapping[str, int] = field(default_factory=dict)
    """Id of a card or instance -> minor of the card when it was last seen."""
    cards: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Id of an instance -> id of its card."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """PCI address -> id of the only card there. The device plugins of some vendors name cards by their addresses."""

    @classmethod
    def of(cls, spec: DeviceSpec) -> Self:
        """Return the units of a Device."""
        cards = [card for card in spec.devices if card.type == "gpu"]
        at = Counter(card.topology.bus_id for card in cards if card.topology)
        instances = [(instance.id, card) for card in cards if card.mig for instance in card.mig.instances]
        return cls(
            minors={card.id: card.minor for card in cards} | {instance: card.minor for instance, card in instances},
            cards=frozenset(card.id for card in cards),
            parents={instance: card.id for instance, card in instances},
            addresses={
                card.topology.bus_id: card.id for card in cards if card.topology and at[card.topology.bus_id] == 1
            },
        )

    def joined(self, more: "Units") -> "Units":
        """Return these and others: an id keeps its meaning when its card or instance is gone."""
        return Units(
            minors={**self.minors, **more.minors},
            cards=self.cards | more.cards,
            parents={**self.parents, **more.parents},
            addresses=more.addresses,
        )

    def minor(self, unit: str) -> int | None:
        """Return the minor of the card that a unit lies on, or None if the unit was never seen."""
        return self.minors.get(visible(unit))

    def card(self, unit: str) -> str:
        """Return the id of the card that a unit lies on; a unit that was never seen stands for itself."""
        device = visible(unit)
        return self.parents.get(device, device)


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
        """Return what these ids take, and these whole cards."""
        listed, full = frozenset(ids), frozenset(map(units.card, whole))
        return cls(
            ids=listed, whole=full.union(listed & units.cards), touched=full.union(units.card(unit) for unit in listed)
        )

    def leaves(self, unit: str, units: Units) -> bool:
        """Return whether a unit is still there."""
        taken = self.touched if unit in units.cards else self.whole
        return unit not in self.ids and units.card(unit) not in taken
