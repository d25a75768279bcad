"""Amounts and times in kubectl's short forms."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from berth_api.allocation import short
from berth_api.resources import quantity

UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
GI: Final = 2**30


def age(seconds: float) -> str:
    """Return a duration as kubectl's column AGE shows it: `95s`, `12m`, `3h20m`, `5d`."""
    whole = int(seconds)
    if whole < 120:  # noqa: PLR2004 - as kubectl
        return f"{max(0, whole)}s"
    for (unit, size), (smaller, part) in pairwise(UNITS):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}{f'{rest}{smaller}' if rest and whole < 10 * size else ''}"
    return f"{whole}s"


def requests(amounts: Mapping[str, int]) -> str:
    """Return amounts without spaces and prefixes: `cpu=500m,gpu-core=50,gpu-memory=40Gi`."""
    return ",".join(
        f"{short(name)}={quantity.of_resource(short(name), amount)}" for name, amount in sorted(amounts.items())
    )


def memory(amount: int) -> str:
    """Return bytes in GiB, with four digits: `39.5Gi`."""
    return f"{amount / GI:.4g}Gi"


def cards(hundredths: float) -> str:
    """Return hundredths of cards as cards, to hundredths: `1.5`."""
    return f"{round(hundredths) / 100:g}"
