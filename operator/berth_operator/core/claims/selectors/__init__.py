"""Selectors of devices: CEL expressions in DeviceClasses and ResourceClaims, evaluated as in Kubernetes 1.37.2.

Decision 32 has the reasons and the differences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from berth_operator.core.claims.selectors import conversions, lists, networks, quantities, regex, strings, times
from berth_operator.core.claims.selectors.checker import check
from berth_operator.core.claims.selectors.equality import equalities
from berth_operator.core.claims.selectors.errors import SelectorError, StepsError
from berth_operator.core.claims.selectors.evaluator import Evaluator
from berth_operator.core.claims.selectors.syntax import parse
from berth_operator.core.claims.selectors.values import Domains, type_name
from berth_operator.core.claims.selectors.version import Version
from berth_operator.core.claims.selectors.version import parse as parse_version
from berth_operator.core.claims.selectors.work import MAX_WORK

MAX_EXPRESSION: Final = 10 * 1024
"""Bytes of an expression, as the API server limits them."""
MAX_LIMITED: Final = 1_024
"""Characters of an expression that the operator's loop compiles itself."""
LIMITED_STEPS: Final = 1_000
"""Steps of an evaluation in the operator's loop: at most about a millisecond."""
_CACHED: Final = 512
"""Expressions that stay compiled, of up to 60 KB each."""

LIBRARY: Final = (conversions, lists, networks, quantities, regex, strings, times)
"""The modules that declare functions."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What a selector sees of a device. Names without a domain belong to the domain of the driver."""

    driver: str
    attributes: Mapping[str, bool | int | str | Version]
    capacity: Mapping[str, Decimal]
    allow_multiple_allocations: bool
    value: dict[str, Any] = field(init=False, repr=False, compare=False)
    """The variable `device`."""

    def __post_init__(self) -> None:
        """Group names by their domains, once for all selectors."""
        value = {
            "driver": self.driver,
            "allowMultipleAllocations": self.allow_multiple_allocations,
            "attributes": _by_domain(self.attributes, self.driver),
            "capacity": _by_domain(self.capacity, self.driver),
        }
        object.__setattr__(self, "value", value)


def _by_domain(values: Mapping[str, Any], driver: str) -> Domains:
    grouped = Domains()
    for name, value in values.items():
        domain, slash, rest = name.partition("/")
        grouped.setdefault(domain if slash else driver, {})[rest if slash else name] = value
    return grouped


class Evaluation(NamedTuple):
    """What an expression is for a device."""

    matches: bool
    error: str = ""
    """Why it cannot be computed; empty if it can."""
    steps: int = 0
    """How many it took."""


class Selector:
    """A compiled expression."""

    def __init__(self, expression: str, *, limited: bool = False) -> None:
        if len(expression.encode()) > MAX_EXPRESSION:
            raise SelectorError(f"the expression has more than {MAX_EXPRESSION} bytes")
        if limited and len(expression) > MAX_LIMITED:
            raise StepsError(LIMITED_STEPS)
        term = parse(expression)
        check(term)
        self._evaluator: Final = Evaluator(term, limited=limited)
        self.equalities: Final = equalities(term)
        """The attributes and constants that it compares if it has nothing but equalities; None otherwise."""

    def matches(self, device: DeviceView) -> bool:
        """Return whether the expression is true for a device.

        Raises:
            SelectorError: it cannot be computed (an attribute is missing, for example), is no boolean, or takes too
            much work.
        """
        outcome = self.evaluate(device)
        if outcome.error:
            raise SelectorError(outcome.error)
        return outcome.matches

    def evaluate(self, device: DeviceView, limit: int = MAX_WORK) -> Evaluation:
        """Return whether the expression is true for a device, or why that cannot be computed.

        Raises:
            StepsError: it takes more than `limit` steps.
        """
        value, steps = self._evaluator.evaluate(device.value, limit)
        if type(value) is bool:
            return Evaluation(value, steps=steps)
        if isinstance(value, SelectorError):
            return Evaluation(matches=False, error=str(value), steps=steps)
        error = f"CEL result of type {type_name(value)} could not be converted to bool"
        return Evaluation(matches=False, error=error, steps=steps)


def compile_selector(expression: str, *, limited: bool = False) -> Selector:
    """Return a compiled expression.

    Raises:
        StepsError: `limited`, and compiling it may take more than a few milliseconds.
        SelectorError: it does not compile.
    """
    compiled = _compiled(expression, limited)
    if isinstance(compiled, str):
        raise SelectorError(compiled)
    if compiled is None:
        raise StepsError(LIMITED_STEPS)
    return compiled


@lru_cache(maxsize=_CACHED)
def _compiled(expression: str, limited: bool) -> Selector | str | None:  # noqa: FBT001 - a part of the key
    """Return a compiled expression, or the reason why it does not compile.

    If compiling takes long, return None; the caller asks again.
    """
    try:
        return Selector(expression, limited=limited)
    except StepsError:
        return None
    except SelectorError as error:
        return f"compilation failed: {error}"


__all__ = [
    "LIMITED_STEPS",
    "MAX_EXPRESSION",
    "DeviceView",
    "Selector",
    "SelectorError",
    "StepsError",
    "Version",
    "compile_selector",
    "parse_version",
]
