"""Pods that kubelet rejects at admission again and again, and the pauses that follow.

kubelet ends a pod that it does not admit for good, and the pod's controller creates another one at once. Without a
pause, Berth would bind hundreds of pods a minute to such a node. So rejections in a row are counted by controller and
node. After each one, no pods of the controller are bound to the node: for one second, then for two, up to five minutes.
After each pause one pod is tried. If kubelet admits it, the others follow.

`Fleet.rejecting` has the pauses that last. The requests of the controller's waiting pods name the controller, so that
the filter `kubelet-admission` finds its pauses. A pause that begins or ends changes no pod, and its end wakes only the
first one. Nothing is charged for pods that wait for a pause, so pods of other controllers get the capacity.

A rejection is no lost place, so evictions in vain have a bound of their own: `eviction_backoff`.

Only pods that this operator has bound count, each once. Anyone may create failed pods, and lists show old ones again. A
new leader begins without pauses. Times are monotonic seconds.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from berth_api.objects import rejected_pod
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.lost_places import LONGEST as LONGEST_WITHOUT_EVICTIONS
from berth_operator.core.decision.lost_places import preemptor_of_pod
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.preemption_backoff import NO_BACKOFF, PreemptionBackoff
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.pending_pods import PendingPods
from berth_operator.state.cache.waker import Waker

Object = Mapping[str, Any]

FIRST: Final = 1.0
"""Seconds of the first pause."""
LONGEST: Final = 300.0
TRIAL: Final = 30.0
"""Seconds for which a pod is tried alone. If kubelet has not answered by then, another pod is tried."""
KEPT: Final = 4
"""Rejections in a row up to which the node keeps the places that evictions have freed for the controller's pods."""
IN_VAIN: Final = 2
"""Rejections in a row of a controller's pods for which pods were evicted, on any nodes, that begin a back-off."""
FIRST_WITHOUT_EVICTIONS: Final = 30.0
"""Seconds of this back-off, in which no pods are evicted for the controller."""
REMEMBERED: Final = 1800.0
"""Seconds after a rejection or a pause for which rejections count as in a row."""
MAX_PAUSES: Final = 1024
"""Pairs of a controller and a node that are remembered. If there are more, the oldest is forgotten."""
MAX_BOUND: Final = 4096
"""Pods without kubelet's answer that are remembered, those that were bound last."""
NOTE: Final = "kubelet rejected pods for which others were preempted; no pods are preempted for it for a while."


class _Bound(NamedTuple):
    """A pod that was assumed and has no answer of kubelet."""

    controller: str
    node: str
    at: float
    """When it was assumed."""
    was_nominated: bool
    """Whether it had waited there for pods to leave."""


@dataclass(slots=True, kw_only=True)
class _Rejections:
    """The rejections of one controller's pods in a row by one kubelet."""

    count: int = 0
    last: float = -math.inf
    """When a pod was last rejected. Pods that were bound before do not count."""
    reason: str = ""
    until: float = 0.0
    """When the next pod may be bound to the node."""


