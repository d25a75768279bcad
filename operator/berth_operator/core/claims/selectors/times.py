"""Timestamps and durations. The time zone of timestamps is UTC."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions, methods
from berth_operator.core.claims.selectors.values import MAX_INT, MIN_INT, Duration, Timestamp, from_decimal

_TIME, _SPAN = "google.protobuf.Timestamp", "google.protobuf.Duration"
_SECOND: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]+))?(Z|[+-](?:[01][0-9]|2[0-4]):[0-5][0-9])"
)
_FIRST, _LAST = -62135596800, 253402300799
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_DIGITS: Final = 20
"""The maximum number of digits of a fraction. Further digits are less than a nanosecond in any unit."""
_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_PARTS: Final = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")


def _timestamp(text: str) -> Timestamp:
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise EvaluationError(f"type conversion error from 'string' to '{_TIME}'")
    try:
        moment = datetime.fromisoformat(f"{match[1]}+00:00")
    except ValueError as error:
        raise EvaluationError(f"type conversion error from 'string' to '{_TIME}'") from error
    nanoseconds = int((match[2] or "")[:9].ljust(9, "0"))
    zone, offset = match[3], 0
    if zone != "Z":
        offset = (int(zone[1:3]) * 3600 + int(zone[4:6]) * 60) * (-1 if zone[0] == "-" else 1)
    return _from_seconds((moment - _EPOCH) // timedelta(seconds=1) - offset, nanoseconds)


def _from_seconds(seconds: int, nanoseconds: int = 0) -> Timestamp:
    if not _FIRST <= seconds <= _LAST:
        raise EvaluationError("timestamp overflow")
    return Timestamp(seconds * _SECOND + nanoseconds)


def _duration(text: str) -> Duration:
    total = 0
    for number, unit in _PART.findall(text):
        whole, _, fraction = number.partition(".")
        total += from_decimal(whole) * _UNITS[unit] + int(Fraction(f"0.{fraction[:_DIGITS]}0") * _UNITS[unit])
    total = -total if text.startswith("-") else total
    if not _PARTS.fullmatch(text) or not MIN_INT <= total <= MAX_INT:
        raise EvaluationError(f"type conversion error from 'string' to '{_SPAN}'")
    return Duration(total)


def _duration_text(duration: Duration) -> str:
    seconds, rest = divmod(abs(duration), _SECOND)
    return f"{'-' if duration < 0 else ''}{seconds}{f'.{rest:09}'.rstrip('0') if rest else ''}s"


def _timestamp_text(timestamp: Timestamp) -> str:
    rest = timestamp % _SECOND
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{_moment(timestamp):%Y-%m-%dT%H:%M:%S}{fraction}Z".rjust(20, "0")


def _moment(timestamp: Timestamp) -> datetime:
    return _EPOCH + timedelta(seconds=timestamp // _SECOND)


def _field(read: Callable[[datetime], int]) -> Callable[[Timestamp], int]:
    return lambda timestamp: read(_moment(timestamp))


def _whole(unit: int) -> Callable[[Duration], int]:
    return lambda duration: abs(duration) // unit * (-1 if duration < 0 else 1)


functions(
    {
        f"timestamp({_TIME}) {_TIME}": lambda timestamp: timestamp,
        f"timestamp(int) {_TIME}": _from_seconds,
        f"timestamp(string) {_TIME}": _timestamp,
        f"duration({_SPAN}) {_SPAN}": lambda duration: duration,
        f"duration(string) {_SPAN}": _duration,
        f"string({_TIME}) string": _timestamp_text,
        f"string({_SPAN}) string": _duration_text,
    }
)
methods(
    {
        f"getFullYear({_TIME}) int": _field(lambda moment: moment.year),
        f"getMonth({_TIME}) int": _field(lambda moment: moment.month - 1),
        f"getDayOfYear({_TIME}) int": _field(lambda moment: moment.timetuple().tm_yday - 1),
        f"getDayOfMonth({_TIME}) int": _field(lambda moment: moment.day - 1),
        f"getDate({_TIME}) int": _field(lambda moment: moment.day),
        f"getDayOfWeek({_TIME}) int": _field(lambda moment: moment.isoweekday() % 7),
        f"getHours({_TIME}) int": _field(lambda moment: moment.hour),
        f"getMinutes({_TIME}) int": _field(lambda moment: moment.minute),
        f"getSeconds({_TIME}) int": _field(lambda moment: moment.second),
        f"getMilliseconds({_TIME}) int": lambda timestamp: timestamp % _SECOND // 10**6,
        f"getHours({_SPAN}) int": _whole(3600 * _SECOND),
        f"getMinutes({_SPAN}) int": _whole(60 * _SECOND),
        f"getSeconds({_SPAN}) int": _whole(_SECOND),
        f"getMilliseconds({_SPAN}) int": _whole(10**6),
    }
)
