"""The table of functions. Each module of the library declares overloads, and the checker looks them up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_operator.core.claims.selectors.types import Type, fits, parse_signature
from berth_operator.core.claims.selectors.values import TYPE_NAMES


@dataclass(frozen=True, slots=True)
class Overload:
    """A function for arguments of these types."""

    is_method: bool
    args: tuple[Type, ...]
    result: Type
    function: Callable[..., Any]
    simple: tuple[str, ...] | None
    """The names of the arguments' types if none has parts to look at."""

    def accepts(self, values: list[Any]) -> bool:
        """Return whether values are of the declared types."""
        if len(values) != len(self.args):
            return False
        if self.simple is not None:
            return all(name == TYPE_NAMES[type(value)] for name, value in zip(self.simple, values, strict=True))
        return all(map(fits, self.args, values))


OVERLOADS: Final[dict[str, list[Overload]]] = {}
"""Name of a function, method or operator -> its overloads."""


def functions(declarations: Mapping[str, Callable[..., Any]]) -> None:
    """Declare functions by their signatures: `{"lists.range(int) list<int>": ...}`."""
    _declare(declarations, is_method=False)


def methods(declarations: Mapping[str, Callable[..., Any]]) -> None:
    """Declare methods; the first argument is the target: `{"charAt(string, int) string": ...}` for `"a".charAt(0)`."""
    _declare(declarations, is_method=True)


def _declare(declarations: Mapping[str, Callable[..., Any]], *, is_method: bool) -> None:
    for signature, function in declarations.items():
        name, args, result = parse_signature(signature)
        is_simple = not any(arg.params or arg.is_variable or arg.name == "dyn" for arg in args)
        simple = tuple(arg.name for arg in args) if is_simple else None
        OVERLOADS.setdefault(name, []).append(Overload(is_method, args, result, function, simple))
