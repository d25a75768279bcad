"""Places that are promised to pods that a controller creates only after others of its pods run.

The gang's decision has found them (`Gang.expected`). They are kept for a time, or until the pods come and take them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol

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
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.gangs import not_kept

PERIOD: Final = 1.0
"""Seconds between two reviews."""
QUOTA_PATIENCE: Final = 40.0
"""Seconds for which a gang waits while a quota is full that has room for all its pods: a little more than pods usually
take to end."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The promise to one gang, or its nominations for pods that come later."""

    gang: Membership
    """The gang whose members run before the pods come."""
    members: frozenset[str]
    """UIDs of these members, and of those that replaced some of them."""
    later: int
    """How many pods come later."""
    is_misused: bool = False
    """Whether a pod took a place that was kept for pods with other devices."""
    is_confirmed: bool
    """Whether an object defined the gang."""
    since: int
    """Seconds since 1970."""
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
        self._expired: dict[str, _Kept] = {}
        """Key of a gang -> its last promise, whose time is over, until the pods come or the first ones are gone."""
        self._waiting: dict[str, float] = {}
        """Key of a gang that a quota refuses at the moment -> since when."""
        self._paused: set[str] = set()
        """Keys of gangs in the queue that wait while a pause lasts."""
        cluster.promises.on_handed_over = self._handed_over
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
        made = self._from_now(unit)
        promises.keep(gang.key, kept, until=made.until)
        self._nominated.pop(gang.key, None)
        self._cluster.gangs.nominated_later.pop(gang.key, None)
        if not kept:
            self._kept.pop(gang.key, None)
            return ""
        self._kept[gang.key] = made
        return self._note(gang.key)

    def admitted(self, unit: Gang) -> tuple[Gang | None, str]:
        """Return a gang as it is decided now, and why no places are kept for the pods that come later.

        Return None as long as a quota may only be full for a moment, because the gang's earlier pods still end: alone,
        the members would never get places for the others. After places were kept in vain, the gang is decided with all
        its pods, but for a while none of their places are kept and no pods are evicted for them.
        """
        if (kept := self._kept.get(unit.key) or self._nominated.get(unit.key)) is not None:
            # The members may have been created again since the last review.
            self._review_gang(kept)
        gangs, now = self._cluster.gangs, self._cluster.clock()
        if (refused := gangs.refusal(unit)) is None:
            self._waiting.pop(unit.key, None)
            if why := gangs.promise_pause(unit):
                self._paused.add(unit.key)
            return unit, why
        self.release(unit.membership)
        self._release_nominated(unit.key)
        note = not_kept(unit, refused.why)
        if not refused.is_lasting and now - self._waiting.setdefault(unit.key, now) < QUOTA_PATIENCE:
            return None, note
        return replace(unit, expected=()), note

    def limit_nominations(self, unit: Gang) -> None:
        """Bound the places that are nominated for pods that come later, while victims leave, like promised ones."""
        gang = unit.membership
        places = self._cluster.nominator.later().get(gang.key, [])
        may_keep = self.may_keep(gang)
        for nominee in places[may_keep:]:
            self._cluster.nominator.release(nominee.uid)
        if places[:may_keep]:
            # A gang that preempts again keeps the time of its first victims.
            self._nominated.setdefault(gang.key, self._from_now(unit))
            nominated = {nominee.uid for nominee in places[:may_keep]}
            later = tuple(pod for pod in unit.expected if pod.uid in nominated)
            self._cluster.gangs.nominated_later[gang.key] = later
        else:
            self._release_nominated(gang.key)

    def may_keep(self, gang: Membership) -> int:
        """Return how many places may be kept for a gang."""
        if self._cluster.gangs.promise_pauses.why(gang, self._cluster.clock()):
            return 0
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

    def _from_now(self, unit: Gang) -> _Kept:
        return self._made(unit.membership, [*unit.held, *(pod.uid for pod in unit.members)])

    def _made(self, gang: Membership, members: Iterable[str]) -> _Kept:
        now = self._cluster.wall()
        return _Kept(
            gang=gang,
            members=frozenset(members),
            later=self._later(gang),
            is_confirmed=self._cluster.gang_tracker.is_confirmed(gang),
            since=int(now),
            until=int(now + self._seconds()),
        )

    def _later(self, gang: Membership) -> int:
        return sum(counts.count for counts in self._cluster.gang_tracker.still_to_come(gang).values())

    def _handed_over(self, key: str, expected: PendingPod, pod: PendingPod) -> None:
        """Record that a pod took a place. Pods with other devices, which anybody may label, do not need it."""
        if (kept := self._kept.get(key)) is None or kept.is_misused:
            return
        if pod.request.devices != expected.request.devices:
            self._kept[key] = replace(kept, is_misused=True)
            self._in_vain(kept.gang)
        elif not self._cluster.promises.of(key):
            self._cluster.gangs.promise_pauses.taken(kept.gang)

    def _in_vain(self, gang: Membership) -> None:
        self._cluster.gangs.promise_pauses.in_vain(gang, self._cluster.clock())

    def _release_nominated(self, key: str) -> int:
        """Release the places that are nominated for pods that come later; return how many there were."""
        self._nominated.pop(key, None)
        self._cluster.gangs.nominated_later.pop(key, None)
        nominees = self._cluster.nominator.later().get(key, [])
        for nominee in nominees:
            self._cluster.nominator.release(nominee.uid)
        return len(nominees)

    def release(self, gang: Membership) -> None:
        """Release the places that are promised to a gang."""
        if self._kept.pop(gang.key, None) is not None:
            self._cluster.promises.release(gang.key)

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
        for kept in [*self._kept.values(), *self._nominated.values()]:
            self._review_gang(kept)
        self._refuse_what_admission_refuses()
        for key, kept in list(self._kept.items()):
            places = len(self._cluster.promises.of(key))
            if not places:
                del self._kept[key]
            elif not self._cluster.gang_tracker.placed(kept.gang):
                self.release(kept.gang)  # their Bindings were refused
            elif kept.until <= self._cluster.wall():
                log.info("promised places given up", gang=key, places=places)
                self._report(kept.gang, f"places for {places} pod(s) were kept until {_time(kept.until)}")
                self.release(kept.gang)
                self._expired[key] = kept
                if len(self._expired) > MAX_PROMISED_GANGS:
                    del self._expired[next(iter(self._expired))]
        self._review_expired()
        self._wake_waiting()
        for key, uids in self._places.doubtful(self._kept).items():
            self._search_again(key, uids)
        later = self._cluster.nominator.later() if self._nominated else {}
        for key, kept in list(self._nominated.items()):
            if not later.get(key):
                self._release_nominated(key)
            elif kept.until <= self._cluster.wall():
                places = self._release_nominated(key)
                log.info("nominated places given up, victims have not left in time", gang=key, places=places)

    def _review_gang(self, kept: _Kept) -> None:
        """End at once what is kept for a gang whose pods will not come, and give up the places of a smaller one."""
        tracker, gang = self._cluster.gang_tracker, kept.gang
        living = tracker.living(gang)
        if not living & kept.members:
            self._end(gang, "the pods that come first are gone", in_vain=True)
        elif kept.is_confirmed and not tracker.is_confirmed(gang):
            why = "its object needs fewer pods" if tracker.has_object(gang) else "its object was deleted"
            self._end(gang, why, in_vain=True)
        elif self._cluster.gangs.are_off(gang):
            self._end(gang, "the gangs of controllers are switched off in its namespace", in_vain=False)
        else:
            self._shrink(kept)
            if not living <= kept.members:
                self._replace(kept, members=kept.members | living)

    def _shrink(self, kept: _Kept) -> None:
        """Release the places of pods that are not expected any more."""
        left = self._cluster.gang_tracker.still_to_come(kept.gang)
        for of_gang, pods in _by_receiver(self._cluster.promises.of(kept.gang.key).values()).items():
            without_node = left[of_gang].without_node if of_gang in left else 0
            self._cluster.promises.release(kept.gang.key, [pod.uid for pod in pods[without_node:]])
        if (later := self._later(kept.gang)) < kept.later:
            # An object that is made small and large again would renew the promise.
            self._in_vain(kept.gang)
            self._replace(kept, later=later)

    def _replace(self, kept: _Kept, **changes: Any) -> None:
        for all_kept in (self._kept, self._nominated):
            if (same := all_kept.get(kept.gang.key)) is not None:
                all_kept[kept.gang.key] = replace(same, **changes)

    def _review_expired(self) -> None:
        """Count promises in vain whose time was over before any pod came, once the first pods are gone."""
        tracker = self._cluster.gang_tracker
        for key, kept in list(self._expired.items()):
            missing = sum(counts.missing for counts in tracker.still_to_come(kept.gang).values())
            living = tracker.living(kept.gang)
            if living & kept.members:
                if missing < kept.later:
                    del self._expired[key]  # some have come
                continue
            del self._expired[key]
            self._in_vain(kept.gang)

    def _wake_waiting(self) -> None:
        """Decide the gangs again whose pause is over, and forget those that have left the queue."""
        queue = self._cluster.queue
        self._waiting = {key: since for key, since in self._waiting.items() if key in queue}
        for key in [*self._paused]:
            unit = queue.unit(key)
            if not isinstance(unit, Gang):
                self._paused.discard(key)
            elif not self._cluster.gangs.promise_pause(unit):
                self._paused.discard(key)
                queue.wake_class(unit.class_key)

    def _refuse_what_admission_refuses(self) -> None:
        """End what is kept where a namespace's rules have tightened, until admission would create all pods again.

        What was kept last ends first.
        """
        rules = self._cluster.admission_rules
        all_kept = sorted((self._nominated | self._kept).values(), key=lambda kept: kept.since)
        tightened = rules.tightened.take()
        not_created: dict[str, list[PendingPod]] = {}
        for pod in self._cluster.gangs.not_created() if tightened else ():
            if pod.namespace in tightened and pod.gang is not None:
                not_created.setdefault(pod.gang.key, []).append(pod)
        admitted: list[PendingPod] = []
        for kept in all_kept:
            missing = not_created.get(kept.gang.key, [])
            if refused := rules.refusal(missing, admitted):
                self._end(kept.gang, refused.why, in_vain=True)
            else:
                admitted += missing
        # Gangs that wait for all their pods may be decided alone now.
        for parked in self._cluster.queue.parked() if tightened else ():
            for unit in parked.units.values():
                if isinstance(unit, Gang) and unit.expected and unit.namespace in tightened:
                    self._cluster.queue.wake_class(unit.class_key)

    def _end(self, gang: Membership, why: str, *, in_vain: bool) -> None:
        """End all that is kept for a gang, and report it on a bound member."""
        was_nominated, places = gang.key in self._nominated, len(self._cluster.promises.of(gang.key))
        self.release(gang)
        places += self._release_nominated(gang.key)
        if not (places or was_nominated):
            return  # the pods have come
        if in_vain:
            self._in_vain(gang)
        log.info("places given up", gang=gang.key, places=places, why=why)
        self._report(gang, f"places for {places} pod(s) were given up: {why}")

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
                    since=kept.since,
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
                self._cluster.promises.keep(gang.key, found.placed, until=record.until)
                made = self._made(gang, self._cluster.gang_tracker.living(gang))
                self._kept[gang.key] = replace(made, since=record.since or made.since, until=record.until)
            if found.why is not None:
                self._lost(gang, found.why)
        waiting = {pod.gang for pod in self._cluster.pending.values() if pod.gang is not None}
        for waiting_gang in waiting if self._kept else ():
            self._cluster.gangs.gather(waiting_gang)  # its members take their places


def _by_receiver(pods: Iterable[PendingPod]) -> dict[str, list[PendingPod]]:
    """Return pods by the key of the gang that they join."""
    by_gang: dict[str, list[PendingPod]] = {}
    for pod in pods:
        by_gang.setdefault(pod.workload, []).append(pod)
    return by_gang


def _receiver(key: str) -> str:
    """Return the name of the gang that a pod joins, by the gang's key."""
    return keys.split(key)[1]


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
