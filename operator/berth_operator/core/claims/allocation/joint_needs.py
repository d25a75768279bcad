"""What several demands of a narrowing search need together: of the same devices, counters and values."""

from collections.abc import Callable, Mapping
from typing import Final

from berth_operator.core.claims.allocation.candidates import (
    NONE,
    CandidateDevices,
    CounterSetID,
    DemandOption,
    Left,
    Mask,
)
from berth_operator.core.claims.allocation.counter_room import CounterRoom

COMPARED: Final = 16
"""Values, or sets of counters, that are compared in the time of a step."""


class JointNeeds:
    """The needs of some demands that each have one option left."""

    def __init__(
        self,
        candidates: CandidateDevices,
        room: CounterRoom,
        left: Mapping[CounterSetID, Left],
        spend: Callable[[int], None],
    ) -> None:
        """Begin without demands. `left` is what counters have left."""
        self._candidates, self._room, self._left, self._spend = candidates, room, left, spend
        self._alike: dict[Mask, int] = {}
        """Devices that are not shared -> how many demands want of exactly these."""
        self._all, self._of_all = 0, NONE
        self._counted, self._of_counted = 0, NONE
        """The same of the demands that take from counters: those without admin access."""
        self._differing: dict[int, tuple[int, Mask]] = {}
        """Constraint that requires different values -> how many devices, and which devices may be allocated."""

    def can_be_met_with(self, option: DemandOption, mask: Mask, wanted: int) -> bool:
        """Add the need for some devices of a mask; return whether there are enough devices, counters and values."""
        if not mask & self._candidates.shared:
            self._alike[mask] = self._alike.get(mask, 0) + wanted
            self._all, self._of_all = self._all + wanted, self._of_all | mask
            if self._alike[mask] > mask.bit_count() or self._all > self._of_all.bit_count():
                return False
            if not option.plan.request.admin:
                self._counted, self._of_counted = self._counted + wanted, self._of_counted | mask
                if not self._room.is_enough(self._left, self._of_counted, self._counted):
                    return False
        return all(self._has_values(constraint, mask, wanted) for constraint in option.constraints)

    def _has_values(self, constraint: int, mask: Mask, wanted: int) -> bool:
        if (values := self._candidates.values.get(constraint)) is None:
            return True
        self._spend(len(values) // COMPARED)
        before, of_those = self._differing.get(constraint, (0, NONE))
        wanted, mask = before + wanted, of_those | mask
        self._differing[constraint] = wanted, mask
        return sum(1 for value in values if value & mask) >= wanted
