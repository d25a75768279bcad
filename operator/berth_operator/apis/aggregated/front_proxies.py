"""Watch which front proxies may name users."""

import asyncio
import ssl
from typing import Final, Protocol

import structlog

from berth_client.errors import CallError
from berth_client.objects import Object
from berth_operator.apis.aggregated.access import CONFIGURATION, FrontProxy, FrontProxyError

RETRY_SECONDS: Final = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ConfigMapReader(Protocol):
    """The subset of `ApiClient` that is used here."""

    async def get(self, path: str) -> Object:
        """Read an object at quorum."""


async def another(api: ConfigMapReader, known: FrontProxy | None, period: float) -> FrontProxy:
    """Return the front proxy's configuration once it differs from the known one. It is read every `period` seconds."""
    while True:
        if known is not None:
            await asyncio.sleep(period)
        try:
            current = _checked(FrontProxy.of(await api.get(CONFIGURATION)))
        except (CallError, FrontProxyError) as error:
            log.warning("front proxy's configuration not read", path=CONFIGURATION, error=str(error))
            await asyncio.sleep(min(RETRY_SECONDS, period))
            continue
        if current != known:
            if not current.authorities:
                log.warning("no front proxy is configured: only bearer tokens count", path=CONFIGURATION)
            return current


def _checked(front_proxy: FrontProxy) -> FrontProxy:
    """Return a configuration whose authorities TLS accepts.

    Raises:
        FrontProxyError: it does not.
    """
    if front_proxy.authorities:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=front_proxy.authorities)
        except (ssl.SSLError, ValueError) as error:
            raise FrontProxyError(f"requestheader-client-ca-file: {error}") from error
    return front_proxy
