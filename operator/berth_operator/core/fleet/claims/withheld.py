"""Devices that no claim gets on a node: a set of two parts, which are not joined for each search."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from berth_operator.core.claims.objects.slices import DeviceID


class Held(AbstractSet[DeviceID]):
    """The devices that claims hold in the whole cluster, and the devices withheld on one node."""

    def __init__(self, by_claims: AbstractSet[DeviceID], withheld: AbstractSet[DeviceID]) -> None:
        self._by_claims, self.withheld = by_claims, withheld

    def __contains__(self, device: object) -> bool:
        return device in self._by_claims or device in self.withheld

    def __iter__(self) -> Iterator[DeviceID]:
        return iter(self._by_claims | self.withheld)

    def __len__(self) -> int:
        return len(self._by_claims | self.withheld)


NOTHING_HELD: Final = Held(frozenset(), frozenset())
