"""Errors that end a command with one line, and the exit statuses."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

ANSWERED: Final = 0
"""The answer is positive: rows were printed, all pods fit, nothing is wrong."""
NEGATIVE: Final = 1
"""The answer is negative: a pod does not fit, something is wrong."""
NOT_ANSWERED: Final = 2
"""The command could not answer: a mistake in its arguments, no connection, a missing right, no such object."""


class CommandError(Exception):
    """The command cannot answer; the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What a request needs, in the words of RBAC."""

    verb: str
    resource: str
    """With its group: `devices.berth.dev`, `pods/explanation`."""
    namespace: str = ""
    """Empty for the whole cluster."""
    role: str = ""
    """The ClusterRole that grants it and is shipped with Berth or Kubernetes; empty if there is none."""

    def __str__(self) -> str:
        where = f"in the namespace {self.namespace}" if self.namespace else "in the whole cluster"
        role = f"; the ClusterRole {self.role} has it" if self.role else ""
        return f'the right to {self.verb} "{self.resource}" {where}{role}'


class ReadError(CommandError):
    """The API server did not answer a request as wanted."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float = 0.0) -> None:
        """Create the error; `status` is the HTTP status, 0 without an answer; `retry_after` is in seconds."""
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    @property
    def is_missing(self) -> bool:
        """Return whether the object or its kind does not exist."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def is_forbidden(self) -> bool:
        """Return whether the user lacks a right."""
        return self.status == HTTPStatus.FORBIDDEN

    @property
    def is_unavailable(self) -> bool:
        """Return whether an aggregated API has no server, or none that leads."""
        return self.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
