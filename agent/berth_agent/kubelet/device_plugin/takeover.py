"""Notice that kubelet calls another device plugin for a resource of the agent.

Kubelet calls the plugin that registered a resource last. It does not notify the other one, and keeps its stream open.
So the agent compares kubelet's checkpoint with the calls that it has answered, and with the units that it offers.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from berth_agent.kubelet.allocations import Allocation

MAX_REGISTRATIONS: Final = 3
"""Registrations against another plugin within `WINDOW`. If both plugins always register again, none of them works."""
WINDOW: Final = 3600.0
"""Seconds."""
UNWRITTEN_SECONDS: Final = 60.0
"""Seconds after an answer within which kubelet writes its checkpoint. It allocates a container's other resources
first."""
MAX_ANSWERS: Final = 1024
LATE_SECONDS: Final = 10.0
"""Seconds that kubelet may take to process a list of units, also on a busy machine."""


class ResourceState(NamedTuple):
    """What kubelet's checkpoint has of one resource."""

    allocations: Sequence[Allocation]
    healthy: frozenset[str]
    """Ids of the units that kubelet may give, held or not."""


class _Answer(NamedTuple):
    ids: frozenset[str]
    at: float
    """Seconds."""


class _Given(NamedTuple):
    """The units that a container has, without what was answered for them."""

    pod: str
    container: str
    ids: frozenset[str]


class TakeoverDetector:
    """Tracks whether another device plugin answers kubelet for one resource."""

    def __init__(self) -> None:
        self._answers: deque[_Answer] = deque(maxlen=MAX_ANSWERS)
        """Answers that are not in the checkpoint yet."""
        self._known: frozenset[_Given] | None = None
        """What the checkpoint had at the last look; None before the first look."""
        self._by_other: frozenset[_Given] = frozenset()
        """What of this another plugin gave."""
        self._has_given = False
        """Whether another plugin has given units since the last registration."""
        self._differs_since: float | None = None
        """Since when kubelet may give units that the agent does not offer."""
        self._has_offered = False
        """Whether kubelet may have these units from another plugin."""
        self._registrations: deque[float] = deque(maxlen=MAX_REGISTRATIONS)
        """When the resource was registered against another plugin."""

    @property
    def is_taken(self) -> bool:
        """Whether another plugin has given units since the last registration, or offers some."""
        return self._has_given or self._has_offered

    @property
    def given_by_other(self) -> frozenset[str]:
        """Return the ids of the units that containers have from another plugin."""
        return frozenset[str]().union(*(given.ids for given in self._by_other))

    def answered(self, ids: Iterable[str], now: float) -> None:
        """Record that the agent answered a call of Allocate."""
        self._answers.append(_Answer(frozenset(ids), now))

    def registered(self, now: float) -> None:
        """Record a registration: until then, another plugin may have been asked."""
        if self.is_taken:
            self._registrations.append(now)
        self._has_given = self._has_offered = False
        self._differs_since = None

    def may_register(self, now: float) -> bool:
        """Return whether the resource may be registered against another plugin."""
        return len(self._registrations) < MAX_REGISTRATIONS or now - self._registrations[0] >= WINDOW

    def compare_offer(self, state: ResourceState, offered: frozenset[str], now: float) -> None:
        """Compare what kubelet may give with the healthy units that a registered agent offers.

        Fewer units are no sign: kubelet may lose them for other reasons. Kubelet may also be late with a list, so the
        sign ends when the units agree again.
        """
        if state.healthy <= offered:
            self._differs_since = None
        elif self._differs_since is None:
            self._differs_since = now
        self._has_offered = self._differs_since is not None and now - self._differs_since >= LATE_SECONDS

    def compare_answers(self, state: ResourceState, now: float, *, is_registered: bool) -> None:
        """Compare what containers have with what was answered.

        What they have before the registration is not new: an earlier agent, or an earlier boot, gave it.
        """
        listed = frozenset(_Given(given.pod, given.container, given.ids) for given in state.allocations)
        by_other = set()
        for given in listed - (listed if self._known is None else self._known):
            answer = next((answer for answer in self._answers if answer.ids == given.ids), None)
            if answer is not None:
                self._answers.remove(answer)
            elif is_registered:
                by_other.add(given)
        while self._answers and now - self._answers[0].at >= UNWRITTEN_SECONDS:
            self._answers.popleft()
        self._known, self._by_other = listed, (self._by_other & listed) | by_other
        self._has_given |= bool(by_other)
