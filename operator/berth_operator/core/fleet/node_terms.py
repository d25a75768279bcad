"""The nodes that a pod's node selector terms match, as array expressions: ANDed within a term, ORed between terms."""

from collections.abc import Collection, Iterable
from functools import reduce

import numpy as np

from berth_api.values.selectors import Requirement
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import NodeTerm


def any_of(fleet: Fleet, terms: Iterable[NodeTerm]) -> Mask:
    """Return the rows that at least one term matches."""
    return reduce(np.logical_or, (matching(fleet, term) for term in terms), _none(fleet))


def matching(fleet: Fleet, term: NodeTerm) -> Mask:
    """Return the rows that one term matches."""
    masks = [fleet.labels.meeting(requirement) for requirement in term.labels]
    masks += [_named(fleet, requirement) for requirement in term.names]
    return reduce(np.logical_and, masks) if masks else _none(fleet)


def named(fleet: Fleet, terms: Collection[NodeTerm]) -> Mask:
    """Return the rows that the terms' node names (`In`) allow; all rows if some term has no node names."""
    if not terms or not all(pins_name(term) for term in terms):
        return fleet.present
    return any_of(fleet, (NodeTerm(names=tuple(filter(_lists_names, term.names))) for term in terms))


def pins_name(term: NodeTerm) -> bool:
    """Return whether a term lists the names of the nodes that it matches."""
    return any(map(_lists_names, term.names))


def _lists_names(requirement: Requirement) -> bool:
    return requirement.operator == "In"


def _named(fleet: Fleet, requirement: Requirement) -> Mask:
    named = reduce(np.logical_or, (fleet.named(name) for name in requirement.values), _none(fleet))
    return named if requirement.operator == "In" else ~named


def _none(fleet: Fleet) -> Mask:
    return np.zeros(len(fleet.names), np.bool_)
