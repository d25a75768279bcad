"""Operators (https://github.com/google/cel-spec, definitions)."""

import math
from collections.abc import Callable
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions
from berth_operator.core.claims.selectors.values import (
    Duration,
    Timestamp,
    Uint,
    compare,
    contains,
    equal,
    find,
    get,
    int64,
    no_overload,
    to_key,
    type_name,
    uint64,
)

_MAX_SECONDS: Final = 253402300799
_MIN_SECONDS: Final = -62135596800

Pair = tuple[type, type]


def _timestamp(nanoseconds: int) -> Timestamp:
    if _MIN_SECONDS <= nanoseconds // 10**9 <= _MAX_SECONDS:
        return Timestamp(nanoseconds)
    raise EvaluationError("timestamp overflow")


def _duration(nanoseconds: int) -> Duration:
    return Duration(int64(nanoseconds))


_ADDED: Final[dict[Pair, Callable[[Any], Any]]] = {
    (int, int): int64,
    (Uint, Uint): uint64,
    (float, float): float,
    (str, str): str,
    (bytes, bytes): bytes,
    (list, list): list,
    (Timestamp, Duration): _timestamp,
    (Duration, Timestamp): _timestamp,
    (Duration, Duration): _duration,
}
_SUBTRACTED: Final[dict[Pair, Callable[[Any], Any]]] = {
    (int, int): int64,
    (Uint, Uint): uint64,
    (float, float): float,
    (Timestamp, Duration): _timestamp,
    (Timestamp, Timestamp): _duration,
    (Duration, Duration): _duration,
}
_MULTIPLIED: Final[dict[Pair, Callable[[Any], Any]]] = {(int, int): int64, (Uint, Uint): uint64, (float, float): float}


def _of_pair(results: dict[Pair, Callable[[Any], Any]], operator: str, left: Any, right: Any) -> Callable[[Any], Any]:
    found = results.get((type(left), type(right)))
    if found is None:
        raise no_overload(operator, left, right)
    return found


def add(left: Any, right: Any) -> Any:
    """Return the sum of numbers or times, or strings, bytes or lists one after the other.

    Raises:
        EvaluationError: the types do not fit, or the result does not fit 64 bits.
    """
    return _of_pair(_ADDED, "_+_", left, right)(left + right)


def _subtract(left: Any, right: Any) -> Any:
    return _of_pair(_SUBTRACTED, "_-_", left, right)(
        int(left) - int(right) if type(left) is not float else left - right
    )


def _multiply(left: Any, right: Any) -> Any:
    return _of_pair(_MULTIPLIED, "_*_", left, right)(left * right)


def _divide(left: Any, right: Any) -> Any:
    result = _of_pair(_MULTIPLIED, "_/_", left, right)
    if type(left) is float:
        if right != 0:
            return left / right
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return result(quotient if (left < 0) == (right < 0) else -quotient)


def _modulo(left: Any, right: Any) -> Any:
    if type(left) is not type(right) or type(left) not in (int, Uint):
        raise no_overload("_%_", left, right)
    if right == 0:
        raise EvaluationError("modulus by zero")
    int64(-left) if right == -1 else None
    rest = abs(left) % abs(right)
    return type(left)(-rest if left < 0 else rest)


def _negate(value: Any) -> Any:
    if type(value) in (int, Duration):
        return type(value)(int64(-value))
    if type(value) is float:
        return -value
    raise no_overload("-_", value)


def _not(value: Any) -> bool:
    if type(value) is not bool:
        raise no_overload("!_", value)
    return not value


def not_equal(left: Any, right: Any) -> bool:
    """Return whether two values differ; values that cannot be compared do."""
    try:
        return not equal(left, right)
    except EvaluationError:
        return True


def is_in(value: Any, container: Any) -> bool:
    """Return whether a value is an element of a list or a key of a map.

    Raises:
        EvaluationError: the container is neither.
    """
    if type(container) is list:
        return contains(container, value)
    if type_name(container) != "map":
        raise no_overload("_in_", value, container)
    try:
        return to_key(value) in container
    except EvaluationError:
        return False


# Overloads are in the order of Kubernetes: the first that fits decides what an unknown type is.
_TIME, _SPAN = "google.protobuf.Timestamp", "google.protobuf.Duration"
functions(
    {
        "_==_(A, A) bool": equal,
        "_!=_(A, A) bool": not_equal,
        "_?_:_(bool, A, A) A": get,
        "_in_(A, list<A>) bool": is_in,
        "_in_(A, map<A, B>) bool": is_in,
        "!_(bool) bool": _not,
        "-_(double) double": _negate,
        "-_(int) int": _negate,
        "_[_](list<A>, int) A": get,
        "_[_](map<A, B>, A) B": get,
        "_[_](optional_type<list<V>>, int) optional_type<V>": get,
        "_[_](optional_type<map<K, V>>, K) optional_type<V>": get,
        "_[?_](list<V>, int) optional_type<V>": find,
        "_[?_](optional_type<list<V>>, int) optional_type<V>": find,
        "_[?_](map<K, V>, K) optional_type<V>": find,
        "_[?_](optional_type<map<K, V>>, K) optional_type<V>": find,
        "_+_(bytes, bytes) bytes": add,
        "_+_(double, double) double": add,
        f"_+_({_SPAN}, {_SPAN}) {_SPAN}": add,
        f"_+_({_SPAN}, {_TIME}) {_TIME}": add,
        f"_+_({_TIME}, {_SPAN}) {_TIME}": add,
        "_+_(int, int) int": add,
        "_+_(list<A>, list<A>) list<A>": add,
        "_+_(string, string) string": add,
        "_+_(uint, uint) uint": add,
        "_-_(double, double) double": _subtract,
        f"_-_({_SPAN}, {_SPAN}) {_SPAN}": _subtract,
        "_-_(int, int) int": _subtract,
        f"_-_({_TIME}, {_SPAN}) {_TIME}": _subtract,
        f"_-_({_TIME}, {_TIME}) {_SPAN}": _subtract,
        "_-_(uint, uint) uint": _subtract,
        "_%_(int, int) int": _modulo,
        "_%_(uint, uint) uint": _modulo,
    }
)
for _type in ("double", "int", "uint"):
    functions({f"_*_({_type}, {_type}) {_type}": _multiply, f"_/_({_type}, {_type}) {_type}": _divide})
ORDER: Final[dict[str, Callable[[int], bool]]] = {
    "_<_": lambda order: order < 0,
    "_<=_": lambda order: order <= 0,
    "_>_": lambda order: order > 0,
    "_>=_": lambda order: order >= 0,
}
"""Operator -> whether it holds for what `compare` returns."""
_COMPARED: Final = (
    ("bool", "bool"),
    *(("int", right) for right in ("int", "double", "uint")),
    *(("uint", right) for right in ("uint", "double", "int")),
    *(("double", right) for right in ("double", "int", "uint")),
    *((name, name) for name in ("string", "bytes", _TIME, _SPAN)),
)
for _operator in ORDER:
    functions({f"{_operator}({_left}, {_right}) bool": compare for _left, _right in _COMPARED})
