"""The allocator: which devices of a node the claims of a pod get."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from berth_operator.core.claims import features as gates
from berth_operator.core.claims import plans
from berth_operator.core.claims.allocated import Allocated
from berth_operator.core.claims.choices import Choices
from berth_operator.core.claims.errors import AllocationError, InvalidPoolsError
from berth_operator.core.claims.features import Features
from berth_operator.core.claims.plans import Context, Order
from berth_operator.core.claims.pools import NodePools
from berth_operator.core.claims.requests import DeviceClass, ResourceClaim
from berth_operator.core.claims.results import Allocation, Result
from berth_operator.core.claims.search import MAX_STEPS, Search

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
    prefer: Order | None = None,
    max_steps: int = MAX_STEPS,
    spend: Callable[[int], None] = lambda _steps: None,
) -> tuple[Allocation, ...] | None:
    """Return an allocation for each claim, from the pools of one node; None if there is none.

    The search tries devices in the order `prefer` for a part of the steps, and if that ends with an error, in `order`:
    so a preference finds something wherever `order` does. `spend` is called with the number of devices that were tried.

    Raises:
        ClaimError: a claim or its class cannot be allocated on any node.
        NodeError: the attempt on this node ended; kube-scheduler would end the attempt for the pod.
    """

    def search(order: Order, steps: int) -> tuple[Allocation, ...] | None:
        context = Context(pools=pools, classes=classes, features=features, order=order)
        choices = Choices(len(claims), pools, allocated, features)
        found = Search(plans.make(claims, context), choices, steps)
        try:
            if not found.find():
                return None
        finally:
            spend(found.steps)
        return tuple(_allocation(number, claim, found, choices, new_share_id) for number, claim in enumerate(claims))

    try:
        allocations = search(order if prefer is None else prefer, max_steps // (1 if prefer is None else PREFERRED))
    except AllocationError:
        if prefer is None:
            raise
        allocations = search(order, max_steps)
    if allocations is None and pools.invalid:
        raise InvalidPoolsError
    return allocations


def _allocation(
    number: int, claim: ResourceClaim, search: Search, choices: Choices, new_share_id: Callable[[], str]
) -> Allocation:
    results = tuple(
        Result(
            request=chosen.plan.request,
            device=chosen.device,
            consumed=chosen.consumed,
            share_id="" if chosen.consumed is None else new_share_id(),
        )
        for chosen in choices.of_claim[number]
    )
    taken = tuple((plan.request, plan.device_class) for plan in search.taken(number))
    return Allocation(claim=claim, results=results, chosen=taken, node=choices.pools.node.name)
