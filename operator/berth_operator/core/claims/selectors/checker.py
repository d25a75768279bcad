"""Infer the types of terms. As in Kubernetes, an expression whose types do not fit is refused before evaluation."""

import functools
from collections import ChainMap
from collections.abc import Callable
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.overloads import OVERLOADS, Overload
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
from berth_operator.core.claims.selectors.types import (
    BOOL,
    DYN,
    INT,
    STRING,
    Type,
    Unifier,
    less_specific,
    list_of,
    map_of,
    optional_of,
    parse_type,
)
from berth_operator.core.claims.selectors.values import type_name

MAX_DEPTH: Final = 120
"""Levels of terms. A chain such as 1 + 1 + 1 has one level for each operator."""

DEVICE: Final = Type("kubernetes.DRADevice")
_DEVICE_FIELDS: Final = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, DYN)),
    "capacity": map_of(STRING, map_of(STRING, Type("kubernetes.Quantity"))),
}
UNSUPPORTED: Final = frozenset({"format", "validate", "url", "isURL"})
"""Functions of Kubernetes that no selector is known to use; decision 32 has the whole list."""
TYPE_IDENTS: Final = {
    **{name: Type(name) for name in ("bool", "bytes", "double", "int", "null_type", "string", "uint", "type")},
    "list": parse_type("list<dyn>"),
    "map": parse_type("map<dyn, dyn>"),
    **{name: Type(name) for name in ("google.protobuf.Timestamp", "google.protobuf.Duration", "net.IP", "net.CIDR")},
    "optional_type": parse_type("optional_type<dyn>"),
}
"""Types that an expression can name."""


def check(term: Term) -> None:
    """Check an expression over `device` that returns a boolean, and note in each call the overloads that fit.

    Raises:
        SelectorError: a name is unknown or types do not fit.
    """
    checker = _Checker()
    result = checker.resolve(checker.type_of(term))
    checker.check_literals()
    if result not in (BOOL, DYN) and not result.is_variable:
        raise SelectorError(f"must evaluate to bool or the unknown type, not {result}")


def qualified_name(term: Term) -> str | None:
    """Return the name that a term such as `a.b.c` spells; None if it is another term."""
    names: list[str] = []
    while isinstance(term, Select) and not (term.optional or term.test) and len(names) < MAX_DEPTH:
        names.append(term.name)
        term = term.operand
    return ".".join([term.name, *reversed(names)]) if isinstance(term, Ident) else None


def _without_variables(given: Type) -> Type:
    return DYN if given.is_variable else Type(given.name, tuple(map(_without_variables, given.params)))


_Fitting = tuple[list[Overload], list[Type]]
"""The overloads of a function that fit, and the types of their results."""


def _fitting(unifier: Unifier, function: str, types: tuple[Type, ...], *, is_method: bool) -> _Fitting:
    overloads, results = [], []
    for overload in OVERLOADS.get(function, ()):
        if overload.is_method != is_method or len(overload.args) != len(types):
            continue
        *args, result = unifier.instantiate((*overload.args, overload.result))
        if unifier.assignable(types, args):
            overloads.append(overload)
            results.append(unifier.resolve(result))
    return overloads, results


@functools.lru_cache(maxsize=1_024)
def _simple(function: str, is_method: bool, types: tuple[Type, ...]) -> _Fitting:  # noqa: FBT001 - one of a key
    """Return what fits types without parts: nothing that the checker learns changes it."""
    return _fitting(Unifier(), function, types, is_method=is_method)


