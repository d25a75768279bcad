"""How many of some devices the counters that they share leave room for, as an upper bound.

It is computed from the least that any of the devices takes of each counter. For example, MIG instances take from the
GPU's multiprocessors and from its memory slices. A slice that is left gives room for one instance that takes it. So
slices of which each instance takes at least one limit the number of instances.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from berth_operator.core.claims.allocation.candidates import NONE, CandidateDevices, CounterSetID, Left, Mask

COUNTED: Final = 4
"""Counters that are compared in the time of a step."""


class _Use(NamedTuple):
    """The devices that take from a counter."""

    counter: int
    """Its place in the set."""
    devices: Mask
    amounts: tuple[tuple[int, Mask], ...]
    """Amount -> the devices that take it, in ascending order."""

    def room(self, left: Left, devices: Mask) -> int:
        """Return for how many of the devices, which all take from the counter, it has enough left."""
        least = next(amount for amount, taking in self.amounts if taking & devices)
        return min(left[self.counter] // least, devices.bit_count())


class CounterRoom:
    """The bounds for one search."""

    def __init__(self, candidates: CandidateDevices, spend: Callable[[int], None]) -> None:
        """Prepare the bounds. `spend` is called with the number of steps that they take."""
        self._spend = spend
        self._members: dict[CounterSetID, Mask] = {}
        """The devices of each set; a device that takes from several sets is in the first."""
        self._uses: dict[CounterSetID, list[_Use]] = {}
        self._known: dict[tuple[CounterSetID, Left, Mask], int] = {}
        amounts: dict[CounterSetID, dict[int, dict[int, Mask]]] = {}
        for number, needs in enumerate(candidates.needs):
            if not needs or candidates.shared >> number & 1:
                continue
            of_set, taken = next(iter(needs.items()))
            self._members[of_set] = self._members.get(of_set, NONE) | 1 << number
            for counter, amount in taken:
                if amount > 0:
                    of_counter = amounts.setdefault(of_set, {}).setdefault(counter, {})
                    of_counter[amount] = of_counter.get(amount, NONE) | 1 << number
        for of_set, counters in amounts.items():
            uses = [
                _Use(counter, reduce(or_, taking.values()), tuple(sorted(taking.items())))
                for counter, taking in counters.items()
            ]
            self._uses[of_set] = uses

    def is_enough(self, left: Mapping[CounterSetID, Left], devices: Mask, wanted: int) -> bool:
        """Return whether there may be room for so many of the devices, by what each set has left."""
        room, rest = 0, devices
        for of_set, members in self._members.items():
            if of_devices := devices & members:
                rest &= ~members
                room += self._room(of_set, left[of_set], of_devices)
                if room >= wanted:
                    return True
        return room + rest.bit_count() >= wanted

    def _room(self, of_set: CounterSetID, left: Left, devices: Mask) -> int:
        """Return for how many of a set's devices it has room at most."""
        key = of_set, left, devices
        room = self._known.get(key)
        if room is None:
            self._spend(len(self._uses.get(of_set, ())) // COUNTED)
            room = self._known[key] = _at_most(self._uses.get(of_set, ()), left, devices)
        return room


def _at_most(uses: Sequence[_Use], left: Left, devices: Mask) -> int:
    """Return the number of devices at most: the room of a counter that all need, or of several that together limit all.

    Each device is counted for one of the counters that limit it.
    """
    rooms = sorted(
        (use.room(left, taking), -taking.bit_count(), number)
        for number, use in enumerate(uses)
        if (taking := use.devices & devices)
    )
    most = min((room for room, _, number in rooms if not devices & ~uses[number].devices), default=devices.bit_count())
    # The scarcest counters first.
    limiting, rest = [], devices
    for _, _, number in rooms:
        if rest & uses[number].devices:
            limiting.append(uses[number])
            rest &= ~uses[number].devices
    # A counter is not needed if the others limit its devices, too.
    for use in tuple(limiting):
        others = reduce(or_, (other.devices for other in limiting if other is not use), NONE)
        if not use.devices & devices & ~others:
            limiting.remove(use)
    together, counted = rest.bit_count(), rest
    for use in limiting:
        if of_use := use.devices & devices & ~counted:
            together += use.room(left, of_use)
            counted |= of_use
    return min(most, together)
