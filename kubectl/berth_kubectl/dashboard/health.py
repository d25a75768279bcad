"""The findings of `kubectl berth doctor` for the page: one run at a time, whose result is cached for a while."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import orjson

from berth_kubectl.dashboard import statuses
from berth_kubectl.errors import CommandError

KEPT: Final = 10.0
"""Seconds for which a result is kept; a run lists much of the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer to `/api/doctor`."""

    status: HTTPStatus
    body: bytes


class Health:
    """Runs the doctor."""

    def __init__(self, diagnose: Callable[[], dict[str, Any]], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it with what returns a diagnosis, or raises CommandError."""
        self._diagnose, self._clock = diagnose, clock
        self._running = threading.Lock()
        self._result: Result | None = None
        self._until = 0.0

    def result(self) -> Result:
        """Return the latest result, or run the doctor; others wait for the run meanwhile."""
        with self._running:
            if self._result is None or self._clock() >= self._until:
                try:
                    body = orjson.dumps({**self._diagnose(), "read": now()})
                    self._result = Result(status=HTTPStatus.OK, body=body)
                except CommandError as error:
                    text = statuses.status(HTTPStatus.BAD_GATEWAY, statuses.UNREACHABLE, str(error))
                    self._result = Result(status=HTTPStatus.BAD_GATEWAY, body=text)
                self._until = self._clock() + KEPT
            return self._result


def now() -> str:
    """Return the time in RFC 3339."""
    return datetime.now(tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
