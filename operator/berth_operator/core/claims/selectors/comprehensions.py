"""Macros over the elements of a list or the keys of a map."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.values import keys, no_overload, to_key
from berth_operator.core.claims.selectors.work import Evaluate, Frame, charge, sized

Steps = Callable[[Frame], Iterator[Any]]

_ELEMENT: Final = 2
"""Steps for an element, without the steps of the macro's body."""


def comprehension(kind: str, steps: Steps, body: Evaluate) -> Evaluate:
    """Return the function that evaluates a macro."""
    return _KINDS[kind](steps, body)


def steps(elements: Evaluate, slots: list[int], condition: Evaluate | None) -> Steps:
    """Return a function that sets the variables to each element and yields the first if the condition holds."""

    def step(frame: Frame) -> Iterator[Any]:
        container, has_pairs = elements(frame), len(slots) > 1
        elements_of: Iterable[Any]
        if type(container) is list:
            elements_of = enumerate(container) if has_pairs else ((value,) for value in container)
        elif isinstance(container, dict):
            names = keys(container)
            elements_of = zip(names, container.values(), strict=True) if has_pairs else ((key,) for key in names)
        else:
            raise no_overload("comprehension", container)
        for values in elements_of:
            charge(frame, _ELEMENT)
            for slot, value in zip(slots, values, strict=True):
                frame[slot] = value
            if condition is None or _is_true(condition(frame)):
                yield values[0]

    return step


def _is_true(value: Any) -> bool:
    if type(value) is not bool:
        raise no_overload("_?_:_", value)
    return bool(value)


def _quantifier(*, decisive: bool) -> Callable[[Steps, Evaluate], Evaluate]:
    def build(steps: Steps, body: Evaluate) -> Evaluate:
        def decide(frame: Frame) -> Any:
            failed: EvaluationError | None = None
            for _ in steps(frame):
                try:
                    value = body(frame)
                    if value is decisive:
                        return decisive
                    if type(value) is not bool:
                        failed = failed or no_overload("_&&_", value)
                except EvaluationError as error:
                    failed = failed or error
            if failed is not None:
                raise failed
            return not decisive

        return decide

    return build


def _exists_one(steps: Steps, body: Evaluate) -> Evaluate:
    return lambda frame: sum(_is_true(body(frame)) for _ in steps(frame)) == 1


def _mapped(steps: Steps, body: Evaluate) -> Evaluate:
    return lambda frame: sized(frame, [body(frame) for _ in steps(frame)])


def _map_values(steps: Steps, body: Evaluate) -> Evaluate:
    def transform(frame: Frame) -> Any:
        values: dict[Any, Any] = {}
        for key in steps(frame):
            _insert(values, to_key(key), body(frame))
        return sized(frame, values)

    return transform


def _map_entries(steps: Steps, body: Evaluate) -> Evaluate:
    def transform(frame: Frame) -> Any:
        values: dict[Any, Any] = {}
        for _ in steps(frame):
            entries = body(frame)
            if not isinstance(entries, dict):
                raise no_overload("transformMapEntry", entries)
            for key, value in entries.items():
                _insert(values, key, value)
        return sized(frame, values)

    return transform


def _insert(values: dict[Any, Any], key: Any, value: Any) -> None:
    if key in values:
        raise EvaluationError(f"insert failed: key {key} already exists")
    values[key] = value


_KINDS: Final[dict[str, Callable[[Steps, Evaluate], Evaluate]]] = {
    "all": _quantifier(decisive=False),
    "exists": _quantifier(decisive=True),
    "exists_one": _exists_one,
    "map": _mapped,
    "transformMap": _map_values,
    "transformMapEntry": _map_entries,
}
