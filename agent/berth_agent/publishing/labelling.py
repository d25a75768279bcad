"""Write the labels of Nodes with a separate field manager that takes no label from another manager.

If GPU Feature Discovery also runs, it owns its labels. Each label that the API server refuses for another manager is
left out, logged once, and tried again after `TRY_AGAIN`. All other labels are written.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import structlog

from berth_agent.cluster import NODES
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.readings import Reading
from berth_api import names
from berth_client.client import ApiClient
from berth_client.errors import ApiError, CallError
from berth_client.objects import Object
from berth_client.refusals import Pauses

TRY_AGAIN: Final = 600.0
"""Seconds until a label of another manager is tried again."""
FIELD: Final = ".metadata.labels."
"""How the API server names a label that another manager owns; the key follows as it is."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Labeller:
    """Owner of this agent's labels on Nodes."""

    def __init__(self, *, client: ApiClient, nodes: NodeCache) -> None:
        self._client = client
        self._nodes = nodes
        self._applied: dict[str, Mapping[str, str]] = {}
        self._failures: dict[str, str] = {}
        self._refused: dict[str, dict[str, float]] = {}
        """Node -> label of another manager -> when it is tried again."""
        self._pauses: Pauses[str] = Pauses(clock=lambda: asyncio.get_running_loop().time())

    async def publish(self, readings: Mapping[str, Reading], *, renamed: bool) -> None:
        """Write what changed in the readings or on the server. Failed writes are retried at the next call or later.

        Args:
            readings: the readings of the nodes.
            renamed: whether replicas of cards are a resource of their own.
        """
        now = asyncio.get_running_loop().time()
        for name, reading in readings.items():
            uid = self._nodes.uid(name)
            if reading.facts is None or uid is None or self._pauses.refusal(uid) is not None:
                continue
            refused = self._refused.get(name, {})
            labels = reading.facts.labels(reading.spec, renamed=renamed)
            wanted = {key: value for key, value in labels.items() if refused.get(key, now) <= now}
            # The first time always: an agent before this may have left some.
            if self._applied.get(name) == wanted and wanted.items() <= self._nodes.labels(name).items():
                continue
            # A write without an answer may have been done.
            self._applied.pop(name, None)
            try:
                applied = await self._apply(name, uid, wanted)
            except CallError as error:
                self._pauses.failed(uid, error)
                if self._failures.get(name) != str(error):
                    self._failures[name] = str(error)
                    _log.warning("Node not labelled, will try again", node=name, error=str(error))
                continue
            refused = self._refused.get(name, {})
            wanted = {key: value for key, value in wanted.items() if refused.get(key, now) <= now}
            self._pauses.end(uid)
            self._failures.pop(name, None)
            self._applied[name] = wanted
            self._nodes.set_labels(name, applied["metadata"].get("labels", {}))
            _log.info("Node labelled", node=name, labels=len(wanted))

    async def _apply(self, name: str, uid: str, wanted: Mapping[str, str]) -> Object:
        """Apply labels; without those of other managers, if the API server names such labels."""
        try:
            return await self._send(name, uid, wanted)
        except ApiError as error:
            keys = [field.removeprefix(FIELD) for field in error.fields if field.startswith(FIELD)]
            if error.status != HTTPStatus.CONFLICT or not keys:
                raise
            known, again = self._refused.setdefault(name, {}), asyncio.get_running_loop().time() + TRY_AGAIN
            if new := sorted(keys - known.keys()):
                _log.warning(
                    "Node not labelled in full: another manager owns labels", node=name, labels=new, error=error.message
                )
            known.update(dict.fromkeys(keys, again))
        return await self._send(name, uid, {key: value for key, value in wanted.items() if key not in keys})

    async def _send(self, name: str, uid: str, labels: Mapping[str, str]) -> Object:
        # An apply creates what does not exist: without the UID, a Node that was just deleted would come back empty.
        metadata = {"name": name, "uid": uid, "labels": dict(labels)}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        return await self._client.apply(f"{NODES}/{name}", body, names.AGENT_LABELS)