class RejectedPods:
    """Counts rejections, and sets the pauses in the Fleet."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        pending: PendingPods,
        waker: Waker,
        schedules: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """Create an empty collection.

        `schedules` returns whether this operator schedules the pods of a scheduler's name. For others it may bind pods
        as an extender, but cannot delay their Bindings.
        """
        self._fleet, self._pending, self._waker = fleet, pending, waker
        self._schedules, self._clock = schedules, clock
        self._bound: dict[str, _Bound] = {}
        """By the UID of the pod."""
        self._by_controller: dict[str, dict[str, _Rejections]] = {}
        """Controller -> node -> its rejections; what was rejected last comes last."""
        self._in_vain: dict[str, tuple[int, float]] = {}
        """Controller with a pause or a past one -> rejections in a row after evictions, and when the back-off ends."""
        self._unnamed: set[str] = set()
        """Controllers that are still to be named in the requests of some waiting pods."""

    # --- events -----------------------------------------------------------------------------------------------

    def assumed(self, placement: Placement) -> None:
        """Record that a pod is about to be bound. After a pause, it is tried alone."""
        pod, node, now = placement.pod, placement.node, self._clock()
        if not self._schedules(pod.scheduler):
            return
        bound = _Bound(_controller(pod), node, now, was_nominated=pod.nominated_node == node)
        self._bound[pod.uid] = bound
        if len(self._bound) > MAX_BOUND:
            del self._bound[next(iter(self._bound))]
        if (rejections := self._of(bound)) is not None and now >= rejections.until:
            rejections.until = now + TRIAL
            self._pause(bound, rejections.reason)

    def forgotten(self, uid: str) -> None:
        """Record that the Binding of an assumed pod failed. If the pod was tried alone, another one is tried."""
        bound = self._bound.pop(uid, None)
        if bound is not None and (rejections := self._of(bound)) is not None and bound.at >= rejections.last:
            rejections.until = self._clock()

    def put_bound(self, raw: Object) -> None:
        """Record a bound pod. kubelet sets the start time of the pods that it admits."""
        if raw["metadata"]["uid"] in self._bound and (raw.get("status") or {}).get("startTime"):
            self._admitted(raw["metadata"]["uid"])

    def put_ended(self, raw: Object) -> bool:
        """Record a pod that has ended; return whether kubelet has rejected it and it counts."""
        uid = raw["metadata"]["uid"]
        if uid not in self._bound:
            return False
        if not rejected_pod.is_rejected(raw):
            self._admitted(uid)
            return False
        bound = self._bound.pop(uid)
        rejections = self._of(bound) or _Rejections()
        if bound.at >= rejections.last:
            self._count(bound, rejections, rejected_pod.reason_of(raw))
        return True

    def _admitted(self, uid: str) -> None:
        """Forget the rejections before a pod that kubelet has admitted."""
        bound = self._bound.pop(uid)
        self._in_vain.pop(bound.controller, None)
        if (rejections := self._of(bound)) is not None and bound.at >= rejections.last:
            self._forget(bound.controller, [bound.node])

    def expire(self) -> None:
        """End pauses by the clock. Call it about once a second."""
        now = self._clock()
        self._name()
        for controller, by_node in list(self._by_controller.items()):
            self._end_pauses(controller, {node for node, rejections in by_node.items() if now >= rejections.until})
            # Another machine may get the name of a node that is gone.
            old = {
                node
                for node, rejections in by_node.items()
                if not self._exists(node) or now >= max(rejections.until, rejections.last) + REMEMBERED
            }
            if old:
                self._forget(controller, old)

    # --- queries ----------------------------------------------------------------------------------------------

    def keeps_place(self, pod: PendingPod) -> bool:
        """Return whether the node nominated for a pod keeps its place: no pause lasts there, or a short one.

        A pod whose kubelet would admit it may wait forever for the trial of others of its controller.
        """
        rejections = self._by_controller.get(pod.request.rejected_controller, {}).get(pod.nominated_node)
        return rejections is None or rejections.count <= KEPT or self._clock() >= rejections.until

    def eviction_backoff(self, controllers: Iterable[str]) -> PreemptionBackoff:
        """Return whether no pods are evicted for pods of these controllers now, because evictions were in vain.

        Without it, Berth might evict pods on one node after the other.
        """
        for controller in controllers if self._in_vain else ():
            if self._clock() < self._in_vain.get(controller, (0, 0.0))[1]:
                return PreemptionBackoff(preemptor=controller, everywhere=True, note=NOTE)
        return NO_BACKOFF

    # --- pauses -----------------------------------------------------------------------------------------------

    def _of(self, bound: _Bound) -> _Rejections | None:
        return self._by_controller.get(bound.controller, {}).get(bound.node)

    def _count(self, bound: _Bound, rejections: _Rejections, reason: str) -> None:
        """Count a rejection, and begin a pause."""
        rejections.count += 1
        rejections.last, rejections.reason = self._clock(), reason
        rejections.until = rejections.last + ExponentialBackoff(first=FIRST, longest=LONGEST).after(rejections.count)
        by_node = self._by_controller.pop(bound.controller, {})
        by_node.pop(bound.node, None)
        self._by_controller[bound.controller] = {**by_node, bound.node: rejections}
        if bound.was_nominated:
            count = self._in_vain.get(bound.controller, (0, 0.0))[0] + 1
            pauses = ExponentialBackoff(first=FIRST_WITHOUT_EVICTIONS, longest=LONGEST_WITHOUT_EVICTIONS)
            self._in_vain[bound.controller] = count, rejections.last + pauses.after(count - IN_VAIN + 1)
        self._pause(bound, reason)
        if sum(map(len, self._by_controller.values())) > MAX_PAUSES:
            oldest, of_oldest = next(iter(self._by_controller.items()))
            self._forget(oldest, [next(iter(of_oldest))])

    def _pause(self, bound: _Bound, reason: str) -> None:
        nodes = self._fleet.rejecting.get(bound.controller)
        self._fleet.rejecting[bound.controller] = {**(nodes or {}), bound.node: reason}
        if nodes is None:
            self._unnamed.add(bound.controller)
        self._name()
        # Why the controller's pods wait.
        self._waker.record_change()

    def _name(self) -> None:
        """Name controllers in the requests of their waiting pods, of some at a time: there may be very many."""
        self._unnamed = {controller for controller in self._unnamed if self._pending.put_rejected(controller)}

    def _end_pauses(self, controller: str, nodes: Collection[str]) -> None:
        lasting = self._fleet.rejecting[controller]
        if not lasting.keys().isdisjoint(nodes):
            self._fleet.rejecting[controller] = {node: lasting[node] for node in lasting if node not in nodes}
            # One is tried now. The review decides the others again, within its share of the leader's time.
            self._pending.wake_first(controller)
            self._waker.record_change()

    def _forget(self, controller: str, nodes: Collection[str]) -> None:
        """Forget a controller's rejections on nodes, with their pauses."""
        self._end_pauses(controller, nodes)
        by_node = self._by_controller[controller]
        self._by_controller[controller] = {node: by_node[node] for node in by_node if node not in nodes}
        if not self._by_controller[controller]:
            del self._by_controller[controller], self._fleet.rejecting[controller]
            self._in_vain.pop(controller, None)

    def _exists(self, node: str) -> bool:
        row = self._fleet.rows.get(node)
        return row is not None and bool(self._fleet.present[row])


def _controller(pod: PendingPod) -> str:
    return preemptor_of_pod(pod.owner, pod.key)
