"""The failures of a call to the API server: refused by the server (`ApiError`), or without an answer (`Unreachable`).

HTTP statuses are compared by the names of `http.HTTPStatus`.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Self

from berth_client.objects import Object

_NAME: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)"
_REFUSERS: Final = {
    "validatingadmissionpolicy/": re.compile(f"ValidatingAdmissionPolicy '{_NAME}'"),
    "mutatingadmissionpolicy/": re.compile(f"MutatingAdmissionPolicy '{_NAME}'"),
    "webhook/": re.compile(f'admission webhook "{_NAME}" denied the request'),
}
"""How the API server's messages name the admission policy or webhook that refused a request."""
_NO_RIGHT: Final = re.compile(r"User \S+ cannot [a-z]+ resource ")
AUTHORIZATION: Final = "authorization"
"""The refuser if the account may not send the request."""


def refuser_of(message: str) -> str:
    """Return the policy or webhook that the API server's message names, or `AUTHORIZATION`; empty if it names none."""
    for prefix, pattern in _REFUSERS.items():
        if match := pattern.search(message):
            return prefix + match[1]
    return AUTHORIZATION if _NO_RIGHT.search(message) else ""


class CallError(Exception):
    """A call to the API server failed."""

    status: int = 0
    """The HTTP status; 0 if there was no answer."""

    @property
    def is_refused(self) -> bool:
        """Return whether the server refused the request (4xx); otherwise it may have been executed."""
        return 0 < self.status < HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def refuser(self) -> str:
        """Return what refused the request, such as `webhook/NAME`; empty if the server does not name it."""
        return ""

    @property
    def is_missing(self) -> bool:
        """Return whether the object does not exist. A webhook may refuse a request with the same status, 404."""
        return self.status == HTTPStatus.NOT_FOUND and not self.refuser


class Unreachable(CallError):  # noqa: N818 - a state of the network, not a mistake
    """There is no usable answer: whether a write was executed is unknown."""


class PageTooLarge(CallError):  # noqa: N818 - a state of the list, not a mistake
    """A page of a list has more bytes than are read; the rest of it was not read."""


class ApiError(CallError):
    """The API server refused a request.

    Attributes:
        status: the HTTP status.
        reason: the machine-readable reason of the Status object, such as "Conflict".
        message: its message for people.
        retry_after: the seconds after which to try again, if the server named them.
        fields: the fields that the server names as causes, such as those that another field manager owns.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None, *, fields: Sequence[str] = ()
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.fields = fields

    @property
    def refuser(self) -> str:
        """Return the policy or webhook that refused the request, or `AUTHORIZATION`; empty if none is named."""
        return refuser_of(self.message)

    @classmethod
    def of_status(cls, status: Object, *, retry_after: float | None = None) -> Self:
        """Read a Kubernetes Status object."""
        causes = (status.get("details") or {}).get("causes") or ()
        return cls(
            int(status.get("code") or 0),
            str(status.get("reason") or "Unknown"),
            str(status.get("message") or ""),
            retry_after,
            fields=[str(cause["field"]) for cause in causes if cause.get("field")],
        )
