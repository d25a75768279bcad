"""Types of CEL, as the checker infers them, and which types may stand where another type is declared."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.values import TYPE_NAMES, keys

MAX_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class Type:
    """A type, such as `map<string, int>`. The names of type variables begin with an apostrophe."""

    name: str
    params: "tuple[Type, ...]" = ()
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bound how deeply types are nested: a map of maps on both sides doubles with each level."""
        object.__setattr__(self, "depth", 1 + max((param.depth for param in self.params), default=0))
        if self.depth > MAX_DEPTH:
            raise SelectorError(f"types are nested more than {MAX_DEPTH} levels deep")

    def __str__(self) -> str:
        """Return the type as messages show it."""
        return f"{self.name}({', '.join(map(str, self.params))})" if self.params else self.name

    @property
    def is_variable(self) -> bool:
        """Return whether it is a variable for types."""
        return self.name.startswith("'")


DYN: Final = Type("dyn")
BOOL: Final = Type("bool")
INT: Final = Type("int")
STRING: Final = Type("string")

_PRIMITIVE: Final = frozenset({"bool", "int", "uint", "double", "string", "bytes", "list", "map", "type"})
"""Types that do not include null."""
_SIGNATURE: Final = re.compile(r"(?P<function>[^( ]+)\((?P<args>.*)\) (?P<result>\S.*)")


def list_of(element: Type) -> Type:
    """Return the type of a list."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type of a map."""
    return Type("map", (key, value))


def optional_of(content: Type) -> Type:
    """Return the type of an optional value."""
    return Type("optional_type", (content,))


@lru_cache(maxsize=256)
def parse_type(text: str) -> Type:
    """Return the type that a text such as `map<string, list<A>>` names. Capital letters are variables."""
    name, _, rest = text.partition("<")
    if len(name) == 1:
        return Type("'" + name)
    return Type(name, tuple(map(parse_type, _split(rest[:-1]))))


def parse_signature(text: str) -> tuple[str, tuple[Type, ...], Type]:
    """Return the function, the types of its arguments and of its result: `find(string, string) string`."""
    match = _SIGNATURE.fullmatch(text)
    assert match is not None, text  # noqa: S101 - the texts are in this package
    return match["function"], tuple(map(parse_type, _split(match["args"]))), parse_type(match["result"])


def _split(text: str) -> list[str]:
    """Return the parts between commas that are outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def fits(declared: Type, value: Any) -> bool:
    """Return whether a value is of a declared type; of a list or map, only the first element is looked at."""
    if declared.name == "dyn" or declared.is_variable:
        return True
    if TYPE_NAMES[type(value)] != declared.name:
        return False
    if declared.name == "list":
        return not value or fits(declared.params[0], value[0])
    if declared.name == "map" and value:
        key = next(keys(value))
        return fits(declared.params[0], key) and fits(declared.params[1], next(iter(value.values())))
    return True


class Unifier:
    """What is known about the variables for types while an expression is checked."""

    def __init__(self) -> None:
        self._known: dict[Type, Type] = {}
        self._count = 0

    def fresh(self) -> Type:
        """Return a new variable."""
        self._count += 1
        return Type(f"'{self._count}")

    def instantiate(self, types: Iterable[Type]) -> list[Type]:
        """Return types with a new variable in place of each one that they have."""
        renamed: dict[Type, Type] = {}
        return [self._rename(given, renamed) for given in types]

    def _rename(self, given: Type, renamed: dict[Type, Type]) -> Type:
        if given.is_variable:
            if given not in renamed:
                renamed[given] = self.fresh()
            return renamed[given]
        return Type(given.name, tuple(self._rename(param, renamed) for param in given.params))

    def resolve(self, given: Type) -> Type:
        """Return a type with the known types in place of its variables."""
        if given in self._known:
            return self.resolve(self._known[given])
        return Type(given.name, tuple(map(self.resolve, given.params))) if given.params else given

    def assignable(self, types: Iterable[Type], declared: Iterable[Type]) -> bool:
        """Return whether these types may stand for the declared types; if so, remember what follows."""
        before = dict(self._known)
        if all(map(self._assignable, types, declared)):
            return True
        self._known = before
        return False

    def _assignable(self, given: Type, declared: Type) -> bool:
        if declared.is_variable:
            is_valid, is_known = self._substitute(given, declared)
            if is_valid or is_known:
                return is_valid
        if given.is_variable:
            return self._substitute(declared, given)[0]
        if "dyn" in (given.name, declared.name):
            return True
        if "null_type" in (given.name, declared.name):
            return given == declared or (declared if given.name == "null_type" else given).name not in _PRIMITIVE
        if given.name != declared.name:
            return False
        return given.name == "type" or (
            len(given.params) == len(declared.params) and all(map(self._assignable, given.params, declared.params))
        )

    def _substitute(self, given: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether a variable may stand for a type, and whether something was known about it before."""
        if given == variable:
            return True, True
        known = self._known.get(variable)
        if known is None:
            is_valid = not self._occurs(variable, given)
            if is_valid:
                self._known[variable] = given
            return is_valid, False
        if given == known:
            return True, True
        if not self._assignable(given, known):
            return False, True
        general = given if less_specific(given, known) else known
        if not self._occurs(variable, general):
            self._known[variable] = general
        return True, True

    def _occurs(self, variable: Type, within: Type) -> bool:
        if within == variable:
            return True
        if within in self._known:
            return self._occurs(variable, self._known[within])
        return any(self._occurs(variable, param) for param in within.params)


def less_specific(left: Type, right: Type) -> bool:
    """Return whether a type equals another one, or has `dyn` where that has a type."""
    if left.name == "dyn" or left.is_variable:
        return True
    if right.name == "dyn" or right.is_variable or left.name != right.name:
        return False
    return left.name == "type" or (
        len(left.params) == len(right.params) and all(map(less_specific, left.params, right.params))
    )
