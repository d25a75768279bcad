"""The allocator: which devices of a node the claims of a pod get."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from berth_operator.core.dra import features as gates
from berth_operator.core.dra import plans
from berth_operator.core.dra.allocated import Allocated
from berth_operator.core.dra.choices import Choices
from berth_operator.core.dra.errors import AllocationError, InvalidPoolsError, TooMuchWorkError
from berth_operator.core.dra.features import Features
from berth_operator.core.dra.narrowing import NarrowingSearch
from berth_operator.core.dra.plans import Context, Order, Planned
from berth_operator.core.dra.pools import NodePools
from berth_operator.core.dra.requests import DeviceClass, ResourceClaim
from berth_operator.core.dra.results import Allocation, Result
from berth_operator.core.dra.search import MAX_STEPS, Search

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

    The search tries devices in an order that `prefer` makes for each search, for a part of the steps, or else in
    `order`. If the search does not end within its steps, a `NarrowingSearch` continues, for `max_narrowing` steps.

    If a search in an order of `prefer` ends with an error, or both searches run out of steps, another search in `order`
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
        try:
            return self._in_order(prefer(), self.max_steps // PREFERRED)
        except TooMuchWorkError:
            pass
        except AllocationError:
            return self.unpreferred(order)
        try:
            return self.narrowing(prefer())
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
