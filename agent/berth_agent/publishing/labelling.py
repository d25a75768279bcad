"""Write the labels of Nodes with a separate field manager that takes no label from another manager.

If GPU Feature Discovery also runs, it owns the labels. Each conflict is logged once, and the label is left alone.
"""

from collections.abc import Mapping
from typing import Any

import structlog

from berth_agent.cluster import NODES
from berth_agent.publishing import labels
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.readings import Reading
from berth_api import names
from berth_client.client import ApiClient
from berth_client.errors import CallError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Labels = Mapping[str, str]


class Labeller:
    """Owner of this agent's labels on Nodes."""

    def __init__(self, *, client: ApiClient, nodes: NodeCache) -> None:
        self._client = client
        self._nodes = nodes
        self._applied: dict[str, Labels] = {}
        self._failures: dict[str, str] = {}

    async def publish(self, readings: Mapping[str, Reading], *, renamed: bool) -> None:
        """Write what changed, in the readings or on the server; what fails is tried again at the next call.

        Args:
            readings: of the nodes.
            renamed: whether replicas of cards are a resource of their own, `nvidia.com/gpu.shared`.
        """
        for name, reading in readings.items():
            if reading.facts is not None:
                await self._follow(name, labels.of(reading.spec, reading.facts, renamed=renamed))

    async def _follow(self, name: str, wanted: Labels) -> None:
        if self._is_due(name, wanted):
            await self._guarded(name, wanted)

    def _is_due(self, name: str, wanted: Labels) -> bool:
        """Return whether labels have to be written; the first time always: an agent before this may have left some."""
        if self._nodes.uid(name) is None:
            return False
        return self._applied.get(name) != wanted or not wanted.items() <= self._nodes.labels(name).items()

    async def _guarded(self, name: str, wanted: Labels) -> None:
        try:
            applied = await self._client.apply(f"{NODES}/{name}", self._body(name, wanted), names.AGENT_LABELS)
        except CallError as error:
            if self._failures.get(name) != str(error):
                self._failures[name] = str(error)
                _log.warning("Node not labelled, will try again", node=name, error=str(error))
            return
        self._failures.pop(name, None)
        self._applied[name] = wanted
        self._nodes.set_labels(name, applied["metadata"].get("labels", {}))
        _log.info("Node labelled", node=name, labels=len(wanted))

    def _body(self, name: str, wanted: Labels) -> dict[str, Any]:
        # An apply creates what does not exist: without the UID, a Node that was just deleted would come back empty.
        metadata = {"name": name, "uid": self._nodes.uid(name), "labels": dict(wanted)}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
