"""All faults, in families; each kind is a method of its family's class."""

import random
from collections.abc import Mapping
from typing import Final

from tests.chaos.faults.base import Family, Healed
from tests.chaos.faults.cards import CardFaults
from tests.chaos.faults.control_plane import ControlPlaneFaults
from tests.chaos.faults.limits import LimitFaults
from tests.chaos.faults.network import NetworkFaults
from tests.chaos.faults.objects import ObjectFaults
from tests.chaos.faults.pods import PodFaults
from tests.chaos.faults.replicas import ReplicaFaults
from tests.chaos.schedule import Strike
from tests.chaos.site import Site

FAMILIES: Final[tuple[type[Family], ...]] = (
    ReplicaFaults,
    ControlPlaneFaults,
    NetworkFaults,
    ObjectFaults,
    CardFaults,
    PodFaults,
    LimitFaults,
)
KINDS: Final[Mapping[str, type[Family]]] = {kind: family for family in FAMILIES for kind in family.weights}
WEIGHTS: Final[Mapping[str, int]] = {kind: weight for family in FAMILIES for kind, weight in family.weights.items()}
QUICK: Final[Mapping[str, int]] = {kind: weight for kind, weight in WEIGHTS.items() if weight}
"""The kinds that take less time than a LeaderLease, and one that does not."""


def strike(site: Site, fault: Strike) -> Healed | None:
    """Inject a fault and undo it; return what has healed."""
    chance = random.Random(fault.seed)
    return KINDS[fault.kind](site, chance).strike(fault.kind)
