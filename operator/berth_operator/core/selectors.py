"""Label selectors as values: frozen, so that equal ones are one key and are counted once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"
OPERATORS: Final = (IN, NOT_IN, EXISTS, DOES_NOT_EXIST)
GT: Final = "Gt"
LT: Final = "Lt"
"""Only of nodes' labels: the value and the one bound are whole numbers."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_INT64: Final = 2**63

Labels = tuple[tuple[str, str], ...]
"""Labels as a value: sorted by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a selector asks of one label."""

    key: str
    operator: str = IN
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels are as asked."""
        return self.accepts(labels.get(self.key))

    def accepts(self, value: str | None) -> bool:
        """Tell whether the label's value is as asked; None stands for no such label, with which NotIn holds too."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        number, bound = integer(value), integer(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator == GT else number < bound


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """All requirements at once; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    @property
    def handle(self) -> tuple[str, str] | None:
        """Give one label without which nothing matches, if there is one: to look a selector up by."""
        exact = (each for each in self.requirements if each.operator == IN and len(each.values) == 1)
        first = next(exact, None)
        return None if first is None else (first.key, first.values[0])

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether all requirements hold."""
        # A loop: this is asked for every selector when a pod with new labels is placed.
        for each in self.requirements:  # noqa: SIM110
            if not each.holds(labels):
                return False
        return True


EVERYTHING: Final = LabelSelector()
"""A selector that is there and empty."""
NOTHING: Final = LabelSelector(requirements=(Requirement(key=""),))
"""A selector that is not there: no value is among none."""


def integer(text: str) -> int | None:
    """Read a whole number of 64 bits; nothing else counts as one, not even all that `int` would take."""
    number = int(text) if _INTEGER.fullmatch(text) else _INT64
    return number if -_INT64 <= number < _INT64 else None
