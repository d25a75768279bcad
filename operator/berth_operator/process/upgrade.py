"""End the process after an upgrade of Kubernetes. Decisions follow the kube-scheduler of the API server's version.

Everything read since the start was read by the rules of the previous version, so the next start reads it again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from berth_operator.clients.leader import TermLostError

PERIOD: Final = 600.0
"""Seconds between two looks. While API servers are replaced one after the other, their answers may alternate."""


async def run(version: Callable[[], Awaitable[int | None]], known: int, period: float = PERIOD) -> None:
    """Compare the API server's minor version with the known one every `period` seconds, until cancelled.

    Raises:
        TermLostError: the version has changed.
    """
    while True:
        await asyncio.sleep(period)
        if (now := await version()) not in (None, known):
            raise TermLostError(f"the API server is of Kubernetes 1.{now} now, and was of 1.{known}")
