"""Write ResourceClaims in a leader's term, each based on the version that was read."""

import asyncio
import weakref
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from berth_api.values.backoff import ExponentialBackoff
from berth_client.client import JSON, PROTOBUF
from berth_client.errors import CallError
from berth_client.wire import WireError
from berth_operator.binding.prebind import claim_objects, stored_claims
from berth_operator.binding.prebind.changes import GoneError
from berth_operator.binding.prebind.claim_objects import Object, ResourceClaimError
from berth_operator.binding.write_fence import NotFencedError, WriteFence

TRIES: Final = 5
"""Attempts at a write that conflicts with another, or is not answered."""
PAUSE: Final = ExponentialBackoff(first=0.05, longest=0.4)
"""Before the second to the last attempt."""

Change = Callable[[Object], Object | None]
"""Returns the desired claim; None if the claim is right. Raises ResourceClaimError."""


class ResourceClaimApi(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """Read an object at quorum."""

    async def get_protobuf(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Read an object, or a list, at quorum in protobuf."""

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, content_type: str = ...
    ) -> Any:
        """Send one request and return the decoded answer."""


class ClaimWriter:
    """Writes claims, and the statuses that pods show of them."""

    def __init__(self, *, api: ResourceClaimApi, lease: str, term: Callable[[], int | None], fenced: bool) -> None:
        """Create a writer; `fenced`: no status is written unless the API server refuses the writes of other terms."""
        self._api, self._term = api, term
        self._fence = WriteFence(lease=lease, what="claims", required=fenced)
        self.unanswered = False
        """Whether a write without an answer may still be executed."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Claim -> the lock that its writers hold or wait for."""

    def alone(self, key: str) -> asyncio.Lock:
        """Return the lock of a claim. Pods that share the claim write it one by one to avoid conflicts."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def read(self, path: str) -> Object:
        """Read an object at quorum; raise CallError."""
        return await self._api.get(path)

    async def read_protobuf(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Read an object, or a list, at quorum in protobuf; raise CallError."""
        return await self._api.get_protobuf(path, params)

    async def change(self, key: str, change: Change, *, current: Object | None = None, subresource: str = "") -> Object:
        """Write a change of a claim. If the claim changed meanwhile, or an answer was lost, read it and try again.

        Raises:
            CallError: the last of `TRIES` attempts failed, or the API server refused one.
            ResourceClaimError: the current claim cannot be changed.
        """
        path = claim_objects.path(key)
        for attempt in range(1, TRIES + 1):
            try:
                current = current or await self._api.get(path)
                changed = change(current)
                return current if changed is None else await self._put(path, subresource, current, changed)
            except CallError as error:
                if attempt == TRIES or (error.is_refused and error.status != HTTPStatus.CONFLICT):
                    raise
            current = None
            await asyncio.sleep(PAUSE.after(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _put(self, path: str, subresource: str, current: Object, changed: Object) -> Object:
        body: Any = claim_objects.without_parameters(changed)
        options = {"content_type": JSON}
        if claim_objects.keeps_free_json(current, changed, subresource):
            # If it changed since `current` was read, the resourceVersion of `changed` conflicts.
            try:
                body = stored_claims.merged(await self._api.get_protobuf(path), changed)
            except WireError as error:
                raise ResourceClaimError(f"{path}: cannot be read in protobuf: {error}") from error
            options = {"content_type": PROTOBUF}
        path += subresource
        if subresource:
            try:
                await self._fence.check(
                    self._current_term(),
                    lambda params: self._api.request("PUT", path, params=params, body=body, **options),
                )
            except NotFencedError as error:
                raise ResourceClaimError(str(error)) from error
        return dict(await self.send("PUT", path, body, **options))

    async def send(self, method: str, path: str, body: Any, **options: str) -> Any:
        """Send one write in our term, and return the decoded answer; raise GoneError if the term has ended."""
        params = {"fieldManager": self._fence.manager(self._current_term())}
        try:
            return await self._api.request(method, path, params=params, body=body, **options)
        except CallError as error:
            self.unanswered = self.unanswered or not error.is_refused
            raise
        except asyncio.CancelledError:
            # `bind` gives up after a time, and the process may end.
            self.unanswered = True
            raise

    def _current_term(self) -> int:
        if (term := self._term()) is None:
            raise GoneError
        return term
