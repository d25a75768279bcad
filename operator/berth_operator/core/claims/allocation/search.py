"""The search: depth first over claims, requests, subrequests and devices, in this order. The first solution is taken.

The search keeps its own stack, because a pod may have more claims and devices than Python has frames.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from berth_operator.core.claims.allocation.choices import Choices
from berth_operator.core.claims.allocation.plans import MAX_DEVICES, Planned, RequestPlan
from berth_operator.core.claims.bounds.errors import NodeError, TooMuchWorkError

MAX_STEPS: Final = 1_000_000
"""Devices that are tried before a search is given up; each counts as many times as it has capacities to compare."""


class SearchOutcome(Enum):
    """What came of an attempt to go on."""

    FOUND = auto()
    OPEN = auto()
    """The last frame has alternatives to try."""
    FAILED = auto()
    TOO_MANY = auto()
    """The claim would get more than MAX_DEVICES, whatever devices its requests get."""


@dataclass(slots=True, kw_only=True)
class DeviceFrame:
    """The choice of one device of a request."""

    claim: int
    request: int
    plan: RequestPlan
    number: int
    """How many devices the request got before."""
    next: int
    """The place of the device that is tried next."""
    end: int
    taken: bool = False


@dataclass(slots=True, kw_only=True)
class SubrequestFrame:
    """The choice of a subrequest."""

    claim: int
    request: int
    plans: Sequence[RequestPlan]
    next: int = 0
    too_many: bool = True
    """Whether each tried device would give the claim too many devices."""


class Search:
    """One search; the devices that it finds are in the choices."""

    def __init__(self, planned: Planned, choices: Choices, max_steps: int = MAX_STEPS) -> None:
        self._planned = planned
        self._choices = choices
        self._max_steps = self._steps_left = max_steps
        self._stack: list[DeviceFrame | SubrequestFrame] = []
        self._claim_with_too_many = 0

    def find(self) -> bool:
        """Return whether there is a solution.

        Raises:
            AllocationError: the search must end.
        """
        outcome = self._enter(0, 0)
        while self._stack and outcome is not SearchOutcome.FOUND:
            frame = self._stack[-1]
            # Too many devices for a claim is a plain failure for the claims before it.
            too_many = outcome is SearchOutcome.TOO_MANY and frame.claim == self._claim_with_too_many
            if isinstance(frame, DeviceFrame):
                outcome = self._next_device(frame, too_many=too_many)
            else:
                outcome = self._next_subrequest(frame, too_many=too_many)
        if outcome is SearchOutcome.TOO_MANY and self._claim_with_too_many == 0:
            raise NodeError("allocation max size exceeded")
        return outcome is SearchOutcome.FOUND

    @property
    def steps(self) -> int:
        """Return how much was done: devices that were tried, and capacities that were compared."""
        return self._max_steps - self._steps_left

    def taken(self, claim: int) -> Iterator[RequestPlan]:
        """Yield, for each request of a claim, itself or the subrequest that was taken."""
        subrequests = {
            frame.request: frame.plans[frame.next - 1]
            for frame in self._stack
            if isinstance(frame, SubrequestFrame) and frame.claim == claim
        }
        for number, request in enumerate(self._planned[claim]):
            yield subrequests.get(number, request.plans[0])

    def _enter(self, claim: int, request: int) -> SearchOutcome:
        """Go on with a request, or with the next claim after the last one."""
        while claim < len(self._planned) and request >= len(self._planned[claim]):
            claim, request = claim + 1, 0
        if claim == len(self._planned):
            return SearchOutcome.FOUND
        planned = self._planned[claim][request]
        if planned.prioritized:
            self._stack.append(SubrequestFrame(claim=claim, request=request, plans=planned.plans))
            return SearchOutcome.OPEN
        return self._enter_device(claim, request, planned.plans[0], 0, 0)

    def _enter_device(self, claim: int, request: int, plan: RequestPlan, number: int, start: int) -> SearchOutcome:
        """Go on with the next device of a request, or with the next request after the last device.

        The search goes forward through the devices, so that no set of devices is tried in two orders.
        """
        if plan.wants_all and not plan.devices:
            return SearchOutcome.FAILED
        if number >= plan.count:
            return self._enter(claim, request + 1)
        if plan.count - number > MAX_DEVICES - len(self._choices.of_claim[claim]):
            self._claim_with_too_many = claim
            return SearchOutcome.TOO_MANY
        first, end = (number, number + 1) if plan.wants_all else (start, len(plan.devices))
        self._stack.append(DeviceFrame(claim=claim, request=request, plan=plan, number=number, next=first, end=end))
        return SearchOutcome.OPEN

    def _next_device(self, frame: DeviceFrame, *, too_many: bool) -> SearchOutcome:
        if frame.taken:
            self._choices.undo(frame.plan)
            frame.taken = False
        if too_many:
            self._stack.pop()
            return SearchOutcome.TOO_MANY
        plan, devices, take = frame.plan, frame.plan.devices, self._choices.take
        for place in range(frame.next, frame.end):
            self._steps_left -= plan.cost_of(devices[place])
            if self._steps_left < 0:
                raise TooMuchWorkError(f"no devices were found within {self._max_steps} steps")
            if take(plan, devices[place]):
                frame.taken, frame.next = True, place + 1
                return self._enter_device(frame.claim, frame.request, plan, frame.number + 1, place + 1)
        self._stack.pop()
        return SearchOutcome.FAILED

    def _next_subrequest(self, frame: SubrequestFrame, *, too_many: bool) -> SearchOutcome:
        if frame.next and not too_many:
            frame.too_many = False
        if frame.next < len(frame.plans):
            frame.next += 1
            return self._enter_device(frame.claim, frame.request, frame.plans[frame.next - 1], 0, 0)
        self._stack.pop()
        if not frame.too_many:
            return SearchOutcome.FAILED
        self._claim_with_too_many = frame.claim
        return SearchOutcome.TOO_MANY
