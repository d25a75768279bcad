"""Every pod that waits for us or holds something, by watches of which each shows pods that no other shows.

Each scheduler name of ours has a watch of its pods, waiting or bound, so that a bind is one event; one more shows the
bound pods of all others. A field selector cannot say "one of these", so names cannot share a watch. Names come and go
while the operator runs: a pod then passes from one watch to another, and is not gone by that.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api import names
from berth_client.reflector import Api, Kind, Reflector, Sink, Source
from berth_operator.state import groups, pods, sinks
from berth_operator.state.cluster import Cluster
from berth_operator.state.sinks import Listing

Object = dict[str, Any]

ALIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that hold something, or will."""
BOUND: Final = f"spec.nodeName!=,{ALIVE}"
"""Those of them that have a node."""
ENDED: Final = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
"""Field selector of the others."""
OTHERS: Final = "pods of others"


class PodTable:
    """Remembers which pods exist, whoever schedules them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[str, str] = {}
        """UID -> scheduler name."""

    def put(self, pod: Object) -> str:
        """Take a pod; give its UID."""
        uid = str(pod["metadata"]["uid"])
        self._known[uid] = pod["spec"].get("schedulerName") or names.SCHEDULER
        if pod["spec"].get("nodeName"):
            self.cluster.put_bound(pod)
        else:
            self.cluster.put_pending(pod)
        return uid

    def remove(self, uid: str) -> None:
        """Know that a pod is gone, or has ended."""
        self._known.pop(uid, None)
        self.cluster.remove_pending(uid)
        self.cluster.remove_bound(uid)

    def listed(self, shown: Callable[[str], bool], found: set[str], requested_at: float) -> None:
        """Know that a list of the pods of some scheduler names has shown no others."""
        for uid in [uid for uid, name in self._known.items() if shown(name) and uid not in found]:
            if self.cluster.placements.may_be_bound_since(uid, requested_at):
                self.cluster.remove_pending(uid)
            else:
                self.remove(uid)

    def leave(self, scheduler: str) -> None:
        """Forget the waiting pods of a scheduler name; binds under way go on, and what is bound stays charged."""
        for uid in [uid for uid, pod in self.cluster.pending.items() if pod.scheduler == scheduler]:
            self.cluster.remove_pending(uid)


class Selection:
    """The pods of some scheduler names, as a reflector's sink."""

    def __init__(self, table: PodTable, shown: Callable[[str], bool]) -> None:
        self._table, self._shown = table, shown

    def listing(self, *, requested_at: float) -> Listing:
        """Begin to take the whole truth about these names."""
        return Listing(self._table.put, lambda found: self._table.listed(self._shown, found, requested_at))

    def apply(self, kind: Kind, obj: Object) -> None:
        """Take one change."""
        if kind == "DELETED":
            self._table.remove(str(obj["metadata"]["uid"]))
        else:
            self._table.put(obj)


class PodWatches:
    """Two reflectors for each scheduler name, and one for all other pods."""

    def __init__(self, *, api: Api, cluster: Cluster) -> None:
        self.reflectors: Mapping[str, Reflector] = {}
        """By what they reflect; replaced and never changed, since probes read it from another thread."""
        self._api, self._table = api, PodTable(cluster)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, sinks.Table] = {}
        """Scheduler name -> its pods that have ended."""

    def follow(self, schedulers: Collection[str], tasks: asyncio.TaskGroup) -> None:
        """Decide for the pods of these scheduler names and no others."""
        wanted = frozenset(schedulers)
        if self._running and wanted == self._ended.keys():
            return
        for name in self._ended.keys() - wanted:
            self._leave(name)
        for name in wanted - self._ended.keys():
            self._join(name, tasks)
        self._stop(OTHERS)
        self._start(tasks, OTHERS, _of_others(wanted), Selection(self._table, lambda name: name not in wanted))

    def _join(self, name: str, tasks: asyncio.TaskGroup) -> None:
        alive, ended = (pods_where(f"spec.schedulerName={name},{which}") for which in (ALIVE, ENDED))
        self._ended[name] = sinks.ended_pods(self._table.cluster)
        self._start(tasks, f"pods of {name}", alive, Selection(self._table, name.__eq__))
        self._start(tasks, f"ended pods of {name}", replace(ended, keep=groups.keep_ended), self._ended[name])

    def _leave(self, name: str) -> None:
        self._stop(f"pods of {name}")
        self._stop(f"ended pods of {name}")
        self._table.leave(name)
        self._ended.pop(name).listing(requested_at=self._table.cluster.clock()).end("")

    def _start(self, tasks: asyncio.TaskGroup, what: str, source: Source, sink: Sink) -> None:
        made = Reflector(api=self._api, source=source, sink=sink)
        self._running[what] = tasks.create_task(made.run())
        self.reflectors = {**self.reflectors, what: made}

    def _stop(self, what: str) -> None:
        self.reflectors = {each: made for each, made in self.reflectors.items() if each != what}
        if (task := self._running.pop(what, None)) is not None:
            task.cancel()


def _of_others(schedulers: Collection[str]) -> Source:
    unlike = [f"spec.schedulerName!={name}" for name in sorted(schedulers)]
    return pods_where(",".join([*unlike, BOUND]))


def pods_where(selector: str) -> Source:
    """Return the pods that a field selector picks."""
    return Source(path="/api/v1/pods", params={"fieldSelector": selector}, keep=pods.keep)
