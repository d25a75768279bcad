"""Serve the driver's sockets, also before it is this agent's turn: calls then wait until it is.

kubelet calls the driver that registered last. So during an upgrade no call fails, although only one agent at a time may
prepare claims.
"""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from berth_agent.dra.calls import CallMetrics
from berth_agent.dra.preparation import Preparation
from berth_agent.dra.service import ClaimKey, DriverService, HealthFeed, PreparedDevice
from berth_agent.dra.sockets import DriverSockets
from berth_agent.kubelet.device_plugin.registration import CrashCounter, ServingError
from berth_agent.vendor import RefusedError
from berth_api.names import DRA_DRIVER

CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks whether the sockets are still there."""
TURN_SECONDS: Final = 40.0
"""Seconds for which a call waits for this agent's turn. kubelet gives up after 45 s."""
POLL: Final = 0.1
"""Seconds between two looks whether kubelet has registered the driver."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class DriverEndpoint:
    """What kubelet sees of the driver."""

    def __init__(self, kubelet: Path) -> None:
        """Set kubelet's folder."""
        self._kubelet = kubelet
        self._claims: asyncio.Future[Preparation] = asyncio.get_running_loop().create_future()
        self._sockets: DriverSockets | None = None
        self._failure = ""
        self.health: Final = HealthFeed()
        self.metrics: Final = CallMetrics()

    @property
    def is_registered(self) -> bool:
        """Whether kubelet has registered the driver."""
        return self._sockets is not None and self._sockets.registration.is_registered

    @property
    def failure(self) -> str:
        """Why kubelet cannot register the driver; empty if it can, or has not tried yet."""
        return self._sockets.registration.failure if self._sockets else self._failure

    def begin(self, claims: Preparation) -> None:
        """Answer kubelet's calls from now on, also those that wait: it is this agent's turn."""
        self._claims.set_result(claims)

    async def close(self) -> None:
        """Finish the running calls, including those that kubelet gave up, and accept no more."""
        if self._claims.done() and not self._claims.exception():
            await self._claims.result().close()

    async def until_registered(self) -> None:
        """Wait until kubelet has registered the driver."""
        while not self.is_registered:  # noqa: ASYNC110 - sockets may be made again meanwhile
            await asyncio.sleep(POLL)

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Prepare a claim when it is this agent's turn.

        Raises:
            RefusedError: it is not prepared.
        """
        return await (await self._turn()).prepare(claim)

    async def unprepare(self, claim: ClaimKey) -> None:
        """Release a claim when it is this agent's turn.

        Raises:
            RefusedError: it is not released.
        """
        await (await self._turn()).unprepare(claim)

    async def _turn(self) -> Preparation:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                return await asyncio.shield(self._claims)
        except TimeoutError:
            raise RefusedError("an earlier agent of this node still runs; kubelet will call again") from None

    def _leave(self) -> None:
        """Answer the calls that wait before the sockets close: kubelet repeats what is refused."""
        if not self._claims.done():
            self._claims.set_exception(RefusedError("the agent of this node ends; kubelet will call again"))
        elif not self._claims.exception():
            self._claims.result().leave()

    async def run(self) -> None:
        """Serve kubelet until cancelled.

        Raises:
            CrashLoopError: the sockets break again and again.
        """
        crashes = CrashCounter()
        while True:
            sockets = DriverSockets(self._kubelet, DriverService(claims=self, health=self.health, metrics=self.metrics))
            try:
                await sockets.start()
                self._sockets, self._failure = sockets, ""
                while True:
                    await asyncio.sleep(CHECK_INTERVAL)
                    if sockets.broken:
                        break
                _log.warning("a socket of the driver of claims is gone; serving again")
                crashes.count(asyncio.get_running_loop().time(), what=f"the sockets of {DRA_DRIVER}")
            except ServingError as error:
                if str(error) != self._failure:
                    _log.error("the driver of claims cannot be served, will try again", error=str(error))
                self._failure = str(error)
            except asyncio.CancelledError:
                self._leave()
                raise
            finally:
                self._sockets = None
                await sockets.stop()
            await asyncio.sleep(CHECK_INTERVAL)
