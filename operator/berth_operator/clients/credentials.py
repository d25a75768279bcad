"""Where the API server is and who we are, as kubernetes-asyncio reads it.

kubernetes-asyncio knows every way to log in (token, token file, exec plugin, OIDC, in-cluster token);
this module asks it again once a minute and after a 401, so that rotated tokens are picked up while a
request costs no more than one look at the clock. A rotated *client certificate* needs a restart: the TLS
context is made once.
"""

import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import structlog
from kubernetes_asyncio import client, config

RELOAD_SECONDS: Final = 60.0
"""Kubernetes rotates a token after 80 % of its life, and at least two minutes before its end."""

LoginError: type[Exception] = config.ConfigException
"""A kubeconfig, or what stands for one in a pod, cannot be used."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Credentials:
    """A kubernetes-asyncio Configuration and how to bring it up to date."""

    def __init__(self, *, configuration: client.Configuration, reload: Callable[[], Awaitable[None]]) -> None:
        self._configuration = configuration
        self._reload = reload
        self._reload_at = time.monotonic() + RELOAD_SECONDS
        self._header = _header(configuration)
        self.host: str = str(configuration.host).rstrip("/")
        self.proxy: str | None = configuration.proxy
        self.server_name: str | None = configuration.tls_server_name

    @classmethod
    async def load(cls, kubeconfig: Path | None) -> Self:
        """Read a kubeconfig, or the service account of this pod where none is named."""
        configuration = client.Configuration()
        if kubeconfig is None:
            return cls(configuration=configuration, reload=_in_cluster(configuration))
        loader = await config.load_kube_config(
            config_file=str(kubeconfig),
            client_configuration=configuration,
        )
        return cls(configuration=configuration, reload=lambda: loader.load_and_set(configuration))

    async def authorization(self) -> str | None:
        """Return the Authorization header of a request sent now."""
        if time.monotonic() >= self._reload_at:
            # Set before the wait: the requests that come meanwhile go on with the token that we have.
            self._reload_at = time.monotonic() + RELOAD_SECONDS
            await self._refresh()
        return self._header

    def refused(self) -> None:
        """Note a 401: the next request reads the credentials anew."""
        self._reload_at = 0.0

    async def _refresh(self) -> None:
        try:
            await self._reload()
        except (config.ConfigException, aiohttp.ClientError, OSError, ValueError) as error:
            # The token at hand is most likely still good; if not, the server says so with a 401.
            log.warning("credentials not renewed", error=str(error))
        self._header = _header(self._configuration)

    def facts(self) -> dict[str, Any]:
        """Return server, authority and identity for a client that makes its own session, under kopf's names."""
        configuration = self._configuration
        return {
            "server": self.host,
            "ca_path": configuration.ssl_ca_cert,
            "insecure": not configuration.verify_ssl,
            "certificate_path": configuration.cert_file,
            "private_key_path": configuration.key_file,
            "proxy_url": self.proxy,
            "scheme": "Bearer" if self._header else None,
            "token": self._header.removeprefix("Bearer ") if self._header else None,
        }

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings: the cluster's authority, our certificate."""
        configuration = self._configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
        if not configuration.verify_ssl:  # the kubeconfig's insecure-skip-tls-verify
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _in_cluster(configuration: client.Configuration) -> Callable[[], Awaitable[None]]:
    def read() -> None:
        # Its own refresh hook would run at every request; ours calls this once a minute.
        load: Callable[..., None] = config.load_incluster_config
        load(client_configuration=configuration, try_refresh_token=False)

    async def reload() -> None:
        read()

    read()
    return reload


def _header(configuration: client.Configuration) -> str | None:
    token: str | None = configuration.api_key.get("BearerToken")
    return token.strip() if token else None
