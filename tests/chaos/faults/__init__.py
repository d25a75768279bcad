"""All faults, in families. Each kind is a method of its family's class."""

import random
from collections.abc import Mapping
from typing import Final

from tests.chaos.faults.base import Family, Healed
from tests.chaos.faults.cards import CardFaults
from tests.chaos.faults.control_plane import ControlPlaneFaults
from tests.chaos.faults.gangs import Gangs
from tests.chaos.faults.limits import LimitFaults
from tests.chaos.faults.network import NetworkFaults
from tests.chaos.faults.nodes import NodeFaults
from tests.chaos.faults.objects import ObjectFaults
from tests.chaos.faults.pods import PodFaults
from tests.chaos.faults.replicas import ReplicaFaults
from tests.chaos.faults.rollouts import Rollouts
from tests.chaos.faults.surroundings import Surroundings
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
OF_LIFE: Final[tuple[type[Family], ...]] = (Rollouts, Gangs, NodeFaults, Surroundings)
"""Families of events in the life of a cluster, which `make month` has."""
KINDS: Final[Mapping[str, type[Family]]] = {kind: family for family in (*FAMILIES, *OF_LIFE) for kind in family.weights}
WEIGHTS: Final[Mapping[str, int]] = {kind: weight for family in FAMILIES for kind, weight in family.weights.items()}
QUICK: Final[Mapping[str, int]] = {kind: weight for kind, weight in WEIGHTS.items() if weight}
"""The kinds that take less time than a LeaderLease, and one that does not."""

LIFE: Final[Mapping[str, int]] = {
    **{kind: weight for family in OF_LIFE for kind, weight in family.weights.items()},
    "node_deleted": 3,
    "health_flipped": 4,
    "card_lost": 3,
    "leader_killed": 2,
    "leader_terminated": 4,
    "standby_killed": 1,
    "agent_killed": 3,
}
"""The kinds of a month."""


def strike(site: Site, fault: Strike) -> Healed | None:
    """Inject a fault and undo it; return what has healed."""
    chance = random.Random(fault.seed)
    return KINDS[fault.kind](site, chance).strike(fault.kind)
