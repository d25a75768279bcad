"""The agent's client of the API server, and the paths that it uses."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from berth_agent.configuration.settings import Settings
from berth_api import names
from berth_client import credentials, proxy
from berth_client.client import METADATA_LIST, ApiClient
from berth_client.credentials import Login
from berth_client.errors import Unreachable
from berth_client.objects import Object
from berth_client.tokens import TokenSource

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
PAGE_BYTES: Final = 2**20
"""Bytes of a list's page that are read, unless it has a single object. An agent has little memory."""
DEVICES: Final = f"/apis/{names.API_VERSION}/{names.DEVICES}"

ClientOf = Callable[[str], ApiClient]
"""Returns the client with which the objects of a node are written."""


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
    return ApiClient.of(
        tokens, user_agent=names.AGENT, limit=connections, tries=1, timeout=timeout, page_bytes=PAGE_BYTES
    )


def client_of_node(client: ApiClient, settings: Settings) -> ClientOf:
    """Return what returns a node's client: the agent's own, or in a simulated fleet one with the node's token.

    It raises `Unreachable` if a simulated node has no token.
    """
    if settings.fleet_tokens is None:
        return lambda _: client
    folder = settings.fleet_tokens

    def with_token(node: str) -> ApiClient:
        try:
            return client.with_token(folder / node)
        except OSError as error:
            raise Unreachable(f"no token of the simulated node {node}: {error}") from error

    return with_token


async def list_metadata(client: ApiClient, path: str, *, only: str | None = None) -> dict[str, Object]:
    """Return the metadata of all objects, or of one, by name.

    Raises:
        CallError: the list cannot be read.
    """
    selector = {"fieldSelector": f"metadata.name={only}"} if only else {}
    objects, _ = await client.list(path, selector, accept=METADATA_LIST)
    return {obj["metadata"]["name"]: obj["metadata"] for obj in objects}
