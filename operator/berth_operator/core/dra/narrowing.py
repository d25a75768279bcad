"""A narrowing search, for cases that the search in the given order (`search`) does not finish.

At each step it continues with the request that has the fewest spare devices, and turns back as soon as a request has
too few. For all requests at once, it excludes values that constraints do not allow, devices that exceed counters, and
devices in use. Among alike devices, only one is tried. The devices it finds are chosen again by the rules of `choices`,
in the order of the requests.

Within a pod, each device is given only once, even with admin access.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from berth_operator.core.dra.candidates import (
    NONE,
    CandidateDevices,
    CounterSetID,
    Demand,
    DemandOption,
    Left,
    Mask,
)
from berth_operator.core.dra.choices import Choices
from berth_operator.core.dra.errors import TooMuchWorkError
from berth_operator.core.dra.plans import MAX_DEVICES, Planned, RequestPlan

STEP: Final = 2
"""How many times as long a step takes as one of a `Search`."""

COMPARED: Final = 16
"""Values, or sets of counters, that are compared in the time of a step."""
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
        self._taken: dict[tuple[int, int], RequestPlan] = {}
        self._blocking: dict[tuple[CounterSetID, Left], Mask] = {}

    def find(self) -> bool:
        """Return whether there is a solution.

        Raises:
            AllocationError: the search must end.
        """
        self._candidates.compare(self._planned)
        demands = self._candidates.demands
        left, exceeded = self._candidates.counters()
        root = Branch(
            progress=tuple(Progress(None if len(demand.options) > 1 else 0, EVERY, 0, ()) for demand in demands),
            used=NONE,
            allowed=self._candidates.allowed(),
            left=left,
            blocked={None: exceeded, **{key: self._blocked(key, amounts) for key, amounts in left.items()}},
            shares={},
        )
        stack = [self._children(root)]
        while stack:
            branch = next(stack[-1], None)
            if branch is None:
                stack.pop()
            elif all(map(self._is_met, demands, branch.progress)):
                return self._choose(branch)
            else:
                stack.append(self._children(branch))
        if any(option.plan.request.admin for demand in demands for option in demand.options):
            raise TooMuchWorkError("no devices were found that are different for all requests")
        return False

    @property
    def steps(self) -> int:
        """Return how much was done, in what a `Search` does for a device."""
        return self._candidates.looks + STEP * self._spent

    def taken(self, claim: int) -> Iterator[RequestPlan]:
        """Yield, for each request of a claim, itself or the subrequest that was taken."""
        for place in range(len(self._planned[claim])):
            yield self._taken[claim, place]

    @staticmethod
    def _is_met(demand: Demand, progress: Progress) -> bool:
        return progress.option is not None and len(progress.chosen) == _count(demand, progress.option)

    def _children(self, branch: Branch) -> Iterator[Branch]:
        """Yield what may be chosen next."""
        if (narrowest := self._narrowest(branch)) is None:
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
        least, sizes = 0, [0] * len(self._planned)
        wants = _Wants(self._candidates, self._spend)
        self._spend(len(branch.blocked) // COMPARED)
        for place, (demand, progress) in enumerate(zip(self._candidates.demands, branch.progress, strict=True)):
            self._spend(1)
            sizes[demand.claim] += demand.count if progress.option is None else _count(demand, progress.option)
            if self._is_met(demand, progress):
                continue
            options: Options = []
            for number in range(len(demand.options)) if progress.option is None else (progress.option,):
                option = demand.options[number]
                mask = option.devices & progress.rest & (free if option.plan.request.admin else with_counters)
                for constraint in option.constraints:
                    mask &= branch.allowed[constraint]
                wanted = _count(demand, number) - len(progress.chosen)
                if mask.bit_count() >= wanted and (len(demand.options) == 1 or self._has_values(option, mask, wanted)):
                    options.append((number, mask))
            if not (options and wants.can_all_be_met_with(demand, progress, options)):
                return None
            spare = sum(mask.bit_count() for _, mask in options) - demand.count + len(progress.chosen)
            if narrowest is None or spare < least:
                narrowest, least = (place, options), spare
        return narrowest if max(sizes) <= MAX_DEVICES else None

    def _has_values(self, option: DemandOption, mask: Mask, wanted: int) -> bool:
        """Return whether there are enough values where all have to be different; for one option `_Wants` does."""
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
            progress=(*branch.progress[:place], got, *branch.progress[place + 1 :]),
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
        chosen: dict[tuple[int, int], list[int]] = {}
        for demand, progress in zip(self._candidates.demands, branch.progress, strict=True):
            option, left = demand.options[progress.option or 0], list(progress.chosen)
            for place in demand.requests:
                chosen[demand.claim, place], left = left[: option.count], left[option.count :]
                self._taken[demand.claim, place] = self._planned[demand.claim][place].plans[progress.option or 0]
        for key in sorted(chosen):
            for device in chosen[key]:
                if not self._choices.take(self._taken[key], self._candidates.devices[device]):
                    raise TooMuchWorkError("no devices were found that all rules allow")
        return True

    def _spend(self, steps: int) -> None:
        self._spent += steps
        if self._spent > self._max_steps:
            raise TooMuchWorkError(f"no devices were found within {self._max_steps} steps")


class _Wants:
    """What several demands need of the same devices, or of devices with different values."""

    def __init__(self, candidates: CandidateDevices, spend: Callable[[int], None]) -> None:
        self._candidates, self._spend = candidates, spend
        self._alike: dict[Mask, int] = {}
        """Devices that are not shared -> how many demands want of exactly these."""
        self._all, self._of_all = 0, NONE
        self._differing: dict[int, tuple[int, Mask]] = {}
        """Constraint that requires different values -> how many devices, and which devices may be allocated."""

    def can_all_be_met_with(self, demand: Demand, progress: Progress, options: Options) -> bool:
        """Add a demand, and return whether there are devices and values enough.

        One with several options left does not count.
        """
        if len(options) > 1:
            return True
        [(number, mask)] = options
        wanted = _count(demand, number) - len(progress.chosen)
        if not mask & self._candidates.shared:
            self._alike[mask] = self._alike.get(mask, 0) + wanted
            self._all, self._of_all = self._all + wanted, self._of_all | mask
            if self._alike[mask] > mask.bit_count() or self._all > self._of_all.bit_count():
                return False
        return all(self._has_values(constraint, mask, wanted) for constraint in demand.options[number].constraints)

    def _has_values(self, constraint: int, mask: Mask, wanted: int) -> bool:
        if (values := self._candidates.values.get(constraint)) is None:
            return True
        self._spend(len(values) // COMPARED)
        before, of_those = self._differing.get(constraint, (0, NONE))
        wanted, mask = before + wanted, of_those | mask
        self._differing[constraint] = wanted, mask
        return sum(1 for value in values if value & mask) >= wanted


def _count(demand: Demand, option: int) -> int:
    return demand.options[option].count * len(demand.requests)
