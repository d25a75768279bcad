"""Code that tests of aggregated APIs share: their own cluster, and requests to one replica of a server."""

import base64
import contextlib
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from devcluster import Arena, Cluster
from devcluster.control_plane.api import Api, ApiError
from tests.integration.operator.world import World

NAMESPACE: Final = "berth-system"
SERVICE: Final = {"type": "ExternalName", "externalName": "127.0.0.1"}
"""Services route nowhere in these clusters."""


@contextlib.contextmanager
def own_world(folder: Path, prepare: Callable[[Cluster], None]) -> Iterator[World]:
    """Start a cluster, because an APIService belongs to the whole of one, and yield a world in it."""
    with Cluster(folder=folder / "cluster") as cluster:
        prepare(cluster)
        arena = Arena(cluster=cluster, folder=folder)
        arena.open()
        world = World(arena=arena, folder=folder)
        try:
            yield world
        finally:
            world.close()
            sys.stdout.write(world.processes.tails())


def is_served(api: Api, path: str) -> bool:
    """Return whether the API server passes on requests for a path."""
    try:
        api.get(path)
    except ApiError:
        return False
    return True


def tls_of(api: Api, namespace: str, secret: str) -> ssl.SSLContext:
    """Return the TLS of clients that trust the certificate that replicas share."""
    data = api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")["data"]
    tls = ssl.create_default_context(cadata=base64.b64decode(data["ca.crt"]).decode())
    # It is for the name by which the API server calls.
    tls.check_hostname = False
    return tls


def ask(url: str, headers: Mapping[str, str], tls: ssl.SSLContext, *, lines: int = 1) -> tuple[int, list[Any]]:
    """Return status and JSON lines of a request; an error has one line."""
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as response:  # noqa: S310
            return response.status, [json.loads(line) for line in islice(response, lines)]
    except urllib.error.HTTPError as error:
        return error.code, [json.loads(error.read())]
