"""Places that are promised to pods that a controller creates only after others of its pods run.

The gang's decision has found them (`Gang.expected`). They are kept for a time, or until the pods come and take them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol

import structlog

from berth_api.objects.leader_lease import MAX_PROMISED_GANGS, JoinedGang, PromisedGang
from berth_api.values import keys
from berth_operator.binding.workloads.promised_places import PromisedPlaces, nodes_of, promised_nodes
from berth_operator.core.decision import promise, promise_note
from berth_operator.core.decision.cycle import Failure, Placement, plugin_failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two reviews."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The promise to one gang, or its nominations for pods that come later."""

    gang: Membership
    """The gang whose members run before the pods come."""
    until: int
    """Seconds since 1970."""


class PromiseReports(Protocol):
    """The subset of `Reporter` that is used here."""

    def promise_ended(self, charge: Charge, why: str) -> None:
        """Report on a bound member that pods that come later have no promised places any more."""


class GangPromises:
    """The promises to gangs, for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Callable[[str], Policy],
        seconds: Callable[[], float],
        reporter: PromiseReports,
    ) -> None:
        """Create the promises; `seconds` returns for how long places are kept."""
        self._cluster, self._policy, self._seconds, self._reporter = cluster, policy, seconds, reporter
        self._places = PromisedPlaces(cluster=cluster, policy=policy)
        self._kept: dict[str, _Kept] = {}
        """Key of a gang -> what is promised to it."""
        self._nominated: dict[str, _Kept] = {}
        """Key of a gang whose victims leave -> how long places stay nominated for pods that come later."""
        self._next_review = cluster.clock()

    def keep(self, unit: Gang, placements: Sequence[Placement]) -> str:
        """Promise places to pods that come later, as many as may be promised, in place of their earlier ones.

        Return a sentence about them; empty if there are none.
        """
        promises, gang = self._cluster.promises, unit.membership
        kept = placements[: self.may_keep(gang)]
        if not unit.is_confirmed:
            places, others = [placement.charge for placement in kept], self._places_of_others(gang)
            kept = kept[: promise.unconfirmed_allowed(self._cluster.fleet, places, others)]
        promises.release(gang.key, set(promises.of(gang.key)) - {placement.pod.uid for placement in kept})
        promises.keep(gang.key, kept)
        self._nominated.pop(gang.key, None)
        if not kept:
            self._kept.pop(gang.key, None)
            return ""
        self._kept[gang.key] = self._from_now(gang)
        return self._note(gang.key)

    def limit_nominations(self, gang: Membership) -> None:
        """Bound the places that are nominated for pods that come later, while victims leave, like promised ones."""
        places = self._cluster.nominator.later().get(gang.key, [])
        may_keep = self.may_keep(gang)
        for nominee in places[may_keep:]:
            self._cluster.nominator.release(nominee.uid)
        if places[:may_keep]:
            # A gang that preempts again keeps the time of its first victims.
            self._nominated.setdefault(gang.key, self._from_now(gang))

    def may_keep(self, gang: Membership) -> int:
        """Return how many places may be kept for a gang."""
        promises, nominated = self._cluster.promises, self._cluster.nominator.later()
        others = {
            kept.gang: len(promises.of(key)) + len(nominated.get(key, ()))
            for key, kept in (self._kept | self._nominated).items()
            if key != gang.key
        }
        of_workloads = len(promises) - sum(len(promises.of(key)) for key in self._kept)
        return promise.places_allowed(gang, others, of_workloads=of_workloads)

    def _places_of_others(self, gang: Membership) -> list[Charge]:
        """Return the places that are promised to other gangs of a gang's namespace."""
        namespace = keys.split(gang.group)[0]
        others = (kept.gang for key, kept in self._kept.items() if key != gang.key)
        of_namespace = (other.key for other in others if keys.split(other.group)[0] == namespace)
        return [place for key in of_namespace for place in self._cluster.promises.places(key)]

    def _from_now(self, gang: Membership) -> _Kept:
        return _Kept(gang=gang, until=int(self._cluster.wall() + self._seconds()))

    def release(self, gang: Membership) -> None:
        """Release the places that are promised to a gang."""
        if self._kept.pop(gang.key, None) is not None:
            self._cluster.promises.release(gang.key)

    def release_unexpected(self, gang: Gang) -> None:
        """Release the places of pods that are no longer expected after the members of a gang, which is smaller now."""
        places = self._cluster.promises.of(gang.key)
        self._cluster.promises.release(gang.key, places.keys() - {pod.uid for pod in gang.expected})

    def follow(self) -> None:
        """End promises whose time is over or whose gang has no node any more, and search lost places again."""
        if (now := self._cluster.clock()) < self._next_review:
            return
        self._next_review = now + PERIOD
        counters.PROMISED_PLACES.set(len(self._cluster.promises))
        # The clock may have been ahead: the last leader's when it recorded them, or ours.
        latest = int(self._cluster.wall() + self._seconds())
        for all_kept in (self._kept, self._nominated):
            all_kept.update({key: replace(kept, until=min(kept.until, latest)) for key, kept in all_kept.items()})
        for key, kept in list(self._kept.items()):
            places = len(self._cluster.promises.of(key))
            if not places:
                del self._kept[key]
            elif not self._cluster.gang_tracker.placed(kept.gang):
                self.release(kept.gang)
            elif kept.until <= self._cluster.wall():
                log.info("promised places given up", gang=key, places=places)
                self._report(kept.gang, f"places for {places} pod(s) were kept until {_time(kept.until)}")
                self.release(kept.gang)
        for key, uids in self._places.doubtful(self._kept).items():
            self._search_again(key, uids)
        later = self._cluster.nominator.later() if self._nominated else {}
        for key, kept in list(self._nominated.items()):
            nominees = later.get(key, [])
            if nominees and kept.until > self._cluster.wall():
                continue
            del self._nominated[key]
            for nominee in nominees:
                self._cluster.nominator.release(nominee.uid)
            if nominees:
                log.info("nominated places given up, victims have not left in time", gang=key, places=len(nominees))

    def _search_again(self, key: str, uids: Sequence[str]) -> None:
        try:
            why = self._places.search_again(key, uids)
        except PluginFailedError:
            return  # it is reported where the plug-in fails for pods
        if why is not None:
            self._lost(self._kept[key].gang, why)

    def _lost(self, gang: Membership, why: Failure) -> None:
        counters.LOST_PLACES.inc()
        left = len(self._cluster.promises.of(gang.key))
        log.warning("promised places lost", gang=gang.key, left=left, why=why.message)
        self._report(gang, f"places were lost, {left} are left: {why.message}")

    def _report(self, gang: Membership, note: str) -> None:
        """Report the end of a promise on the first bound member."""
        members = self._cluster.gang_tracker.placed_members(gang)
        if members:
            self._reporter.promise_ended(min(members, key=lambda charge: charge.pod), f"{gang.key}: {note}")

    def _note(self, key: str) -> str:
        promises, nodes = self._cluster.promises.of(key), self._cluster.fleet.nominees
        places = promise_note.note({"": [nodes[uid].node for uid in promises]})
        return f"{places} for {len(promises)} pod(s) that come later are kept until {_time(self._kept[key].until)}"

    # --- the next leader ----------------------------------------------------------------------------------------

    def record(self) -> list[PromisedGang]:
        """Return the promises, for the next leader."""
        records = []
        for key, kept in self._kept.items():
            if not (pods := self._cluster.promises.of(key)):
                continue
            nodes: dict[str, list[str]] = {}
            for uid, pod in pods.items():
                nodes.setdefault(_receiver(pod.workload), []).append(self._cluster.fleet.nominees[uid].node)
            namespace, name = keys.split(kept.gang.group)
            records.append(
                PromisedGang(
                    kind=kept.gang.controller,
                    namespace=namespace,
                    name=name,
                    until=kept.until,
                    places=[JoinedGang(name=name, nodes=promised_nodes(on)) for name, on in nodes.items()],
                )
            )
        return records

    def restore(self, inherited: Iterable[PromisedGang]) -> None:
        """Promise again what the last leader promised, on the recorded nodes if possible, before any pod is decided."""
        for record in islice(inherited, MAX_PROMISED_GANGS):
            gang = Membership(group=keys.join(record.namespace, record.name), controller=record.kind)
            nodes = nodes_of(record.places)
            wanted = []
            for pod in self._cluster.gang_tracker.expected(gang):
                if pod.uid in self._cluster.fleet.nominees:
                    continue
                on = nodes.get(_receiver(pod.workload))
                if on and (node := next(iter(on.elements()), "")):
                    on[node] -= 1
                    wanted.append(replace(pod, nominated_node=node))
            try:
                found = promise.place_pods(self._cluster.fleet, wanted, self._policy, partly=True)
            except PluginFailedError as error:
                self._lost(gang, plugin_failure(error))
                continue
            if found.placed:
                self._cluster.promises.keep(gang.key, found.placed)
                self._kept[gang.key] = _Kept(gang=gang, until=record.until)
            if found.why is not None:
                self._lost(gang, found.why)
        waiting = {pod.gang for pod in self._cluster.pending.values() if pod.gang is not None}
        for waiting_gang in waiting if self._kept else ():
            self._cluster.gangs.gather(waiting_gang)  # its members take their places


def _receiver(key: str) -> str:
    """Return the name of the gang that a pod joins, by the gang's key."""
    return keys.split(key)[1]


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
