"""The allocator: which devices of a node the claims of a pod get."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from berth_operator.core.claims.allocation import plans
from berth_operator.core.claims.allocation.choices import Choices
from berth_operator.core.claims.allocation.narrowing import NarrowingSearch
from berth_operator.core.claims.allocation.plans import Context, Order, Planned, RequestPlan
from berth_operator.core.claims.allocation.results import Allocation, Result
from berth_operator.core.claims.allocation.search import MAX_STEPS, Search
from berth_operator.core.claims.bounds.errors import AllocationError, InvalidPoolsError, TooMuchWorkError
from berth_operator.core.claims.objects import features as gates
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.features import Features
from berth_operator.core.claims.objects.requests import DeviceClass, ResourceClaim
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.pools.pools import NodePools

Found = tuple[Allocation, ...] | None

PREFERRED: Final = 5
"""A search in a preferred order may take this part of the steps."""


def allocate(
    claims: Sequence[ResourceClaim],
    *,
    pools: NodePools,
    classes: Mapping[str, DeviceClass],
    allocated: Allocated,
    new_share_id: Callable[[], str],
    features: Features = gates.ALL,
    order: Order = plans.first_fit,
    prefer: Callable[[], Order] | None = None,
    max_steps: int = MAX_STEPS,
    max_narrowing: int = MAX_STEPS,
    spend: Callable[[int], None] = lambda _steps: None,
) -> tuple[Allocation, ...] | None:
    """Return an allocation for each claim, from the pools of one node; None if there is none.

    The search tries devices in an order that `prefer` makes, for a part of the steps, or else in `order`. If the search
    does not end within its steps, a `NarrowingSearch` continues, for `max_narrowing` steps. If a search in an order of
    `prefer` takes a later subrequest, a `NarrowingSearch` looks for an earlier one.

    If a search in the order of `prefer` ends with an error, or both searches run out of steps, a search in `order`
    decides. So a preference finds an allocation wherever `order` does. With `max_steps` 0, only the `NarrowingSearch`
    is made. `spend` is called with the number of steps that were made.

    Raises:
        ClaimError: a claim or its class cannot be allocated on any node.
        NodeError: the attempt on this node ended; kube-scheduler would end the attempt for the pod.
    """
    context = Context(pools=pools, classes=classes, features=features)
    attempts = _Attempts(claims, context, allocated, new_share_id, max_steps, max_narrowing, spend)
    if max_steps == 0:
        allocations = attempts.narrowing(prefer() if prefer else order)
    elif prefer is None:
        allocations = attempts.unpreferred(order)
    else:
        allocations = attempts.preferred(prefer, order)
    if allocations is None and pools.invalid:
        raise InvalidPoolsError
    return allocations


@dataclass(frozen=True, slots=True)
class _Attempts:
    """Searches for one pod on one node."""

    claims: Sequence[ResourceClaim]
    context: Context
    allocated: Allocated
    new_share_id: Callable[[], str]
    max_steps: int
    max_narrowing: int
    spend: Callable[[int], None]

    def preferred(self, prefer: Callable[[], Order], order: Order) -> Found:
        """Search in an order that is preferred to another one."""
        preferred = _once(prefer())
        try:
            return self._earlier(self._in_order(preferred, self.max_steps // PREFERRED), preferred)
        except TooMuchWorkError:
            pass
        except AllocationError:
            return self.unpreferred(order)
        try:
            return self.narrowing(preferred)
        except TooMuchWorkError:
            return self._in_order(order, self.max_steps)

    def unpreferred(self, order: Order) -> Found:
        """Search in the only order."""
        try:
            return self._in_order(order, self.max_steps)
        except TooMuchWorkError:
            return self.narrowing(order)

    def narrowing(self, order: Order) -> Found:
        """Search by requests with few devices, which are tried in this order."""
        return self._found(order, partial(NarrowingSearch, max_steps=self.max_narrowing))

    def _earlier(self, found: Found, order: Order) -> Found:
        """Return what was found, or else devices for earlier subrequests.

        Other devices for the requests before may leave the devices of an earlier subrequest.
        """
        if found is None or not any(_subrequests(found)):
            return found
        try:
            earliest = self.narrowing(order)
        except AllocationError:
            return found
        return found if earliest is None or _subrequests(earliest) >= _subrequests(found) else earliest

    def _in_order(self, order: Order, steps: int) -> Found:
        return self._found(order, partial(Search, max_steps=steps))

    def _found(self, order: Order, make: Callable[[Planned, Choices], Search | NarrowingSearch]) -> Found:
        context = replace(self.context, order=order)
        choices = Choices(len(self.claims), context.pools, self.allocated, context.features)
        search = make(plans.make(self.claims, context), choices)
        try:
            if not search.find():
                return None
        finally:
            self.spend(search.steps)
        allocations = []
        for number, claim in enumerate(self.claims):
            results = tuple(
                Result(
                    request=chosen.plan.request,
                    device=chosen.device,
                    consumed=chosen.consumed,
                    share_id="" if chosen.consumed is None else self.new_share_id(),
                )
                for chosen in choices.of_claim[number]
            )
            taken = tuple((plan.request, plan.device_class) for plan in search.taken(number))
            node = context.pools.node.name
            allocations.append(Allocation(claim=claim, results=results, chosen=taken, node=node))
        return tuple(allocations)


def _subrequests(allocations: Sequence[Allocation]) -> list[int]:
    """Return, for each request of each claim, which of its subrequests was taken."""
    return [
        next(place for place, choice in enumerate(request.choices) if choice is taken)
        for allocation in allocations
        for request, (taken, _) in zip(allocation.claim.requests, allocation.chosen, strict=True)
    ]


def _once(order: Order) -> Order:
    """Return an order that computes the order of a request's devices only once, for several searches for one pod."""
    known: dict[tuple[int, str], Sequence[Device]] = {}

    def ordered(plan: RequestPlan, devices: Sequence[Device]) -> Sequence[Device]:
        key = plan.number, plan.request.full_name
        if key not in known:
            known[key] = order(plan, devices)
        return known[key]

    return ordered
