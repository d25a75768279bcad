"""Label selectors as values. They are frozen, so that equal selectors are one key and are counted once."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_api.values import listing

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"
OPERATORS: Final = (IN, NOT_IN, EXISTS, DOES_NOT_EXIST)
GT: Final = "Gt"
LT: Final = "Lt"
"""Only for labels of nodes: the value of the label and the only value of the requirement are integers."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_INT64: Final = 2**63
_WORD: Final = r"[\w./-]++"
_TERM: Final = re.compile(
    # Spaces and words are matched at once or not at all, so that a selector takes linear time.
    rf"\s*+(?:(?P<key>{_WORD})\s*+(?P<operator>==?|!=|[<>])\s*+(?P<value>(?:{_WORD})?)"
    rf"|(?P<member>{_WORD})\s++(?P<set>in|notin)\s*+\((?P<values>[^()]*+)\)"
    rf"|(?P<absent>!?)\s*+(?P<present>{_WORD}))\s*+(?:,(?!\s*$)|$)"
)
_NAME: Final = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"(?=.{{1,317}}$)(?:[a-z0-9]+(?:[.-]+[a-z0-9]+)*/)?{_NAME}")
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
FORMS: Final = "a=b, a!=b, a in (b, c), a notin (b, c), a, !a, a>1 and a<1, joined by commas"
"""What `parse` reads."""

Labels = tuple[tuple[str, str], ...]
"""Labels as a value: sorted by key."""


class SelectorError(ValueError):
    """A label selector cannot be parsed. The message names the field and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a selector requires of one label."""

    key: str
    operator: str = IN
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the requirement."""
        return self.accepts(labels.get(self.key))

    def accepts(self, value: str | None) -> bool:
        """Return whether the label's value meets the requirement. None means no such label, which NotIn accepts."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number, bound = integer(value or ""), integer(self.values[0])
        if value is None or number is None or bound is None:
            return False
        return number > bound if self.operator == GT else number < bound

    def __str__(self) -> str:
        """Return the requirement as kubectl writes it, for messages: `key in (a,b)`."""
        values = listing.first_of(self.values, separator=",")
        match self.operator:
            case "In":
                return f"{self.key}={values}" if len(self.values) == 1 else f"{self.key} in ({values})"
            case "NotIn":
                return f"{self.key}!={values}" if len(self.values) == 1 else f"{self.key} notin ({values})"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key} {self.operator} {values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """Requirements that must all hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        """Return the selector as kubectl writes it, for messages."""
        return listing.first_of(map(str, self.requirements), separator=",")

    @property
    def handle(self) -> tuple[str, str] | None:
        """Return a label that everything matched must have, to index selectors by it; None if there is none."""
        exact = (
            requirement
            for requirement in self.requirements
            if requirement.operator == IN and len(requirement.values) == 1
        )
        first = next(exact, None)
        return None if first is None else (first.key, first.values[0])

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether all requirements hold."""
        # A loop is faster than all(); this runs for every selector when a pod with new labels is placed.
        for requirement in self.requirements:  # noqa: SIM110
            if not requirement.holds(labels):
                return False
        return True


EVERYTHING: Final = LabelSelector()
"""An empty selector."""
NOTHING: Final = LabelSelector(requirements=(Requirement(key=""),))
"""An absent selector: no value is in an empty list."""


def integer(text: str) -> int | None:
    """Return a text as a 64-bit integer; None if Kubernetes' rules, which are stricter than `int`, reject it."""
    number = int(text) if _INTEGER.fullmatch(text) else _INT64
    return number if -_INT64 <= number < _INT64 else None


def read(raw: object) -> LabelSelector:
    """Parse a label selector in Kubernetes' form. An empty selector matches everything.

    Raises:
        SelectorError: the text is not a label selector.
    """
    body = _object(raw, "labelSelector", ("matchLabels", "matchExpressions"))
    exact = []
    for key, value in _object(body.get("matchLabels") or {}, "matchLabels").items():
        if not isinstance(value, str):
            raise SelectorError(f"matchLabels.{key}: {value!r} is not a string")
        exact.append(Requirement(key=key, values=(value,)))
    listed = body.get("matchExpressions") or []
    if not isinstance(listed, list):
        raise SelectorError("matchExpressions: not a list")
    return LabelSelector(requirements=canonical((*exact, *map(_requirement, listed))))


def parse(text: str) -> LabelSelector:
    """Parse a label selector as kubectl writes it, by the API server's rules; see FORMS.

    Raises:
        SelectorError: the API server would refuse it.
    """
    requirements = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise SelectorError(f'cannot read "{text[position : position + 80]}"; allowed are {FORMS}')
        requirements.append(_checked(_parsed(match)))
        position = match.end()
    return LabelSelector(requirements=tuple(requirements))


def _parsed(match: re.Match[str]) -> Requirement:
    if match["key"]:
        operator = {"!=": NOT_IN, ">": GT, "<": LT}.get(match["operator"], IN)
        return Requirement(key=match["key"], operator=operator, values=(match["value"],))
    if match["member"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(key=match["member"], operator=IN if match["set"] == "in" else NOT_IN, values=values)
    return Requirement(key=match["present"], operator=DOES_NOT_EXIST if match["absent"] else EXISTS)


def _checked(requirement: Requirement) -> Requirement:
    if not _KEY.fullmatch(requirement.key):
        raise SelectorError(f'"{requirement.key[:80]}" is not the key of a label, such as topology.kubernetes.io/zone')
    if requirement.operator in (GT, LT) and integer(requirement.values[0]) is None:
        raise SelectorError(f'"{requirement.values[0][:80]}": after > and < there must be an integer')
    for value in requirement.values:
        if not _VALUE.fullmatch(value):
            raise SelectorError(f'"{value[:80]}" is not the value of a label: at most 63 letters, digits, ., _ and -')
    return requirement


def canonical(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Return requirements sorted and without duplicates, so that equal selectors are equal values."""
    return tuple(
        sorted(set(requirements), key=lambda requirement: (requirement.key, requirement.operator, requirement.values))
    )


def _requirement(raw: object) -> Requirement:
    body = _object(raw, "matchExpressions", ("key", "operator", "values"))
    key, operator, values = body.get("key"), body.get("operator"), body.get("values") or []
    if not isinstance(key, str) or not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SelectorError("matchExpressions: key must be a string, and values a list of strings")
    if operator not in OPERATORS:
        raise SelectorError(f'matchExpressions: operator "{operator}"; allowed are {", ".join(OPERATORS)}')
    if (operator in (IN, NOT_IN)) != bool(values):
        raise SelectorError(f"matchExpressions: {key} {operator} {values}; {IN} and {NOT_IN} need values, others none")
    return Requirement(key=key, operator=operator, values=tuple(sorted(values)))


def _object(raw: object, where: str, allowed: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise SelectorError(f"{where}: not an object")
    if allowed is not None and (unknown := [key for key in raw if key not in allowed]):
        raise SelectorError(f'{where}: "{unknown[0]}"; allowed are {", ".join(allowed)}')
    return raw
