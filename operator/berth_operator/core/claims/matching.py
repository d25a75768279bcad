"""Whether a device matches the selectors of a class and of a request."""

from collections.abc import Callable, Sequence
from typing import Protocol

from berth_operator.core.claims.errors import ClaimError, NodeError
from berth_operator.core.claims.selectors import DeviceView, SelectorError
from berth_operator.core.claims.slices import Device


class Selector(Protocol):
    """A compiled CEL selector."""

    def matches(self, device: DeviceView) -> bool:
        """Return whether a device matches; raise SelectorError."""
        ...


Compile = Callable[[str], Selector]
"""Compiles an expression, or returns what it compiled before; raises SelectorError."""


def matches(device: Device, expressions: Sequence[str | None], compile_selector: Compile, owner: str) -> bool:
    """Return whether a device matches all selectors of a claim or a class, `owner` in messages.

    They are compiled when they are needed, so one that no device reaches is never found wrong.

    Raises:
        ClaimError: a selector does not compile.
        NodeError: it cannot be evaluated for the device.
    """
    for number, expression in enumerate(expressions):
        if not _matches(device, number, expression or "", compile_selector, owner):
            return False
    return True


def _matches(device: Device, number: int, expression: str, compile_selector: Compile, owner: str) -> bool:
    try:
        selector = compile_selector(expression)
    except SelectorError as error:
        raise ClaimError(f"{owner}: selector #{number}: CEL compile error: {error}") from error
    if device.unsupported:
        raise NodeError(f"{owner}: selector #{number} on device {device.id}: {device.unsupported}")
    try:
        return selector.matches(device.view)
    except SelectorError as error:
        raise NodeError(f"{owner}: selector #{number} on device {device.id}: CEL runtime error: {error}") from error
