"""Parse Prometheus' answer to an instant query.

An answer for 8,000 cards has about a megabyte. It is parsed card by card, so that decisions can run in between.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

import orjson

MAX_SERIES: Final = 65_536
_BEGIN: Final = b'{"metric":'
_VALUE: Final = b'"value":['
_VECTOR: Final = b'"resultType":"vector"'
_SUCCESS: Final = b'"status":"success"'


class AnswerError(Exception):
    """An answer does not come from a Prometheus."""


def vector(body: bytes) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the value of each series whose value is finite.

    Raises:
        AnswerError: the body is no instant vector, or has too many series.
    """
    # Quotes in labels are escaped, so that neither mark can be a part of one.
    head, *parts = body.split(_BEGIN)
    if _SUCCESS not in head or _VECTOR not in head:
        raise AnswerError(f"the answer is no instant vector of Prometheus: {head[:80]!r}")
    if len(parts) > MAX_SERIES:
        raise AnswerError(f"{len(parts)} series; allowed are {MAX_SERIES}")
    for part in parts:
        end = part.find(b"]}", part.find(_VALUE))
        try:
            series: Any = orjson.loads(_BEGIN + part[: end + 2])
            labels = {str(name): str(text) for name, text in series["metric"].items()}
            value = float(series["value"][1])
        except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise AnswerError(f"a series cannot be read: {part[:80]!r}") from error
        if math.isfinite(value):
            yield labels, value
