"""Places that are promised to pods that do not exist yet, of Kueue's workloads or of controllers' gangs.

In the Fleet the places are nominations, so that filters, preemption, gangs and the extender respect them. Their
priority is higher than any pod's, so that decisions have no cost for them. If a pod fits nowhere, it is decided again
without the places of workloads of lower priority (`Cluster.decide`). Berth then searches again for the places that the
pod takes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final

from berth_api.objects.leader_lease import MAX_PLACES
from berth_operator.core.decision import promise
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.filters import node_selector
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import NOT_STARTED, Charge
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.state.cache.nominator import Nominator
from berth_operator.state.cache.waker import Waker

NO_PODS: Final[Mapping[str, PendingPod]] = MappingProxyType({})


class PlacePromises:
    """The promised places by workload."""

    def __init__(self, *, fleet: Fleet, nominator: Nominator, waker: Waker, wall: Callable[[], float]) -> None:
        self._fleet, self._nominator, self._waker, self._wall = fleet, nominator, waker, wall
        self._of: dict[str, dict[str, PendingPod]] = {}
        """namespace/name of a workload, or key of a gang -> UID of a pod that does not exist yet -> this pod."""
        self._to: dict[tuple[str, str], dict[str, str]] = {}
        """(namespace, set) of the pods that take the places -> UID -> its workload or gang in `_of`."""
        self._count = 0
        self._of_types = Counter[str]()
        """Type of devices -> promised places with such devices: each message of a waiting pod has the number."""
        self.on_handed_over: Callable[[str, PendingPod, PendingPod], None] = lambda _key, _expected, _pod: None
        """Called when a place of a workload or gang is handed over, with the pod that was expected and the pod."""

    def __len__(self) -> int:
        return self._count

    def of(self, workload: str) -> Mapping[str, PendingPod]:
        """Return the pods of a workload, or that come after a gang, that have a promised place, by UID."""
        return self._of.get(workload, NO_PODS)

    def places(self, workload: str) -> list[Charge]:
        """Return the promised places of a workload."""
        return [self._fleet.nominees[uid] for uid in self.of(workload)]

    def number_of(self, request: PodRequest) -> int:
        """Return how many promised places have devices of a type that a pod requests; the most of all its types."""
        if not self._count:
            return 0
        return max((self._of_types[part.type] for part in request.devices.parts), default=0)

    def all(self) -> Iterator[tuple[str, PendingPod, Charge]]:
        """Yield (workload, pod, place) of all promised places."""
        for workload, pods in self._of.items():
            for uid, pod in pods.items():
                yield workload, pod, self._fleet.nominees[uid]

    def keep(self, workload: str, placements: Iterable[Placement], *, until: int = ending.UNKNOWN) -> None:
        """Promise places, in place of the same pods' earlier places; as many as may be promised at once.

        `until`: when they are given up, in seconds since 1970; if it is not given, as for the earlier places.
        """
        now = int(self._wall())
        for placement in placements:
            pods = self._of.get(workload, NO_PODS)
            if placement.pod.uid not in pods and self._count >= MAX_PLACES:
                continue
            pods = self._of.setdefault(workload, {})
            self._count += placement.pod.uid not in pods
            pods[placement.pod.uid] = placement.pod
            self._to.setdefault((placement.pod.namespace, placement.pod.workload), {})[placement.pod.uid] = workload
            before = self._fleet.withdraw(placement.pod.uid)
            since, end = now, until
            if before is not None and promise.is_promised(before):
                since, end = before.started, before.ends if until == ending.UNKNOWN else until
                self._of_types.subtract(_types(before))
            place = promise.promised(placement, workload, since=since, until=end)
            self._of_types.update(_types(place))
            self._fleet.nominate(place)
            if before is not None and (before.node, before.grants) != (place.node, place.grants):
                self._waker.capacity_freed(before)

    def release(self, workload: str, uids: Iterable[str] | None = None) -> None:
        """Release places of a workload; all of them by default."""
        pods = self._of.get(workload, {})
        for uid in list(pods if uids is None else uids):
            if (place := self._take(workload, uid)) is not None:
                self._waker.capacity_freed(place)

    def _take(self, workload: str, uid: str) -> Charge | None:
        pods = self._of.get(workload, {})
        if (pod := pods.pop(uid, None)) is None:
            return None
        self._count -= 1
        of_set = self._to[receiver := (pod.namespace, pod.workload)]
        del of_set[uid]
        if not of_set:
            del self._to[receiver]
        if not pods:
            del self._of[workload]
        place = self._fleet.withdraw(uid)
        self._of_types.subtract(_types(place) if place is not None else ())
        return place

    # --- pods ---------------------------------------------------------------------------------------------------

    def hand_over(self, pod: PendingPod) -> PendingPod:
        """Nominate a new pod to a place that is promised to its workload or gang; return the pod, with this nomination.

        The annotation that names the workload may be forged: a pod gets places of its own namespace alone.
        """
        of_set = pod.workload or (pod.gang.key if pod.gang is not None else "")
        promised = self._to.get((pod.namespace, of_set), {})
        # Without those that a decision leaves out at the moment (`Fleet.without`), which get their nominees back.
        places = {uid: key for uid, key in promised.items() if uid in self._fleet.nominees}
        if not places or pod.error or pod.uid in self._fleet.charges:
            return pod
        fitting = [(key, self._of[key][uid]) for uid, key in places.items()]
        # The pods of a set may have to be in different topology domains.
        selector = pod.request.node_selector
        same_domain = (pair for pair in fitting if pair[1].request.node_selector == selector)
        rows = node_selector.passes(self._fleet, pod.request)
        on_node = (pair for pair in fitting if (rows & self._fleet.named(self._fleet.nominees[pair[1].uid].node)).any())
        workload, chosen = next(chain(same_domain, on_node), fitting[0])
        if (place := self._take(workload, chosen.uid)) is None:
            return pod
        nominee = replace(
            place,
            uid=pod.uid,
            pod=pod.key,
            priority=pod.priority,
            owner=pod.owner,
            gang=pod.gang,
            workload=pod.workload,
            started=NOT_STARTED,
            ends=pod.ends,
        )
        self.on_handed_over(workload, chosen, pod)
        return self._nominator.nominate(pod, nominee)

    # --- decisions of other pods --------------------------------------------------------------------------------

    @contextmanager
    def without_lower(self, priority: int) -> Iterator[bool]:
        """Return a context without the places of workloads below a priority, with whether there are any."""
        lower = [place for _, pod, place in self.all() if pod.priority < priority]
        with self._fleet.without(lower):
            yield bool(lower)


def _types(place: Charge) -> set[str]:
    return {grant.type for grant in place.grants}
