"""Authenticate and authorize HTTP clients (for example Prometheus) through the API server.

Like extension API servers, a program first sends the bearer token to the API server in a TokenReview. It then sends the
user in a SubjectAccessReview for a nonResourceURL with the verb `get`.
"""

import ipaddress
from collections.abc import Callable
from typing import Final

from berth_client.errors import CallError
from berth_client.reviews import ReviewApi, Reviews

SCHEME: Final = "bearer"
METRICS: Final = "/metrics"
METRICS_KEPT_SECONDS: Final = 120.0
"""Seconds for which the answers to a scraper are kept, because each of thousands of agents asks separately."""

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 503


class RefusedError(Exception):
    """A request is not authenticated or not authorized.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def needs_guard(address: str) -> bool:
    """Return whether other machines may reach an address."""
    return not ipaddress.ip_address(address).is_loopback


class Guard:
    """Authenticates and authorizes requests."""

    def __init__(self, reviews: Reviews, *, below: str = "") -> None:
        """Create a guard; `below` is a prefix of the paths that are reviewed."""
        self._reviews, self._below = reviews, below

    async def check(self, authorization: str, path: str) -> None:
        """Check a request by its Authorization header.

        Raises:
            RefusedError: the request is not authenticated or not authorized.
            ApiError: the API server refused a review.
            Unreachable: the API server did not answer.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != SCHEME or not token.strip():
            raise RefusedError(UNAUTHORIZED, "a bearer token is required")
        user = await self._reviews.user(token.strip())
        if user is None:
            raise RefusedError(UNAUTHORIZED, "the API server does not know this token")
        attributes = {"path": self._below + path, "verb": "get"}
        if not await self._reviews.is_allowed(user, attributes, of_resource=False):
            raise RefusedError(FORBIDDEN, f"{user.name} may not get the nonResourceURL {self._below}{path}")


class MetricsAccess:
    """Decides which clients may read a program's metrics: all over loopback, otherwise clients that may get `/metrics`.

    Attributes:
        is_required: whether clients need a token.
    """

    def __init__(self, *, address: str, is_required: bool, clock: Callable[[], float]) -> None:
        self.is_required = is_required and needs_guard(address)
        self._clock = clock
        self._guard: Guard | None = None

    def connect(self, api: ReviewApi) -> None:
        """Review clients by this API server; before that none is allowed."""
        self._guard = Guard(Reviews(api=api, clock=self._clock, kept_seconds=METRICS_KEPT_SECONDS))

    async def refusal(self, authorization: str) -> tuple[int, str] | None:
        """Return the HTTP status and the reason why a request is refused; None if it is allowed."""
        if not self.is_required:
            return None
        if self._guard is None:
            return UNAVAILABLE, "the program is starting"
        try:
            await self._guard.check(authorization, METRICS)
        except RefusedError as refused:
            return refused.status, str(refused)
        except CallError as error:
            return UNAVAILABLE, f"the API server does not answer: {error}"
        return None
