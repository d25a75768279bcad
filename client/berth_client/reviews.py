"""Ask the API server which user a token belongs to and what the user may do. Reviews are cached for a few seconds.

Few reviews run at once, so that unauthenticated requests cost the API server almost nothing. They cannot delay the
reviews of known users, which have their own turns.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

KEPT_SECONDS: Final = 10.0
MAX_CACHED: Final = 1024
AT_ONCE: Final = 4
MAX_TOKEN: Final = 64 * 1024
"""Characters of a token; Kubernetes' own have about a thousand."""

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

Answer = TypeVar("Answer")


class ReviewApi(Protocol):
    """The subset of `ApiClient` that is used here."""

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        """Return the decoded answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated user, with Kubernetes' fields."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Reviews:
    """Sends reviews to the API server; `clock` is monotonic, in seconds.

    All methods raise an `ApiError` if the API server refused a review, and `Unreachable` if it did not answer.
    """

    def __init__(self, *, api: ReviewApi, clock: Callable[[], float], kept_seconds: float = KEPT_SECONDS) -> None:
        self._api = api
        self._users = _Cache[User | None](clock, kept_seconds)
        self._accesses = _Cache[bool](clock, kept_seconds)

    async def user(self, token: str) -> User | None:
        """Return the user of a bearer token; None if the API server does not know the token."""
        if len(token) > MAX_TOKEN:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        return await self._users.get(digest, lambda: self._review_token(token))

    async def is_allowed(self, user: User, attributes: Mapping[str, str], *, of_resource: bool) -> bool:
        """Return whether a user may send a request, by its resource attributes or its non-resource attributes."""
        key = user, of_resource, tuple(sorted(attributes.items()))
        return await self._accesses.get(key, lambda: self._review_access(user, attributes, of_resource=of_resource))

    async def _review_token(self, token: str) -> User | None:
        review = await self._api.request("POST", TOKEN_REVIEWS, body={"spec": {"token": token}})
        if not review["status"].get("authenticated"):
            return None
        user = review["status"]["user"]
        extra = user.get("extra") or {}
        return User(
            name=user["username"],
            uid=user.get("uid") or "",
            groups=tuple(user.get("groups") or ()),
            extra=tuple(sorted((name, tuple(values)) for name, values in extra.items())),
        )

    async def _review_access(self, user: User, attributes: Mapping[str, str], *, of_resource: bool) -> bool:
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes" if of_resource else "nonResourceAttributes": dict(attributes),
        }
        review = await self._api.request("POST", ACCESS_REVIEWS, body={"spec": spec})
        return bool(review["status"].get("allowed"))


class _Cache(Generic[Answer]):
    """Answers by key, for some seconds; `AT_ONCE` questions at once."""

    def __init__(self, clock: Callable[[], float], kept_seconds: float) -> None:
        self._clock, self._kept_seconds = clock, kept_seconds
        self._kept: dict[Hashable, tuple[float, Answer]] = {}
        """Key -> when the answer expires, and the answer."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        if (kept := self._fresh(key)) is None:
            async with self._turns:
                # Another request with the same key may have been answered meanwhile.
                if (kept := self._fresh(key)) is None:
                    kept = (await ask(),)
                    if len(self._kept) >= MAX_CACHED:
                        self._kept.clear()
                    self._kept[key] = self._clock() + self._kept_seconds, kept[0]
        return kept[0]

    def _fresh(self, key: Hashable) -> tuple[Answer] | None:
        kept = self._kept.get(key)
        return (kept[1],) if kept is not None and self._clock() < kept[0] else None
