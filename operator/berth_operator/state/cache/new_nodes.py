"""Nodes that were created recently."""

from collections.abc import Callable, Iterator

from berth_client import times


class NewNodes:
    """The Nodes created less than `seconds` ago. An agent that never comes cannot keep one new for longer."""

    def __init__(self, *, seconds: float, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """Create an empty set; `clock` returns monotonic seconds, `wall` seconds since 1970."""
        self._seconds, self._clock, self._wall = seconds, clock, wall
        self._ends: dict[str, float] = {}
        """Name -> when the Node is no longer new."""

    def put(self, name: str, created: str) -> None:
        """Add a Node by its `creationTimestamp`, if it is new. Without a valid timestamp, the Node is not new."""
        try:
            age = self._wall() - times.parse(created).timestamp()
        except ValueError:
            return
        # The API server's clock may be ahead of ours.
        if (left := self._seconds - max(0.0, age)) > 0:
            self._ends[name] = self._clock() + left

    def remove(self, name: str) -> None:
        """Remove a Node that was deleted."""
        self._ends.pop(name, None)

    def expire(self) -> list[str]:
        """Remove and return the Nodes that are no longer new."""
        now = self._clock()
        ended = [name for name, end in self._ends.items() if end <= now]
        for name in ended:
            del self._ends[name]
        return ended

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __contains__(self, name: str) -> bool:
        return name in self._ends
