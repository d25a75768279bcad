"""Access to the debug API from other machines, for users that the API server authenticates and authorizes.

As extension API servers do, the operator sends the bearer token to the API server in a TokenReview, and then the user
in a SubjectAccessReview for a nonResourceURL with verb `get`. The URL is the path with the prefix `/debug`, because
Kubernetes' role `system:discovery` lets every authenticated user get `/apis/*`. Answers are cached for a few seconds,
and few reviews run at once, so that unauthenticated requests cost the API server almost nothing.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

KEPT_SECONDS: Final = 10.0
MAX_CACHED_TOKENS: Final = 1024
AT_ONCE: Final = 4
SCHEME: Final = "bearer"
BELOW: Final = "/debug"

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Api(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        """Return the decoded answer."""


class RefusedError(Exception):
    """A request is not authenticated or not authorized.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Authenticates and authorizes requests; `clock` is monotonic, in seconds."""

    def __init__(self, *, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._kept: dict[tuple[bytes, str], tuple[float, RefusedError | None]] = {}
        """(digest of the token, path) -> (when the answer expires, the refusal or None)."""
        self._turns = asyncio.Semaphore(AT_ONCE)

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
        refusal = await self._cached_review(token.strip(), path)
        if refusal is not None:
            raise refusal

    async def _cached_review(self, token: str, path: str) -> RefusedError | None:
        key = hashlib.sha256(token.encode()).digest(), path
        async with self._turns:
            until, refusal = self._kept.get(key, (0.0, None))
            if self._clock() >= until:
                refusal = await self._review(token, path)
                if len(self._kept) >= MAX_CACHED_TOKENS:
                    self._kept.clear()
                self._kept[key] = self._clock() + KEPT_SECONDS, refusal
        return refusal

    async def _review(self, token: str, path: str) -> RefusedError | None:
        review = await self._api.request("POST", TOKEN_REVIEWS, body={"spec": {"token": token}})
        if not review["status"].get("authenticated"):
            return RefusedError(UNAUTHORIZED, "the API server does not know this token")
        user = review["status"]["user"]
        access = await self._api.request("POST", ACCESS_REVIEWS, body={"spec": _access(user, path)})
        if not access["status"].get("allowed"):
            return RefusedError(FORBIDDEN, f"{user['username']} may not get the nonResourceURL {BELOW}{path}")
        return None


def _access(user: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        "user": user["username"],
        "uid": user.get("uid") or "",
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": BELOW + path, "verb": "get"},
    }
