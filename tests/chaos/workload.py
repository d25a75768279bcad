"""Pods that arrive and leave: whole cards, shares, gangs, and pods of a high priority that preempt others.

Pods arrive as long as the quota allows and not too many wait. Each bound pod leaves some time after its bind, and a
gang leaves as a whole.
"""

import contextlib
import http.client
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from devcluster import Arena
from devcluster.control_plane.api import ApiError, Manifest
from tests.chaos.auditor import GANG, GANG_SIZE
from tests.chaos.live import Live, LivePod
from tests.chaos.machines import WORKLOAD_MODEL

PERIOD: Final = 0.1
"""Seconds between two looks at what has to arrive or leave."""
RATE: Final = 2
"""Arrivals, of a pod or a gang, in each period."""
BACKLOG: Final = 30
"""No pod arrives while this many wait."""
LIFE: Final = (1.0, 6.0)
"""Range of the seconds from a pod's bind to its end."""
GANG_MEMBERS: Final = 3
HIGH: Final = "berth-chaos-high"
PRIORITY: Final = 1000
MODEL: Final = "berth.dev/gpu-model"
PREFIX: Final = "w-"

WHOLE: Final = {"nvidia.com/gpu": "1"}
TWO: Final = {"nvidia.com/gpu": "2"}
SHARES: Final[Sequence[Mapping[str, str]]] = (
    {"kubernetes.io/gpu": "30"},
    {"kubernetes.io/gpu": "50"},
    {"kubernetes.io/gpu": "60"},
    {"kubernetes.io/gpu-memory-ratio": "25"},
    {"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory": "16Gi"},
)

Failed = (ApiError, OSError, http.client.HTTPException)


def priority_class() -> Manifest:
    """Return the class of the pods that preempt others."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": HIGH},
        "value": PRIORITY,
    }


class Workload:
    """The pods of one run; a context manager."""

    def __init__(self, *, arena: Arena, live: Live, seed: int) -> None:
        self.created = 0
        self.ended: set[str] = set()
        """UIDs of the pods that were deleted here, or are about to be."""
        self._arena, self._live = arena, live
        self._chance = random.Random(f"workload {seed}")
        self._quota = 0
        self._numbers = itertools.count()
        self._backlog: list[Manifest] = []
        """Pods that the API server did not accept yet."""
        self._lives: dict[str, float] = defaultdict(lambda: self._chance.uniform(*LIFE))
        self._formed: set[str] = set()
        """Gangs whose members were all bound at a time."""
        self._complete: set[str] = set()
        """Gangs whose members all existed at a time."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def allow(self, quota: int) -> None:
        """Set how many pods may arrive in all."""
        self._quota = quota

    def until_arrived(self) -> None:
        """Wait until the quota has arrived; each pod has the deadline, as many may be left after short faults."""
        while (created := self.created) < self._quota:
            self._until(lambda created=created: self.created > created, "another pod to arrive")  # type: ignore[misc]

    def drain(self) -> None:
        """Wait until all pods have been bound and have left."""
        self._until(lambda: not self._live.pods, "all pods to be bound and leave")

    def check(self) -> None:
        """Raise the error that ended the workload."""
        if self._error is not None:
            raise RuntimeError("the workload ended") from self._error

    def _until(self, predicate: Callable[[], bool], what: str) -> None:
        self._live.until(lambda: self._error is not None or predicate(), what=what)
        self.check()

    def _run(self) -> None:
        try:
            while not self._stop.wait(PERIOD):
                with contextlib.suppress(*Failed):  # the API server is down: again in the next turn
                    self._leave()
                    self._arrive()
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the main thread
            self._error = error

    # --- arrivals ---------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        for _ in range(RATE):
            waiting = sum(not pod.node for pod in self._live.pods.values())
            if not self._backlog and self.created < self._quota and waiting < BACKLOG:
                self._backlog += self._next()
            while self._backlog:
                self._create(self._backlog[0])
                self._backlog.pop(0)

    def _create(self, manifest: Manifest) -> None:
        try:
            self._arena.create([manifest])
        except ApiError as error:
            # The answer to an earlier attempt was lost.
            if error.status != http.client.CONFLICT:
                raise
        self.created += 1

    def _next(self) -> list[Manifest]:
        name, kind = f"{PREFIX}{next(self._numbers)}", self._chance.random()
        if kind < 0.1:
            return self._gang(name)
        if kind < 0.2:
            return [self._pod(name, WHOLE, priorityClassName=HIGH)]
        if kind < 0.25:
            return [self._pod(name, TWO)]
        if kind < 0.6:
            return [self._pod(name, WHOLE)]
        return [self._pod(name, self._chance.choice(SHARES))]

    def _gang(self, name: str) -> list[Manifest]:
        annotations = {GANG: name, GANG_SIZE: str(GANG_MEMBERS)}
        requests = self._chance.choice((WHOLE, {"kubernetes.io/gpu": "50"}))
        return [self._pod(f"{name}-{member}", requests, annotations) for member in range(GANG_MEMBERS)]

    def _pod(
        self, name: str, requests: Mapping[str, str], annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Manifest:
        annotations = {MODEL: WORKLOAD_MODEL, **(annotations or {})}
        return self._arena.pod(name, requests=requests, limits=requests, annotations=annotations, **spec)

    # --- ends -------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        for pod in self._live.pods.values():
            if pod.name.startswith(PREFIX) and not pod.gang and self._is_due(pod):
                self._end(pod)
        self._leave_as_gangs()

    def _leave_as_gangs(self) -> None:
        gangs: dict[str, list[LivePod]] = defaultdict(list)
        for pod in self._live.pods.values():
            if pod.gang:
                gangs[pod.gang].append(pod)
        for name, members in gangs.items():
            if self._gang_is_due(name, members):
                for pod in members:
                    self._end(pod)

    def _is_due(self, pod: LivePod) -> bool:
        return bool(pod.node) and not pod.is_leaving and time.monotonic() > pod.bound_at + self._lives[pod.uid]

    def _gang_is_due(self, name: str, members: Sequence[LivePod]) -> bool:
        """Return whether a gang ends: each member has had its time, or it lost one before it was whole."""
        if len(members) == GANG_MEMBERS:
            self._complete.add(name)
            if all(pod.node for pod in members):
                self._formed.add(name)
        if name not in self._formed:
            return name in self._complete and len(members) < GANG_MEMBERS
        return all(map(self._is_due, (pod for pod in members if pod.node and not pod.is_leaving)))

    def _end(self, pod: LivePod) -> None:
        self.ended.add(pod.uid)
        self._arena.delete("pods", pod.name, grace_seconds=0)
