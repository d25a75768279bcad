"""Work as a count of calls, which, unlike time, is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class TooMuchWorkError(Exception):
    """A call made more calls than allowed."""


def counted(act: Callable[[], T], most: int) -> tuple[T, int]:
    """Return the result of a call, and the number of calls that it made.

    Raises:
        TooMuchWorkError: it made more than `most`.
    """
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            sys.setprofile(None)
            raise TooMuchWorkError(f"more than {most} calls")

    sys.setprofile(count)
    try:
        result = act()
    finally:
        sys.setprofile(None)
    return result, calls
