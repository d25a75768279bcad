"""The ResourceClaims of a pod, and what a placement decides about them."""

from dataclasses import dataclass
from typing import Final

from berth_api.allocation import Grant
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.objects.extended import RequestMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """A ResourceClaim that a pod uses."""

    claim: str
    """namespace/name; empty if it is not made from its template yet."""
    owner: str = ""
    """UID of the pod if it must own the claim, because the claim is made of a template; otherwise empty."""
    pod: str = ""
    """namespace/name of that pod, for messages."""
    template: str = ""
    """Name of the template, for messages; only while the claim is not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """What must be written or checked about a pod's ResourceClaims before it is bound; false if it has none."""

    allocations: tuple[Allocation, ...] = ()
    """What claims get that are not allocated yet."""
    reserved: tuple[str, ...] = ()
    """namespace/name of claims that are allocated already. They must be reserved for the pod, unless they are."""
    grants: tuple[Grant, ...] = ()
    """The cards of the allocations, charged to the pod until the API server shows the allocations."""
    unknown: tuple[str, ...] = ()
    """Device types of which the allocations may hold any card."""
    mappings: tuple[RequestMapping, ...] = ()
    """The extended resources that DeviceClasses provide. The last allocation is then for the claim for these resources,
    which is made before the pod is bound."""

    @property
    def of_claims(self) -> tuple[Allocation, ...]:
        """Return the allocations without the allocation of the claim for extended resources."""
        return self.allocations[:-1] if self.mappings else self.allocations

    @property
    def by_class(self) -> frozenset[str]:
        """Return the extended resources that DeviceClasses provide, which kubelet does not allocate."""
        return frozenset(each.resource for each in self.mappings)

    def __bool__(self) -> bool:
        return bool(self.allocations or self.reserved)


NO_POD_CLAIMS: Final = PodClaims()
"""The value for most pods, which have no claims."""
