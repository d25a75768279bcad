"""Minors of devices that the kernel does not number."""

from collections.abc import Iterable
from itertools import count


class Numbers:
    """Numbers devices by their PCI addresses; who has a number keeps it while the agent runs, even if others go."""

    def __init__(self) -> None:
        self._minors: dict[str, int] = {}

    def of(self, addresses: Iterable[str]) -> dict[str, int]:
        """Return the numbers of these devices; new ones take the lowest that are free, in order of their addresses."""
        free = (minor for minor in count() if minor not in self._minors.values())
        for address in sorted(addresses):
            if address not in self._minors:
                self._minors[address] = next(free)
        return dict(self._minors)
