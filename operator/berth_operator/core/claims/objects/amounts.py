"""Quantities of capacities and counters. They are exact, and written as Kubernetes writes them."""

from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from berth_api.resources import quantity

UNIT: Final = 10**9
"""Amounts are in billionths, the smallest that Kubernetes keeps."""
MILLI: Final = 10**6
MAX_INT64: Final = 2**63 - 1

DECIMAL: Final = "DecimalSI"
BINARY: Final = "BinarySI"
EXPONENT: Final = "DecimalExponent"
_SUFFIXES: Final = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class ExactQuantity(NamedTuple):
    """An amount in billionths, and its written format."""

    amount: int
    format: str = DECIMAL

    @staticmethod
    def parse(value: str | int) -> "ExactQuantity":
        """Return a quantity, rounded as in Kubernetes: away from zero to billionths, and below 8Ei for a binary one.

        Raises:
            QuantityError: the text is not a quantity.
        """
        text = str(value)
        return _parse(text) if len(text) <= quantity.MAX_LENGTH else _parse.__wrapped__(text)

    def __str__(self) -> str:
        """Return the canonical text."""
        if self.format == BINARY and abs(self.amount) >= 1024 * UNIT and self.amount % UNIT == 0:
            amount, power = self.amount // UNIT, 0
            while amount % 1024 == 0 and power + 1 < len(_BINARY_SUFFIXES):
                amount, power = amount // 1024, power + 1
            return f"{amount}{_BINARY_SUFFIXES[power]}"
        if self.amount == 0:
            return "0"
        amount, exponent = self.amount, -9
        while amount % 1000 == 0:
            amount, exponent = amount // 1000, exponent + 3
        if self.format == EXPONENT:
            return f"{amount}e{exponent}" if exponent else str(amount)
        if exponent > max(_SUFFIXES):
            amount, exponent = amount * 10 ** (exponent - 18), 18
        return f"{amount}{_SUFFIXES[exponent]}"

    def decimal(self) -> Decimal:
        """Return the exact amount in whole units."""
        return Decimal(f"{self.amount}e-9")


@lru_cache(maxsize=4096)
def _parse(text: str) -> ExactQuantity:
    numerator, denominator = quantity.exact(text).as_integer_ratio()
    amount = numerator * UNIT // denominator
    if text.endswith("i"):
        # As in Kubernetes, which avoids fractions of binary units.
        return ExactQuantity(amount, DECIMAL if abs(amount) < UNIT else BINARY)
    # `1E` is a suffix, `1E3` an exponent.
    return ExactQuantity(amount, EXPONENT if "e" in text or "E" in text[:-1] else DECIMAL)
