"""The handlers: start-up, login, probes, Devices, GpuPods, clean-up."""

from typing import Final

import kopf

from berth_api import names
from berth_api.values import keys
from berth_operator.clients.kube import KubeClient
from berth_operator.controllers.handlers.connection import Connection
from berth_operator.controllers.handlers.memo import Memo
from berth_operator.controllers.handlers.stateless import NoDiffBase, NoProgress
from berth_operator.metrics.gauges import GAUGES
from berth_operator.state.cache.views import StatusKind

REGISTRY: Final = kopf.OperatorRegistry()
CONNECTIONS: Final = 8
CHUNK: Final = 100
"""Devices on a page of kopf's first list; without pages it takes half a gigabyte for 5,000 nodes."""
IDLE: Final = 0.1
"""Seconds for which kopf keeps a Device in memory after its event."""


@kopf.on.startup(registry=REGISTRY)
async def start(*, memo: Memo, settings: kopf.OperatorSettings, **_: object) -> None:
    """Open kopf's own connection to the API server, and configure kopf."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = CHUNK
    settings.queueing.idle_timeout = IDLE
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 30
    settings.execution.default_backoff = 5
    settings.persistence.diffbase_storage, settings.persistence.progress_storage = NoDiffBase(), NoProgress()
    # kopf would kill the whole process with SIGKILL.
    settings.process.ultimate_exiting_timeout = None
    client = await KubeClient.connect(memo.settings.kubeconfig, "berth-operator/reconcile", limit=CONNECTIONS)
    client.refused = GAUGES.writes
    memo.start(client)


@kopf.on.login(registry=REGISTRY)
async def login(*, memo: Memo, **_: object) -> kopf.ConnectionInfo:
    """Log kopf in with the operator's credentials."""
    return Connection.of(*await memo.client.credentials())


@kopf.on.probe(registry=REGISTRY, id="alive")
async def alive(*, memo: Memo, **_: object) -> bool:
    """Answer the liveness probe; only this kind of error makes kopf answer 500 at once."""
    if problem := memo.problem():
        raise kopf.PermanentError(problem)
    return True


@kopf.on.event(names.GROUP, names.VERSION, names.DEVICES, registry=REGISTRY)
async def device_changed(*, name: str | None, memo: Memo, **_: object) -> None:
    """Mark a Device and its Node, to compare them with what they should show."""
    memo.mark(StatusKind.NODE, name or "")


@kopf.on.event(names.GROUP, names.VERSION, names.GPUPODS, registry=REGISTRY)
async def gpu_pod_changed(*, namespace: str | None, name: str | None, memo: Memo, **_: object) -> None:
    """Mark a GpuPod, to compare what its pod holds with what it was allocated."""
    memo.mark(StatusKind.GPU_POD, keys.join(namespace or "", name or ""))


@kopf.on.cleanup(registry=REGISTRY)
async def stop(*, memo: Memo, **_: object) -> None:
    """Stop writing and close the connection."""
    await memo.stop()
