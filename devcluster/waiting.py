"""Waiting for conditions: always with a deadline, never by guessing a time."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 0.25
SHARE: Final = 20
"""The longer it has waited, the less often it asks, because an API server answers: after a twentieth of the wait."""
PATIENCE: Final = 120.0
"""Seconds: a hundred times what most conditions take, for machines that are slow or busy."""


def until(
    condition: Callable[[], T],
    *,
    deadline: float = PATIENCE,
    what: str,
    poll: float = POLL_SECONDS,
) -> T:
    """Return the first truthy answer of `condition`; raise TimeoutError after `deadline` seconds."""
    start = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - start
        if waited > deadline:
            raise TimeoutError(f"waited {deadline:g} s for {what}; the last answer was {answer!r}")
        time.sleep(max(poll, min(waited / SHARE, LONGEST_POLL_SECONDS)))
    return answer
