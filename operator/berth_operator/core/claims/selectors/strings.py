"""Functions of strings: the standard ones, and version 2 of the strings extension."""

from collections.abc import Callable
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions, methods

_TOO_LONG: Final = 1_000_000
"""Characters that `replace` and `join` refuse to build. Shorter results are measured once they exist."""
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_ESCAPES: Final = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _in_range(index: int, length: int) -> int:
    if not 0 <= index <= length:
        raise EvaluationError(f"index out of range: {index}")
    return index


def _char_at(text: str, index: int) -> str:
    _in_range(index, len(text))
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    if not part:
        return min(start, len(text))
    return text.find(part, start)


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part) if part else len(text)


def _last_index_from(text: str, part: str, start: int) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    if not part:
        return min(start, len(text))
    return -1 if start >= len(text) else text.rfind(part, 0, start + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old) if count < 0 else min(count, text.count(old))
    _bounded(len(text) + found * len(new))
    return text.replace(old, new, max(count, -1))


def _bounded(length: int) -> None:
    if length > _TOO_LONG:
        raise EvaluationError(f"a string of more than {_TOO_LONG} characters")


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, -1 if count < 0 else count - 1)
    if 0 < count < len(text):
        return [*text[: count - 1], text[count - 1 :]]
    return list(text)


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if start <= end:
        return text[_in_range(start, len(text)) : _in_range(end, len(text))]
    if end != len(text):
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    raise EvaluationError(f"index out of range: {start}")


def _join(parts: list[Any], separator: str = "") -> str:
    for part in parts:
        if not isinstance(part, str):
            raise EvaluationError(f"join: invalid input: {part}")
    _bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _quote(text: str) -> str:
    escapes = {**_ESCAPES, "\\": "\\\\", '"': '\\"'}
    return f'"{"".join(escapes.get(character, character) for character in text)}"'


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "contains(string, string) bool": str.__contains__,
    "startsWith(string, string) bool": str.startswith,
    "endsWith(string, string) bool": str.endswith,
    "charAt(string, int) string": _char_at,
    "indexOf(string, string) int": _index_of,
    "indexOf(string, string, int) int": _index_of,
    "lastIndexOf(string, string) int": _last_index_of,
    "lastIndexOf(string, string, int) int": _last_index_from,
    "lowerAscii(string) string": lambda text: text.translate(_LOWER),
    "upperAscii(string) string": lambda text: text.translate(_UPPER),
    "replace(string, string, string) string": _replace,
    "replace(string, string, string, int) string": _replace,
    "split(string, string) list<string>": _split,
    "split(string, string, int) list<string>": _split,
    "substring(string, int) string": _substring,
    "substring(string, int, int) string": _substring,
    "trim(string) string": lambda text: text.strip(_SPACE),
    "join(list<string>) string": _join,
    "join(list<string>, string) string": _join,
}
methods(_METHODS)
functions({"strings.quote(string) string": _quote})
