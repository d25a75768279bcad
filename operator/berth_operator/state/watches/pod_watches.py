"""Watches for all pods that wait for Berth or hold something. No two watches show the same pod.

Each of Berth's scheduler names has a watch for its pods, waiting or bound, so that a bind is one event. One more watch
shows the bound pods of all other schedulers. A field selector cannot express "one of these", so names cannot share a
watch. When scheduler names change at run time, a pod moves from one watch to another without being removed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api import names
from berth_client.objects import READING_ERRORS
from berth_client.reflector import FEW_CLIENTS_BACKOFF, EventType, ListWatchApi, Reflector, Sink, Source
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.unreadable import UnreadableObjects
from berth_operator.state.objects import groups, pods
from berth_operator.state.watches import sinks
from berth_operator.state.watches.sinks import Listing

Object = dict[str, Any]

ALIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector for pods that have not ended."""
BOUND: Final = f"spec.nodeName!=,{ALIVE}"
"""Field selector for pods that have not ended and have a node."""
ENDED: Final = "status.phase!=,status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
"""Field selector for pods that have ended. A pod with an emptied status has not ended."""
OTHERS: Final = "pods of others"
MAX_EPOCH_DIGITS: Final = 15
"""Terms begin with the seconds since 2025, so a longer number is no term. The LeaderLease holds 18 digits."""


class PodTable:
    """Remembers which pods exist, of all schedulers.

    A waiting pod that cannot be read is left out, or waits with its last known value. A bound pod that cannot be read
    must be charged, which `Placements` does.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._unreadable = UnreadableObjects("pods")
        self._known: dict[str, str] = {}
        """UID -> scheduler name."""
        self.highest_epoch = 0
        """The highest term on the bound pods of all lists."""

    def put_listed(self, pod: Object) -> str:
        """Add or update a pod of a list, and record its term; return its UID."""
        epoch = (pod["metadata"].get("annotations") or {}).get(names.EPOCH, "")
        if pod["spec"].get("nodeName") and epoch.isdecimal() and len(epoch) <= MAX_EPOCH_DIGITS:
            self.highest_epoch = max(self.highest_epoch, int(epoch))
        return self.put(pod)

    def put(self, pod: Object) -> str:
        """Add or update a pod; return its UID."""
        uid = str(pod["metadata"]["uid"])
        self._known[uid] = pod["spec"].get("schedulerName") or names.SCHEDULER
        try:
            if pod["spec"].get("nodeName"):
                self.cluster.put_bound(pod)
            else:
                self.cluster.put_pending(pod)
        except READING_ERRORS as error:
            self._unreadable.put(uid, pod, error)
        else:
            self._unreadable.discard(uid)
        return uid

    def remove(self, uid: str) -> None:
        """Remove a pod that was deleted or has ended."""
        self._known.pop(uid, None)
        self._unreadable.discard(uid)
        self.cluster.remove_pending(uid)
        self.cluster.remove_bound(uid)

    def listed(self, includes: Callable[[str], bool], uids: set[str], requested_at: float) -> None:
        """Remove the pods of these scheduler names that a complete list has not shown."""
        for uid in [uid for uid, name in self._known.items() if includes(name) and uid not in uids]:
            if self.cluster.placements.may_be_bound_since(uid, requested_at):
                self.cluster.remove_pending(uid)
            else:
                self.remove(uid)

    def leave(self, scheduler: str) -> None:
        """Remove the waiting pods of a scheduler name; binds in flight go on, and bound pods stay charged."""
        for uid in [uid for uid, pod in self.cluster.pending.items() if pod.scheduler == scheduler]:
            self.cluster.remove_pending(uid)


class WatchedPods:
    """The pods of some scheduler names, as a reflector's sink."""

    def __init__(self, table: PodTable, includes: Callable[[str], bool]) -> None:
        self._table, self._includes = table, includes

    def listing(self, *, requested_at: float) -> Listing:
        """Begin a complete list of the pods of these scheduler names."""
        return Listing(self._table.put_listed, lambda uids: self._table.listed(self._includes, uids, requested_at))

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Apply one change."""
        if event_type == "DELETED":
            self._table.remove(str(obj["metadata"]["uid"]))
        else:
            self._table.put(obj)


class PodWatches:
    """Two reflectors for each scheduler name, and one for all other pods."""

    def __init__(self, *, api: ListWatchApi, cluster: Cluster) -> None:
        self.reflectors: Mapping[str, Reflector] = {}
        """What is reflected -> reflector. Replaced, never mutated, since probes read it from another thread."""
        self._api, self._table = api, PodTable(cluster)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, sinks.Table] = {}
        """Scheduler name -> its pods that have ended."""

    @property
    def highest_epoch(self) -> int:
        """Return the highest term on the bound pods of all lists."""
        return self._table.highest_epoch

    def follow(self, schedulers: Collection[str], tasks: asyncio.TaskGroup) -> None:
        """Watch the pods of these scheduler names as ours, and stop watching pods of other names as ours."""
        followed = frozenset(schedulers)
        if self._running and followed == self._ended.keys():
            return
        for name in self._ended.keys() - followed:
            self._stop(f"pods of {name}")
            self._stop(f"ended pods of {name}")
            self._table.leave(name)
            self._ended.pop(name).listing(requested_at=self._table.cluster.clock()).end("")
        for name in followed - self._ended.keys():
            alive, ended = (pods_where(f"spec.schedulerName={name},{phases}") for phases in (ALIVE, ENDED))
            self._start(tasks, f"pods of {name}", alive, WatchedPods(self._table, name.__eq__))
            self._ended[name] = sinks.ended_pods(self._table.cluster)
            ended = replace(ended, transform=groups.transform_ended)
            self._start(tasks, f"ended pods of {name}", ended, self._ended[name])
        unlike = [f"spec.schedulerName!={name}" for name in sorted(followed)]
        others = pods_where(",".join([*unlike, BOUND]))
        self._stop(OTHERS)
        self._start(tasks, OTHERS, others, WatchedPods(self._table, lambda name: name not in followed))

    def _start(self, tasks: asyncio.TaskGroup, title: str, source: Source, sink: Sink) -> None:
        reflector = Reflector(api=self._api, source=source, sink=sink, max_backoff=FEW_CLIENTS_BACKOFF)
        self._running[title] = tasks.create_task(reflector.run())
        self.reflectors = {**self.reflectors, title: reflector}

    def _stop(self, title: str) -> None:
        self.reflectors = {name: reflector for name, reflector in self.reflectors.items() if name != title}
        if (task := self._running.pop(title, None)) is not None:
            task.cancel()


def pods_where(selector: str) -> Source:
    """Return the source for the pods that a field selector matches."""
    return Source(path="/api/v1/pods", params={"fieldSelector": selector}, transform=pods.transform)
