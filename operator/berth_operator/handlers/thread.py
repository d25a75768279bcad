"""kopf in a thread and loop of its own."""

import asyncio
import gc
import threading
from concurrent.futures import Future
from typing import Final

import structlog

from berth_operator.handlers.memo import Memo

STOP_SECONDS: Final = 2.0
"""How long its clean-up is waited for. kopf takes longer only while it starts, when nothing has been written yet: it
gives up its first requests after five seconds, and the lease is to be released before."""

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
        """End kopf, if it was started, and wait for its clean-up, though not for long."""
        self._stop.set()
        if self._started:
            ended, _ = await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=STOP_SECONDS)
            if not ended:
                log.info("not waiting for kopf's clean-up any longer", seconds=STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which ends the process
            self._tell(error)
        else:
            self._tell(RuntimeError("kopf ended by itself"))
        finally:
            self._ended.set_result(None)

    def _tell(self, error: BaseException) -> None:
        if not self._stop.is_set():
            self._memo.loop.call_soon_threadsafe(self._memo.failed, error)

    async def _operate(self) -> None:
        # With what it finds installed beside it kopf takes 0.2 s to load, and the first pods need none of it.
        import kopf  # noqa: PLC0415 - only now

        from berth_operator.handlers.operator import REGISTRY  # noqa: PLC0415 - only now

        # All of it stays: looking through it took each collection 7 ms of some decision.
        gc.freeze()
        await kopf.operator(
            registry=REGISTRY,
            memo=self._memo,
            standalone=True,
            clusterwide=True,
            liveness_endpoint=self._memo.settings.health or None,
            stop_flag=self._stop,
        )
