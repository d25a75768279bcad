"""kopf in a thread and loop of its own."""

import asyncio
import gc
import logging
import threading
from concurrent.futures import Future
from typing import Final

import structlog

from berth_operator.handlers.memo import Memo

STOP_SECONDS: Final = 2.0
"""Seconds to wait for kopf's clean-up. It takes longer only during kopf's start, when nothing has been written yet:
kopf's first requests time out after five seconds, and the lease has to be released before."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KopfThread:
    """Runs kopf's operator until stopped, and reports to the memo if it ends by itself."""

    def __init__(self, *, memo: Memo) -> None:
        self._memo = memo
        self._stop = threading.Event()
        self._ended: Future[None] = Future()
        self._started = False

    def start(self) -> None:
        """Start the thread."""
        self._started = True
        threading.Thread(target=self._run, name="kopf", daemon=True).start()

    async def stop(self) -> None:
        """Stop kopf if it was started, and wait for its clean-up, for `STOP_SECONDS` at most."""
        self._stop.set()
        if self._started:
            ended, _ = await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=STOP_SECONDS)
            if not ended:
                log.info("not waiting for kopf's clean-up any longer", seconds=STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which ends the process
            self._report_end(error)
        else:
            self._report_end(RuntimeError("kopf ended by itself"))
        finally:
            self._ended.set_result(None)

    def _report_end(self, error: BaseException) -> None:
        if not self._stop.is_set():
            self._memo.loop.call_soon_threadsafe(self._memo.failed, error)

    async def _operate(self) -> None:
        # Loading kopf and its optional dependencies takes 0.2 s, and the first decisions do not need it.
        import kopf  # noqa: PLC0415 - only now

        from berth_operator.handlers.operator import REGISTRY  # noqa: PLC0415 - only now

        # kopf warns at every start that its thread gets no signals; ours is stopped by a flag.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        # Without this, each collection scans kopf's objects, which delays a decision by 7 ms.
        gc.freeze()
        await kopf.operator(
            registry=REGISTRY,
            memo=self._memo,
            standalone=True,
            clusterwide=True,
            liveness_endpoint=self._memo.settings.health or None,
            stop_flag=self._stop,
        )
