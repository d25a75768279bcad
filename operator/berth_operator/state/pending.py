"""The pods that wait, of every scheduler name that has a profile: names come and go while the operator runs.

Each name has a watch of its own, since a field selector cannot say "one of these".
"""

import asyncio
from collections.abc import Collection, Mapping

from berth_operator.state import pods, sinks
from berth_operator.state.cluster import Cluster
from berth_operator.state.reflector import Api, Reflector, Source
from berth_operator.state.sinks import Table


def pods_where(selector: str) -> Source:
    """Give the pods that a field selector picks."""
    return Source(path="/api/v1/pods", params={"fieldSelector": selector}, keep=pods.keep)


class PendingPods:
    """A reflector for each scheduler name."""

    def __init__(self, *, api: Api, cluster: Cluster) -> None:
        self.reflectors: Mapping[str, Reflector] = {}
        """By scheduler name; replaced and never changed, since probes read it from another thread."""
        self._api, self._cluster = api, cluster
        self._running: dict[str, tuple[asyncio.Task[None], Table]] = {}

    def follow(self, names: Collection[str], tasks: asyncio.TaskGroup) -> None:
        """Reflect the pods of these scheduler names and no others."""
        for name in self._running.keys() - set(names):
            self._stop(name)
        for name in names:
            if name not in self._running:
                self._start(name, tasks)

    def _start(self, name: str, tasks: asyncio.TaskGroup) -> None:
        table = sinks.pending_pods(self._cluster)
        source = pods_where(f"spec.schedulerName={name},spec.nodeName=")
        reflector = Reflector(api=self._api, source=source, sink=table)
        self._running[name] = tasks.create_task(reflector.run()), table
        self.reflectors = {**self.reflectors, name: reflector}

    def _stop(self, name: str) -> None:
        """End a reflector, and forget the pods that it has shown; their binds under way go on."""
        task, table = self._running.pop(name)
        task.cancel()
        self.reflectors = {each: reflector for each, reflector in self.reflectors.items() if each != name}
        table.replace([], requested_at=self._cluster.clock())
