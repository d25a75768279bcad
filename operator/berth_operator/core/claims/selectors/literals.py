"""Literals of CEL: numbers, and strings and bytes with their escape sequences."""

import math
import re
import sys
from typing import Final

from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.values import MAX_INT, MAX_UINT, MIN_INT, Uint, from_decimal

_ESCAPE: Final = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\"'\\?`])|[xX](?P<byte>[0-9a-fA-F]{2})"
    r"|(?:u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8}))|(?P<octal>[0-3][0-7]{2})|(?P<bad>.?))",
    re.DOTALL,
)
_SURROGATES: Final = range(0xD800, 0xE000)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def number(text: str) -> int | float | Uint:
    """Return a number, which may have a sign: `-12`, `0xff`, `3u`, `1.5e3`.

    Raises:
        SelectorError: it does not fit 64 bits.
    """
    if text[-1] in "uU" and not text.endswith(("e", "E")):
        value = int(text[:-1], 16) if "x" in text else from_decimal(text[:-1])
        if value <= MAX_UINT:
            return Uint(value)
    elif "x" in text or text.lstrip("-").isdigit():
        value = int(text, 16) if "x" in text else from_decimal(text)
        if MIN_INT <= value <= MAX_INT:
            return value
    elif math.isfinite(double := float(text)):
        return double
    raise SelectorError(f"{text:.64} does not fit 64 bits")


def string(text: str) -> str | bytes:
    """Return the value of a string or bytes with prefixes and quotes.

    Raises:
        SelectorError: an escape sequence is invalid.
    """
    start = min(text.find(quote) for quote in "\"'" if quote in text)
    prefix, quotes = text[:start].lower(), 3 if text[start : start + 3] in ('"""', "'''") else 1
    body = text[start + quotes : -quotes]
    if "b" in prefix:
        return body.encode() if "r" in prefix else b"".join(_bytes(body))
    return body if "r" in prefix else _ESCAPE.sub(_character, body)


def _character(match: re.Match[str]) -> str:
    if match["simple"]:
        return _SIMPLE.get(match["simple"], match["simple"])
    digits = match["byte"] or match["four"] or match["eight"]
    code = int(digits, 16) if digits else int(match["octal"] or "-1", 8)
    if not 0 <= code <= sys.maxunicode or code in _SURROGATES:
        raise SelectorError(f"{match[0]} is not an escape sequence of a string")
    return chr(code)


def _bytes(body: str) -> list[bytes]:
    parts, at = [], 0
    for match in _ESCAPE.finditer(body):
        if match["simple"]:
            escaped = _SIMPLE.get(match["simple"], match["simple"]).encode()
        elif match["byte"] or match["octal"]:
            escaped = bytes([int(match["byte"], 16) if match["byte"] else int(match["octal"], 8)])
        else:
            raise SelectorError(f"{match[0]} is not an escape sequence of bytes")
        parts += [body[at : match.start()].encode(), escaped]
        at = match.end()
    return [*parts, body[at:].encode()]
