"""A pod's requests as masks for the narrowing search. A mask is an integer with one bit for each device of the node."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, cast

from berth_operator.core.claims.allocation.choices import Choices
from berth_operator.core.claims.allocation.constraints import Constrained
from berth_operator.core.claims.allocation.plans import Planned, RequestPlan
from berth_operator.core.claims.bounds.errors import TooMuchWorkError
from berth_operator.core.claims.objects import capacity
from berth_operator.core.claims.objects.slices import CounterID, Device, PoolID

Mask = int
Left = tuple[int, ...]
"""What is left of each counter of a set, in billionths."""

NONE: Final[Mask] = 0
MAX_LOOKS: Final = 10_000
"""Comparisons of devices, capacities and values with all requests before the first step, about a microsecond each."""


class CounterSetID(NamedTuple):
    """A set of counters."""

    pool: PoolID
    name: str


class RequestPlace(NamedTuple):
    """The place of a request among the claims of the search."""

    claim: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandOption:
    """The request or subrequest of a demand, or several requests that are alike."""

    plan: RequestPlan
    """The plan of the first of them."""
    count: int
    """How many devices all of them get."""
    order: tuple[int, ...]
    """The devices that the request may get, in the order in which they are tried."""
    devices: Mask
    """The same."""
    constraints: tuple[int, ...]
    amounts: Mapping[int, Mapping[str, int]]
    """What it takes of the capacities of shared devices, in billionths."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """A request with its subrequests, or several requests of any claims that are alike."""

    requests: tuple[RequestPlace, ...]
    options: tuple[DemandOption, ...]

    @property
    def count(self) -> int:
        """Return how many devices it gets at least."""
        return min(option.count for option in self.options)


class CandidateDevices:
    """The devices that requests may get, if nothing else is chosen."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.demands: tuple[Demand, ...] = ()
        self.shared: Mask = NONE
        self.devices: list[Device] = []
        self._numbers: dict[Device, int] = {}
        self.constraints: list[Constrained] = []
        self.looks = 0
        """How many devices and capacities were compared."""
        self._likeness: dict[int, Hashable] = {}
        self._suitable: defaultdict[Hashable, dict[Device, bool]] = defaultdict(dict)
        """Kind of a request -> whether it may get a device."""

    def compare(self, planned: Planned) -> None:
        """Compare all devices with all requests.

        Raises:
            AllocationError: a selector fails, or this would take too long.
        """
        demands: dict[Hashable, list[Demand]] = defaultdict(list)
        for claim, requests in enumerate(planned):
            for number, request in enumerate(requests):
                place, options = RequestPlace(claim, number), tuple(self._option(plan) for plan in request.plans)
                option, key = options[0], cast("Hashable", place)
                if len(options) == 1 and not (option.plan.wants_all or option.amounts):
                    # Which of these requests gets which of their devices is free. Constraints are those of one claim.
                    key = option.devices, option.constraints, option.plan.request.admin
                demands[key].append(Demand(requests=(place,), options=options))
        self.demands = tuple(map(_together, demands.values()))
        self.shared = _mask(number for number, device in enumerate(self.devices) if self._choices.is_shared(device))

    def _option(self, plan: RequestPlan) -> DemandOption:
        constraints = []
        for constraint in plan.constraints:
            # By identity: those of two claims may be equal.
            place = next((place for place, known in enumerate(self.constraints) if known is constraint), None)
            if place is None:
                place = len(self.constraints)
                self.constraints.append(constraint)
            constraints.append(place)
        order, amounts = [], {}
        # What the selectors match is kept once for all requests with these selectors.
        request, requested = plan.request, tuple(sorted(plan.request.capacity.items(), key=itemgetter(0)))
        suitable = self._suitable[id(plan.matched), plan.wants_all, request.admin, request.tolerations, requested]
        self._look(len(plan.devices) // 4)
        for device in plan.devices:
            if device not in suitable:
                suitable[device] = self._choices.is_candidate(plan, device)
                self._look(plan.cost_of(device) if suitable[device] else 1)
            if suitable[device]:
                number = self._numbers.setdefault(device, len(self.devices))
                if number == len(self.devices):
                    self.devices.append(device)
                order.append(number)
                if self._choices.is_shared(device):
                    taken = capacity.consumed(device.capacity, plan.request.capacity) or {}
                    amounts[number] = {name: quantity.amount for name, quantity in taken.items()}
        return DemandOption(
            plan=plan,
            count=count_of(plan),
            order=tuple(order),
            devices=_mask(order),
            constraints=tuple(constraints),
            amounts=amounts,
        )

    def _look(self, looks: int) -> None:
        self.looks += looks
        if self.looks > MAX_LOOKS:
            raise TooMuchWorkError(f"no devices were found within {MAX_LOOKS} comparisons")

    # --- constraints --------------------------------------------------------------------------------------------

    @cached_property
    def equal(self) -> list[dict[int, Mask]]:
        """Return for each constraint the devices with an equal value. Devices without a value are left out."""
        equal = []
        for constraint in self.constraints:
            groups: dict[Hashable, list[int]] = defaultdict(list)
            for number, device in enumerate(self.devices):
                value = device.attributes.get(constraint.constraint.attribute)
                if value is not None:
                    # Values that cannot be compared equal none.
                    groups[value if value.comparable else number].append(number)
            masks = {key: _mask(numbers) for key, numbers in groups.items()}
            equal.append({number: masks[key] for key, numbers in groups.items() for number in numbers})
        return equal

    @cached_property
    def values(self) -> dict[int, frozenset[Mask]]:
        """Return for each constraint that wants different values the devices of each value."""
        distinct = (place for place, constrained in enumerate(self.constraints) if constrained.constraint.distinct)
        return {place: frozenset(self.equal[place].values()) for place in distinct}

    def allowed(self) -> tuple[Mask, ...]:
        """Return for each constraint the devices that may be chosen first.

        If values must be equal, a value with too few devices for all requests is left out.
        """
        allowed = []
        for place, constraint in enumerate(self.constraints):
            constrained = [
                (demand.options[0].devices, demand.count)
                for demand in self.demands
                if len(demand.options) == 1 and place in demand.options[0].constraints
            ]
            mask, distinct = NONE, constraint.constraint.distinct
            for equal in set(self.equal[place].values()):
                self._look(1 + len(constrained) // 4)
                if distinct or all((devices & equal).bit_count() >= count for devices, count in constrained):
                    mask |= equal
            allowed.append(mask)
        return tuple(allowed)

    # --- counters -----------------------------------------------------------------------------------------------

    @cached_property
    def needs(self) -> list[dict[CounterSetID, list[tuple[int, int]]]]:
        """Return what each device takes of its sets: places of counters, with amounts."""
        needs: list[dict[CounterSetID, list[tuple[int, int]]]] = []
        for device in self.devices:
            needs.append({})
            for counter, amount in device.consumes:
                of_set = needs[-1].setdefault(CounterSetID(device.pool, counter.set), [])
                of_set.append((self._places[device.pool][counter], amount))
        return needs

    @cached_property
    def _places(self) -> dict[PoolID, dict[CounterID, int]]:
        """Return the place of each counter in its set."""
        places: dict[PoolID, dict[CounterID, int]] = {}
        for pool in {device.pool for device in self.devices if device.consumes}:
            sizes: dict[str, int] = defaultdict(int)
            places[pool] = {}
            for counter in self._choices.pools.by_id[pool].counters:
                places[pool][counter] = sizes[counter.set]
                sizes[counter.set] += 1
        return places

    def counters(self) -> tuple[dict[CounterSetID, Left], Mask]:
        """Return what is left of each counter set, and the devices of pools with overdrawn counters."""
        left: dict[CounterSetID, list[int]] = defaultdict(list)
        exceeded = set()
        for pool in self._places:
            counters = self._choices.counters(pool)
            exceeded |= {pool} if counters.exceeded else set()
            for counter, amount in counters.left.items():
                left[CounterSetID(pool, counter.set)].append(amount)
        blocked = _mask(
            number
            for number, device in enumerate(self.devices)
            if device.consumes and device.pool in exceeded and not self.shared >> number & 1
        )
        return {key: tuple(amounts) for key, amounts in left.items()}, blocked

    @cached_property
    def of_set(self) -> dict[CounterSetID, list[int]]:
        """Return the devices that consume from each set. Shared devices consume once, and are left out."""
        members: dict[CounterSetID, list[int]] = defaultdict(list)
        for number, needs in enumerate(self.needs):
            for of_set in needs if not self.shared >> number & 1 else ():
                members[of_set].append(number)
        return members

    # --- devices that are alike ---------------------------------------------------------------------------------

    def likeness(self, number: int) -> Hashable:
        """Return a key that is equal for interchangeable devices."""
        if number in self._likeness:
            return self._likeness[number]
        likeness: Hashable = number
        if not self.shared >> number & 1:
            device = self.devices[number]
            options = tuple(option.devices >> number & 1 for demand in self.demands for option in demand.options)
            values = tuple(equal.get(number, NONE) for equal in self.equal)
            likeness = options, values, device.consumes and (device.pool, device.consumes)
        self._likeness[number] = likeness
        return likeness


def count_of(plan: RequestPlan) -> int:
    """Return how many devices a request gets. `All` of no devices fails."""
    return max(plan.count, 1)


def _together(demands: Sequence[Demand]) -> Demand:
    """Return the demand of several demands that are alike."""
    if len(demands) == 1:
        return demands[0]
    options = [demand.options[0] for demand in demands]
    # The devices that each of them would get first, and then the others.
    first = (number for option in options for number in option.order[: option.count])
    order = tuple(dict.fromkeys(chain(first, options[0].order)))
    together = replace(options[0], count=sum(option.count for option in options), order=order)
    return Demand(requests=tuple(place for demand in demands for place in demand.requests), options=(together,))


def _mask(numbers: Iterable[int]) -> Mask:
    mask = NONE
    for number in numbers:
        mask |= 1 << number
    return mask
