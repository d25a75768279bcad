"""The input of a search: for each request and subrequest, its class, its devices and their number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from berth_operator.core.claims.allocation import constraints
from berth_operator.core.claims.allocation.constraints import Constrained
from berth_operator.core.claims.bounds.errors import ClaimError, NodeError
from berth_operator.core.claims.matching.selected import SelectorPair
from berth_operator.core.claims.objects import capacity
from berth_operator.core.claims.objects.capacity import CapacityError
from berth_operator.core.claims.objects.features import Features
from berth_operator.core.claims.objects.requests import ALL, EXACT, DeviceClass, Request, ResourceClaim
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.pools.pools import NodePools

MAX_DEVICES: Final = 32
"""Results of a claim that the API allows."""

Order = Callable[["RequestPlan", Sequence[Device]], Sequence[Device]]
"""Returns the devices of a node in the order in which they are tried for a plan's request."""


def first_fit(_: "RequestPlan", devices: Sequence[Device]) -> Sequence[Device]:
    """Return the devices as Kubernetes tries them: by pool and slice."""
    return devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all requests of a search share."""

    pools: NodePools
    classes: Mapping[str, DeviceClass]
    features: Features
    order: Order = first_fit


@dataclass(slots=True, kw_only=True, eq=False)
class RequestPlan:
    """A request or subrequest, ready for the search."""

    context: Context
    claim: ResourceClaim
    number: int
    """The index of the claim among the claims of the search."""
    request: Request
    device_class: DeviceClass
    constraints: tuple[Constrained, ...]
    matched: SelectorPair
    """Whether the selectors match a device, as far as the answer is known."""
    devices: Sequence[Device] = ()
    """For `All`, the requested devices; otherwise, the devices to try."""
    count: int = 0

    @property
    def wants_all(self) -> bool:
        """Return whether each of its devices is wanted."""
        return self.request.mode == ALL

    def selects(self, device: Device) -> bool:
        """Return whether a device matches all selectors and is for the node; raise AllocationError."""
        if device.binding_conditions and not self.context.features.binding_conditions:
            return False
        matches = self.matched.get(device)
        if matches is None:
            matches = self.matched.matches(device, f"class {self.device_class.name}", f"claim {self.claim}")
        # As in Kubernetes this comes last: a selector that fails for a device of another node is an error, too.
        return matches and (not device.own_nodes or device.nodes.match(self.context.pools.node))

    def cost_of(self, device: Device) -> int:
        """Return how long it takes to try a device. Each capacity that is compared takes as long as the rest."""
        is_compared = device.compares_capacity or self.request.capacity
        return (len(device.capacity) or 1) if is_compared else 1

    def has_capacity(self, device: Device, held: Sequence[Mapping[str, int]]) -> bool:
        """Return whether the capacity for the request is left of a device; raise NodeError if it cannot be computed."""
        requested, fractional = self.request.capacity, self.context.features.fractional_ranges
        if not (requested or held or device.compares_capacity):
            return True
        try:
            amounts = capacity.consumed(device.capacity, requested, fractional=fractional)
        except CapacityError as error:
            raise NodeError(f"{self}: checking capacity for device {device.id}: {error}") from error
        return amounts is not None and capacity.fits(device.capacity, amounts, held, fractional=fractional)

    def __str__(self) -> str:
        return f"claim {self.claim}, request {self.request.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """The plans of a claim's request: one, or one for each subrequest."""

    prioritized: bool
    plans: tuple[RequestPlan, ...]


Planned = tuple[tuple[PlannedRequest, ...], ...]
"""The requests of each claim."""


def make(claims: Sequence[ResourceClaim], context: Context) -> Planned:
    """Return the plans of claims.

    Raises:
        AllocationError: one is not possible on the node, or on any.
    """
    planned, features = [], context.features
    for number, claim in enumerate(claims):
        constrained = constraints.of_claim(claim.constraints)
        requests, least = [], 0
        for request in claim.requests:
            if request.prioritized and not features.prioritized_list:
                message = "has subrequests, but the DRAPrioritizedList feature is disabled"
                raise ClaimError(f"claim {claim}, request {request.name}: {message}")
            for choice in request.choices:
                if choice.names_capacity and not features.consumable_capacity:
                    message = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
                    raise ClaimError(f"claim {claim}, {'sub' if choice.parent else ''}request {choice.name}: {message}")
            plans = tuple(_plan(number, claim, choice, context, constrained) for choice in request.choices)
            fewest = min(plan.count for plan in plans)
            if fewest > MAX_DEVICES - least:
                error = NodeError if any(plan.wants_all for plan in plans) else ClaimError
                raise error(
                    f"claim {claim}, request {request.name}: adding {fewest} devices exceeds the claim limit of "
                    f"{MAX_DEVICES}, with {least} already accounted for"
                )
            least += fewest
            requests.append(PlannedRequest(prioritized=request.prioritized, plans=plans))
        for place, constraint in enumerate(claim.constraints):
            if not constraint.attribute:
                raise ClaimError(f"claim {claim}, constraint #{place}: empty constraint (unsupported constraint type?)")
        planned.append(tuple(requests))
    return tuple(planned)


def _plan(
    number: int, claim: ResourceClaim, request: Request, context: Context, constrained: Sequence[Constrained]
) -> RequestPlan:
    if problem := next(_problems(request, context), ""):
        raise ClaimError(f"claim {claim}, request {request.name}{problem}")
    device_class = context.classes[request.device_class]
    plan = RequestPlan(
        context=context,
        claim=claim,
        number=number,
        request=request,
        device_class=device_class,
        constraints=constraints.on_request(constrained, request),
        matched=context.pools.selected.of((device_class.selectors, request.selectors)),
    )
    if not plan.wants_all:
        plan.count = request.count
        plan.devices = context.order(plan, context.pools.devices)
        return plan
    wanted: list[Device] = []
    for pool in context.pools.pools:
        if not pool.usable:
            state = "being updated" if pool.incomplete else "invalid"
            raise NodeError(f"{plan}: asks for all devices, but resource pool {pool.id} is currently {state}")
        # What shares hold does not count here: a device without enough left is wanted, and the request fails.
        wanted += (
            device
            for device in pool.devices
            if plan.selects(device) and (not context.features.consumable_capacity or plan.has_capacity(device, ()))
        )
    plan.devices, plan.count = tuple(wanted), len(wanted)
    return plan


def _problems(request: Request, context: Context) -> Iterator[str]:
    """Yield what makes a request impossible on every node."""
    if request.derived:
        yield ": cannot handle request with derived attributes, the feature is disabled"
    if None in request.selectors:
        number = request.selectors.index(None)
        yield f", selector #{number}: CEL expression empty (unsupported selector type?)"
    if request.admin is not None and not context.features.admin_access:
        yield ": admin access is requested, but the feature is disabled"
    if not request.device_class:
        yield ": missing device class name (unsupported request type?)"
    if request.device_class not in context.classes:
        name = request.device_class
        yield f': could not retrieve device class {name}: deviceclass "{name}" not found'
    if request.mode not in (ALL, EXACT):
        yield f": unsupported count mode {request.mode}"
