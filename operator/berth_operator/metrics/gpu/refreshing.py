"""Read GPU metrics repeatedly in the background, and report when they become stale."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import structlog

from berth_operator.clients.kube import KubeClient
from berth_operator.metrics import counters
from berth_operator.metrics.gpu.fetching import Fetcher
from berth_operator.metrics.gpu.sources import (
    AGENT_SECONDS,
    AT_ONCE,
    Agents,
    Prometheus,
    PrometheusAddress,
    Source,
    SourceError,
)
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.gpu_metrics import REASONS

SLICE: Final = 32
"""Cards that are written in one turn of the scheduler's loop, which takes less than a millisecond."""
QUERY_SECONDS: Final = 10.0
"""Deadline of one query."""
CONNECTIONS: Final = 4
"""Connections to Prometheus at most."""
FRESH: Final = "fresh"
PARTLY: Final = "stale in part"
STALE: Final = "stale"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def run(*, settings: Settings, api: KubeClient, cluster: Cluster, report: Callable[[str], None]) -> None:
    """Refresh the metrics by the settings until cancelled; `report` is called once when all become stale."""
    if settings.metrics_source == "none":
        return
    by_agents = settings.metrics_source == "agents"
    limit, seconds = (AT_ONCE, AGENT_SECONDS) if by_agents else (CONNECTIONS, QUERY_SECONDS)
    async with Fetcher(limit=limit, seconds=seconds, authority=settings.prometheus_ca) as fetcher:
        source: Source
        if by_agents:
            source = Agents(
                api=api,
                fetcher=fetcher,
                namespace=settings.agent_pods_namespace,
                port=settings.agent_metrics_port,
                token_file=settings.agent_metrics_token_file,
            )
        else:
            address = PrometheusAddress(
                url=settings.prometheus_url,
                namespaces=settings.prometheus_namespace_names,
                token=settings.prometheus_token_file,
            )
            source = Prometheus(api=api, fetcher=fetcher, address=address, max_age=settings.metrics_stale_after)
        refresher = Refresher(
            source=source,
            cluster=cluster,
            interval=settings.metrics_interval,
            stale_after=settings.metrics_stale_after,
            report=report,
        )
        await refresher.run()


class Refresher:
    """One source that is read at an interval."""

    def __init__(
        self,
        *,
        source: Source,
        cluster: Cluster,
        interval: float,
        stale_after: float,
        report: Callable[[str], None],
    ) -> None:
        self._source, self._cluster, self._report = source, cluster, report
        self._interval, self._stale_after = interval, stale_after
        self._failure = ""
        self._was: str | None = None
        """The state that was logged last."""
        for reason in REASONS:
            counters.GPU_METRICS_DROPPED.labels(reason)
        for result in ("read", "failed"):
            counters.GPU_METRICS_REFRESHES.labels(result)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            began = self._cluster.clock()
            await self.refresh()
            await asyncio.sleep(max(self._interval - (self._cluster.clock() - began), self._interval / 2))

    async def refresh(self) -> None:
        """Read the source once, apply the result to decisions, and forget outdated measurements."""
        try:
            async with asyncio.timeout(self._stale_after):
                samples = await self._source.read()
        except (SourceError, TimeoutError) as error:
            counters.GPU_METRICS_REFRESHES.labels("failed").inc()
            failure = str(error) or f"no answer within {self._stale_after:g} s"
            if failure != self._failure:
                log.warning("GPU metrics not read", error=failure)
            self._failure = failure
        else:
            self._cluster.gpu_metrics.begin()
            left = iter(samples)
            while turn := list(islice(left, SLICE)):
                for reason, count in self._cluster.gpu_metrics.put(turn).items():
                    counters.GPU_METRICS_DROPPED.labels(reason).inc(count)
                await asyncio.sleep(0)
            self._failure = ""
            counters.GPU_METRICS_REFRESHES.labels("read").inc()
        self._cluster.gpu_metrics.apply(self._stale_after)
        # A change is logged once. Without GPUs the state is empty.
        freshness = self._cluster.gpu_metrics.freshness()
        counters.GPU_METRICS_CARDS.labels("fresh").set(freshness.fresh)
        counters.GPU_METRICS_CARDS.labels("stale").set(freshness.stale)
        state = STALE if freshness.stale else ""
        if freshness.fresh:
            state = PARTLY if freshness.stale else FRESH
        counters.GPU_METRICS_STALE.set(state == STALE)
        if state == self._was:
            return
        self._was = state
        if state == STALE:
            since, why = "the start of this leader", self._failure or "the source knows no GPU of a Device"
            if freshness.newest is not None:
                measured = time.time() - (self._cluster.clock() - freshness.newest)
                since = datetime.fromtimestamp(int(measured), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            log.warning("GPU metrics are stale", since=since, cards=freshness.stale, error=why)
            self._report(f"GPU metrics are stale since {since}, and decisions use allocations alone: {why}")
        elif state:
            log.info("GPU metrics are known", state=state, fresh=freshness.fresh, stale=freshness.stale)