class _Checker:
    def __init__(self) -> None:
        self._unifier = Unifier()
        self._scope: ChainMap[str, Type] = ChainMap({"device": DEVICE})
        self._depth = 0
        self._alike: list[list[Type]] = []
        """Types that must be equal once they are known: the types in one literal of a list or map."""
        self._rules: dict[type, Callable[[Any], Type]] = {
            Literal: lambda term: Type(type_name(term.value)),
            Ident: self._ident,
            Select: self._select,
            Call: self._call,
            ListTerm: self._list,
            MapTerm: self._map,
            Comprehension: self._comprehension,
            Bind: self._bind,
        }

    def resolve(self, given: Type) -> Type:
        """Return a type with the known types in place of its variables."""
        return self._unifier.resolve(given)

    def type_of(self, term: Term) -> Type:
        """Return the type of a term."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        found = self._rules[type(term)](term)
        self._depth -= 1
        return found

    def check_literals(self) -> None:
        """Check that the elements of a literal have one type. The checks of terms allow `dyn` next to another type.

        Raises:
            SelectorError: types differ.
        """
        for types in self._alike:
            first, *others = (_without_variables(self.resolve(given)) for given in types)
            for other in others:
                if other != first:
                    raise SelectorError(f"expected type '{first}' but found '{other}'")

    def _ident(self, term: Ident) -> Type:
        if term.name in self._scope:
            return self._scope[term.name]
        if term.name in TYPE_IDENTS:
            return Type("type", (TYPE_IDENTS[term.name],))
        raise SelectorError(f"undeclared reference to '{term.name}'")

    def _select(self, term: Select) -> Type:
        name = qualified_name(term)
        if name in TYPE_IDENTS:
            return Type("type", (TYPE_IDENTS[name],))
        operand = self.resolve(self.type_of(term.operand))
        is_optional = operand.name == "optional_type"
        if is_optional:
            operand = operand.params[0]
        field = DYN
        if operand.name == "map":
            field = operand.params[1]
        elif operand == DEVICE:
            if term.name not in _DEVICE_FIELDS:
                raise SelectorError(f"undefined field '{term.name}'; device has {', '.join(sorted(_DEVICE_FIELDS))}")
            field = _DEVICE_FIELDS[term.name]
        elif operand != DYN and not (operand.is_variable and self._unifier.assignable([DYN], [operand])):
            raise SelectorError(f"type '{operand}' does not support field selection")
        if term.test:
            return BOOL
        return optional_of(field) if is_optional or term.optional else field

    def _call(self, term: Call) -> Type:
        prefix = None if term.target is None else qualified_name(term.target)
        if prefix is not None and f"{prefix}.{term.function}" in OVERLOADS:
            term.function, term.target = f"{prefix}.{term.function}", None
        types = [self.type_of(operand) for operand in term.operands]
        if term.function in ("_&&_", "_||_"):
            for given in types:
                if not self._unifier.assignable([given], [BOOL]):
                    raise SelectorError(f"expected type 'bool' but found '{self.resolve(given)}'")
            return BOOL
        is_method = term.target is not None
        if types and not any(given.params or given.is_variable or given == DYN for given in types):
            term.overloads, results = _simple(term.function, is_method, tuple(types))
        else:
            term.overloads, results = _fitting(self._unifier, term.function, tuple(types), is_method=is_method)
        if results:
            return results[0] if all(result == results[0] for result in results) else DYN
        if term.function in UNSUPPORTED:
            raise SelectorError(f"Berth does not support the function '{term.function}' in selectors")
        if term.function not in OVERLOADS:
            raise SelectorError(f"undeclared reference to '{term.function}'")
        shown = [str(self.resolve(given)) for given in types]
        applied = f"{shown[0]}.({', '.join(shown[1:])})" if is_method else f"({', '.join(shown)})"
        raise SelectorError(f"found no matching overload for '{term.function}' applied to '{applied}'")

    def _list(self, term: ListTerm) -> Type:
        types = [
            self._content(self.type_of(element), is_optional=is_optional) for element, is_optional in term.elements
        ]
        return list_of(self._joined(types))

    def _map(self, term: MapTerm) -> Type:
        keys = [self.type_of(key) for key, _, _ in term.entries]
        values = [self._content(self.type_of(value), is_optional=is_optional) for _, value, is_optional in term.entries]
        return map_of(self._joined(keys), self._joined(values))

    def _content(self, given: Type, *, is_optional: bool) -> Type:
        if not is_optional or given == DYN:
            return given
        if given.name != "optional_type":
            raise SelectorError(f"expected type 'optional_type({given})' but found '{given}'")
        return given.params[0]

    def _joined(self, types: list[Type]) -> Type:
        """Return the most general of the types in a literal."""
        if not types:
            return self._unifier.fresh()
        self._alike.append(types)
        general = types[0]
        for given in types[1:]:
            if not self._unifier.assignable([general], [given]):
                raise SelectorError(f"expected type '{self.resolve(general)}' but found '{self.resolve(given)}'")
            general = general if less_specific(general, given) else given
        return general

    def _comprehension(self, term: Comprehension) -> Type:
        given, count = self.resolve(self.type_of(term.range)), len(term.variables)
        if given.name == "list":
            variables = [INT, given.params[0]][-count:]
        elif given.name == "map":
            variables = list(given.params[:count])
        elif given == DYN or given.is_variable:
            self._unifier.assignable([DYN], [given])
            variables = [DYN] * count
        else:
            raise SelectorError(
                f"expression of type '{given}' cannot be range of a comprehension (must be list, map, or dynamic)"
            )
        self._scope = self._scope.new_child(dict(zip(term.variables, variables, strict=True)))
        if term.condition is not None:
            self._expect(self.type_of(term.condition), BOOL)
        body = self.type_of(term.body)
        self._scope = self._scope.parents
        if term.kind in ("all", "exists", "exists_one"):
            self._expect(body, BOOL)
            return BOOL
        if term.kind == "map":
            return list_of(self.resolve(body))
        if term.kind == "transformMap":
            return map_of(self.resolve(variables[0]), self.resolve(body))
        inserted = map_of(self._unifier.fresh(), self._unifier.fresh())
        self._expect(body, inserted)
        return self.resolve(inserted)

    def _expect(self, given: Type, wanted: Type) -> None:
        if not self._unifier.assignable([wanted], [given]):
            raise SelectorError(f"expected type '{wanted}' but found '{self.resolve(given)}'")

    def _bind(self, term: Bind) -> Type:
        value = self.type_of(term.value)
        self._scope = self._scope.new_child({term.name: value})
        body = self.type_of(term.body)
        self._scope = self._scope.parents
        return self.resolve(body)
