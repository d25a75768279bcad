"""kopf in a thread and loop of its own, playing one role at a time."""

import asyncio
import threading
from concurrent.futures import Future

import kopf

from berth_operator.handlers.memo import Memo


class KopfThread:
    """Starts and ends kopf's operator, and tells the memo if it ends by itself."""

    def __init__(self, *, memo: Memo) -> None:
        self._memo = memo
        self._stop = threading.Event()
        self._running: Future[None] | None = None

    async def play(self, registry: kopf.OperatorRegistry) -> None:
        """End the present role and begin another."""
        await self.stop()
        self._stop = threading.Event()
        self._running = Future()
        threading.Thread(target=self._run, args=(registry, self._stop, self._running), name="kopf", daemon=True).start()

    async def stop(self) -> None:
        """End the present role and wait for its clean-up."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait({asyncio.wrap_future(self._running)})

    def _run(self, registry: kopf.OperatorRegistry, stop: threading.Event, running: "Future[None]") -> None:
        try:
            asyncio.run(self._operate(registry, stop))
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which ends the process
            self._tell(stop, error)
        else:
            self._tell(stop, RuntimeError("kopf ended by itself"))
        finally:
            running.set_result(None)

    def _tell(self, stop: threading.Event, error: BaseException) -> None:
        if not stop.is_set():
            self._memo.loop.call_soon_threadsafe(self._memo.failed, error)

    async def _operate(self, registry: kopf.OperatorRegistry, stop: threading.Event) -> None:
        await kopf.operator(
            registry=registry,
            memo=self._memo,
            standalone=True,
            clusterwide=True,
            liveness_endpoint=self._memo.settings.health or None,
            stop_flag=stop,
        )
