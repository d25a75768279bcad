"""A cluster in virtual time: pods arrive, wait in the operator's queue, are placed by its core, and end.

The queue, its queueing hints, the decision and the charge are the operator's own. Only the binding is left out, and
takes no time here. Nothing is preempted, because all pods have the same priority.
"""

import heapq
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.state.cache.listener import NoListener
from berth_operator.state.cache.waker import Waker
from tests.bench.decisions import openb
from tests.bench.decisions.occupancy import Occupancy
from tests.bench.decisions.openb import Machine, Task
from tests.bench.decisions.stream import Arrival


@dataclass(slots=True)
class Pod:
    """What happened to one pod, in mean lifetimes."""

    task: Task
    at: float
    lifetime: float
    placed: float | None = None
    """When it was placed; None if it still waits at the end."""


@dataclass(slots=True)
class Run:
    """The result of one simulation."""

    pods: list[Pod] = field(default_factory=list)
    allocated: float = 0.0
    """Thousandths of cards that pods held, on average over the time that was measured."""
    waiting: float = 0.0
    """Thousandths of cards that waiting pods requested, on average over that time."""
    took: list[float] = field(default_factory=list)
    """Milliseconds of each placement: the decision and its charge."""


class Simulation:
    """One cluster under one policy, or under several one after the other."""

    def __init__(self, machines: Sequence[Machine], policies: Sequence[tuple[float, Policy]], seed: int) -> None:
        """Set up an empty cluster; `policies` are (when it begins, policy), the first from the start."""
        # Not the generator of the arrivals, so that these are the same for each policy.
        order = random.Random(seed)
        self._fleet = openb.fleet(machines, order)
        self._queue: Queue[PendingPod | Gang] = Queue()
        self._waker = Waker(fleet=self._fleet, queue=self._queue, listener=NoListener())
        self._occupancy = Occupancy(machines)
        self._policies, self._policy = list(reversed(policies)), policies[0][1]
        self._requests: dict[Task, PodRequest] = {}
        self._ends: list[tuple[float, int]] = []
        """Heap of (when it ends, number of the pod)."""
        self._now, self._waiting = 0.0, 0
        self._run = Run()

    def run(self, arrivals: Iterable[Arrival], *, start: float, end: float) -> Run:
        """Simulate until `end`, and return what happened; means are over the time from `start` on."""
        for arrival in arrivals:
            self._end_pods(arrival.at, start)
            self._advance(arrival.at, start)
            self._arrive(arrival)
        self._end_pods(end, start)
        self._advance(end, start)
        self._run.allocated /= end - start
        self._run.waiting /= end - start
        return self._run

    def _advance(self, now: float, start: float) -> None:
        """Advance the time; nothing changes in it."""
        measured = max(0.0, now - max(self._now, start))
        self._run.allocated += measured * self._occupancy.size
        self._run.waiting += measured * self._waiting
        self._now = now
        while self._policies and self._policies[-1][0] <= now:
            self._policy = self._policies.pop()[1]

    def _arrive(self, arrival: Arrival) -> None:
        if (request := self._requests.get(arrival.task)) is None:
            request = self._requests[arrival.task] = arrival.task.request
        number = len(self._run.pods)
        self._run.pods.append(Pod(arrival.task, arrival.at, arrival.lifetime))
        self._waiting += arrival.task.size
        self._fleet.pod_mix.see(request)
        uid = str(number)
        self._waker.put(PendingPod(uid=uid, namespace="openb", name=f"pod-{uid}", request=request, arrived=number))
        self._schedule()

    def _end_pods(self, until: float, start: float) -> None:
        """End the pods whose lifetime is over, and place those that this wakes."""
        while self._ends and self._ends[0][0] <= until:
            at, number = heapq.heappop(self._ends)
            self._advance(at, start)
            self._occupancy.end(str(number))
            if (charge := self._fleet.release(str(number))) is not None:
                self._waker.capacity_freed(charge)
            self._schedule()

    def _schedule(self) -> None:
        """Decide all active pods, as the scheduling loop does."""
        while isinstance(pod := self._queue.pop(self._now), PendingPod):
            if (parked := self._queue.parked_failure(pod)) is not None:
                self._queue.park(pod, parked)
            elif (failure := self._place(pod)) is not None:
                self._queue.park(pod, failure)

    def _place(self, pod: PendingPod) -> Failure | None:
        began = time.perf_counter()
        outcome = decide(self._fleet, pod, self._policy)
        if isinstance(outcome, Failure):
            return outcome
        self._fleet.charge(outcome.charge)
        self._run.took.append(1000 * (time.perf_counter() - began))
        self._queue.remove(pod.uid)
        self._waker.pod_assigned(outcome.charge)
        number = int(pod.uid)
        record = self._run.pods[number]
        self._occupancy.take(pod.uid, record.task, outcome.node, outcome.grants)
        record.placed = self._now
        self._waiting -= record.task.size
        heapq.heappush(self._ends, (self._now + record.lifetime, number))
        return None
