"""Write the labels of Nodes with a separate field manager that takes no label from another manager.

If GPU Feature Discovery also runs, it owns the labels. Each conflict is logged once, and the label is left alone.
"""

from collections.abc import Mapping

import structlog

from berth_agent.cluster import NODES
from berth_agent.publishing.node_cache import NodeCache
from berth_agent.readings import Reading
from berth_api import names
from berth_client.client import ApiClient
from berth_client.errors import CallError

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Labeller:
    """Owner of this agent's labels on Nodes."""

    def __init__(self, *, client: ApiClient, nodes: NodeCache) -> None:
        self._client = client
        self._nodes = nodes
        self._applied: dict[str, Mapping[str, str]] = {}
        self._failures: dict[str, str] = {}

    async def publish(self, readings: Mapping[str, Reading], *, renamed: bool) -> None:
        """Write what changed in the readings or on the server. Failed writes are retried at the next call.

        Args:
            readings: the readings of the nodes.
            renamed: whether replicas of cards are a resource of their own.
        """
        for name, reading in readings.items():
            uid = self._nodes.uid(name)
            if reading.facts is None or uid is None:
                continue
            wanted = reading.facts.labels(reading.spec, renamed=renamed)
            # The first time always: an agent before this may have left some.
            if self._applied.get(name) == wanted and wanted.items() <= self._nodes.labels(name).items():
                continue
            # An apply creates what does not exist: without the UID, a Node that was just deleted would come back empty.
            metadata = {"name": name, "uid": uid, "labels": wanted}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            # A write without an answer may have been done.
            self._applied.pop(name, None)
            try:
                applied = await self._client.apply(f"{NODES}/{name}", body, names.AGENT_LABELS)
            except CallError as error:
                if self._failures.get(name) != str(error):
                    self._failures[name] = str(error)
                    _log.warning("Node not labelled, will try again", node=name, error=str(error))
                continue
            self._failures.pop(name, None)
            self._applied[name] = wanted
            self._nodes.set_labels(name, applied["metadata"].get("labels", {}))
            _log.info("Node labelled", node=name, labels=len(wanted))
