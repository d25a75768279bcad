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
from berth_operator.binding.upkeep import confirmation, doubled_cards, doubled_claims
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
        settings, client, cluster = self.settings, self.client, self.cluster
        reporter, leads = self.reporter, self.leads
        yield functools.partial(controller.run, cluster)
        yield GangKeeper(
            cluster=cluster,
            pods=client,
            reporter=reporter,
            keep_partial=self.configured.keep_partial,
            leads=leads,
        ).run
        yield DriftKeeper(cluster=cluster, pods=client, reporter=reporter, leads=leads, changed=self.notifier.drift).run
        yield self.preemptor.run
        yield Evictor(
            cluster=cluster,
            pods=client,
            per_minute=settings.evictions_per_minute,
            report=reporter.evicted,
            leads=leads,
        ).run
        if self.moves is not None:
            yield Defragmenter(
                cluster=cluster,
                moves=self.moves,
                preemptor=self.preemptor,
                pods=client,
                reporter=reporter,
                policies=self.configured.scheduled_policies,
                leads=leads,
                most=settings.defragment,
                after=settings.defragment_after,
            ).run
        yield functools.partial(confirmation.run, cluster, client)
        yield functools.partial(doubled_cards.run, cluster, reporter)
        yield functools.partial(doubled_claims.run, cluster, reporter)
        if settings.taint_own_pools:
            yield PoolTaints(
                api=client,
                instance=keys.join(settings.namespace, settings.lease),
                own=lambda: cluster.fleet.claims.own,
                leads=leads,
            ).run
        yield functools.partial(refreshing.run, settings=settings, api=client, cluster=cluster, report=self._stale)

    def _stale(self, problem: str) -> None:
        if self.settings.pod:
            self.reporter.gpu_metrics_stale(self.settings.pod, problem)
