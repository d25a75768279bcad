"""The agent's client of the API server, and the paths that it uses."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from berth_agent.configuration.settings import Settings
from berth_api import names
from berth_client import credentials, proxy
from berth_client.client import METADATA_LIST, ApiClient
from berth_client.credentials import Login
from berth_client.objects import Object
from berth_client.tokens import TokenSource

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
DEVICES: Final = f"/apis/{names.API_VERSION}/{names.DEVICES}"


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[ApiClient]:
    """Open the client that the settings name; it is closed at the end of the block.

    Raises:
        CredentialsError: the kubeconfig or the service account cannot be used.
    """
    login = credentials.load(settings.kubeconfig)
    client = client_of(login, timeout=settings.request_timeout, connections=2 * settings.concurrency)
    try:
        yield client
    finally:
        client.close()


def client_of(login: Login, *, timeout: float, connections: int) -> ApiClient:
    """Return the client of a login, through the proxy that the environment names.

    A call is sent once: each caller tries again in its own time, and logs what failed.

    Raises:
        CredentialsError: its certificates, or the proxy, cannot be used.
    """
    login = replace(login, proxy=proxy.of_environment(login.server))
    # The token file is read for each request: some microseconds about once a second, and no rotation is missed.
    tokens = TokenSource(login=login, reload_seconds=0)
    return ApiClient.of(tokens, user_agent=names.AGENT, limit=connections, tries=1, timeout=timeout)


async def list_metadata(client: ApiClient, path: str, *, only: str | None = None) -> dict[str, Object]:
    """Return the metadata of all objects, or of one, by name.

    Raises:
        CallError: the list cannot be read.
    """
    selector = {"fieldSelector": f"metadata.name={only}"} if only else {}
    objects, _ = await client.list(path, selector, accept=METADATA_LIST)
    return {obj["metadata"]["name"]: obj["metadata"] for obj in objects}
