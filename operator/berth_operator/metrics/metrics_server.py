"""Serve the operator's metrics to clients that the API server authorizes, in a thread with its own loop.

So metrics are served even while the scheduler's loop is stuck, and they show that it is. Rendering them does not hold
up the scheduler's loop.
"""

import asyncio
import threading
import time
from typing import Final

import structlog
from prometheus_client import generate_latest

from berth_base import metrics_server
from berth_base.start import StartError
from berth_client.access import MetricsAccess
from berth_client.credentials import CredentialsError
from berth_operator.clients.kube import KubeClient
from berth_operator.settings.flags import Settings

CONNECTIONS: Final = 2
"""Connections to the API server, for reviews of clients."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def start(settings: Settings) -> None:
    """Serve metrics by the settings until the process ends."""
    if settings.metrics_port:
        threading.Thread(target=lambda: asyncio.run(_serve(settings)), name="metrics", daemon=True).start()


async def _serve(settings: Settings) -> None:
    address = str(settings.metrics_address)
    access = MetricsAccess(address=address, is_required=settings.metrics_authentication, clock=time.monotonic)
    serving = metrics_server.serving(_render, address=address, port=settings.metrics_port, refuse=access.refusal)
    try:
        async with serving:
            if access.is_required:
                access.connect(
                    await KubeClient.connect(settings.kubeconfig, "berth-operator/metrics", limit=CONNECTIONS)
                )
            await asyncio.Event().wait()
    except CredentialsError:
        return  # the scheduler's own login fails, too, and ends the process
    except StartError as error:
        log.error("metrics not served", error=str(error))  # noqa: TRY400 - the text says everything


async def _render() -> bytes:
    return generate_latest()
