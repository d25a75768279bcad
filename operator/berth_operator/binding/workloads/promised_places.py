"""Promised places over time: restored by a new leader, and searched again when a node no longer has them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

from berth_api.objects.leader_lease import MAX_PLACES, JoinedGang, PromisedNode, PromisedPodSet, PromisedWorkload
from berth_api.values import keys
from berth_client import times
from berth_operator.core.decision import promise, promise_note, reservation
from berth_operator.core.decision.cycle import Failure, plugin_failure
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.workload_unit import pod_set_of
from berth_operator.core.fleet.arrays.column_cache import ColumnCache
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.quota_workload import CheckState, QuotaWorkload
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster

SEARCHES: Final = 8
"""Places that one review searches again; each takes about a millisecond."""

MAX_RESERVED: Final = 4
"""Nodes that are reserved while places are gathered. Each takes some 5 ms whenever its pods change."""


class PromisedPlaces:
    """Keeps the promised places of one term valid."""

    def __init__(self, *, cluster: Cluster, policy: Callable[[str], Policy]) -> None:
        self._cluster, self._policy = cluster, policy
        self._reserved: dict[str, tuple[Charge, ...]] = {}
        """UID of a pod that does not exist yet and has a reserved node -> the pods that were on the node then."""
        self._seen: tuple[ColumnCache, int] | None = None
        """The version of the rows' changes up to which places were checked."""
        self._doubtful: dict[str, str] = {}
        """UID of a pod that does not exist yet, and whose place may be lost -> its workload."""

    def note(self, workload: QuotaWorkload) -> str:
        """Return the sentence about a workload's places."""
        return promise_note.note(self._nodes(workload))

    def _nodes(self, workload: QuotaWorkload) -> dict[str, list[str]]:
        """Return pod set -> the node of each of its promised places."""
        nodes: dict[str, list[str]] = {pod_set.name: [] for pod_set in workload.pod_sets}
        for uid, pod in self._cluster.promises.of(workload.key).items():
            nodes[pod_set_of(pod)].append(self._cluster.fleet.nominees[uid].node)
        return nodes

    # --- the next leader ----------------------------------------------------------------------------------------

    def record(self, workload: QuotaWorkload) -> PromisedWorkload:
        """Return the places of a workload, for the next leader."""
        return PromisedWorkload(uid=workload.uid, pod_sets=pod_sets_of(self._nodes(workload)))

    def ready(self, seconds: float) -> list[QuotaWorkload]:
        """Return the workloads whose pods have promised places, in the order in which they get them.

        They are not admitted yet, or were admitted at most `seconds` ago.
        """
        since = self._cluster.wall() - seconds
        promised = [
            workload
            for workload in self._cluster.workloads.by_key.values()
            if workload.state is CheckState.READY
            and workload.has_quota
            and not workload.finished
            # Without a known time, it may have been admitted long ago.
            and not (workload.admitted_at and times.seconds(workload.admitted_at, 0) < since)
        ]
        return sorted(promised, key=lambda workload: (-workload.priority, workload.created, workload.key))

    def restore(
        self,
        workload: QuotaWorkload,
        pods: Sequence[PendingPod],
        recorded: PromisedWorkload | None,
        placed: Mapping[str, Sequence[str]],
    ) -> Failure | None:
        """Promise places to the pods of a workload that are not `placed`, on the recorded nodes if possible.

        The record may lack a workload that has just got its places. Return why the first other pod has none; None if
        all have one.
        """
        nodes_of_sets = nodes_of(() if recorded is None else recorded.pod_sets)
        wanted: list[PendingPod] = []
        for pod_set in workload.pod_sets:
            of_set = keys.join(workload.name_in_pods, pod_set.name)
            on_nodes = placed.get(keys.join(workload.namespace, of_set), ())
            waiting = [pod for pod in pods if pod.workload == of_set][len(on_nodes) :]
            nodes = nodes_of_sets.get(pod_set.name, Counter())
            for node in on_nodes:
                # The pod may have got its place after the record was written.
                if nodes.total() > len(waiting):
                    nodes -= Counter([node])
            promised = chain(nodes.elements(), repeat(""))
            wanted += [replace(pod, nominated_node=node) for pod, node in zip(waiting, promised, strict=False)]
        wanted = wanted[: MAX_PLACES - len(self._cluster.promises)]
        try:
            places = promise.place_pods(self._cluster.fleet, wanted, self._policy, partly=True)
        except PluginFailedError as error:
            return plugin_failure(error)
        self._cluster.promises.keep(workload.key, places.placed)
        return places.why

    def placed(self) -> dict[str, list[str]]:
        """Return `namespace/workload/pod set` -> the nodes of its pods that are bound or nominated.

        Pods that are being deleted belong to an earlier admission, or are replaced.
        """
        nodes, fleet = defaultdict[str, list[str]](list), self._cluster.fleet
        charges = fleet.charges
        for charge in charges.values():
            if charge.workload and not fleet.is_leaving(charge):
                nodes[keys.join(keys.split(charge.pod)[0], charge.workload)].append(charge.node)
        for uid, pod in self._cluster.pending.items():
            if pod.workload and pod.nominated_node and uid not in charges:
                nodes[keys.join(pod.namespace, pod.workload)].append(pod.nominated_node)
        return nodes

    def present(self, workload: QuotaWorkload) -> Counter[str]:
        """Return `workload/pod set` -> number of pods that an elastic job has before it grows; empty for others."""
        if not workload.grows:
            return Counter()
        fleet = self._cluster.fleet
        of_sets = {keys.join(workload.name_in_pods, pod_set.name) for pod_set in workload.pod_sets}
        pods = {pod.uid: (pod.workload, pod.key) for pod in self._cluster.pending.values()}
        placed = [charge for charge in fleet.charges.values() if not fleet.is_leaving(charge)]
        pods |= {charge.uid: (charge.workload, charge.pod) for charge in placed}
        named = (pair for pair in pods.values() if pair[0] in of_sets)
        return Counter(of_set for of_set, pod in named if keys.split(pod)[0] == workload.namespace)

    def hand_over_pending(self) -> None:
        """Hand places over to the pods that wait for a node already, and to gangs that can be decided."""
        waiting = [pod for pod in self._cluster.pending.values() if pod.workload and not pod.nominated_node]
        for gang in dict.fromkeys(pod.gang for pod in waiting):
            if gang is not None:
                self._cluster.gangs.gather(gang)
        for pod in waiting:
            if pod.gang is None and (nominated := self._cluster.promises.hand_over(pod)) is not pod:
                self._cluster.waker.put(nominated)

    # --- nodes that are kept until pods there end -----------------------------------------------------------------

    def reserved(self) -> list[Charge]:
        """Return the node reservations for pods that have no place yet."""
        nominees = self._cluster.fleet.nominees
        kept = [nominees[uid] for uid in self._reserved if uid in nominees]
        return [nominee for nominee in kept if not promise.is_promised(nominee)]

    def reserve(self, workload: str, pods: Sequence[PendingPod]) -> None:
        """Reserve nodes for some pods of a workload that have no place yet, as for pods that have waited too long."""
        fleet, before = self._cluster.fleet, self.reserved()
        for nominee in before:
            fleet.withdraw(nominee.uid)
        nodes, kept = {nominee.uid: nominee.node for nominee in before}, dict[str, Charge]()
        self._reserved = {}
        promised = self._cluster.promises.of(workload)
        missing = [pod for pod in pods if pod.uid not in promised and pod.request.devices]
        for pod in missing[: min(MAX_RESERVED, reservation.most_nodes(fleet))]:
            policy, node = self._policy(pod.scheduler), nodes.get(pod.uid, "")
            if (reserved := reservation.reserve(fleet, pod, policy, self._cluster.wall(), node=node)) is None:
                break
            kept[pod.uid] = replace(reserved.nominee, gang=None, alike_key=None)
            fleet.nominate(kept[pod.uid])
            self._reserved[pod.uid] = reserved.placed
        for nominee in before:
            now = kept.get(nominee.uid)
            if now is None or (now.node, now.grants) != (nominee.node, nominee.grants):
                self._cluster.waker.capacity_freed(nominee)

    def end_reservations(self) -> None:
        """End the node reservations."""
        for nominee in self.reserved():
            self._cluster.nominator.release(nominee.uid)
        self._reserved = {}

    def are_outdated(self) -> bool:
        """Return whether pods of reserved nodes have changed: a card that is free now has to be kept at once."""
        return any(
            tuple(self._cluster.fleet.on_node(nominee.node)) != self._reserved[nominee.uid]
            for nominee in self.reserved()
        )

    # --- lost places --------------------------------------------------------------------------------------------

    def doubtful(self, workloads: Container[str]) -> dict[str, list[str]]:
        """Return some of these workloads with the UIDs of pods whose places may be lost."""
        fleet, seen = self._cluster.fleet, self._seen
        # The rows that have changed since the last time; all may have, if that is not known.
        cache = fleet.column_cache
        self._seen = cache, cache.changes
        changed = cache.moved_since(seen[1]) if seen is not None and seen[0] is cache else None
        moved = None if changed is None else set(changed)
        for workload, pod, place in self._cluster.promises.all():
            if (
                workload in workloads
                and (moved is None or fleet.rows.get(place.node) in moved)
                and self._is_doubtful(pod, place)
            ):
                self._doubtful[pod.uid] = workload
        chosen: dict[str, list[str]] = {}
        for uid, workload in list(self._doubtful.items())[:SEARCHES]:
            del self._doubtful[uid]
            if uid in self._cluster.promises.of(workload):
                chosen.setdefault(workload, []).append(uid)
        return chosen

    def taken_for(self, workload: str, priority: int, workloads: Container[str]) -> dict[str, list[str]]:
        """Return those of some workloads of lower priority whose places a workload has taken, with the pods' UIDs."""
        nodes = {place.node for place in self._cluster.promises.places(workload)}
        taken: dict[str, list[str]] = {}
        for other, pod, place in self._cluster.promises.all():
            if other in workloads and pod.priority < priority and place.node in nodes and self._is_doubtful(pod, place):
                taken.setdefault(other, []).append(pod.uid)
        return taken

    def _is_doubtful(self, pod: PendingPod, place: Charge) -> bool:
        return promise.is_doubtful(self._cluster.fleet, pod.request, place, self._policy(pod.scheduler))

    def search_again(self, workload: str, uids: Collection[str]) -> Failure | None:
        """Search places again, on the same nodes if possible; return why the first has none, None if all have one.

        Pods that have no promised place any more are ignored: another workload of the same review may have taken it.
        """
        fleet, pods = self._cluster.fleet, self._cluster.promises.of(workload)
        places = [fleet.nominees[uid] for uid in uids if uid in pods]
        wanted = [replace(pods[place.uid], nominated_node=place.node) for place in places]
        with fleet.without(places):
            again = promise.place_pods(fleet, wanted, self._policy, partly=True)
        self._cluster.promises.release(workload, set(uids) - {placement.pod.uid for placement in again.placed})
        self._cluster.promises.keep(workload, again.placed)
        return again.why


def pod_sets_of(nodes: Mapping[str, Sequence[str]]) -> list[PromisedPodSet]:
    """Return the record of places: name -> the node of each place."""
    return [PromisedPodSet(name=name, nodes=promised_nodes(on)) for name, on in nodes.items() if on]


def promised_nodes(nodes: Iterable[str]) -> list[PromisedNode]:
    """Return the record of the node of each place."""
    return [PromisedNode(node=node, pods=pods) for node, pods in Counter(nodes).items()]


def nodes_of(pod_sets: Iterable[PromisedPodSet | JoinedGang]) -> dict[str, Counter[str]]:
    """Return the recorded places: name -> node -> number of places."""
    return {of_set.name: Counter({on.node: on.pods for on in of_set.nodes}) for of_set in pod_sets}
