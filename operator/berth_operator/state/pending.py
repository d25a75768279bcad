"""The pods of every scheduler name that has a profile, those that wait and those that have ended.

Names come and go while the operator runs. Each has watches of its own, since a field selector cannot say "one of
these".
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from berth_operator.state import groups, pods, sinks
from berth_operator.state.cluster import Cluster
from berth_operator.state.reflector import Api, Reflector, Source
from berth_operator.state.sinks import Table


def pods_where(selector: str) -> Source:
    """Give the pods that a field selector picks."""
    return Source(path="/api/v1/pods", params={"fieldSelector": selector}, keep=pods.keep)


class PendingPods:
    """Two reflectors for each scheduler name."""

    def __init__(self, *, api: Api, cluster: Cluster) -> None:
        self.reflectors: Mapping[str, Reflector] = {}
        """By what they reflect; replaced and never changed, since probes read it from another thread."""
        self._api, self._cluster = api, cluster
        self._running: dict[str, dict[str, tuple[asyncio.Task[None], Table]]] = {}
        """Scheduler name -> what is reflected of it."""

    def follow(self, names: Collection[str], tasks: asyncio.TaskGroup) -> None:
        """Reflect the pods of these scheduler names and no others."""
        for name in self._running.keys() - set(names):
            self._stop(name)
        for name in names:
            if name not in self._running:
                self._start(name, tasks)

    def _start(self, name: str, tasks: asyncio.TaskGroup) -> None:
        ended = pods_where(f"spec.schedulerName={name},{sinks.ENDED}")
        found = {
            f"pending pods of {name}": (
                pods_where(f"spec.schedulerName={name},spec.nodeName="),
                sinks.pending_pods(self._cluster),
            ),
            f"ended pods of {name}": (replace(ended, keep=groups.keep_ended), sinks.ended_pods(self._cluster)),
        }
        made = {what: Reflector(api=self._api, source=source, sink=table) for what, (source, table) in found.items()}
        self._running[name] = {what: (tasks.create_task(each.run()), found[what][1]) for what, each in made.items()}
        self.reflectors = {**self.reflectors, **made}

    def _stop(self, name: str) -> None:
        """End the reflectors, and forget the pods that they have shown; binds under way go on."""
        ended = self._running.pop(name)
        self.reflectors = {what: each for what, each in self.reflectors.items() if what not in ended}
        for task, table in ended.values():
            task.cancel()
            table.listing(requested_at=self._cluster.clock()).end()
