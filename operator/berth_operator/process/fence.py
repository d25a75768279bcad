"""Test the fence: the API server must accept Bindings of this term and of no other. See decision 0002.

The API server takes up to 30 s to load a policy whose parameter is of a new kind. It takes a moment for a new term. The
test sends Bindings for a pod that does not exist, as a dry run. Admission runs before the pod is looked up. So a
Binding that passes the fence gets a 404, and nothing is ever written.
"""

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_api.values.backoff import ExponentialBackoff
from berth_client.client import Params
from berth_client.errors import ApiError, CallError
from berth_operator.metrics import counters

BACKOFF: Final = ExponentialBackoff(first=0.05, longest=1.0)
"""Between two tests of the fence."""
NO_TERM: Final = 0
"""Never a valid term: terms begin at 1."""
NO_POD: Final = "no-such-pod"
"""Every answer contains this name, so it must not look like the name of a fence policy."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class DryRunApi(Protocol):
    """The subset of `kube.KubeClient` that the test uses."""

    def request(self, method: str, path: str, *, params: Params, body: Any) -> Coroutine[Any, Any, Any]:
        """Return the decoded answer."""


class Fence:
    """The fence around the Bindings of one operator instance."""

    def __init__(self, *, api: DryRunApi, namespace: str, lease: str, required: bool) -> None:
        self._api, self._lease, self._required = api, lease, required
        self._path = f"/api/v1/namespaces/{namespace}/pods/{NO_POD}/binding"
        self.problem = ""
        """Why pods cannot be bound in this term yet; empty if they can, or before the test."""
        self._reported = ""
        self._loaded_for: int | None = None
        """The term for which the fence has passed the test."""

    async def loaded(self, term: int) -> bool:
        """Wait until the fence accepts this term and, if required, refuses others; return whether it had to wait."""
        if term == self._loaded_for:
            return bool(self._reported)
        pause = BACKOFF.first
        while problem := await self._problem(term):
            self.problem = problem
            # Logged once, not at each attempt.
            if problem != self._reported:
                self._reported = problem
                counters.WAITING_FOR_FENCE.set(1)
                log.warning("waiting for the API server to load the fence", lease=self._lease, why=problem)
            await asyncio.sleep(pause)
            pause = BACKOFF.following(pause)
        self.problem = ""
        counters.WAITING_FOR_FENCE.set(0)
        self._loaded_for = term
        return bool(self._reported)

    async def _problem(self, term: int) -> str:
        """Return why pods cannot be bound in this term yet; empty if they can."""
        try:
            ours, other = await asyncio.gather(self._refusal(term), self._refusal(NO_TERM))
        except CallError as error:
            return str(error)
        if ours:
            return ours
        if names.FENCE in other:
            log.info("fence loaded", lease=self._lease, term=term)
            return ""
        if other or self._required:
            return other or f"no policy {names.FENCE}-* refuses the Binding of another term"
        log.warning("no fence is installed: the API server would accept Bindings of a past term", lease=self._lease)
        return ""

    async def _refusal(self, term: int) -> str:
        """Return why the API server refuses a Binding of a term; empty if it passes the fence."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": NO_POD,
                "labels": {names.FENCED_BY: self._lease},
                "annotations": {names.EPOCH: str(term)},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": NO_POD},
        }
        try:
            await self._api.request("POST", self._path, params={"dryRun": "All"}, body=body)
        except ApiError as error:
            # Past the admission policies: from a webhook, or because the pod does not exist.
            is_past = "webhook" in error.message or (error.status == HTTPStatus.NOT_FOUND and NO_POD in error.message)
            return "" if is_past else str(error)
        return ""
