"""A narrowing search, for cases that the search in the given order (`search`) does not finish.

At each step it continues with the request that has the fewest spare devices, and turns back as soon as a request has
too few, or counters have too little left for all of them. For all requests at once, it excludes values that constraints
do not allow, devices that exceed counters, and devices in use. Among alike devices, only one is tried. The devices it
finds are chosen again by the rules of `choices`, in the order of the requests.

For half of the steps, it decides about subrequests before devices. So it finds the first subrequests that are possible.

Within a pod, each device is given only once, even with admin access.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from berth_operator.core.claims.allocation.candidates import (
    NONE,
    CandidateDevices,
    CounterSetID,
    Demand,
    DemandOption,
    Left,
    Mask,
    RequestPlace,
    count_of,
)
from berth_operator.core.claims.allocation.choices import Choices
from berth_operator.core.claims.allocation.counter_room import CounterRoom
from berth_operator.core.claims.allocation.joint_needs import COMPARED, JointNeeds
from berth_operator.core.claims.allocation.plans import MAX_DEVICES, Planned, RequestPlan
from berth_operator.core.claims.bounds.errors import TooMuchWorkError

STEP: Final = 2
"""How many times as long a step takes as one of a `Search`."""

SKIPPED: Final = 64
"""Devices that are passed over in the time of a step."""
EVERY: Final[Mask] = -1

Options = list[tuple[int, Mask]]
"""Options of a demand, each with the devices that are left for it."""


class Progress(NamedTuple):
    """What a demand got."""

    option: int | None
    rest: Mask
    """The devices that were not tried before the chosen ones: no set of devices is tried in two orders."""
    next: int
    """The place of the first one in the option's order."""
    chosen: tuple[int, ...]


class Branch(NamedTuple):
    """Where the search is."""

    progress: tuple[Progress, ...]
    used: Mask
    allowed: tuple[Mask, ...]
    """The allowed devices for each constraint."""
    left: dict[CounterSetID, Left]
    blocked: dict[CounterSetID | None, Mask]
    """The devices whose counter set has too little left."""
    shares: dict[int, dict[str, int]]
    """What shares of a device take, in billionths."""


