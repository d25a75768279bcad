"""The failures of a call to the API server: refused by the server (`ApiError`), or without an answer (`Unreachable`).

HTTP statuses are compared by the names of `http.HTTPStatus`.
"""

from http import HTTPStatus
from typing import Self

from berth_client.objects import Object


class CallError(Exception):
    """A call to the API server failed."""

    status: int = 0
    """The HTTP status; 0 if there was no answer."""

    @property
    def is_refused(self) -> bool:
        """Return whether the server refused the request (4xx); otherwise it may have been executed."""
        return 0 < self.status < HTTPStatus.INTERNAL_SERVER_ERROR


class Unreachable(CallError):  # noqa: N818 - a state of the network, not a mistake
    """There is no usable answer: whether a write was executed is unknown."""


class ApiError(CallError):
    """The API server refused a request.

    Attributes:
        status: the HTTP status.
        reason: the machine-readable reason of the Status object, such as "Conflict".
        message: its message for people.
        retry_after: the seconds after which to try again, if the server named them.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def of_status(cls, status: Object, *, retry_after: float | None = None) -> Self:
        """Read a Kubernetes Status object."""
        return cls(
            int(status.get("code") or 0),
            str(status.get("reason") or "Unknown"),
            str(status.get("message") or ""),
            retry_after,
        )
