"""The label `genius/priority`, and how high the pods of each namespace may set it.

Any user can label a pod, and the queue takes pods with a higher value first. So all namespaces may use only values up
to 0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from berth_api import names

LEAST: Final = -(2**31)
MOST: Final = 2**31 - 1
EVERY: Final = "*"
"""Stands for a namespace: all namespaces that are not named."""
FORM: Final = r"(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)=[0-9]{1,10}"
"""The form of the highest value of a namespace: `team-a=10`."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,10}")


class PriorityError(ValueError):
    """The label's value is invalid, or higher than the namespace may set. The text names what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLimits:
    """The highest value of each namespace."""

    of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def highest(self, namespace: str) -> int:
        """Return the highest value that pods of a namespace may have."""
        return self.of.get(namespace, self.of.get(EVERY, 0))


UNLIMITED: Final = PriorityLimits(of=MappingProxyType({EVERY: MOST}))


def read_limits(text: str) -> PriorityLimits:
    """Read a list of the form `team-a=10,*=5`.

    Raises:
        ValueError: a value is not an int32, or a namespace is listed twice.
    """
    limits: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        namespace, _, value = entry.partition("=")
        if int(value) > MOST:
            raise ValueError(f"{entry}: allowed are whole numbers from 0 to {MOST}")
        if namespace in limits:
            raise ValueError(f"{namespace} is listed twice")
        limits[namespace] = int(value)
    return PriorityLimits(of=MappingProxyType(limits))


def of_pod(namespace: str, labels: Mapping[str, str], limits: PriorityLimits) -> int:
    """Return the value of a pod's label; 0 without it.

    Raises:
        PriorityError: it is no int32, or too high for the namespace.
    """
    text = labels.get(names.GENIUS_PRIORITY, "0")
    if not _WHOLE.fullmatch(text) or not LEAST <= int(text) <= MOST:
        raise PriorityError(
            f'label {names.GENIUS_PRIORITY}: "{text}" is not a whole number of 32 bits; allowed are such as 0, 5 or -1'
        )
    highest = limits.highest(namespace)
    if int(text) > highest:
        raise PriorityError(
            f'label {names.GENIUS_PRIORITY}: "{text}"; allowed in namespace {namespace} are whole numbers up to '
            f"{highest} (the operator's --genius-priorities)"
        )
    return int(text)
