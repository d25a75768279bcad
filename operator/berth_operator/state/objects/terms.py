"""Label requirements and node selector terms, read from the API into values of the core."""

from collections.abc import Mapping
from typing import Any, Final

from berth_api.values.selectors import GT, LT, OPERATORS, Requirement, integer
from berth_operator.core.values.request import NodeTerm

Object = Mapping[str, Any]

NEVER: Final = Requirement(key="", values=())
"""Matches no node."""


def requirement(raw: Object) -> Requirement:
    """Read one label requirement."""
    return Requirement(key=raw["key"], operator=raw["operator"], values=tuple(sorted(raw.get("values") or ())))


def node_selector(raw: Mapping[str, str]) -> tuple[Requirement, ...]:
    """Read a pod's `spec.nodeSelector`."""
    return tuple(Requirement(key=key, values=(value,)) for key, value in sorted(raw.items()))


def node_term(raw: Object) -> NodeTerm:
    """Read a term of a node selector."""
    term = NodeTerm(
        labels=tuple(map(requirement, raw.get("matchExpressions") or ())),
        names=tuple(map(requirement, raw.get("matchFields") or ())),
    )
    if all(
        condition.operator in OPERATORS
        or (condition.operator in (GT, LT) and len(condition.values) == 1 and integer(condition.values[0]) is not None)
        for condition in term.labels
    ):
        return term
    # The API server accepts a Gt or Lt value that is no number; kube-scheduler then lets the term match no node.
    return NodeTerm(labels=(NEVER,), names=term.names) if term.names else NodeTerm()


def required_nodes(affinity: Object) -> tuple[NodeTerm, ...] | None:
    """Read the required node affinity of a pod's `spec.affinity`; None if there is none."""
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    return tuple(map(node_term, required.get("nodeSelectorTerms") or ()))


def preferred_nodes(affinity: Object) -> tuple[tuple[NodeTerm, int], ...]:
    """Read the preferred node affinity of a pod's `spec.affinity`, as (term, weight)."""
    preferred = (affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return tuple((node_term(term.get("preference") or {}), term["weight"]) for term in preferred)
