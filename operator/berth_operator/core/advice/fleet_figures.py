"""Sums over columns: how many of the fleet's GPUs are allocated, and how much free capacity is usable.

Amounts are in whole cards. `berth_api.allocation.held` converts parts of cards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_api.allocation import held, mig
from berth_api.names import GPU
from berth_api.request import CARD
from berth_api.resources import CPU
from berth_operator.core.advice.card_amounts import serving
from berth_operator.core.allocators import least_waste
from berth_operator.core.fleet.fleet import Fleet

SIZES: Final = (1, 2, 4, 8)
"""Numbers of whole GPUs for which fragmentation is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of one model, in cards."""

    allocated: float
    free: float
    unavailable: float
    """Neither allocated nor free: unhealthy, or on a node where no cards are allocated (`card_amounts.serving`)."""

    @property
    def total(self) -> float:
        """Return the number of cards."""
        return self.allocated + self.free + self.unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """All GPUs of the nodes that exist."""

    gpus: Mapping[str, Gpus]
    """GPUs by model."""
    fragmentation: Mapping[int, float]
    """Number of whole GPUs -> the share of the free GPUs that pods which request this many on a node cannot get."""
    stranded: float
    """The share of the free GPUs whose nodes have too little free cpu for the typical pod with GPUs."""


def fleet_figures(fleet: Fleet) -> FleetFigures:
    """Return the figures of a fleet; shares are 0 if no GPU is free."""
    cards = fleet.cards[GPU]
    usable = serving(fleet, cards)
    free = np.where(usable[:, np.newaxis], least_waste.left(cards) / CARD, 0.0)
    total, whole = float(free.sum()), (free >= 1.0).sum(axis=1)
    starved = fleet.pod_mix.typical.starved(np.maximum(fleet.left(CPU), 0))
    fragmentation = {size: 1.0 - float((whole // size * size).sum()) / total if total else 0.0 for size in SIZES}
    stranded = float((free.sum(axis=1) * starved).sum()) / total if total else 0.0

    listed = cards.present & fleet.present[:, np.newaxis]
    used = {name: cards.used[index] for name, index in cards.index.items()}
    totals = {name: cards.total[index] for name, index in cards.index.items()}
    allocated = np.maximum.reduce([np.broadcast_to(share, cards.present.shape) for share in held.shares(used, totals)])
    # A grant of which the amounts are not known is the whole card.
    allocated = np.where((cards.users > 0) & (allocated == 0), 1.0, np.minimum(allocated, 1.0))
    partitioned = np.zeros_like(cards.present)
    for name in filter(mig.is_resource, totals):
        partitioned |= totals[name] > 0
    located = (cards.unlocated == 0)[:, np.newaxis]
    allocatable = usable[:, np.newaxis] & (cards.healthy | (partitioned & located))
    models, count = cards.model[listed], len(fleet.intern_table.models)
    of_all = np.bincount(models, minlength=count)
    of_allocated = np.bincount(models, weights=allocated[listed], minlength=count)
    of_free = np.bincount(models, weights=np.where(allocatable, 1.0 - allocated, 0.0)[listed], minlength=count)
    gpus = {
        fleet.intern_table.models[number]: Gpus(
            allocated=float(of_allocated[number]),
            free=float(of_free[number]),
            unavailable=max(0.0, float(of_all[number] - of_allocated[number] - of_free[number])),
        )
        for number in np.flatnonzero(of_all).tolist()
    }
    return FleetFigures(gpus=gpus, fragmentation=fragmentation, stranded=stranded)
