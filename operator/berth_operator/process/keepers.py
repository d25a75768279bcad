"""The periodic repairs of a leader, which run next to its scheduling loop."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from berth_api.values import keys
from berth_operator.binding.evictions.defragmenter import Defragmenter
from berth_operator.binding.evictions.moves import Moves
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.gangs import GangKeeper
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.upkeep import confirmation, doubled_claims
from berth_operator.binding.upkeep.drift import DriftKeeper
from berth_operator.binding.upkeep.pool_taints import PoolTaints
from berth_operator.clients.kube import KubeClient
from berth_operator.controllers.lifecycle import controller
from berth_operator.controllers.lifecycle.evictor import Evictor
from berth_operator.metrics.gpu import refreshing
from berth_operator.process.configured import Configured
from berth_operator.process.life import Loop
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepers:
    """The loops that need no more than the parts of the process named here."""

    settings: Settings
    client: KubeClient
    cluster: Cluster
    configured: Configured
    reporter: Reporter
    notifier: Notifier
    preemptor: Preemptor
    moves: Moves | None
    """None if defragmentation is off."""
    leads: Callable[[], bool]
    """Returns whether the term still lasts."""

    def loops(self) -> Iterator[Loop]:
        """Yield each loop."""
        yield functools.partial(controller.run, self.cluster)
        yield self._gangs().run
        yield self._drift().run
        yield self.preemptor.run
        yield self._evictor().run
        if self.moves is not None:
            yield self._defragmenter(self.moves).run
        yield functools.partial(confirmation.run, self.cluster, self.client)
        yield functools.partial(doubled_claims.run, self.cluster, self.reporter)
        if self.settings.taint_own_pools:
            yield self._pool_taints().run
        yield self._refresh_gpu_metrics

    def _gangs(self) -> GangKeeper:
        return GangKeeper(
            cluster=self.cluster,
            pods=self.client,
            reporter=self.reporter,
            keep_partial=self.configured.keep_partial,
            leads=self.leads,
        )

    def _drift(self) -> DriftKeeper:
        return DriftKeeper(
            cluster=self.cluster,
            pods=self.client,
            reporter=self.reporter,
            leads=self.leads,
            changed=self.notifier.drift,
        )

    def _evictor(self) -> Evictor:
        return Evictor(
            cluster=self.cluster,
            pods=self.client,
            per_minute=self.settings.evictions_per_minute,
            report=self.reporter.evicted,
            leads=self.leads,
        )

    def _defragmenter(self, moves: Moves) -> Defragmenter:
        return Defragmenter(
            cluster=self.cluster,
            moves=moves,
            preemptor=self.preemptor,
            pods=self.client,
            reporter=self.reporter,
            policies=self.configured.scheduled_policies,
            leads=self.leads,
            most=self.settings.defragment,
            after=self.settings.defragment_after,
        )

    def _pool_taints(self) -> PoolTaints:
        return PoolTaints(
            api=self.client,
            instance=keys.join(self.settings.namespace, self.settings.lease),
            own=lambda: self.cluster.fleet.claims.own,
            leads=self.leads,
        )

    async def _refresh_gpu_metrics(self) -> None:
        await refreshing.run(settings=self.settings, api=self.client, cluster=self.cluster, report=self._stale)

    def _stale(self, problem: str) -> None:
        if self.settings.pod:
            self.reporter.gpu_metrics_stale(self.settings.pod, problem)
