"""What both roles do: connect, log in, answer probes."""

from datetime import UTC, datetime, timedelta
from typing import Final

import kopf

from berth_operator.clients.credentials import RELOAD_SECONDS
from berth_operator.clients.kube import KubeClient
from berth_operator.handlers.memo import Memo

CONNECTIONS: Final = 8


async def connect(*, memo: Memo, settings: kopf.OperatorSettings, **_: object) -> None:
    """Open kopf's own connection to the API server, and set kopf up for production."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 30
    settings.execution.default_backoff = 5
    settings.process.ultimate_exiting_timeout = 10
    memo.client = await KubeClient.connect(memo.settings.kubeconfig, "berth-operator/reconcile", limit=CONNECTIONS)


async def login(*, memo: Memo, **_: object) -> kopf.ConnectionInfo:
    """Log kopf in as the rest of the operator is, and again before the token is rotated."""
    expiration = datetime.now(UTC) + timedelta(seconds=RELOAD_SECONDS)
    return kopf.ConnectionInfo(**await memo.client.facts(), expiration=expiration)


async def alive(*, memo: Memo, **_: object) -> bool:
    """Answer the liveness probe; only this kind of error makes kopf answer 500 at once."""
    if problem := memo.problem():
        raise kopf.PermanentError(problem)
    return True


async def disconnect(*, memo: Memo, **_: object) -> None:
    """Close the connection."""
    await memo.client.close()


def registry() -> kopf.OperatorRegistry:
    """Give a registry with these handlers."""
    handlers = kopf.OperatorRegistry()
    kopf.on.startup(registry=handlers)(connect)
    kopf.on.login(registry=handlers)(login)
    kopf.on.probe(registry=handlers, id="alive")(alive)
    kopf.on.cleanup(registry=handlers)(disconnect)
    return handlers
