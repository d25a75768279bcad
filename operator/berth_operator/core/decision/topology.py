"""The topology constraint of a Kubernetes PodGroup: all members in one domain of a node label.

The domains (kube-scheduler's placements) are tried one after another. They are compared by kube-scheduler's scores: how
many members fit, and how much of the domain's cpu and memory is then used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_api.resources import CPU, MEMORY
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.nodes.labels import ABSENT
from berth_operator.core.values.request import PodRequest

FULL: Final = 100.0


class DomainError(ValueError):
    """The members that have a node are in no single domain; the text is kube-scheduler's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Domain:
    """The nodes with one value of the label."""

    value: str
    rows: Mask


def domains(fleet: Fleet, key: str, nodes: Sequence[str]) -> list[Domain]:
    """Return the domains where a group may be, sorted: the domain of its members' nodes, or else all domains.

    Raises:
        DomainError: these nodes are in several domains, or a node is in none.
    """
    column = fleet.labels.column(key)
    of_members = {column.numbers[fleet.rows[name]] for name in nodes if name in fleet.rows}
    if ABSENT in of_members:
        raise DomainError(_unknown("no topology domain found for pod"))
    found = [
        Domain(value=value, rows=fleet.present & (column.numbers == number))
        for value, number in sorted(column.values.items())
        if number in of_members or not of_members
    ]
    if len(of_members) > 1:
        values = ", ".join(domain.value for domain in found)
        raise DomainError(_unknown(f"more than 1 domain found for pod group: {values}"))
    return [domain for domain in found if domain.rows.any()]


def _unknown(why: str) -> str:
    return f"cannot determine domain for already scheduled pods: {why}"


def score(fleet: Fleet, domain: Domain, placed: Sequence[PodRequest], most: int) -> float:
    """Return kube-scheduler's score of a domain, 0 to 200, for the members that fit; at most `most` fit anywhere."""
    return FULL * len(placed) / max(most, 1) + utilization(fleet, domain.rows, placed)


def utilization(fleet: Fleet, rows: Mask, placed: Sequence[PodRequest]) -> float:
    """Return how much of a domain's cpu and memory is requested with the members in it, in hundredths."""
    parts = []
    for name in (CPU, MEMORY):
        total = int(fleet.total(name)[rows].sum())
        requested = total - int(fleet.left(name)[rows].sum())
        requested += sum(dict(request.resources).get(name, 0) for request in placed)
        if total:
            parts.append(FULL * requested / total if requested <= total else 0.0)
    return float(np.mean(parts)) if parts else 0.0
