"""What a pod mounts, as far as scheduling reads it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A claim that a pod uses."""

    claim: str
    """namespace/name."""
    owner: str = ""
    """UID of the pod, where the claim must be its own: that of a generic ephemeral volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk named in the pod itself that two pods of one node may not both write to."""

    kind: str
    id: str
    read_only: bool = False
    """Whether others that only read it may share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachable:
    """A volume as its driver knows it; nodes can hold a limited number of each driver's."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """All volumes of a pod that scheduling has to do with; false where there are none."""

    claims: tuple[Use, ...] = ()
    disks: tuple[Disk, ...] = ()
    attachables: tuple[Attachable, ...] = ()
    """Those named in the pod itself; those behind claims are known by the claims."""

    def __bool__(self) -> bool:
        return bool(self.claims or self.disks or self.attachables)

    def include(self, claim: str) -> bool:
        """Return whether the pod uses a claim."""
        return any(each.claim == claim for each in self.claims)

    def shares_with(self, other: "Mounts") -> bool:
        """Return whether two pods use the same volume, as far as their specs tell."""
        return any(self.include(each.claim) for each in other.claims) or not set(self.attachables).isdisjoint(
            other.attachables
        )


NO_MOUNTS: Final = Mounts()
"""Of most pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumes:
    """What a placement decides about claims that are not bound yet; false where there are none."""

    bindings: tuple[tuple[str, str], ...] = ()
    """(claim, volume)."""
    provisions: tuple[str, ...] = ()
    """Claims for which a volume is to be made for the pod's node."""

    def __bool__(self) -> bool:
        return bool(self.bindings or self.provisions)


NO_POD_VOLUMES: Final = PodVolumes()
