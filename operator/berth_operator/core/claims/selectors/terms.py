"""The terms of a CEL expression, as the parser returns them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Literal:
    """A value written in the expression."""

    value: Any


@dataclass(slots=True)
class Ident:
    """A variable, or the first part of a qualified name."""

    name: str


@dataclass(slots=True)
class Select:
    """`operand.name`, `operand.?name` (optional) or `has(operand.name)` (test)."""

    operand: "Term"
    name: str
    optional: bool = False
    test: bool = False


@dataclass(slots=True)
class Call:
    """A function, method (with a target) or operator with its arguments."""

    function: str
    target: "Term | None"
    args: "list[Term]"
    overloads: list[Any] = field(default_factory=list)
    """Those that fit the types of the arguments; the checker sets them."""

    @property
    def operands(self) -> "list[Term]":
        """Return the target, if any, and the arguments."""
        return self.args if self.target is None else [self.target, *self.args]


@dataclass(slots=True)
class ListTerm:
    """`[a, ?b]`: elements, and whether each is optional."""

    elements: "list[tuple[Term, bool]]"


@dataclass(slots=True)
class MapTerm:
    """`{a: b, ?c: d}`: keys, values, and whether each value is optional."""

    entries: "list[tuple[Term, Term, bool]]"


@dataclass(slots=True)
class Comprehension:
    """A macro over the elements of a list or the keys of a map: `all`, `exists`, `exists_one`, `map`, ..."""

    kind: str
    range: "Term"
    variables: tuple[str, ...]
    """One, or two: the index or key, and the value."""
    condition: "Term | None"
    body: "Term"


@dataclass(slots=True)
class Bind:
    """A variable for a value that is computed when it is first used."""

    name: str
    value: "Term"
    body: "Term"


Term = Literal | Ident | Select | Call | ListTerm | MapTerm | Comprehension | Bind
