"""The life of one operator: stand by, lead for one term, end.

A replica that loses its term ends instead of repairing its state. The next start lists everything again. State is
built in no other way. After a restore of etcd, the next start is in the same process.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from berth_client.reflector import Reflector
from berth_operator.apis.extender.service import ExtenderService
from berth_operator.apis.visibility.service import VisibilityService
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.scheduler import Scheduler
from berth_operator.clients.leader import LeaderElection, RestoredError, TermLostError
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.controllers.handlers.thread import KopfThread
from berth_operator.core.values.verdict import ANY
from berth_operator.metrics import counters
from berth_operator.process import heap
from berth_operator.process.configured import Configured
from berth_operator.process.fence import Fence
from berth_operator.process.health import Watches
from berth_operator.process.reloading import ConfigurationFile
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.pod_watches import PodWatches

STANDBY_SECONDS: Final = 3.0
"""Seconds until kopf, which serves probes, starts in a standby replica."""
READING_SECONDS: Final = 240.0
"""Seconds until kopf starts in a leader that still reads its first lists; below the startup probe's limit."""
FENCE_SECONDS: Final = 0.5
"""Seconds that lists wait for the first test of the fence, which takes milliseconds if the fence is loaded."""

Loop = Callable[[], Coroutine[Any, Any, None]]
"""A loop that runs until it is cancelled."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessParts:
    """What a process is made of."""

    cluster: Cluster
    configured: Configured
    file: ConfigurationFile | None
    election: LeaderElection
    fence: Fence
    takeover_pause: float
    """Seconds that a new leader waits for the last leader's Bindings, if the last leader did not end properly."""
    reporter: Reporter
    scheduler: Scheduler
    reflectors: Mapping[str, Reflector]
    """The reflectors of everything but pods."""
    pods: PodWatches
    watches: Watches
    extender: ExtenderService
    visibility: VisibilityService
    memo: Memo
    kopf: KopfThread
    debug_api: Loop
    upgrade: Loop
    """Ends the process when Kubernetes is upgraded."""
    lead: tuple[Loop, ...]
    """What a leader alone runs."""


class Life:
    """One operator, from its standby to the end of its term."""

    def __init__(self, parts: ProcessParts) -> None:
        self._parts = parts
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks of the term; None until it has begun."""
        self.read = asyncio.Event()
        """Set once the first lists of a term are read."""
        self.leads = False
        """Whether it decides; some time after its term has begun."""

    async def run(self, elected: asyncio.Task[None]) -> None:
        """Stand by, then lead until the term ends. `elected` takes part in the election meanwhile.

        Raises:
            ExceptionGroup: with a TermLostError when the term has ended, with a RestoredError when the API server has
                shown an earlier state, or with another failure.
        """
        parts, election = self._parts, self._parts.election
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_fail_with(elected))
                tasks.create_task(self._end_when_doubted())
                tasks.create_task(parts.reporter.run())
                tasks.create_task(heap.run())
                tasks.create_task(parts.upgrade())
                if parts.file is not None:
                    tasks.create_task(parts.file.run())
                if election.term is not None:
                    # Before the first lists: answers about the fence would queue behind megabytes of lists.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FENCE_SECONDS):
                            await parts.fence.loaded(election.term)
                for reflector in parts.reflectors.values():
                    tasks.create_task(reflector.run())
                tasks.create_task(self._serve(tasks))
                tasks.create_task(parts.extender.serve())
                tasks.create_task(parts.visibility.serve())
                term = await election.acquired()
                losing = tasks.create_task(self._lose(term))

                # Until our Bindings pass the fence, and those of the last leader no longer do.
                waited = await parts.fence.loaded(term)
                if not election.follows_drained:
                    # One API server was tested; others learn the term, or the fence, a moment later.
                    since = election.clock() if waited else election.won_at
                    await asyncio.sleep(since + parts.takeover_pause - election.clock())

                self._tasks = tasks
                parts.pods.follow(parts.configured.scheduled, tasks)
                parts.extender.follow(tasks)
                # The first lists become state that stays. Scanning it repeatedly took longer than reading it, and would
                # later delay decisions.
                gc.disable()
                try:
                    await parts.watches.synced()
                finally:
                    gc.freeze()
                    gc.enable()
                objects = {name: reflector.listed for name, reflector in parts.watches.all().items()}
                log.info("first lists read", objects=objects)
                self.read.set()
                if parts.pods.highest_epoch >= term:
                    # Of a restored copy: a Binding of that term may still be on its way.
                    losing.cancel()
                    term = await election.exceed(parts.pods.highest_epoch)
                    tasks.create_task(self._lose(term))
                    await parts.fence.loaded(term)

                for loop in parts.lead:
                    tasks.create_task(loop())
                parts.memo.lead()
                self.leads = True
                parts.extender.lead(tasks)
                parts.visibility.lead(term, tasks)
                counters.LEADING.set(1)
                log.info("leading", term=term)
        finally:
            self.leads = False
            counters.LEADING.set(0)
            election.drained = await parts.scheduler.drain()
            await parts.memo.stop_writing()

    async def stop(self) -> None:
        """Stop kopf; last, because the next leader waits for the LeaderLease and kopf's clean-up takes a second."""
        await self._parts.kopf.stop()
        await self._parts.visibility.leave()

    def configuration_changed(self) -> None:
        """Follow the scheduler names of another configuration, and try all pods again: under it any may fit."""
        if self._tasks is not None:
            self._parts.pods.follow(self._parts.configured.scheduled, self._tasks)
            self._parts.cluster.waker.changed(ANY)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        """Start kopf, and serve the debug API.

        kopf lists all Devices once more. It starts after the lists that decisions need, because garbage collection is
        off during those lists and kopf's garbage would never be freed. After a timeout it starts anyway.
        """
        await self._have_read(STANDBY_SECONDS)
        if self._parts.election.term is not None:
            await self._have_read(READING_SECONDS)
        tasks.create_task(self._parts.kopf.run())
        await self._parts.debug_api()

    async def _have_read(self, seconds: float) -> None:
        """Wait until the first lists are read, for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.read.wait()

    async def _lose(self, term: int) -> None:
        await self._parts.election.lost(term)
        if self._parts.election.is_settled:
            raise TermLostError(f"term {term} has ended")

    async def _end_when_doubted(self) -> None:
        await self._parts.election.doubted()
        raise RestoredError("the API server has shown an earlier state than before")


async def _fail_with(elected: asyncio.Task[None]) -> None:
    """Raise the failure of the election: without it, a standby would never lead. Leave it running otherwise."""
    await asyncio.shield(elected)
