"""A parser under test: its inputs, and the errors that it documents."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis.strategies import SearchStrategy

MAX_SECONDS: Final = 5.0
"""Of processor time for one input; the slowest takes a hundredth of it."""
MAX_MESSAGE: Final = 2**16
"""Characters of an error's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser, which returns a value or raises one of its errors, whatever the input."""

    name: str
    inputs: SearchStrategy[Any]
    parse: Callable[[Any], object]
    """Parses one input; what must hold of the value is asserted here."""
    errors: tuple[type[Exception], ...] = ()
    """The errors that it documents; none if it accepts every input."""
    seconds: float = MAX_SECONDS
    """The most processor time for one input."""


class TooSlowError(Exception):
    """An input took longer than allowed."""


class TooLongError(Exception):
    """The text of an error is longer than allowed."""


def check(target: Target, value: Any) -> None:
    """Parse one input.

    Raises:
        TooSlowError: it took too long.
        TooLongError: an error's text is too long.
        Exception: any error that the parser does not document.
    """
    started = time.process_time()
    try:
        target.parse(value)
    except target.errors as error:
        if len(str(error)) > MAX_MESSAGE:
            raise TooLongError(f"{len(str(error))} characters of an error; allowed are {MAX_MESSAGE}") from error
    seconds = time.process_time() - started
    if seconds > target.seconds:
        raise TooSlowError(f"{seconds:.1f} s of processor time; allowed are {target.seconds}")


# --- seeds ----------------------------------------------------------------------------------------------------------


def encoded(value: Any) -> Any:
    """Return an input in the form of a seed: JSON, in which bytes are an object."""
    if not isinstance(value, bytes):
        return value
    try:
        return {"utf8": value.decode()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def decoded(seed: Any) -> Any:
    """Return the input of a seed; `{"repeat": [piece, number]}` in place of a text stands for a long one."""
    match seed:
        case {"utf8": text}:
            value: Any = str(decoded(text)).encode()
        case {"hex": digits}:
            value = bytes.fromhex(digits)
        case {"repeat": [piece, int(number)]}:
            value = piece * number
        case {"join": pieces}:
            value = "".join(decoded(piece) for piece in pieces)
        case dict():
            value = {key: decoded(each) for key, each in seed.items()}
        case list():
            value = [decoded(each) for each in seed]
        case _:
            value = seed
    return value
