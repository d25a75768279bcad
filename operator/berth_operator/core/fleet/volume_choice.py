"""VolumeClaims that wait for their first consumer: what each gets on each node, as array expressions over nodes.

On nodes that can reach a fitting volume of the claim's class, the smallest fitting volume is bound to the claim. A
pod's claims choose by size, the smallest claim first, and never the same volume. On other nodes a volume is
provisioned, if the class allows it there and the driver has enough capacity.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import node_terms
from berth_operator.core.fleet.arrays.columns import sealed
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.storage.volumes import Counts, Rows
from berth_operator.core.values.mounts import NO_POD_VOLUMES, Mounts, PodVolumes
from berth_operator.core.values.storage import NO_PROVISIONER, Capacity, StorageClass, Terms, VolumeClaim

NONE: Final = -1
MAX_RESULTS: Final = 2**16
"""Maximum number of cached results. A large cluster has many volumes that only one node can reach."""

Picks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What one claim gets on each node."""

    claim: VolumeClaim
    volumes: Mapping[str, int]
    """Volume -> its number in `picks`, the best first."""
    picks: Picks
    """Row -> the number of the volume to bind there, or NONE."""
    provisionable: Mask
    """Rows for which the class allows provisioning a volume."""
    has_capacity: Mask
    """Rows for which the driver has enough capacity."""

    @property
    def has_volume(self) -> Mask:
        """Return the rows that can reach a volume for the claim."""
        mask: Mask = self.picks != NONE
        return mask

    @property
    def passes(self) -> Mask:
        """Return the rows where the claim gets a volume, an existing or a provisioned one."""
        return self.has_volume | (self.provisionable & self.has_capacity)


def options(fleet: Fleet, mounts: Mounts) -> Iterator[Option]:
    """Yield what each of a pod's unbound claims with WaitForFirstConsumer gets."""
    earlier: list[Option] = []
    claims = {use.claim: fleet.volumes.claims.get(use.claim) for use in mounts.claims}
    waiting = [claim for claim in claims.values() if claim and not claim.bound and fleet.volumes.is_delayed(claim)]
    for claim in sorted(waiting, key=lambda claim: (claim.size, claim.key)):
        earlier.append(_option(fleet, claim, earlier))
        yield earlier[-1]


def choose(fleet: Fleet, row: int, mounts: Mounts) -> PodVolumes:
    """Return what the pod's claims get on a row that has passed the filters."""
    if not mounts.claims:
        return NO_POD_VOLUMES
    bindings, provisions = [], []
    for option in options(fleet, mounts):
        if option.picks[row] == NONE:
            provisions.append(option.claim.key)
        else:
            bindings.append((option.claim.key, tuple(option.volumes)[option.picks[row]]))
    return PodVolumes(bindings=tuple(bindings), provisions=tuple(provisions))


def matching_rows(fleet: Fleet, terms: Terms | None) -> Rows:
    """Return the rows that match one of the terms, all rows for None. The result is cached until a label changes."""
    if terms is None:
        return np.arange(len(fleet.names))
    volumes = fleet.volumes
    if volumes.rows_by_terms_version != fleet.labels.version or len(volumes.rows_by_terms) >= MAX_RESULTS:
        volumes.rows_by_terms.clear()
        volumes.rows_by_terms_version = fleet.labels.version
    rows = volumes.rows_by_terms.get(terms)
    if rows is None:
        rows = volumes.rows_by_terms[terms] = sealed(np.flatnonzero(node_terms.any_of(fleet, terms)))
    return rows


def matching_mask(fleet: Fleet, terms: Terms | None) -> Mask:
    """Return the rows that one of the terms matches, all rows for None, as a mask."""
    mask = np.zeros(len(fleet.names), np.bool_)
    mask[matching_rows(fleet, terms)] = True
    return mask


def _option(fleet: Fleet, claim: VolumeClaim, earlier: Sequence[Option]) -> Option:
    selected = fleet.volumes.selected_node(claim)
    # Once provisioning has started, existing volumes are not considered.
    volumes = [] if selected is not None else list(fleet.volumes.candidates(claim))
    picks = np.full(len(fleet.names), NONE, np.int64)
    for number in range(len(volumes) - 1, -1, -1):  # the best last, because later ones overwrite earlier ones
        rows = matching_rows(fleet, volumes[number].affinity)
        for option in earlier:
            # An earlier claim of the pod takes the volume on some rows.
            if (taken := option.volumes.get(volumes[number].name)) is not None:
                rows = rows[option.picks[rows] != taken]
        picks[rows] = number
    storage_class = fleet.volumes.classes[claim.storage_class]
    provisionable = np.zeros(len(fleet.names), np.bool_)
    if storage_class.provisioner not in ("", NO_PROVISIONER):
        provisionable = matching_mask(fleet, storage_class.topologies)
        if selected is not None:
            provisionable = provisionable & fleet.named(selected)
    # A driver that does not report its capacity has enough.
    is_tracked = _is_tracked(fleet, storage_class, claim)
    has_capacity = np.full(len(fleet.names), not is_tracked, np.bool_)
    for capacity in _sufficient(fleet, claim) if is_tracked else ():
        has_capacity |= matching_mask(fleet, capacity.nodes)
    return Option(
        claim=claim,
        volumes={volume.name: number for number, volume in enumerate(volumes)},
        picks=picks,
        provisionable=provisionable,
        has_capacity=has_capacity,
    )


def _is_tracked(fleet: Fleet, storage_class: StorageClass, claim: VolumeClaim) -> bool:
    """Return whether the capacity for a claim is known."""
    return claim.has_size and storage_class.provisioner in fleet.volumes.tracked


def _sufficient(fleet: Fleet, claim: VolumeClaim) -> list[Capacity]:
    """Return the capacities of a claim's class that are enough for it, the largest last."""
    capacities = fleet.volumes.capacities.get(claim.storage_class, {}).values()
    enough = (capacity for capacity in capacities if capacity.limit is not None and capacity.limit >= claim.size)
    return sorted(enough, key=lambda capacity: (capacity.capacity, capacity.key))


def provided(fleet: Fleet, claim: VolumeClaim) -> Counts | None:
    """Return for each row the bytes that the driver of a claim can provision; None if it does not report them."""
    if not _is_tracked(fleet, fleet.volumes.classes[claim.storage_class], claim):
        return None
    largest = np.zeros(len(fleet.names), np.int64)
    for capacity in _sufficient(fleet, claim):
        largest[matching_rows(fleet, capacity.nodes)] = capacity.capacity
    return largest


def volume_sizes(fleet: Fleet, option: Option) -> Counts:
    """Return for each row the size in bytes of the volume that a claim is bound to there; 0 for none."""
    sizes = [fleet.volumes.volumes[name].size for name in option.volumes]
    # NONE is the last of them.
    return np.array([*sizes, 0], np.int64)[option.picks]
