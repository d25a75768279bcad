"""Selectors of devices: CEL expressions in DeviceClasses and ResourceClaims, evaluated as Kubernetes 1.37.2 does.

Decision 32 has the reasons and the differences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from berth_operator.core.claims.selectors import conversions, lists, networks, quantities, regex, strings, times
from berth_operator.core.claims.selectors.checker import check
from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.evaluator import Evaluator
from berth_operator.core.claims.selectors.syntax import parse
from berth_operator.core.claims.selectors.values import Domains, type_name
from berth_operator.core.claims.selectors.version import Version
from berth_operator.core.claims.selectors.version import parse as parse_version

MAX_EXPRESSION: Final = 10 * 1024
"""Bytes of an expression, as the API server limits them."""
_CACHED: Final = 1_024

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


class Selector:
    """A compiled expression."""

    def __init__(self, expression: str) -> None:
        if len(expression.encode()) > MAX_EXPRESSION:
            raise SelectorError(f"the expression has more than {MAX_EXPRESSION} bytes")
        term = parse(expression)
        check(term)
        self._evaluator: Final = Evaluator(term)

    def matches(self, device: DeviceView) -> bool:
        """Return whether the expression is true for a device.

        Raises:
            SelectorError: it cannot be computed, such as for a missing attribute, is no boolean or takes too much work.
        """
        value = self._evaluator.evaluate(device.value)
        if type(value) is not bool:
            raise SelectorError(f"CEL result of type {type_name(value)} could not be converted to bool")
        return value


def compile_selector(expression: str) -> Selector:
    """Return a compiled expression.

    Raises:
        SelectorError: it does not compile.
    """
    compiled = _compiled(expression)
    if isinstance(compiled, str):
        raise SelectorError(compiled)
    return compiled


@lru_cache(maxsize=_CACHED)
def _compiled(expression: str) -> Selector | str:
    """Return a compiled expression, or why it does not compile: such a class is asked for again for each node."""
    try:
        return Selector(expression)
    except SelectorError as error:
        return f"compilation failed: {error}"


__all__ = ["MAX_EXPRESSION", "DeviceView", "Selector", "SelectorError", "Version", "compile_selector", "parse_version"]
