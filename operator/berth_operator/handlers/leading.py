"""The leader's role: keep Devices and Nodes current.

Any event of a Device marks its node; so does the cluster's state when pods, Nodes or Leases change. What is marked is
compared and written by the reconciler, so an edit by hand is mended as well.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import kopf

from berth_api import names
from berth_operator.handlers import common
from berth_operator.handlers.memo import Memo
from berth_operator.reconcile.bucket import Bucket
from berth_operator.reconcile.writer import Writer

REGISTRY: Final = common.registry()


@kopf.on.startup(registry=REGISTRY)
async def start_writing(*, memo: Memo, **_: object) -> None:
    """Start the reconciler, and let it look at every node once: much may have happened before this term."""
    bucket = Bucket(rate=memo.settings.status_rate, clock=time.monotonic)
    memo.open(Writer(api=memo.client, view=memo.view, bucket=bucket))
    for name in await memo.nodes():
        memo.writer.mark(name)


@kopf.on.event(names.GROUP, names.VERSION, names.DEVICES, registry=REGISTRY)
async def device_changed(*, name: str | None, memo: Memo, **_: Any) -> None:
    """Compare a Device and its Node with what they should show, now and in the end."""
    memo.writer.mark(name or "")


@kopf.on.cleanup(registry=REGISTRY)
async def stop_writing(*, memo: Memo, **_: object) -> None:
    """Stop the reconciler."""
    memo.writing.cancel()
    with suppress(asyncio.CancelledError):
        await memo.writing
