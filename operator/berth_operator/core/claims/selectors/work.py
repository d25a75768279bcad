"""The work of an evaluation, and its bound."""

from collections.abc import Callable, Collection
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import SelectorError, StepsError
from berth_operator.core.claims.selectors.values import OptionalValue

MAX_WORK: Final = 2_000_000
"""The maximum number of steps of an evaluation, each about a microsecond at most.

One step counts for a field, an operand of an operator, an element that a function reads or returns, and 16 characters.
Two steps count for a call, and for an element that a macro visits. Kubernetes allows a cost of 1,000,000, of which
these take at least half as much.
"""
MAX_LENGTH: Final = 100_000
"""Characters or elements of a value that an expression may build."""

Frame = list[Any]
"""Work left, the device, and the values of the variables."""
Evaluate = Callable[[Frame], Any]

WORK: Final = 0
DEVICE: Final = 1


def charge(frame: Frame, work: int) -> None:
    """Count steps.

    Raises:
        StepsError: there are too many; no operator hides this error.
    """
    frame[WORK] -= work
    if frame[WORK] < 0:
        raise StepsError


def weight(value: Any) -> int:
    """Return the steps that it takes to read a value; raises as `length`."""
    if isinstance(value, str | bytes):
        return len(value) >> 4
    return length(value) if isinstance(value, _CONTAINERS) else 0


def length(value: Any) -> int:
    """Return the characters of a string, or all elements within a list or map; 0 for other values.

    An element that is twice in a list counts twice, because comparing it takes as long.

    Raises:
        SelectorError: there are more than MAX_LENGTH.
    """
    if isinstance(value, str | bytes):
        return len(value)
    total, left = 0, [value] if isinstance(value, _CONTAINERS) else []
    while left:
        part = left.pop()
        elements: Collection[Any]
        if isinstance(part, OptionalValue):
            elements = (part.content,)
        else:
            elements = part.values() if isinstance(part, dict) else part
        total += 1 + len(elements)
        if total > MAX_LENGTH:
            raise SelectorError(f"the expression builds a value of more than {MAX_LENGTH} characters or elements")
        left.extend(element for element in elements if isinstance(element, _CONTAINERS))
    return total


_CONTAINERS: Final = (list, dict, OptionalValue)


def sized(frame: Frame, value: Any) -> Any:
    """Return a value that was built, after charging its length; raises as `charge` and `length`."""
    size = length(value)
    if size > MAX_LENGTH:
        raise SelectorError(f"the expression builds a value of more than {MAX_LENGTH} characters or elements")
    charge(frame, size if isinstance(value, _CONTAINERS) else size >> 4)
    return value
