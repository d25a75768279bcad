"""The volumes of a pod that affect scheduling."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A claim that a pod uses."""

    claim: str
    """namespace/name."""
    owner: str = ""
    """UID of the pod if it must own the claim, as for a generic ephemeral volume; otherwise empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk named in the pod spec that two pods on one node must not both write to."""

    kind: str
    id: str
    read_only: bool = False
    """Whether the pod only reads it, so that other readers can share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachable:
    """A volume as its driver names it; each node can attach a limited number of a driver's volumes."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """All volumes of a pod that affect scheduling; false if there are none."""

    claims: tuple[Use, ...] = ()
    disks: tuple[Disk, ...] = ()
    attachables: tuple[Attachable, ...] = ()
    """The volumes named in the pod spec; the volumes of claims are looked up by claim."""

    def __bool__(self) -> bool:
        return bool(self.claims or self.disks or self.attachables)

    def include(self, claim: str) -> bool:
        """Return whether the pod uses a claim."""
        return any(each.claim == claim for each in self.claims)

    def shares_with(self, other: "Mounts") -> bool:
        """Return whether two pods' specs name the same volume."""
        return any(self.include(each.claim) for each in other.claims) or not set(self.attachables).isdisjoint(
            other.attachables
        )


NO_MOUNTS: Final = Mounts()
"""The mounts of most pods: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumes:
    """The decisions of a placement about claims that are not bound yet; false if there are none."""

    bindings: tuple[tuple[str, str], ...] = ()
    """(claim, volume)."""
    provisions: tuple[str, ...] = ()
    """Claims for which a volume must be provisioned for the pod's node."""

    def __bool__(self) -> bool:
        return bool(self.bindings or self.provisions)


NO_POD_VOLUMES: Final = PodVolumes()
