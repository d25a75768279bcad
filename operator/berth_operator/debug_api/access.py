"""Access to the debug API from other machines, for users that the API server authenticates and authorizes.

As extension API servers do, the operator sends the bearer token to the API server in a TokenReview, and then the user
in a SubjectAccessReview for a nonResourceURL with verb `get`. The URL is the path with the prefix `/debug`, because
Kubernetes' role `system:discovery` lets every authenticated user get `/apis/*`.
"""

from typing import Final

from berth_operator.serving.reviews import Reviews

SCHEME: Final = "bearer"
BELOW: Final = "/debug"

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403


class RefusedError(Exception):
    """A request is not authenticated or not authorized.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Authenticates and authorizes requests."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews

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
        attributes = {"path": BELOW + path, "verb": "get"}
        if not await self._reviews.is_allowed(user, attributes, of_resource=False):
            raise RefusedError(FORBIDDEN, f"{user.name} may not get the nonResourceURL {BELOW}{path}")
