"""What kubelet hands out by its ids: whole cards, instances and replicas, and which of them lie on one card."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from berth_api.allocation import REPLICA_MARK
from berth_api.device import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The cards of a node by the ids that kubelet knows."""

    minors: Mapping[str, int] = field(default_factory=dict)
    """Id of a card or instance -> minor of the card."""
    cards: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: DeviceSpec) -> Self:
        """Give those of a Device."""
        cards = [card for card in spec.devices if card.type == "gpu"]
        instances = {each.id: card.minor for card in cards if card.mig for each in card.mig.instances}
        return cls(
            minors={card.id: card.minor for card in cards} | instances, cards=frozenset(card.id for card in cards)
        )

    def joined(self, more: "Units") -> "Units":
        """Give these and others: an id keeps its meaning when its card or instance is gone."""
        return Units(minors={**self.minors, **more.minors}, cards=self.cards | more.cards)

    def minor(self, unit: str) -> int | None:
        """Give the number of the card that a unit lies on; None for one that was never seen."""
        return self.minors.get(unit.partition(REPLICA_MARK)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What somebody has of a node's cards."""

    ids: frozenset[str] = frozenset()
    whole: frozenset[int] = frozenset()
    """Minors of which nothing is left, or no whole unit can be told from what is."""
    touched: frozenset[int] = frozenset()
    """Minors of which a part is taken."""

    @classmethod
    def of(cls, ids: Iterable[str], units: Units, *, whole: Iterable[int] = ()) -> Self:
        """Give what these ids take, and these whole cards."""
        listed = frozenset(ids)
        found = {unit: units.minor(unit) for unit in listed}
        full = {minor for unit, minor in found.items() if unit in units.cards and minor is not None}
        minors = {minor for minor in found.values() if minor is not None}
        return cls(ids=listed, whole=frozenset(full.union(whole)), touched=frozenset(minors.union(whole)))

    def leaves(self, unit: str, units: Units) -> bool:
        """Tell whether a unit is still there."""
        if unit in self.ids:
            return False
        minor = units.minor(unit)
        return minor is None or minor not in (self.touched if unit in units.cards else self.whole)
