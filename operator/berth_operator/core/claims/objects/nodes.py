"""The nodes that can use a slice or a device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth_api.values.selectors import GT, LT, OPERATORS, Requirement, integer
from berth_operator.core.claims.objects.fields import Field, FieldError

NAME: Final = "metadata.name"

NodeSelector = tuple[tuple[Requirement, ...], ...]
"""Terms, one of which must match. Requirements on the name have the key `metadata.name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNode:
    """What decides which slices are for a node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """One node, all nodes, or the nodes that a selector matches: the first of the three that is set."""

    name: str = ""
    everywhere: bool = False
    terms: NodeSelector | None = None
    """Terms of the node selector; None without a selector."""
    selector: Mapping[str, Any] = field(default_factory=dict)
    """The selector as the API has it."""

    def __bool__(self) -> bool:
        """Return whether one of the three is set."""
        return bool(self.name) or self.everywhere or self.terms is not None

    def match(self, node: TargetNode) -> bool:
        """Return whether the node is one of them."""
        if self.name:
            return self.name == node.name
        # A term without requirements matches no node.
        return self.everywhere or any(
            term
            and all(
                requirement.accepts(node.name) if requirement.key == NAME else requirement.holds(node.labels)
                for requirement in term
            )
            for term in self.terms or ()
        )


def read(owner: Field) -> Nodes:
    """Read `nodeName`, `allNodes` and `nodeSelector` of a slice's spec or of a device; raise FieldError."""
    selector = owner.at("nodeSelector")
    terms: list[tuple[Requirement, ...]] = []
    for term in selector.at("nodeSelectorTerms").items():
        names = [_requirement(item) for item in term.at("matchFields").items()]
        if any(name.key != NAME or name.operator not in ("In", "NotIn") for name in names):
            raise FieldError(f"{term.path}.matchFields: allowed are In and NotIn of {NAME}")
        terms.append((*(_requirement(item) for item in term.at("matchExpressions").items()), *names))
    return Nodes(
        name=owner.at("nodeName").text(),
        everywhere=owner.at("allNodes").boolean(),
        terms=None if selector.value is None else tuple(terms),
        selector=selector.value or {},
    )


def _requirement(item: Field) -> Requirement:
    operator, values = item.at("operator").text(), item.at("values").texts()
    if operator in (GT, LT):
        if len(values) != 1 or integer(values[0]) is None:
            raise FieldError(f"{item.path}.values: {operator} needs one integer")
    elif operator not in OPERATORS:
        raise FieldError(f'{item.path}.operator: "{operator}"; allowed are {", ".join((*OPERATORS, GT, LT))}')
    return Requirement(key=item.at("key").text(), operator=operator, values=values)
