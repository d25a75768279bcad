"""Conversions of numbers, strings, bytes and types, and sizes (https://github.com/google/cel-spec, definitions)."""

import math
import re
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions, methods
from berth_operator.core.claims.selectors.values import (
    Timestamp,
    TypeValue,
    Uint,
    from_decimal,
    int64,
    no_overload,
    type_name,
    uint64,
)

_TIME, _SPAN = "google.protobuf.Timestamp", "google.protobuf.Duration"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_UNSIGNED: Final = re.compile(r"[0-9]+")
_DOUBLE: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE
)
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _failed(value: Any, wanted: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{type_name(value)}' to '{wanted}'")


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise _failed(value, "int")
        return int64(from_decimal(value))
    if isinstance(value, float):
        return int64(_truncated(value, 2.0**63, -(2.0**63), "int"))
    return int64(int(value) // 10**9 if isinstance(value, Timestamp) else int(value))


def _to_uint(value: Any) -> Uint:
    if isinstance(value, str):
        if not _UNSIGNED.fullmatch(value):
            raise _failed(value, "uint")
        return uint64(from_decimal(value))
    if isinstance(value, float):
        return Uint(_truncated(value, 2.0**64, -1.0, "uint"))
    return uint64(int(value))


def _truncated(value: float, above: float, below: float, wanted: str) -> int:
    if not below < value < above:
        raise EvaluationError(f"{wanted} overflow")
    return int(value)


def _to_double(value: Any) -> float:
    if not isinstance(value, str):
        return float(value)
    if not _DOUBLE.fullmatch(value):
        raise _failed(value, "double")
    number = float(value)
    if math.isinf(number) and "n" not in value.lower():
        raise _failed(value, "double")
    return number


def _to_bool(value: str) -> bool:
    if value not in _TRUE | _FALSE:
        raise _failed(value, "bool")
    return value in _TRUE


def format_double(value: float) -> str:
    """Return a double as Go's `%g` does."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    digits, _, exponent = f"{value:e}".partition("e")
    shortest = repr(value)
    if -4 <= int(exponent) < 21:  # noqa: PLR2004 - where %g changes to exponents
        plain = format(value, "f") if "e" not in shortest else f"{value:.25f}".rstrip("0")
        plain = shortest if "e" not in shortest else plain
        return plain.removesuffix(".0").removesuffix(".")
    mantissa = shortest.partition("e")[0] if "e" in shortest else digits.rstrip("0")
    return f"{mantissa.removesuffix('.0').removesuffix('.')}e{int(exponent):+03d}"


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from error
    return str(int(value)) if isinstance(value, int) else str(value)


def _identity(value: Any) -> Any:
    return value


def _size(value: Any) -> int:
    if type_name(value) not in ("string", "bytes", "list", "map"):
        raise no_overload("size", value)
    return len(value)


functions(
    {
        "dyn(A) dyn": _identity,
        "type(A) type<A>": lambda value: TypeValue(type_name(value)),
        "bool(bool) bool": _identity,
        "bool(string) bool": _to_bool,
        "bytes(bytes) bytes": _identity,
        "bytes(string) bytes": str.encode,
    }
)
for _wanted, _convert, _sources in (
    ("int", _to_int, ("int", "double", _SPAN, "string", _TIME, "uint")),
    ("uint", _to_uint, ("uint", "double", "int", "string")),
    ("double", _to_double, ("double", "int", "string", "uint")),
    ("string", _to_string, ("string", "bool", "bytes", "double", "int", "uint")),
):
    functions({f"{_wanted}({_source}) {_wanted}": _convert for _source in _sources})
for _type in ("bytes", "list<A>", "map<A, B>", "string"):
    functions({f"size({_type}) int": _size})
    methods({f"size({_type}) int": _size})
