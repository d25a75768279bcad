"""Kubeconfigs with an `exec` program, an auth provider (OIDC) or a proxy, read by kubernetes-asyncio."""

from pathlib import Path
from typing import Final

import aiohttp
from kubernetes_asyncio import client, config

from berth_client.credentials import CredentialsError, Login
from berth_client.tokens import Renew

REFUSALS: Final = (
    config.ConfigException,
    aiohttp.ClientError,
    OSError,
    # The library does not check the form of the file, so these are raised for an invalid one.
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What kubernetes-asyncio raises if it cannot log in."""


async def load(kubeconfig: str) -> tuple[Login, Renew]:
    """Return the login and a function that reads it again; of several files (`a:b`) the first that sets a field wins.

    Raises:
        CredentialsError: the kubeconfig cannot be used.
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

    return _login(configuration), renew


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
        proxy=configuration.proxy,
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
