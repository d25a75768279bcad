"""What a placement decides about the ResourceClaims of a pod."""

from dataclasses import dataclass
from typing import Final

from berth_operator.core.claims.results import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """What is to be written of a pod's ResourceClaims before the pod is bound; false if nothing is."""

    allocations: tuple[Allocation, ...] = ()
    """What claims get that are not allocated yet."""
    reserved: tuple[str, ...] = ()
    """namespace/name of claims that are allocated already, and are only to be reserved for the pod."""

    def __bool__(self) -> bool:
        return bool(self.allocations or self.reserved)


NO_POD_CLAIMS: Final = PodClaims()
"""Of most pods: none."""