class NarrowingSearch:
    """One search; the devices that it finds are in the choices."""

    def __init__(self, planned: Planned, choices: Choices, max_steps: int) -> None:
        """Prepare a search. A step is one tried device, or counting the remaining devices for one request."""
        self._planned, self._choices = planned, choices
        self._max_steps, self._spent = max_steps, 0
        self._candidates = CandidateDevices(choices)
        self._taken: dict[RequestPlace, RequestPlan] = {}
        self._blocking: dict[tuple[CounterSetID, Left], Mask] = {}
        self._sizes: list[int] = []
        """How many devices each claim gets without requests that have subrequests; empty if no request has any."""
        if any(len(request.plans) > 1 for requests in planned for request in requests):
            fixed = ((request.plans[0] for request in requests if len(request.plans) == 1) for requests in planned)
            self._sizes = [sum(map(count_of, plans)) for plans in fixed]

    def find(self) -> bool:
        """Return whether there is a solution.

        Raises:
            AllocationError: the search must end.
        """
        self._candidates.compare(self._planned)
        self._room = CounterRoom(self._candidates, self._spend)
        root, all_steps = self._root(), self._max_steps
        if any(progress.option is None for progress in root.progress):
            # The first possible subrequests are found only if these steps suffice.
            self._max_steps //= 2
            try:
                return self._has_solution(root, subrequests_first=True)
            except TooMuchWorkError:
                self._max_steps = all_steps
        return self._has_solution(root, subrequests_first=False)

    def _root(self) -> Branch:
        left, exceeded = self._candidates.counters()
        return Branch(
            progress=tuple(
                Progress(None if len(demand.options) > 1 else 0, EVERY, 0, ()) for demand in self._candidates.demands
            ),
            used=NONE,
            allowed=self._candidates.allowed(),
            left=left,
            blocked={None: exceeded, **{key: self._blocked(key, amounts) for key, amounts in left.items()}},
            shares={},
        )

    def _has_solution(self, root: Branch, *, subrequests_first: bool) -> bool:
        """Search depth first, and choose the devices of the first solution."""
        demands = self._candidates.demands
        children = self._with_subrequests if subrequests_first else self._with_devices
        stack = [children(root)]
        while stack:
            branch = next(stack[-1], None)
            if branch is None:
                stack.pop()
            elif all(map(self._is_met, demands, branch.progress)):
                return self._choose(branch)
            else:
                stack.append(children(branch))
        if any(option.plan.request.admin for demand in demands for option in demand.options):
            raise TooMuchWorkError("no devices were found that are different for all requests")
        return False

    @property
    def steps(self) -> int:
        """Return how much was done, in what a `Search` does for a device."""
        return self._candidates.looks + STEP * self._spent

    def taken(self, claim: int) -> Iterator[RequestPlan]:
        """Yield, for each request of a claim, itself or the subrequest that was taken."""
        for request in range(len(self._planned[claim])):
            yield self._taken[RequestPlace(claim, request)]

    @staticmethod
    def _is_met(demand: Demand, progress: Progress) -> bool:
        return progress.option is not None and len(progress.chosen) == demand.options[progress.option].count

    def _with_subrequests(self, branch: Branch) -> Iterator[Branch]:
        """Yield the choices of the first subrequest that is open, in their order; if none is open, those of devices."""
        place = next((place for place, progress in enumerate(branch.progress) if progress.option is None), None)
        if place is None:
            yield from self._with_devices(branch)
        elif not self._has_too_many(branch) and self._narrowest(branch) is not None:
            for number in range(len(self._candidates.demands[place].options)):
                progress = branch.progress[place]._replace(option=number)
                yield branch._replace(progress=_replaced(branch.progress, place, progress))

    def _with_devices(self, branch: Branch) -> Iterator[Branch]:
        """Yield the choices of one more device for the demand with the fewest devices to spare."""
        if self._has_too_many(branch) or (narrowest := self._narrowest(branch)) is None:
            return
        place, options = narrowest
        demand, progress = self._candidates.demands[place], branch.progress[place]
        for number, mask in options:
            option, rest, failed = demand.options[number], mask, set()
            self._spend((len(option.order) - progress.next) // SKIPPED)
            for next_ in range(progress.next, len(option.order)):
                device = option.order[next_]
                if not rest >> device & 1:
                    continue
                rest &= ~(1 << device)
                if (like := self._candidates.likeness(device)) in failed:
                    continue
                self._spend(1)
                got = Progress(number, rest, next_ + 1, (*progress.chosen, device))
                if (child := self._child(branch, place, got, option)) is not None:
                    yield child
                failed.add(like)

    def _narrowest(self, branch: Branch) -> tuple[int, Options] | None:
        """Return the demand with the fewest devices to spare, and its options; None if something is too few."""
        # What may be chosen with admin access, and without it.
        free = ~branch.used
        with_counters = free
        for mask in branch.blocked.values():
            with_counters &= ~mask
        narrowest: tuple[int, Options] | None = None
        least = 0
        together = JointNeeds(self._candidates, self._room, branch.left, self._spend)
        self._spend(len(branch.blocked) // COMPARED)
        for place, (demand, progress) in enumerate(zip(self._candidates.demands, branch.progress, strict=True)):
            self._spend(1)
            if self._is_met(demand, progress):
                continue
            options: Options = []
            for number in range(len(demand.options)) if progress.option is None else (progress.option,):
                option = demand.options[number]
                mask = option.devices & progress.rest & (free if option.plan.request.admin else with_counters)
                for constraint in option.constraints:
                    mask &= branch.allowed[constraint]
                if branch.shares and option.amounts and not option.plan.request.admin:
                    mask = self._with_capacity(branch, option, mask)
                wanted = option.count - len(progress.chosen)
                if not self._has_enough(branch, option, mask, wanted):
                    continue
                if len(demand.options) == 1 or self._has_values(option, mask, wanted):
                    options.append((number, mask))
            if not options:
                return None
            if len(options) == 1:
                [(number, mask)] = options
                option = demand.options[number]
                if not together.can_be_met_with(option, mask, option.count - len(progress.chosen)):
                    return None
            spare = sum(mask.bit_count() for _, mask in options) - demand.count + len(progress.chosen)
            if narrowest is None or spare < least:
                narrowest, least = (place, options), spare
        return narrowest

    def _has_too_many(self, branch: Branch) -> bool:
        """Return whether a claim would get too many devices. Without subrequests, the plans have compared it."""
        if not self._sizes:
            return False
        sizes = self._sizes.copy()
        for demand, progress in zip(self._candidates.demands, branch.progress, strict=True):
            if len(demand.options) > 1:
                count = demand.count if progress.option is None else demand.options[progress.option].count
                sizes[demand.requests[0].claim] += count
        return max(sizes) > MAX_DEVICES

    def _with_capacity(self, branch: Branch, option: DemandOption, mask: Mask) -> Mask:
        """Return the devices of a mask that have enough capacity left for one more share."""
        self._spend(len(branch.shares) // COMPARED)
        for device, taken in branch.shares.items():
            if mask >> device & 1:
                owner = self._candidates.devices[device]
                held = self._choices.shared_capacity(owner)
                for name, amount in option.amounts[device].items():
                    if taken.get(name, 0) + amount + held.get(name, 0) > owner.capacity[name].value.amount:
                        mask &= ~(1 << device)
                        break
        return mask

    def _has_enough(self, branch: Branch, option: DemandOption, mask: Mask, wanted: int) -> bool:
        """Return whether there may be enough devices, and enough left of their counters."""
        if mask.bit_count() < wanted:
            return False
        return bool(option.plan.request.admin) or self._room.is_enough(branch.left, mask, wanted)

    def _has_values(self, option: DemandOption, mask: Mask, wanted: int) -> bool:
        """Return whether there are enough values where all have to be different; for one option `JointNeeds` does."""
        for constraint in option.constraints:
            if values := self._candidates.values.get(constraint):
                self._spend(len(values) // COMPARED)
                if sum(1 for value in values if value & mask) < wanted:
                    return False
        return True

    def _child(self, branch: Branch, place: int, got: Progress, option: DemandOption) -> Branch | None:
        """Return a branch with one more device; None if it cannot be had."""
        device = got.chosen[-1]
        shared, takes = self._candidates.shared >> device & 1, not option.plan.request.admin
        shares, left, blocked = branch.shares, branch.left, branch.blocked
        owner = self._candidates.devices[device]
        if takes and shared:
            held, amounts = self._choices.shared_capacity(owner), dict(shares.get(device, {}))
            for name, amount in option.amounts[device].items():
                amounts[name] = amounts.get(name, 0) + amount
                if amounts[name] + held.get(name, 0) > owner.capacity[name].value.amount:
                    return None
            shares = {**shares, device: amounts}
        # Shares of one device take from its counters once.
        is_first = not (shared and (device in branch.shares or self._choices.has_shares(owner)))
        if takes and self._candidates.needs[device] and is_first:
            left, blocked = dict(left), dict(blocked)
            for of_set, needs in self._candidates.needs[device].items():
                rest = list(left[of_set])
                for counter, amount in needs:
                    rest[counter] -= amount
                if min(rest) < 0:
                    return None
                left[of_set] = tuple(rest)
                blocked[of_set] = self._blocked(of_set, left[of_set])
        allowed = list(branch.allowed)
        for constraint in option.constraints:
            equal = self._candidates.equal[constraint][device]
            allowed[constraint] &= ~equal if self._candidates.constraints[constraint].constraint.distinct else equal
        return Branch(
            progress=_replaced(branch.progress, place, got),
            used=branch.used if shared else branch.used | 1 << device,
            allowed=tuple(allowed),
            left=left,
            blocked=blocked,
            shares=shares,
        )

    def _blocked(self, of_set: CounterSetID, left: Left) -> Mask:
        """Return the devices whose counter set has too little left."""
        known = self._blocking.get((of_set, left))
        if known is None:
            known = NONE
            for number in self._candidates.of_set.get(of_set, ()):
                if any(amount > left[place] for place, amount in self._candidates.needs[number][of_set]):
                    known |= 1 << number
            self._blocking[of_set, left] = known
        return known

    def _choose(self, branch: Branch) -> bool:
        """Choose the found devices, in the order of the requests; return whether the choices' rules allow it."""
        chosen: dict[RequestPlace, list[int]] = {}
        for demand, progress in zip(self._candidates.demands, branch.progress, strict=True):
            left = list(progress.chosen)
            for place in demand.requests:
                plan = self._planned[place.claim][place.request].plans[progress.option or 0]
                self._taken[place] = plan
                chosen[place], left = left[: count_of(plan)], left[count_of(plan) :]
        wanted = [
            (self._taken[place], self._candidates.devices[device])
            for place in sorted(chosen)
            for device in chosen[place]
        ]
        for number, (plan, device) in enumerate(wanted):
            if not self._choices.take(plan, device):
                for taken, _ in reversed(wanted[:number]):
                    self._choices.undo(taken)
                raise TooMuchWorkError("no devices were found that all rules allow")
        return True

    def _spend(self, steps: int) -> None:
        self._spent += steps
        if self._spent > self._max_steps:
            raise TooMuchWorkError(f"no devices were found within {self._max_steps} steps")


def _replaced(of_demands: tuple[Progress, ...], place: int, progress: Progress) -> tuple[Progress, ...]:
    return (*of_demands[:place], progress, *of_demands[place + 1 :])
