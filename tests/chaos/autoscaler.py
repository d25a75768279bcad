"""A simulated autoscaler: it adds nodes for pods that wait, and follows only their conditions.

As docs/autoscalers.md requires, it acts only on the reason `Unschedulable`. It compares a pod with the resources,
labels and taints of a new node. It also counts on nodes that it has added and that are not up yet. A node that has been
empty for a while is removed.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

from devcluster.control_plane import nodes
from tests.chaos import fitting
from tests.chaos.fitting import Room
from tests.chaos.live import LivePod
from tests.chaos.machines import MONTH, OFFERED, PROFILES
from tests.chaos.site import Site
from tests.chaos.workload import Failed

PERIOD: Final = 1.0
MOST: Final = 3
"""Nodes that it adds at most."""
START: Final = 6.0
"""Seconds until a new node has its agent and its device plugin."""
EMPTY: Final = 30.0
"""Seconds after which an empty node is removed."""
CAPACITY: Final = {"cpu": "16", "memory": "64Gi"}
LABELS: Final = {f"{MONTH}/pool": "scaled", "nvidia.com/gpu.present": "true"}
STARTUP: Final = {"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"}
SHARES: Final = "kubernetes.io/gpu"


class Autoscaler:
    """Adds and removes nodes until it is closed; a context manager."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._numbers = itertools.count()
        self._added: dict[str, float] = {}
        """Node -> when it was added, by the monotonic clock."""
        self._up: set[str] = set()
        self._used: dict[str, float] = {}
        """Node -> when it last had a pod."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autoscaler")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            with contextlib.suppress(*Failed):  # the API server is down: again in the next turn
                self._bring_up()
                self._remove_empty()
                self._add()

    def _add(self) -> None:
        """Add a node if pods wait that fit on a new one, and not on those that are coming."""
        coming = [self._new_room(name) for name in self._added if name not in self._up]
        for pod in self._unschedulable():
            request = fitting.request_of(pod.raw)
            room = next((each for each in coming if _takes(each, request)), None)
            if room is None and len(self._added) < MOST and _takes(new := self._new_room(""), request):
                new.name = self._create()
                coming.append(room := new)
            if room is not None:
                room.take(request)

    def _unschedulable(self) -> list[LivePod]:
        own = self._site.arena.scheduler_name
        waiting = [pod for pod in self._site.live.pods.values() if not (pod.node or pod.is_leaving)]
        return [pod for pod in waiting if pod.raw["spec"]["schedulerName"] == own and _reason(pod) == "Unschedulable"]

    def _new_room(self, name: str) -> Room:
        """Return what a new node has once it is up, as this kind of node is configured."""
        manifest = self._manifest(name)
        manifest["status"]["allocatable"] |= {**OFFERED, SHARES: str(100 * len(PROFILES))}
        return fitting.room_of(manifest, None, is_heard=True)

    def _manifest(self, name: str) -> dict[str, Any]:
        labels = {**self._site.arena.labels, **LABELS}
        return nodes.manifest(name, nodes.NodeOptions(labels=labels, annotations=nodes.NO_PLUGIN, capacity=CAPACITY))

    def _create(self) -> str:
        number = next(self._numbers)
        name = f"{self._site.arena.id}-scaled-{number}"
        manifest = self._manifest(name)
        manifest["spec"]["taints"] = [STARTUP] if number % 2 else []
        self._site.cluster.api.post("/api/v1/nodes", manifest)
        self._added[name] = self._used[name] = time.monotonic()
        return name

    def _bring_up(self) -> None:
        for name, since in self._added.items():
            if name not in self._up and time.monotonic() - since >= START:
                self._site.world.change(name, profile=PROFILES)
                self._status(name, OFFERED)
                self._up.add(name)

    def _status(self, name: str, amounts: Mapping[str, str]) -> None:
        status = {"capacity": amounts, "allocatable": amounts}
        self._site.cluster.api.merge(f"/api/v1/nodes/{name}/status", {"status": status})

    def _remove_empty(self) -> None:
        now = time.monotonic()
        in_use = {pod.node for pod in self._site.live.pods.values()}
        for name in [name for name in self._added if name in self._up]:
            if name in in_use:
                self._used[name] = now
            elif now - max(self._used[name], self._added[name] + START) > EMPTY:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Cordon a node, and delete it unless a pod was bound there meanwhile."""
        path = f"/api/v1/nodes/{name}"
        self._site.cluster.api.merge(path, {"spec": {"unschedulable": True}})
        time.sleep(PERIOD)
        if any(pod.node == name for pod in self._site.live.pods.values()):
            self._site.cluster.api.merge(path, {"spec": {"unschedulable": None}})
            self._used[name] = time.monotonic()
            return
        self._site.cluster.api.delete(path)
        self._site.world.forget(name)
        del self._added[name]
        self._up.discard(name)


def _takes(room: Room, request: fitting.Request) -> bool:
    """Return whether a node takes a pod by resources, labels and taints: autoscalers know no Devices."""
    enough = not any(room.lacks(request, name) for name in request.amounts)
    return enough and room.matches(request) and not room.repels(request)


def _reason(pod: LivePod) -> str:
    conditions = (pod.raw.get("status") or {}).get("conditions") or ()
    scheduled: Mapping[str, str] = next((each for each in conditions if each["type"] == "PodScheduled"), {})
    return scheduled.get("reason", "") if scheduled.get("status") == "False" else ""
