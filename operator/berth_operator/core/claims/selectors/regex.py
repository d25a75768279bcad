"""Regular expressions, in time linear in the text. RE2 has the same syntax as Go's package."""

from functools import lru_cache
from typing import Any, Final

from berth_operator.core.claims.selectors.errors import EvaluationError, SelectorError
from berth_operator.core.claims.selectors.overloads import functions, methods

_CACHED: Final = 256
_SIMPLE: Final = 128
"""Characters of a simple pattern."""
_COSTLY: Final = ("{", "\\p", "\\P")
"""Repetitions multiply a pattern, and classes of Unicode have thousands of ranges: 130 ms for `[\\pL\\pN]{100}`."""


def is_simple(pattern: str) -> bool:
    """Return whether compiling a pattern takes less than a millisecond."""
    return len(pattern) <= _SIMPLE and not any(part in pattern for part in _COSTLY)


@lru_cache(maxsize=_CACHED)
def compiled(pattern: str) -> Any:
    """Return a regular expression.

    Raises:
        EvaluationError: the pattern is invalid.
        SelectorError: the library is not installed.
    """
    try:
        import re2  # noqa: PLC0415 - only where expressions have patterns
    except ImportError as error:
        raise SelectorError(
            "regular expressions in selectors need the library google-re2; install berth-operator[claims]"
        ) from error
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise EvaluationError(f"invalid regular expression {pattern!r}: {error}") from error


def _matches(text: str, pattern: str) -> bool:
    return compiled(pattern).search(text) is not None


def _find(text: str, pattern: str) -> str:
    match = compiled(pattern).search(text)
    return "" if match is None else match.group(0)


def _find_all(text: str, pattern: str, count: int = -1) -> list[str]:
    """Return matches that do not overlap. An empty match that touches the end of the match before does not count."""
    found: list[str] = []
    end = -1
    for match in compiled(pattern).finditer(text):
        if 0 <= count <= len(found):
            break
        if match.group(0) or match.start() != end:
            found.append(match.group(0))
        end = match.end()
    return found


functions({"matches(string, string) bool": _matches})
methods(
    {
        "matches(string, string) bool": _matches,
        "find(string, string) string": _find,
        "findAll(string, string) list<string>": _find_all,
        "findAll(string, string, int) list<string>": _find_all,
    }
)
