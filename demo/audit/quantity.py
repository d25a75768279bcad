"""Quantities: `100`, `500m`, `16Gi`, `1e3`."""

import math
import re
from fractions import Fraction
from typing import Final

FORM: Final = re.compile(r"([+-]?\d*\.?\d*(?:[eE][+-]?\d{1,2})?)([A-Za-z]*)")
UNITS: Final = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", start=1)},
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def exact(value: object) -> Fraction:
    """Return a quantity as an exact number; raise ValueError if it is not a quantity."""
    match = FORM.fullmatch(str(value))
    if match is None or match[2] not in UNITS or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a quantity")
    try:
        return Fraction(match[1]) * UNITS[match[2]]
    except ValueError:
        raise ValueError(f"{value!r} is not a quantity") from None


def whole(value: object) -> int:
    """Return a quantity in whole units, rounded up as Kubernetes does."""
    return math.ceil(exact(value))


def shown(resource: str, amount: Fraction) -> str:
    """Return an amount for messages: memory in GiB, shares of a card in percent."""
    number = float(amount)
    if resource.endswith("memory"):
        return f"{number / 1024**3:.6g}Gi"
    if resource in ("gpu-core", "gpu-memory-ratio"):
        return f"{number:g} %"
    return f"{number:g}"
