"""A pod's requests as masks for the narrowing search. A mask is an integer with one bit for each device of the node."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

from berth_operator.core.dra import capacity
from berth_operator.core.dra.choices import Choices
from berth_operator.core.dra.constraints import Constrained
from berth_operator.core.dra.errors import TooMuchWorkError
from berth_operator.core.dra.plans import Planned, RequestPlan
from berth_operator.core.dra.slices import CounterID, Device, PoolID

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandOption:
    """A request or subrequest of a demand."""

    plan: RequestPlan
    count: int
    order: tuple[int, ...]
    """The devices that the request may get, in the order in which they are tried."""
    devices: Mask
    """The same."""
    constraints: tuple[int, ...]
    amounts: Mapping[int, Mapping[str, int]]
    """What it takes of the capacities of shared devices, in billionths."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """A request with its subrequests, or several that are alike."""

    claim: int
    requests: tuple[int, ...]
    """Their places in the claim."""
    options: tuple[DemandOption, ...]

    @property
    def count(self) -> int:
        """Return how many devices it gets at least."""
        return min(option.count for option in self.options) * len(self.requests)


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
        demands: dict[Hashable, Demand] = {}
        for claim, requests in enumerate(planned):
            for place, request in enumerate(requests):
                options = tuple(self._option(plan) for plan in request.plans)
                option = options[0]
                key: Hashable = (claim, place)
                if len(options) == 1 and not (option.plan.wants_all or option.amounts):
                    # A request that equals an earlier one is added to that one's demand: their order is free.
                    key = (claim, option.devices, option.count, option.constraints, option.plan.request.admin)
                    if key in demands:
                        options, places = demands[key].options, (*demands[key].requests, place)
                        demands[key] = Demand(claim=claim, requests=places, options=options)
                        continue
                demands[key] = Demand(claim=claim, requests=(place,), options=options)
        self.demands = tuple(demands.values())
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
                self._look(1 + len(device.capacity) if suitable[device] else 1)
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
            # `All` of no devices fails.
            count=max(plan.count, 1),
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


def _mask(numbers: Iterable[int]) -> Mask:
    mask = NONE
    for number in numbers:
        mask |= 1 << number
    return mask
