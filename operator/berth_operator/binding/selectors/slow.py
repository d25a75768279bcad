"""Selectors that take more than a millisecond. A worker process evaluates them and then wakes the pods that need them.

Next is the namespace on whose claims the loop and the worker have spent the least time recently. The worker's results
are cached together with the loop's, including the failure of an expression. Without a worker, only these pods wait.
"""

import asyncio
from collections.abc import Hashable
from typing import Final, Protocol

import structlog

from berth_api.values.backoff import ExponentialBackoff
from berth_operator.binding.selectors.process import Evaluated, SelectorProcess, StartError, WorkerError
from berth_operator.core.claims.matching.offload import Job, Offload
from berth_operator.core.claims.selectors import DeviceView
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster

MAX_TRIES: Final = 3
"""Times that a job may end the worker until that counts as a failure of the expression."""
MAX_FAILURES: Final = 256
"""Expressions whose failures are counted."""
BACKOFF: Final = ExponentialBackoff(first=1.0, longest=60.0)
"""Until the worker is started again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Worker(Protocol):
    """The worker process."""

    async def evaluate(self, expression: str, views: list[DeviceView]) -> Evaluated:
        """Evaluate an expression for devices; raise WorkerError."""

    async def close(self) -> None:
        """End the process."""


class SlowSelectors:
    """Passes jobs to the worker process and keeps what it finds."""

    def __init__(self, cluster: Cluster, worker: Worker | None = None) -> None:
        self._cluster, self._worker = cluster, worker or SelectorProcess()
        self._selected = cluster.fleet.claims.supply.index.selected
        self._asked = asyncio.Event()
        self._offload = self._selected.offload = Offload(cluster.queue.turns, self._asked.set)
        self._waiting: dict[str, set[Hashable]] = {}
        """Expression -> classes of the queue that wait for it."""
        self._failures: dict[str, int] = {}
        """Expression -> number of times that it ended the worker."""
        self._pause = BACKOFF.first

    def begin(self) -> None:
        """Begin the decision of a unit."""
        self._offload.asked.clear()

    def wait(self, class_key: Hashable) -> None:
        """Wake a parked class when the worker has evaluated the expressions of its decision."""
        for expression in self._offload.asked:
            self._waiting.setdefault(expression, set()).add(class_key)

    async def run(self) -> None:
        """Evaluate until cancelled."""
        try:
            while True:
                self._asked.clear()
                if (job := self._offload.next_job()) is not None:
                    await self._evaluate(job)
                else:
                    await self._asked.wait()
        finally:
            await self._worker.close()

    async def _evaluate(self, job: Job) -> None:
        began = self._cluster.clock()
        try:
            answer = await self._worker.evaluate(job.expression, [device.view for device in job.devices])
        except WorkerError as error:
            answer = self._failed(job, error)
            await asyncio.sleep(self._pause)
            self._pause = BACKOFF.following(self._pause)
        else:
            self._failures.pop(job.expression, None)
            self._pause = BACKOFF.first
        if answer.invalid:
            self._selected.refuse(job.expression, answer.invalid)
        for device, result in zip(job.devices, answer.results, strict=False):
            self._selected.learn(job.expression, device, result)
        now = self._cluster.clock()
        self._cluster.queue.turns.take(job.namespace, now - began, now)
        self._offload.done()
        for expression in list(self._waiting):
            # Those whose job found no place ask again.
            if expression == job.expression or not self._offload.is_asked(expression):
                for class_key in self._waiting.pop(expression):
                    self._cluster.queue.wake_class(class_key)
        self._cluster.workload_queue.wake(Change.CLAIM_DEVICES)
        self._cluster.listener.work_ready()

    def _failed(self, job: Job, error: WorkerError) -> Evaluated:
        """Return the kept result of a job without an answer: none until the job has ended the worker several times."""
        if isinstance(error, StartError):
            log.error("selectors that take long are not evaluated", error=str(error))
            return Evaluated()
        failures = self._failures.pop(job.expression, 0) + 1
        if len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[job.expression] = failures
        log.warning("no answer about a selector", error=str(error), namespace=job.namespace, failures=failures)
        if failures < MAX_TRIES:
            return Evaluated()
        return Evaluated(results=[f"its evaluation failed {failures} times: {error}"] * len(job.devices))
