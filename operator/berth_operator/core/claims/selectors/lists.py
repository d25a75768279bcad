"""Functions of lists, sets and optional values: version 3 of the lists extension, and Kubernetes' additions."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.operators import add
from berth_operator.core.claims.selectors.overloads import functions, methods
from berth_operator.core.claims.selectors.values import (
    NONE,
    Domains,
    Duration,
    OptionalValue,
    Uint,
    compare,
    contains,
    type_name,
)

MAX_RANGE: Final = 10_000
"""Elements of `lists.range`; Kubernetes allows 10,000,000."""

_TIME, _SPAN = "google.protobuf.Timestamp", "google.protobuf.Duration"
_COMPARABLE: Final = ("int", "uint", "double", "bool", "string", "bytes", _TIME, _SPAN)
_ZEROS: Final[dict[str, Any]] = {
    "int": 0,
    "uint": Uint(0),
    "double": 0.0,
    _SPAN: Duration(0),
}
_WITH_ZERO: Final = frozenset({bool, int, Uint, float, str, bytes, type(None), list, dict, Domains, Duration})
"""Types that have a zero value; quantities have none."""


def _is_sorted(values: list[Any]) -> bool:
    return all(compare(left, right) <= 0 for left, right in itertools.pairwise(values))


def _extreme(name: str, wanted: int) -> Callable[[list[Any]], Any]:
    def choose(values: list[Any]) -> Any:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        return functools.reduce(lambda best, value: value if compare(value, best) == wanted else best, values)

    return choose


def _sum(zero: Any) -> Callable[[list[Any]], Any]:
    return lambda values: functools.reduce(add, values, zero)


def _first_equal(indices: Iterable[int], values: list[Any], value: Any) -> int:
    return next((at for at in indices if contains([value], values[at])), -1)


def _index_of(values: list[Any], value: Any) -> int:
    return _first_equal(range(len(values)), values, value)


def _last_index_of(values: list[Any], value: Any) -> int:
    return _first_equal(reversed(range(len(values))), values, value)


def _includes(target: Any, value: Any) -> bool:
    return contains(target if isinstance(target, list) else [target], value)


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        flat.extend(_flatten(value, depth - 1) if isinstance(value, list) and depth else [value])
    return flat


def _sort(values: list[Any]) -> list[Any]:
    return _sort_by(values, values)


def _sort_by(values: list[Any], by: list[Any]) -> list[Any]:
    if len(by) > 1 and len({type_name(key) for key in by}) > 1:
        raise EvaluationError("list elements must have the same type")
    if by and type_name(by[0]) not in _COMPARABLE:
        raise EvaluationError("list elements must be comparable")
    order = functools.cmp_to_key(compare)
    return [values[at] for at in sorted(range(len(values)), key=lambda at: order(by[at]))]


def _range(count: int) -> list[int]:
    if not 0 <= count <= MAX_RANGE:
        raise EvaluationError(f"lists.range: size {count} is not from 0 to {MAX_RANGE}")
    return list(range(count))


def _distinct(values: list[Any]) -> list[Any]:
    unique: list[Any] = []
    for value in values:
        if not contains(unique, value):
            unique.append(value)
    return unique


def _contains_all(values: list[Any], others: list[Any]) -> bool:
    return all(contains(values, other) for other in others)


def _intersects(left: list[Any], right: list[Any]) -> bool:
    return any(contains(right, value) for value in left)


def _first(values: list[Any]) -> OptionalValue:
    return OptionalValue(values[0], present=True) if values else NONE


def _last(values: list[Any]) -> OptionalValue:
    return OptionalValue(values[-1], present=True) if values else NONE


def _of_non_zero(value: Any) -> OptionalValue:
    return NONE if not value and type(value) in _WITH_ZERO else OptionalValue(value, present=True)


def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.content


def _unwrap(values: list[Any]) -> list[Any]:
    for value in values:
        if not isinstance(value, OptionalValue):
            raise EvaluationError("value is not optional")
    return [value.content for value in values if value.present]


for _type in _COMPARABLE:
    methods(
        {
            f"isSorted(list<{_type}>) bool": _is_sorted,
            f"max(list<{_type}>) {_type}": _extreme("max", 1),
            f"min(list<{_type}>) {_type}": _extreme("min", -1),
            f"sort(list<{_type}>) list<{_type}>": _sort,
            f"@sortByAssociatedKeys(list<T>, list<{_type}>) list<T>": _sort_by,
        }
    )
for _type, _zero in _ZEROS.items():
    methods({f"sum(list<{_type}>) {_type}": _sum(_zero)})
_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "indexOf(list<A>, A) int": _index_of,
    "lastIndexOf(list<A>, A) int": _last_index_of,
    "includes(dyn, dyn) bool": _includes,
    "slice(list<T>, int, int) list<T>": _slice,
    "flatten(list<list<T>>) list<T>": _flatten,
    "flatten(list<dyn>, int) list<dyn>": _flatten,
    "reverse(list<T>) list<T>": lambda values: values[::-1],
    "distinct(list<T>) list<T>": _distinct,
    "first(list<V>) optional_type<V>": _first,
    "last(list<V>) optional_type<V>": _last,
    "value(optional_type<V>) V": _value,
    "hasValue(optional_type<V>) bool": lambda optional: optional.present,
    "or(optional_type<V>, optional_type<V>) optional_type<V>": lambda left, right: left if left.present else right,
    "orValue(optional_type<V>, V) V": lambda optional, default: optional.content if optional.present else default,
    "unwrapOpt(list<optional_type<V>>) list<V>": _unwrap,
}
methods(_METHODS)
functions(
    {
        "lists.range(int) list<int>": _range,
        "sets.contains(list<T>, list<T>) bool": _contains_all,
        "sets.equivalent(list<T>, list<T>) bool": lambda left, right: (
            _contains_all(left, right) and _contains_all(right, left)
        ),
        "sets.intersects(list<T>, list<T>) bool": _intersects,
        "optional.of(V) optional_type<V>": lambda value: OptionalValue(value, present=True),
        "optional.ofNonZeroValue(V) optional_type<V>": _of_non_zero,
        "optional.none() optional_type<V>": lambda: NONE,
        "optional.unwrap(list<optional_type<V>>) list<V>": _unwrap,
    }
)
