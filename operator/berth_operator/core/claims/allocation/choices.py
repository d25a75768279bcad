"""The devices chosen so far, and what they take. Trying a device takes it, and going back in the search releases it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from berth_operator.core.claims.allocation.constraints import Constrained
from berth_operator.core.claims.allocation.plans import RequestPlan
from berth_operator.core.claims.bounds.errors import NodeError
from berth_operator.core.claims.objects import capacity
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.features import Features
from berth_operator.core.claims.objects.requests import Request
from berth_operator.core.claims.objects.slices import PREVENTING, Device, PoolID
from berth_operator.core.claims.pools.counters import Counters
from berth_operator.core.claims.pools.pools import NodePools


@dataclass(frozen=True, slots=True)
class Chosen:
    """A device chosen for a request, and what it takes."""

    plan: RequestPlan
    device: Device
    counters: Counters | None
    """From which it takes, if it does."""
    consumed: Mapping[str, ExactQuantity] | None
    """The capacity that its share consumes; None if it is not shared."""


class Choices:
    """The devices chosen so far for each claim of a search.

    A request with admin access ignores what others take of a device, and takes nothing of its counters and capacities.
    """

    def __init__(self, claims: int, pools: NodePools, allocated: Allocated, features: Features) -> None:
        self.of_claim: list[list[Chosen]] = [[] for _ in range(claims)]
        self.pools = pools
        self._allocated = allocated
        self._features = features
        self._claims_of: dict[Device, list[int]] = {}
        """The claims that hold a device that is not shared."""
        self._shares: dict[Device, list[Mapping[str, int]]] = defaultdict(list)
        """What each share of a device takes."""
        self._counters: dict[PoolID, Counters] = {}

    def take(self, plan: RequestPlan, device: Device) -> bool:
        """Choose a device for a request, and return whether it can be; if not, nothing is taken.

        Raises:
            AllocationError: the search must end.
        """
        if self._in_use(plan, device) or not self._suits(plan, device):
            return False
        counters = None
        # Shares of one device take from its counters once.
        if device.consumes and not plan.request.admin and not (self.is_shared(device) and self.has_shares(device)):
            counters = self.counters(device.pool)
            if not counters.reserve(device):
                return False
        constrained = self._constrain(plan, device)
        # Devices of `All` are checked last: one that breaks a constraint is an error even without capacity.
        if not constrained or (plan.wants_all and not self._has_capacity(plan, device)):
            if constrained:
                _relax(plan.constraints)
            if counters is not None:
                counters.release(device)
            return False
        amounts = None
        if self.is_shared(device):
            fractional = self._features.fractional_ranges
            amounts = capacity.consumed(device.capacity, plan.request.capacity, fractional=fractional) or {}
            if not plan.request.admin:
                self._shares[device].append({name: quantity.amount for name, quantity in amounts.items()})
        else:
            self._claims_of.setdefault(device, []).append(plan.number)
        self.of_claim[plan.number].append(Chosen(plan, device, counters, amounts))
        return True

    def undo(self, plan: RequestPlan) -> None:
        """Undo `take` for the device of the plan's claim that was taken last."""
        chosen = self.of_claim[plan.number].pop()
        if chosen.consumed is None:
            self._claims_of[chosen.device].pop()
        elif not plan.request.admin:
            self._shares[chosen.device].pop()
        _relax(plan.constraints)
        if chosen.counters is not None:
            chosen.counters.release(chosen.device)

    # --- what may be chosen, for a search that compares it before ---------------------------------------------

    def is_candidate(self, plan: RequestPlan, device: Device) -> bool:
        """Return whether a request may have a device if nothing else is chosen; raise AllocationError."""
        if self._in_use(plan, device) or not self._suits(plan, device):
            return False
        return not plan.wants_all or self._has_capacity(plan, device)

    def counters(self, pool: PoolID) -> Counters:
        """Return a pool's free counters."""
        counters = self._counters.get(pool)
        if counters is None:
            counters = self._counters[pool] = Counters.of(self.pools.by_id[pool], self._allocated)
        return counters

    def is_shared(self, device: Device) -> bool:
        """Return whether several requests may have a device."""
        return device.shareable and self._features.consumable_capacity

    def has_shares(self, device: Device) -> bool:
        """Return whether some of a device is taken."""
        return self._allocated.is_shared(device.id) or bool(self._shares.get(device))

    def shared_capacity(self, device: Device) -> Mapping[str, int]:
        """Return what allocated claims take of a device's capacities, in billionths."""
        return self._allocated.capacity.get(device.id, {})

    # ----------------------------------------------------------------------------------------------------------

    def _in_use(self, plan: RequestPlan, device: Device) -> bool:
        claims = self._claims_of.get(device, ())
        if plan.request.admin:
            return plan.number in claims
        if claims or self._allocated.exclude(device.id):
            return True
        # A slice may stop offering shares while some are held.
        return self._allocated.is_shared(device.id) and not self.is_shared(device)

    def _suits(self, plan: RequestPlan, device: Device) -> bool:
        """Return whether a request may have a device. Of the earlier choices, only shares of this device matter."""
        if not plan.wants_all and not (plan.selects(device) and self._has_capacity(plan, device)):
            return False
        if device.consumes and not self._features.partitionable_devices:
            return False
        return not (device.taints and self._features.device_taints and prevented(device, plan.request))

    def _has_capacity(self, plan: RequestPlan, device: Device) -> bool:
        if not self._features.consumable_capacity:
            return True
        if plan.request.admin:
            return plan.has_capacity(device, ())
        allocated, shares = self._allocated.capacity.get(device.id), self._shares.get(device, ())
        return plan.has_capacity(device, shares if allocated is None else (*shares, allocated))

    def _constrain(self, plan: RequestPlan, device: Device) -> bool:
        """Add a device to the constraints on a request, to all or none; raise NodeError if `All` cannot have it."""
        for place, constraint in enumerate(plan.constraints):
            if not constraint.add(device):
                _relax(plan.constraints[:place])
                if plan.wants_all:
                    message = f"cannot add device {device.id} because a claim constraint would not be satisfied"
                    raise NodeError(f"{plan}: {message}")
                return False
        return True


def prevented(device: Device, request: Request) -> bool:
    """Return whether a device has a taint that keeps a request away and that it does not tolerate."""
    return any(
        taint.effect in PREVENTING and not any(toleration.tolerates(taint) for toleration in request.tolerations)
        for taint in device.taints
    )


def _relax(constraints: Sequence[Constrained]) -> None:
    for constraint in constraints:
        constraint.remove()
