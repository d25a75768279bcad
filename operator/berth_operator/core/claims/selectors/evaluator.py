"""Compile terms into functions of a device. The closure of each term calls the closures of its parts."""

from collections.abc import Callable
from typing import Any, Final

from berth_operator.core.claims.selectors.checker import TYPE_IDENTS, qualified_name
from berth_operator.core.claims.selectors.comprehensions import comprehension, steps
from berth_operator.core.claims.selectors.errors import EvaluationError, SelectorError, StepsError
from berth_operator.core.claims.selectors.operators import ORDER, add, is_in, not_equal
from berth_operator.core.claims.selectors.regex import compiled, is_simple
from berth_operator.core.claims.selectors.terms import (
    Bind,
    Call,
    Comprehension,
    Ident,
    ListTerm,
    Literal,
    MapTerm,
    Select,
    Term,
)
from berth_operator.core.claims.selectors.values import (
    NONE,
    OptionalValue,
    TypeValue,
    Uint,
    compare,
    equal,
    find,
    get,
    no_overload,
    to_key,
    type_name,
)
from berth_operator.core.claims.selectors.version import Version
from berth_operator.core.claims.selectors.work import DEVICE, WORK, Evaluate, Frame, charge, sized, weight

_QUADRATIC: Final = frozenset({"distinct", "sets.contains", "sets.intersects", "sets.equivalent"})
"""Functions that compare each element of a list with each other one."""
_PATTERNS: Final = frozenset({"matches", "find", "findAll"})
"""Functions whose second argument is a regular expression. A constant pattern is compiled with the expression."""
_CONSTANTS: Final = frozenset({bool, int, Uint, float, str})
_PATTERN_WORK: Final = 200
"""Steps of compiling a regular expression that is no constant."""
_CALL: Final = 2
_PARSED: Final = 8
"""Steps of a function that parses its argument."""
_PARSERS: Final = frozenset({"quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "cidr", "isCIDR"})
FOLDED: Final = 100_000
LIMITED_FOLDED: Final = 1_000
"""Steps that computing the constants of an expression may take; others are computed for each device."""
_CONVERSIONS: Final = frozenset({"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "uint"})
"""Functions that Kubernetes computes when it compiles, so that an invalid constant is an error in any case."""


class Evaluator:
    """An expression that can be evaluated for devices."""

    def __init__(self, term: Term, *, limited: bool) -> None:
        """Compile a term; if `limited`, raise StepsError if its regular expressions may take long."""
        builder = _Builder(limited=limited)
        self._evaluate = builder.build(term)
        self._empty: Final[Frame] = [None] * builder.slots

    def evaluate(self, device: dict[str, Any], limit: int) -> tuple[Any, int]:
        """Return the value for a device, or the error that is it, and the steps that it took, at most `limit`.

        Raises:
            StepsError: it takes more.
        """
        frame = self._empty.copy()
        frame[WORK], frame[DEVICE] = limit, device
        try:
            value = self._evaluate(frame)
        except StepsError:
            raise StepsError(limit) from None
        except SelectorError as error:
            value = error
        return value, limit - max(0, frame[WORK])


class _Builder:
    def __init__(self, *, limited: bool) -> None:
        self.slots = 2
        self._limited = limited
        self._folding: Frame = [LIMITED_FOLDED if limited else FOLDED, None]
        """What is left to compute constants."""
        self._scopes: dict[str, list[tuple[int, bool]]] = {"device": [(DEVICE, False)]}
        """Variable -> (slot, whether it is computed when used) of each scope that has it, the innermost last."""
        self._constants: dict[Evaluate, Any] = {}
        self._literals: set[Evaluate] = set()
        """The constants that Kubernetes knows when it compiles."""
        self._rules: dict[type, Callable[[Any], Evaluate]] = {
            Literal: lambda term: self._constant(term.value),
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            ListTerm: self._list,
            MapTerm: self._map,
            Comprehension: self._comprehension,
            Bind: self._bind,
        }

    def build(self, term: Term) -> Evaluate:
        """Return the function that evaluates a term."""
        return self._rules[type(term)](term)

    def _constant(self, value: Any, *, is_literal: bool = True) -> Evaluate:
        def constant(_frame: Frame) -> Any:
            return value

        self._constants[constant] = value
        if is_literal:
            self._literals.add(constant)
        return constant

    def _folded(self, evaluate: Evaluate, parts: list[Evaluate], *, is_literal: bool = False) -> Evaluate:
        """Return a constant for a term that depends on constants alone. Errors are raised only at evaluation."""
        if not all(part in self._constants for part in parts):
            return evaluate
        try:
            value = evaluate(self._folding)
        except SelectorError:
            return evaluate
        return self._constant(value, is_literal=is_literal and self._literals.issuperset(parts))

    # Variables

    def _enter(self, name: str, *, is_lazy: bool = False) -> int:
        slot = self.slots
        self.slots += 1
        self._scopes.setdefault(name, []).append((slot, is_lazy))
        return slot

    def _ident(self, term: Ident) -> Evaluate:
        if not self._scopes.get(term.name):
            return self._constant(TypeValue(TYPE_IDENTS[term.name].name))
        slot, is_lazy = self._scopes[term.name][-1]
        if is_lazy:
            return lambda frame: frame[slot](frame)
        return lambda frame: frame[slot]

    def _bind(self, term: Bind) -> Evaluate:
        value = self.build(term.value)
        slot = self._enter(term.name, is_lazy=True)
        body = self.build(term.body)
        self._scopes[term.name].pop()

        def compute(frame: Frame) -> Any:
            try:
                result = value(frame)
            except EvaluationError as error:
                frame[slot] = _raising(error)
                raise
            frame[slot] = lambda _frame: result
            return result

        def bound(frame: Frame) -> Any:
            frame[WORK] -= 1
            frame[slot] = compute
            return body(frame)

        return bound

    # Fields and elements

    def _select(self, term: Select) -> Evaluate:
        if qualified_name(term) in TYPE_IDENTS:
            return self._constant(TypeValue(TYPE_IDENTS[str(qualified_name(term))].name))
        operand, name, is_test = self.build(term.operand), term.name, term.test
        if is_test or term.optional:

            def look(frame: Frame) -> Any:
                frame[WORK] -= 1
                found = _found(operand(frame), name)
                return found.present if is_test else found

            return look

        def select(frame: Frame) -> Any:
            frame[WORK] -= 1
            container = operand(frame)
            if type(container) is dict and name in container:
                return container[name]
            return _got(container, name)

        return select

    def _index(self, parts: list[Evaluate]) -> Evaluate:
        container, index = parts
        if index in self._constants:
            key = self._constants[index]

            def at_key(frame: Frame) -> Any:
                frame[WORK] -= 1
                return _got(container(frame), key)

            return at_key

        def at_index(frame: Frame) -> Any:
            frame[WORK] -= 1
            found = container(frame)
            return NONE if _is_none(found) else _got(found, index(frame))

        return at_index

    # Calls

    def _call(self, term: Call) -> Evaluate:
        parts = [self.build(operand) for operand in term.operands]
        if term.function in _CONVERSIONS and len(parts) == 1 and parts[0] in self._literals:
            return self._constant(self._function(term, parts)([FOLDED, None]))
        if term.function in _PATTERNS:
            pattern = self._constants.get(parts[1])
            if self._limited and not (isinstance(pattern, str) and is_simple(pattern)):
                raise StepsError(LIMITED_FOLDED)
            if isinstance(pattern, str) and parts[1] in self._literals:
                compiled(pattern)
        if term.function == "_in_" and parts[1] in self._literals:
            container = self._constants[parts[1]]
            if container == []:
                return self._constant(value=False)  # Kubernetes does not evaluate what cannot be in an empty list
            if type(container) is list and _CONSTANTS.issuperset(map(type, container)):
                parts[0] = _hashed(parts[0])
        special = _SPECIAL.get(term.function)
        if special is not None and (term.target is None or term.function in ("or", "orValue")):
            return special(*parts)
        if term.function == "_[_]":
            return self._index(parts)
        if term.function in ("_&&_", "_||_"):
            return _logical(parts, decisive=term.function == "_||_")
        return self._folded(self._function(term, parts), parts)

    def _function(self, term: Call, parts: list[Evaluate]) -> Evaluate:
        overloads, name, power = term.overloads, term.function, 2 if term.function in _QUADRATIC else 1
        least = _PARSED if name in _PARSERS else _CALL
        if name in _PATTERNS and parts[1] not in self._constants:
            least = _PATTERN_WORK

        def call(frame: Frame) -> Any:
            values = [part(frame) for part in parts]
            charge(frame, least + sum(map(weight, values)) ** power)
            for overload in overloads:
                if overload.accepts(values):
                    return sized(frame, overload.function(*values))
            raise no_overload(name, *values)

        return call

    # Lists, maps and macros

    def _list(self, term: ListTerm) -> Evaluate:
        parts = [(self.build(element), is_optional) for element, is_optional in term.elements]

        def create(frame: Frame) -> Any:
            values = []
            for part, is_optional in parts:
                value = part(frame)
                if not is_optional:
                    values.append(value)
                elif _optional(value).present:
                    values.append(value.content)
            return sized(frame, values)

        return self._folded(create, [part for part, _ in parts], is_literal=True)

    def _map(self, term: MapTerm) -> Evaluate:
        parts = [(self.build(key), self.build(value), is_optional) for key, value, is_optional in term.entries]

        def create(frame: Frame) -> Any:
            values: dict[Any, Any] = {}
            for key, of_key, is_optional in parts:
                at, value = to_key(key(frame)), of_key(frame)
                if not is_optional:
                    values[at] = value
                elif _optional(value).present:
                    values[at] = value.content
            return sized(frame, values)

        return self._folded(create, [part for key, value, _ in parts for part in (key, value)], is_literal=True)

    def _comprehension(self, term: Comprehension) -> Evaluate:
        elements = self.build(term.range)
        slots = [self._enter(name) for name in term.variables]
        condition = None if term.condition is None else self.build(term.condition)
        body = self.build(term.body)
        for name in term.variables:
            self._scopes[name].pop()
        return comprehension(term.kind, steps(elements, slots, condition), body)


def _raising(error: EvaluationError) -> Evaluate:
    def fail(_frame: Frame) -> Any:
        raise error

    return fail


def _optional(value: Any) -> OptionalValue:
    if not isinstance(value, OptionalValue):
        raise EvaluationError("cannot initialize an optional element from a value that is not optional")
    return value


def _is_none(value: Any) -> bool:
    """Return whether it is an absent optional value. Then an index is not evaluated."""
    return isinstance(value, OptionalValue) and not value.present


def _got(container: Any, index: Any) -> Any:
    return _found(container, index) if isinstance(container, OptionalValue) else get(container, index)


def _found(container: Any, index: Any) -> OptionalValue:
    if isinstance(container, OptionalValue):
        return find(container.content, index) if container.present else NONE
    return find(container, index)


def _conditional(condition: Evaluate, when_true: Evaluate, when_false: Evaluate) -> Evaluate:
    def choose(frame: Frame) -> Any:
        frame[WORK] -= 1
        value = condition(frame)
        if type(value) is not bool:
            raise no_overload("_?_:_", value)
        return when_true(frame) if value else when_false(frame)

    return choose


def _logical(parts: list[Evaluate], *, decisive: bool) -> Evaluate:
    """Return `&&` or `||`: the decisive value of any operand is the result, even if others are errors."""

    def decide(frame: Frame) -> Any:
        failed: EvaluationError | None = None
        for part in parts:
            frame[WORK] -= 1
            try:
                value = part(frame)
                if value is decisive:
                    return decisive
                if type(value) is not bool:
                    failed = failed or no_overload("_||_" if decisive else "_&&_", value)
            except EvaluationError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return not decisive

    return decide


def _equality(left: Evaluate, right: Evaluate) -> Evaluate:
    def is_equal(frame: Frame) -> bool:
        value, other = left(frame), right(frame)
        charge(frame, 1 + weight(value))
        return equal(value, other)

    return is_equal


def _inequality(left: Evaluate, right: Evaluate) -> Evaluate:
    def differs(frame: Frame) -> bool:
        value, other = left(frame), right(frame)
        charge(frame, 1 + weight(value))
        return not_equal(value, other)

    return differs


def _order(holds: Callable[[int], bool]) -> Callable[[Evaluate, Evaluate], Evaluate]:
    def build(left: Evaluate, right: Evaluate) -> Evaluate:
        def is_ordered(frame: Frame) -> bool:
            frame[WORK] -= 1
            return holds(compare(left(frame), right(frame)))

        return is_ordered

    return build


def _addition(left: Evaluate, right: Evaluate) -> Evaluate:
    def plus(frame: Frame) -> Any:
        frame[WORK] -= 1
        return sized(frame, add(left(frame), right(frame)))

    return plus


def _membership(left: Evaluate, right: Evaluate) -> Evaluate:
    def is_member(frame: Frame) -> bool:
        value, container = left(frame), right(frame)
        charge(frame, 1 + weight(container))
        return is_in(value, container)

    return is_member


def _hashed(value: Evaluate) -> Evaluate:
    """Return the value to look up in a list of constants.

    Kubernetes has a table for such lists, which takes no versions.
    """

    def hashable(frame: Frame) -> Any:
        found = value(frame)
        if type(found) in (Version, bytes):
            raise SelectorError(f"a value of type {type_name(found)} cannot be looked up in a list of constants")
        return found

    return hashable


def _or_optional(left: Evaluate, right: Evaluate) -> Evaluate:
    def either(frame: Frame) -> Any:
        frame[WORK] -= 1
        value = left(frame)
        if not isinstance(value, OptionalValue):
            raise no_overload("or", value)
        return value if value.present else right(frame)

    return either


def _or_value(left: Evaluate, right: Evaluate) -> Evaluate:
    def either(frame: Frame) -> Any:
        frame[WORK] -= 1
        value = left(frame)
        if not isinstance(value, OptionalValue):
            raise no_overload("orValue", value)
        return value.content if value.present else right(frame)

    return either


def _optional_index(container: Evaluate, index: Evaluate) -> Evaluate:
    def at_index(frame: Frame) -> OptionalValue:
        frame[WORK] -= 1
        found = container(frame)
        return NONE if _is_none(found) else _found(found, index(frame))

    return at_index


_SPECIAL: Final[dict[str, Callable[..., Evaluate]]] = {
    "_?_:_": _conditional,
    "_==_": _equality,
    "_!=_": _inequality,
    "_+_": _addition,
    "_in_": _membership,
    "_[?_]": _optional_index,
    "or": _or_optional,
    "orValue": _or_value,
    **{operator: _order(holds) for operator, holds in ORDER.items()},
}
