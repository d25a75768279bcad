"""kopf in its own thread and loop. If kopf fails, only kopf is started again.

kopf ends when a watch is refused or its answer cannot be parsed. Both replicas watch the same objects. If kopf's end
also ended the process, both replicas would end at the same moment.
"""

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from berth_base import sockets
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.metrics import counters

STOP_SECONDS: Final = 2.0
"""Seconds to wait for kopf's clean-up. The clean-up takes longer only during kopf's start, when nothing has been
written yet. kopf's first requests time out after five seconds, and the lease must be released before."""
PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before kopf is started again after each of its failures in a row. After one more, the process ends."""
STEADY_SECONDS: Final = 60.0
"""Seconds after which a failure counts as the first of a row again."""
SERVED_SECONDS: Final = 5.0
"""Seconds between two checks whether the API server serves our kinds again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KopfThread:
    """Keeps kopf's operator running until stopped."""

    def __init__(self, *, memo: Memo, are_served: Callable[[], Awaitable[bool]]) -> None:
        """Create it; `are_served` returns whether the API server serves the kinds that kopf watches."""
        self._memo, self._are_served = memo, are_served
        self._run: _Run | None = None

    async def run(self) -> None:
        """Run kopf until cancelled, and start it again when it fails.

        Raises:
            BaseException: the last of too many failures in a row.
        """
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            if (error := await self._once()) is None:
                continue
            failures = 1 if clock() - began > STEADY_SECONDS else failures + 1
            if failures > len(PAUSES):
                raise error
            counters.KOPF_FAILURES.inc()
            pause = PAUSES[failures - 1]
            log.warning("kopf has failed and is started again", error=repr(error), again_in=pause)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Stop kopf if it was started, and wait for its clean-up, for `STOP_SECONDS` at most."""
        if self._run is None:
            return
        self._run.stop()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._run.ended.wait()
        except TimeoutError:
            log.info("not waiting for kopf's clean-up any longer", seconds=STOP_SECONDS)

    async def _once(self) -> BaseException | None:
        """Run kopf until it ends; return its failure, None if it has to start again because our kinds are back."""
        complete = await self._are_served()
        self._run = run = _Run(self._memo)
        run.start()
        if complete:
            await run.ended.wait()
            return run.error or RuntimeError("kopf ended by itself")
        # kopf serves probes until it can watch our kinds: it looks for them only when it starts.
        while not run.ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SERVED_SECONDS):
                    await run.ended.wait()
            if await self._are_served():
                log.info("the API server serves our kinds again")
                run.stop()
                await run.ended.wait()
        return run.error


class _Loop(asyncio.SelectorEventLoop):
    """kopf's loop. kopf serves probes at a URL, where asyncio takes 0.0.0.0 for IPv4 only and :: for IPv6 only."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Do the same, on all interfaces by IPv4 and IPv6 if the host is unspecified."""
        match arguments:
            case factory, str(host), int(port) if sockets.is_unspecified(host):
                return await super().create_server(factory, sock=sockets.listener(host, port), **options)
        return await super().create_server(*arguments, **options)


class _Run:
    """One run of kopf, in a thread."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self.ended = asyncio.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._work, name="kopf", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._operate())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which reports it
            self.error = error
        with contextlib.suppress(RuntimeError):  # the scheduler's loop has ended before kopf
            self._loop.call_soon_threadsafe(self.ended.set)

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self._stop.set()

    async def _operate(self) -> None:
        # Loading kopf and its optional dependencies takes 0.2 s, and the first decisions do not need it.
        import kopf  # noqa: PLC0415 - only now

        from berth_operator.controllers.handlers.operator import REGISTRY  # noqa: PLC0415 - only now

        # kopf warns at every start that its thread gets no signals; ours is stopped by a flag.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        # Without this, each collection scans kopf's objects, which delays a decision by 7 ms.
        gc.freeze()
        self._memo.failed = self._fail
        try:
            await kopf.operator(
                registry=REGISTRY,
                memo=self._memo,
                standalone=True,
                clusterwide=True,
                liveness_endpoint=self._memo.settings.health or None,
                stop_flag=self._stop,
            )
        finally:
            # kopf waits for this flag in a thread, which would keep its loop open forever.
            self._stop.set()
