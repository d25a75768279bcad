"""Kubeconfigs that ask for a program or a provider (`exec`, OIDC), or a proxy: as kubernetes-asyncio reads them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import aiohttp
from kubernetes_asyncio import client, config

from berth_client.credentials import CredentialsError, Login

REFUSALS: Final = (
    config.ConfigException,
    aiohttp.ClientError,
    OSError,
    # To a file of another form the library says what Python says.
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What it raises where it cannot log in."""


async def load(kubeconfig: str) -> tuple[Login, Callable[[], Awaitable[Login]], str | None]:
    """Give the login, how to renew it, and the proxy; of several files (`a:b`) the first that says something counts.

    Raises:
        CredentialsError: it cannot be used.
    """
    configuration = client.Configuration()
    try:
        loader = await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except REFUSALS as error:
        raise CredentialsError(f"{kubeconfig}: {type(error).__name__}: {error}") from error

    async def renew() -> Login:
        try:
            await loader.load_and_set(configuration)
        except REFUSALS as error:
            raise CredentialsError(f"{kubeconfig}: {type(error).__name__}: {error}") from error
        return _login(configuration)

    return _login(configuration), renew, configuration.proxy


def _login(configuration: client.Configuration) -> Login:
    token: str | None = configuration.api_key.get("BearerToken")
    return Login(
        server=str(configuration.host).rstrip("/"),
        authority=_path(configuration.ssl_ca_cert),
        verified=bool(configuration.verify_ssl),
        server_name=configuration.tls_server_name,
        certificate=_path(configuration.cert_file),
        key=_path(configuration.key_file),
        token=token.removeprefix("Bearer ") if token else None,
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
