"""Correct the allocations of pods that hold other devices than they were allocated.

kubelet may swap the devices of two pods on a node. Both pods still have what they request, so both allocations are
rewritten to match kubelet. Each rewrite stands alone: it depends only on what kubelet gave, not on whether the other
rewrite succeeds. If a pod drifted without a counterpart, it is charged for what it holds, and reported once. If a
rewrite keeps failing, its pod is reported, too.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_api import names
from berth_api.allocation import Grant
from berth_api.values import keys
from berth_api.values.backoff import ExponentialBackoff
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.decision import record
from berth_operator.core.fleet import kubelet_allocation
from berth_operator.core.fleet.kubelet_allocation import Mismatch
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two checks while any pod drifts."""
PATIENCE: Final = 2.0
"""Seconds of drift before it is reported: the report about the other pod of a swap may arrive later."""
SWAP_PATIENCE: Final = 30.0
"""Seconds of drift before a swap is reported: a rewrite that fails is attempted several times until then."""
PAUSE: Final = ExponentialBackoff(first=1.0, longest=60.0)
"""Until a failed write is retried."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PodAnnotator(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""

    async def annotate_pod(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod, unless it has changed since it was read."""


class DriftKeeper:
    """Reports and corrects drift for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: PodAnnotator,
        reporter: Reporter,
        leads: Callable[[], bool],
        changed: asyncio.Event,
    ) -> None:
        """Create a keeper; `changed` is set whenever a pod begins or ceases to drift."""
        self._cluster, self._pods, self._reporter, self._leads = cluster, pods, reporter, leads
        self._changed = changed
        self._since: dict[str, float] = {}
        """UID of a drifting pod -> clock reading when it was first seen drifting."""
        self._reported: set[str] = set()
        """UIDs of drifting pods that have been reported."""
        self._retry: dict[str, tuple[float, float]] = {}
        """UID -> when a failed write may be retried, and the pause before that."""

    async def run(self) -> None:
        """Report and correct drift until cancelled."""
        cluster, clock = self._cluster, self._cluster.clock
        while True:
            self._changed.clear()
            drifted, is_ours, now = cluster.allocations.drifted, cluster.node_cache.is_ours, clock()
            ours = {uid: mismatch for uid, mismatch in drifted.items() if is_ours(mismatch.actual.node)}
            counters.DRIFTED.set(len(ours))
            self._since = {uid: self._since.get(uid, now) for uid in ours}
            self._reported &= ours.keys()
            self._retry = {uid: retry for uid, retry in self._retry.items() if uid in ours}

            rewrites = [
                rewrite
                for node in sorted({mismatch.actual.node for mismatch in ours.values()})
                for rewrite in cluster.allocations.to_be_rewritten(node)
            ]
            swapped = {mismatch.actual.uid for mismatch, _ in rewrites}
            for uid, mismatch in ours.items():
                patience = SWAP_PATIENCE if uid in swapped else PATIENCE
                if uid not in self._reported and now - self._since[uid] >= patience:
                    self._reported.add(uid)
                    promised, node = mismatch.promised, mismatch.actual.node
                    difference = kubelet_allocation.difference(promised, mismatch.actual, cluster.fleet.kinds)
                    log.warning("devices drifted", pod=promised.pod, node=node, difference=difference)
                    self._reporter.drifted(promised, difference)

            due = [rewrite for rewrite in rewrites if self._retry.get(rewrite[0].actual.uid, (now, 0.0))[0] <= now]
            await asyncio.gather(*(self._rewrite(*rewrite) for rewrite in due if self._leads()))

            # Sleep until a pod begins or ceases to drift; while any drifts, for `PERIOD` at most.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD if self._since else None):
                    await self._changed.wait()

    async def _rewrite(self, mismatch: Mismatch, replacements: Mapping[str, Grant]) -> None:
        """Rewrite a pod's allocation to name the devices that it holds."""
        namespace, name = keys.split(mismatch.actual.pod)
        try:
            pod = await self._pods.get_pod(namespace, name)
            metadata, node = pod["metadata"], pod["spec"].get("nodeName")
            shown = metadata.get("annotations") or {}
            is_same = (metadata["uid"], node) == (mismatch.actual.uid, mismatch.actual.node)
            if not is_same or names.ALLOCATED not in shown:
                return
            if (annotations := record.rewritten(shown, mismatch, replacements)) is None:
                return  # the pod was rewritten meanwhile; the watch will show it
            await self._pods.annotate_pod(pod, annotations)
        except CallError as error:
            if error.is_missing:
                return
            uid = mismatch.actual.uid
            _, before = self._retry.get(uid, (0.0, 0.0))
            pause = PAUSE.first if error.status == HTTPStatus.CONFLICT else PAUSE.following(before)
            self._retry[uid] = self._cluster.clock() + pause, pause
            log.warning("allocation not rewritten", pod=mismatch.actual.pod, error=str(error), again_in=pause)
        else:
            counters.REWRITES.inc()
            instead = {device: grant.id for device, grant in replacements.items()}
            log.info("allocation rewritten", pod=mismatch.actual.pod, node=mismatch.actual.node, instead=instead)
