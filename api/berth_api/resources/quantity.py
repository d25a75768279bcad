"""Quantities as Kubernetes writes them: `100`, `500m`, `16Gi`, `1e3`.

Amounts are integers here. `parse` rounds up to whole units, and `parse_milli` to thousandths. Kubernetes itself rounds
in the same way when it counts devices and processor time.

Kubernetes limits neither the digits nor the exponent of a quantity, so that any tenant can write `1e3000` or a million
digits. All of these are read here, with bounded work.
"""

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

MAX: Final = 2**53
"""The largest amount; larger ones are truncated to it. No node has as much, and the sum of a thousand fits 64 bits."""
MAX_LENGTH: Final = 64
"""Characters. Longer texts are neither cached nor quoted as a whole."""

_FORM: Final = re.compile(
    # No two parts can match the same digits, so that a text of a megabyte takes linear time.
    r"(?P<sign>[+-]?)(?=\.?[0-9])(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    # Kubernetes refuses exponents of more than 64 bits.
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<direction>[+-]?)0*(?P<exponent>[0-9]{1,19}))?"
)
_DIGITS: Final = 1000
"""Significant digits that are read, and the largest power of ten. `MAX` has 16 digits."""
_NANO: Final = 10**9
_MAX_BINARY: Final = 2**63 - 1
_BYTES: Final = ("memory", "ephemeral-storage", "gpu-memory", "kubernetes.io/gpu-memory", "koordinator.sh/gpu-memory")
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MULTIPLES: Final = tuple((suffix, power) for suffix, power in reversed(_DECIMAL.items()) if power > 0)


class QuantityError(ValueError):
    """A text is not a quantity."""


def parse(value: str | int) -> int:
    """Return a quantity in whole units, rounded up.

    Raises:
        QuantityError: the text is not a quantity.
    """
    text = str(value)
    return _scaled(text, 1) if len(text) <= MAX_LENGTH else _scaled.__wrapped__(text, 1)


def parse_milli(value: str | int) -> int:
    """Return a quantity in thousandths of a unit, rounded up; raises as `parse`."""
    text = str(value)
    return _scaled(text, 1000) if len(text) <= MAX_LENGTH else _scaled.__wrapped__(text, 1000)


def exact(text: str) -> Decimal:
    """Return a quantity as Kubernetes keeps it: rounded away from zero to 1n, and at most 2**63 - 1 if it is binary.

    Amounts from 1e1000 on, which Kubernetes keeps, are truncated to 1e1000.

    Raises:
        QuantityError: the text is not a quantity.
    """
    amount = _exact(text)
    nanos = -(-abs(amount) * _NANO // 1)
    if text.endswith("i"):
        nanos = min(nanos, _MAX_BINARY * _NANO)
    return Decimal(f"{'-' if amount < 0 else ''}{nanos}e-9")


def exact_text(value: str | int) -> str:
    """Return a quantity without its suffix, however large.

    For example, `100P` becomes `100000000000000000`, which is how it is stored. A quantity that is no whole number of
    units, or has more than MAX_LENGTH digits, is returned unchanged.

    Raises:
        QuantityError: the text is not a quantity.
    """
    exact = _exact(str(value))
    digits = str(exact.numerator)
    return digits if exact.denominator == 1 and len(digits) <= MAX_LENGTH else str(value)


def format_bytes(value: int) -> str:
    """Return bytes in the largest exact binary unit: `16Gi`, `81251Mi`, `1025`."""
    for suffix, bits in reversed(_BINARY.items()):
        if value and value % (1 << bits) == 0:
            return f"{value >> bits}{suffix}"
    return str(value)


def shortest_bytes(value: int) -> str:
    """Return bytes in the exact unit with the fewest digits, binary or decimal: `16Gi`, `10G`."""
    binary = format_bytes(value)
    decimal = next((f"{value // 10**power}{suffix}" for suffix, power in _MULTIPLES if value % 10**power == 0), binary)
    return min(binary, decimal, key=lambda text: sum(map(str.isdecimal, text)))


def of_resource(name: str, amount: int) -> str:
    """Return an amount as people write it: cpu (thousandths) in cores or as `500m`, bytes in the shortest unit."""
    if name == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return shortest_bytes(amount) if name in _BYTES else str(amount)


@lru_cache(maxsize=4096)
def _scaled(text: str, scale: int) -> int:
    exact = _exact(text) * scale
    rounded = -(-exact.numerator // exact.denominator)
    return max(-MAX, min(rounded, MAX))


def _exact(text: str) -> Fraction:
    """Return an amount: exact if it has at most `_DIGITS` digits and is between 1e-1000 and 1e1000.

    Larger and smaller amounts are truncated to these bounds. Of further digits, only whether one is not zero counts,
    which is all that rounding needs.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise QuantityError(f'"{text[:MAX_LENGTH]}" is not a quantity such as 1, 500m or 16Gi')
    suffix, fraction = match["suffix"], match["fraction"] or ""
    digits = (match["whole"] + fraction).lstrip("0")
    if not digits:
        return Fraction(0)
    power = _exponent(match["direction"], match["exponent"]) if match["exponent"] else _DECIMAL.get(suffix, 0)
    # The amount is 0.<digits> times ten to this power.
    magnitude = len(digits) - len(fraction) + power
    if abs(magnitude) > _DIGITS:
        digits, magnitude = "1", _DIGITS + 1 if magnitude > 0 else -_DIGITS
    elif len(digits) > _DIGITS:
        digits = digits[:_DIGITS] + ("1" if digits[_DIGITS:].strip("0") else "0")
    number, places = int(match["sign"] + digits) << _BINARY.get(suffix, 0), len(digits) - magnitude
    return Fraction(number, 10**places) if places > 0 else Fraction(number * 10**-places)


def _exponent(direction: str, digits: str) -> int:
    """Return an exponent as Kubernetes reads it, which keeps 32 bits: `1e4294967299` is 1000 there.

    Otherwise a pod could take more of its node than is charged to it.
    """
    return (int(direction + digits) + 2**31) % 2**32 - 2**31
