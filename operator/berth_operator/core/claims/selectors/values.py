"""Values of CEL in Python, and how they are compared.

| CEL | Python |
|---|---|
| bool, int, double, string, bytes, null_type | bool, int, float, str, bytes, None |
| uint, timestamp, duration | integers: Uint, and Timestamp and Duration in nanoseconds |
| list, map | list, dict; keys that are booleans are `BoolKey` there, because in Python True equals 1 |
| kubernetes.Quantity, kubernetes.Semver | Decimal, Version |
| net.IP, net.CIDR | addresses and interfaces of `ipaddress` |
| optional_type, type | OptionalValue, TypeValue |
"""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.version import Version

MAX_INT: Final = 2**63 - 1
MIN_INT: Final = -(2**63)
MAX_UINT: Final = 2**64 - 1
_DIGITS: Final = 21
"""No number with as many digits fits 64 bits."""


class Uint(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class Timestamp(int):
    """Nanoseconds since 1970 in UTC."""

    __slots__ = ()


class Duration(int):
    """Nanoseconds."""

    __slots__ = ()


class Sum(Decimal):
    """A quantity that `add` or `sub` returned; Kubernetes accepts it only on the left of `==`."""

    __slots__ = ()


class BoolKey(Enum):
    """A boolean as a key of a map."""

    FALSE = False
    TRUE = True


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: `int`, `type(1)`."""

    name: str


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value that may be absent."""

    content: Any = None
    present: bool = False


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format of strings, `format.dns1123Label()`."""

    name: str


NONE: Final = OptionalValue()


class Domains(dict[str, dict[str, Any]]):
    """Attributes or capacity of a device by domain. Looking up an unknown domain returns an empty map."""

    __slots__ = ()


TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    dict: "map",
    Domains: "map",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    TypeValue: "type",
    OptionalValue: "optional_type",
    Decimal: "kubernetes.Quantity",
    Sum: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
    NamedFormat: "kubernetes.NamedFormat",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    IPv4Interface: "net.CIDR",
    IPv6Interface: "net.CIDR",
}

_NUMBERS: Final = frozenset({int, Uint, float})
_ORDERED: Final = frozenset({str, bytes, bool, Timestamp, Duration})
_STRICT: Final = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "kubernetes.NamedFormat", "net.IP", "net.CIDR"})
"""Types whose values cannot be compared with values of other types, not even for equality."""
_KEYS: Final = frozenset({str, int, Uint, float, BoolKey})
_MISSING: Final = object()
_NO_ENTRIES: Final[dict[Any, Any]] = {}


def no_overload(function: str, *args: Any) -> EvaluationError:
    """Return the error of a function that does not take values of these types."""
    return EvaluationError(f"no such overload: {function}({', '.join(type_name(arg) for arg in args)})")


def type_name(value: Any) -> str:
    """Return the name of a value's type in CEL."""
    return TYPE_NAMES[type(value)]


def int64(value: int) -> int:
    """Return an integer that fits 64 bits.

    Raises:
        EvaluationError: it does not.
    """
    if MIN_INT <= value <= MAX_INT:
        return value
    raise EvaluationError("integer overflow")


def uint64(value: int) -> Uint:
    """Return an unsigned integer that fits 64 bits; raises as `int64`."""
    if 0 <= value <= MAX_UINT:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def from_decimal(text: str) -> int:
    """Return the integer of decimal digits with a sign; if 64 bits cannot hold it, some integer that they cannot hold.

    Python converts no text of more than 4,300 digits, and takes long for many.
    """
    sign = "-" if text.startswith("-") else ""
    return int(sign + (text.lstrip("+-").lstrip("0")[:_DIGITS] or "0"))


def equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal; numbers of different types may be.

    Raises:
        EvaluationError: the left one can only be compared with values of its own type.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS:
        return other in _NUMBERS and operator.eq(*_as_compared(left, right))
    if kind is list and other is list:
        return len(left) == len(right) and all(map(_not_unequal, left, right))
    if TYPE_NAMES[kind] == TYPE_NAMES[other] == "map":
        return _equal_maps(left, right)
    if TYPE_NAMES[kind] in _STRICT and right is not None:
        return _equal_strictly(left, right)
    if kind is OptionalValue and other is OptionalValue and left.present and right.present:
        return equal(left.content, right.content)
    return kind is other and bool(left == right)


def _as_compared(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two numbers as CEL compares them: next to a double, an integer is rounded to one."""
    return (
        (float(left), float(right))
        if type(left) is not type(right) and float in (type(left), type(right))
        else (left, right)
    )


def _not_unequal(left: Any, right: Any) -> bool:
    """Return whether elements let their lists be equal, which in CEL they also do if they cannot be compared."""
    try:
        return equal(left, right)
    except EvaluationError:
        return True


def _equal_maps(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(key in right and _not_unequal(left[key], right[key]) for key in left)


def _equal_strictly(left: Any, right: Any) -> bool:
    if type_name(left) != type_name(right) or type(right) is Sum:
        raise no_overload("_==_", left, right)
    return bool(left == right)


def contains(values: list[Any], value: Any) -> bool:
    """Return whether an element of a list equals a value."""
    return any(_is_equal(value, element) for element in values)


def _is_equal(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except EvaluationError:
        return False


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1: whether a value is less than, equal to or greater than another one.

    Raises:
        EvaluationError: values of these types, or NaN, have no order.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if math.isnan(left) or math.isnan(right):
            raise EvaluationError("NaN values cannot be ordered")
        left, right = _as_compared(left, right)
    elif kind is not other or kind not in _ORDERED:
        raise no_overload("_<_", left, right)
    return int(left > right) - int(left < right)


def to_key(value: Any) -> Any:
    """Return a value as a key of a dict.

    Raises:
        EvaluationError: values of its type are no keys.
    """
    if type(value) is bool:
        return BoolKey(value)
    if type(value) in _KEYS:
        return value
    raise EvaluationError(f"unsupported key type: {type_name(value)}")


def keys(values: dict[Any, Any]) -> Iterator[Any]:
    """Yield the keys of a map as values."""
    return (key.value if type(key) is BoolKey else key for key in values)


def get(container: Any, index: Any) -> Any:
    """Return the entry of a map at a key, or of a list at an index.

    Raises:
        EvaluationError: there is none.
    """
    value = _entry(container, index)
    if value is _MISSING:
        raise EvaluationError(f"no such key: {shown(index)}")
    return value


def find(container: Any, index: Any) -> OptionalValue:
    """Return the entry of a map or list, if there is one; other values have none.

    Raises:
        EvaluationError: the index can be no key or index.
    """
    value = _entry(container, index)
    return NONE if value is _MISSING else OptionalValue(value, present=True)


def _entry(container: Any, index: Any) -> Any:
    kind = type(container)
    if kind is dict or kind is Domains:
        missing = _NO_ENTRIES if kind is Domains else _MISSING
        return container.get(index if type(index) is str else to_key(index), missing)
    if kind is list:
        at = list_index(index)
        return container[at] if 0 <= at < len(container) else _MISSING
    return _MISSING


def shown(value: Any) -> str:
    """Return a key or index for messages."""
    return value if isinstance(value, str) else repr(value)


def list_index(index: Any) -> int:
    """Return an index as an integer.

    Raises:
        EvaluationError: it is no number, or it has a fraction.
    """
    if type(index) in _NUMBERS and index == math.floor(index):
        return int(index)
    raise EvaluationError(f"unsupported index type {type_name(index)} in list")
