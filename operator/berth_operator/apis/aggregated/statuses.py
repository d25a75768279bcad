"""Kubernetes' Status objects. All failures are answered with one."""

from http import HTTPStatus
from typing import Final

from berth_client.objects import Object

TOO_LARGE: Final = "ResourceVersionTooLarge"
"""The cause by which clients recognize that a replica does not have their version yet."""


class StatusError(Exception):
    """A request fails.

    Attributes:
        code: the HTTP status.
        reason: Kubernetes' word for it, such as `Expired`.
        retry_after: seconds after which the client may try again; 0 if it need not wait.
        cause: a further word, for clients that look for it.
        token: the token with which a list may continue; empty if it cannot.
    """

    def __init__(
        self,
        code: HTTPStatus,
        reason: str,
        message: str,
        *,
        retry_after: int = 0,
        cause: str = "",
        token: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after, self.cause, self.token = code, reason, retry_after, cause, token

    @property
    def status(self) -> Object:
        """Return the Status object."""
        details = {
            **({"retryAfterSeconds": self.retry_after} if self.retry_after else {}),
            **({"causes": [{"reason": self.cause, "message": str(self)}]} if self.cause else {}),
        }
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.token} if self.token else {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": int(self.code),
        }


def bad_request(message: str) -> StatusError:
    """Return the failure of a request that cannot be read."""
    return StatusError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def invalid(message: str) -> StatusError:
    """Return the failure of options that contradict each other."""
    return StatusError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)


def unauthorized(message: str) -> StatusError:
    """Return the failure of a request of an unknown user."""
    return StatusError(HTTPStatus.UNAUTHORIZED, "Unauthorized", message)


def forbidden(message: str) -> StatusError:
    """Return the failure of a request that the user may not send."""
    return StatusError(HTTPStatus.FORBIDDEN, "Forbidden", message)


def not_found(message: str) -> StatusError:
    """Return the failure of a request for an object that does not exist."""
    return StatusError(HTTPStatus.NOT_FOUND, "NotFound", message)


def expired(version: int, oldest: int) -> StatusError:
    """Return the failure of a request for a version that is no longer kept; Kubernetes' words."""
    return StatusError(HTTPStatus.GONE, "Expired", f"too old resource version: {version} ({oldest})")


def too_large(version: int, current: int) -> StatusError:
    """Return the failure of a request for a version that is not known yet, in Kubernetes' words."""
    message = f"Too large resource version: {version}, current: {current}"
    return StatusError(HTTPStatus.GATEWAY_TIMEOUT, "Timeout", message, retry_after=1, cause=TOO_LARGE)


def too_many(message: str, *, retry_after: int = 5) -> StatusError:
    """Return the failure of a request for which there is no capacity now."""
    return StatusError(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", message, retry_after=retry_after)


def internal_error(message: str) -> StatusError:
    """Return the failure of a request that a defect of this program keeps from being answered."""
    return StatusError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", message)


def unavailable(message: str) -> StatusError:
    """Return the failure of a request that cannot be answered now."""
    return StatusError(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", message, retry_after=1)
