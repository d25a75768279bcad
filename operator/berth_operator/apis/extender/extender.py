"""Answer filter, prioritize, preempt and bind for the pods of kube-scheduler.

Each decision is one synchronous step on the leader's state, by the same code as for pods of berth-scheduler. Filter
reserves the devices in its answer, so that two pods are never offered the same device. Minutes may pass until bind. So
bind decides again, on the one node that kube-scheduler has chosen.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_client.errors import CallError
from berth_operator.apis.extender import protocol
from berth_operator.apis.extender.evictions import Evictions
from berth_operator.apis.extender.protocol import BindArgs, FilterResult, NodeArgs, PreemptArgs, Victims
from berth_operator.apis.extender.reservations import MAX_RESERVATIONS, FullError, Reservations
from berth_operator.binding.binder import BindOutcome
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.decision import assigned, cycle, extender
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.messages import cut, invalid_request
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import more_victims, nominated_fit, violations
from berth_operator.core.decision.ranking import Floats
from berth_operator.core.decision.record import RecordError, binding
from berth_operator.core.decision.victims import released
from berth_operator.core.fleet.kubelet_allocation import leaves_soon
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

POLICY: Final = "policy"
FREE_CARDS: Final = "free-cards"
"""What prioritize scores by."""
ANSWERED_PART: Final = 0.8
"""The part of kube-scheduler's timeout after which a call is answered at the latest."""
EXPLAINED_NODES: Final = 100
"""Up to this number of nodes in a request, the other nodes get a reason even if one was chosen. kube-scheduler does not
read these reasons."""
USE_BERTH: Final = f"use schedulerName: {names.SCHEDULER}"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Binds(Protocol):
    """The subset of `Scheduler` that is used here."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine whose failure ends the process."""

    async def bind(self, placement: Placement, body: dict[str, object], term: int) -> tuple[BindOutcome, str] | None:
        """Send a Binding until the answer is definite; return None if the term has ended."""


class PodReader(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod at quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderOptions:
    """The settings of the extender."""

    schedulers: frozenset[str]
    """The scheduler names whose pods it takes."""
    nodes: int = 1
    """The most nodes that filter answers."""
    score: str = POLICY
    timeout: float = 5.0
    """Seconds after which kube-scheduler gives up a call."""
    lease: str = "berth-operator"
    """The LeaderLease whose fence the Bindings have to pass."""
    reservations: int = MAX_RESERVATIONS
    """The most pods that have a reservation."""


class BindError(Exception):
    """A pod is not bound. The text shows why."""


class Extender:
    """Answers the calls of kube-scheduler for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        binds: Binds,
        pods: PodReader,
        reporter: Reporter,
        policy: Callable[[str], Policy],
        term: Callable[[], int | None],
        is_waiting: Callable[[str], bool],
        options: ExtenderOptions,
    ) -> None:
        self._cluster, self._fleet, self._binds, self._pods = cluster, cluster.fleet, binds, pods
        self._reporter, self._policy_of, self._term, self._options = reporter, policy, term, options
        self.reservations = Reservations(cluster=cluster, is_waiting=is_waiting, limit=options.reservations)
        self._evictions = Evictions()
        self._binding: set[str] = set()
        """UIDs of pods whose Binding is in flight."""

    # --- filter -----------------------------------------------------------------------------------------------

    def filter(self, args: NodeArgs) -> FilterResult:
        """Choose the best nodes and reserve them.

        Raises:
            ProtocolError: the request has no valid pod.
        """
        pod = self._read(args.pod)
        self._cluster.refresh_devices()
        if not args.names:
            return FilterResult(error="the request names no nodes")
        if why := self._refusal(pod):
            return FilterResult(unresolvable=dict.fromkeys(args.names, why))
        if not pod.request.devices:
            return FilterResult(names=args.names)
        if why := self._conflict(pod.uid):
            return FilterResult(error=why)
        try:
            self.reservations.check_capacity(pod.uid)
            # The answer has the best nodes, which are reserved, or no node if none fits.
            fleet, policy = self._fleet, self._policy(pod)
            self._cluster.spares.release(pod.uid)
            self.reservations.reject(pod.uid)
            rows, rejected = extender.rows_of(fleet, args.names), self.reservations.rejected(pod.uid)
            bias = extender.bias_of(fleet, rows, rejected)
            if pod.nominated_node in rejected:
                pod = replace(pod, nominated_node="")
            with self._without_reservation(pod.uid):
                placement = self._place(pod, policy, bias)
                count = self._options.nodes - 1
                more = [] if placement is None else extender.further(fleet, placement, policy, bias, count=count)
            if placement is None:
                with self._cluster.promises.without_lower(pod.priority):
                    self.reservations.release(pod.uid)
                    emptied = self._emptied(pod, policy, args.names)
                    # After an error, kube-scheduler withdraws its nomination.
                    node = emptied or pod.nominated_node
                    self.reservations.nominate(pod, nominated_fit(fleet, pod, policy, node))
                    if emptied:
                        return FilterResult(error=f"node {emptied} still has pods that were evicted for this pod")
                    reasons = extender.reasons(fleet, pod, policy, args.names, rows, others=cycle.ONLY_NOMINATED)
                return FilterResult(failed=reasons.failed, unresolvable=reasons.unresolvable)
            self.reservations.hold(placement, more)
            self._evictions.end(pod.uid)
            chosen = [placement.node, *(spare.node for spare in more)]
            if len(args.names) > EXPLAINED_NODES:
                return FilterResult(names=chosen)
            others = [name for name in args.names if name not in chosen]
            reasons = extender.reasons(
                fleet, pod, policy, others, extender.rows_of(fleet, others), others=extender.NOT_BEST
            )
            return FilterResult(names=chosen, failed=reasons.failed, unresolvable=reasons.unresolvable)
        except (FullError, PluginFailedError) as error:
            return FilterResult(error=cut(str(error)))

    def _emptied(self, pod: PendingPod, policy: Policy, passed: Collection[str]) -> str:
        """Return a node of the last preemption where the pod fits once its victims are gone; empty if there is none.

        kube-scheduler's own filters have passed the node, so by its pods the victims are gone; we may not have seen
        their end yet, or kubelet still has their devices. kube-scheduler may retry the pod before it has seen its own
        nomination.
        """
        known, evicted = frozenset(passed), self._evictions.nodes(pod.uid)
        tried = (pod.nominated_node,) if evicted and pod.nominated_node else evicted
        nodes = [node for node in tried if node in known]
        leaving = (node for node in nodes if nominated_fit(self._fleet, pod, policy, node))
        if (node := next(leaving, "")) or not nodes:
            return node
        for node in nodes:
            lower = {charge.uid for charge in self._fleet.on_node(node) if charge.priority < pod.priority}
            if nominated_fit(self._fleet, pod, policy, node, lower):
                return node if self._evictions.wait(pod.uid) else ""
        return ""

    def _place(self, pod: PendingPod, policy: Policy, bias: Floats) -> Placement | None:
        """Place a pod where the bias allows. Use capacity kept for less urgent pods only if nothing else is left."""
        return self._cluster.decide(pod.priority, functools.partial(cycle.place, self._fleet, pod, policy, bias))

    # --- prioritize -------------------------------------------------------------------------------------------

    def prioritize(self, args: NodeArgs) -> list[int]:
        """Return a score for each node of the request, from 0 to 10.

        Raises:
            ProtocolError: the request has no valid pod.
        """
        pod = self._read(args.pod)
        if self._refusal(pod) or not pod.request.devices:
            return [0] * len(args.names)
        rows = extender.rows_of(self._fleet, args.names)
        own = [spare for spare in self._cluster.spares.charges() if spare.uid.startswith(f"{pod.uid}/")]
        try:
            with self._without_reservation(pod.uid), self._fleet.without(own):
                if self._options.score == FREE_CARDS:
                    return extender.free_cards(self._fleet, pod, rows)
                return extender.scores(self._fleet, pod, self._policy(pod), rows)
        except PluginFailedError as error:
            log.warning("nodes not scored", pod=pod.key, why=str(error))
            return [0] * len(args.names)

    # --- preempt ----------------------------------------------------------------------------------------------

    def preempt(self, args: PreemptArgs) -> dict[str, Victims]:
        """Return the nodes where evictions let the pod fit, with the victims there.

        Raises:
            ProtocolError: the request has no valid pod.
        """
        pod = self._read(args.pod)
        self._cluster.refresh_devices()
        if self._refusal(pod) or self._conflict(pod.uid):
            return {}
        policy, in_flight = self._policy(pod), self._cluster.placements.in_flight()
        try:
            with (
                self._without_reservation(pod.uid),
                self._fleet.without(self._cluster.spares.charges()),
                self._cluster.promises.without_lower(pod.priority),
            ):
                more = more_victims(self._fleet, pod, policy, self._cluster.budgets, args.victims, in_flight=in_flight)
        except PluginFailedError as error:
            log.warning("no victims chosen", pod=pod.key, why=str(error))
            return {}
        answer: dict[str, Victims] = {}
        evicted = frozenset(self._evictions.nodes(pod.uid))
        for node, proposed in args.victims.items():
            if node not in more:
                continue
            uids = [*proposed, *(charge.uid for charge in more[node])]
            known = [charge for uid in proposed if (charge := self._fleet.charges.get(uid)) is not None]
            if node in evicted and len(known) == len(uids) and all(leaves_soon(self._fleet, each) for each in known):
                # kube-scheduler has evicted them for this pod, and does not know its own nomination yet.
                return {}
            # kube-scheduler treats a node without victims as an error.
            if uids:
                count = violations(self._fleet, [*known, *more[node]], self._cluster.budgets)
                answer[node] = Victims(uids=uids, violations=count)
        if answer:
            self._evictions.begin(pod.uid, answer)
        return answer

    # --- bind -------------------------------------------------------------------------------------------------

    async def bind(self, args: BindArgs) -> str:
        """Bind a pod; return why it is not bound, or was not confirmed before kube-scheduler's timeout."""
        seconds = ANSWERED_PART * self._options.timeout
        try:
            async with asyncio.timeout(seconds):
                held = self.reservations.get(args.uid)
                pod = await self._read_from_server(args) if held is None else held.pod
                if pod.key != args.key:
                    return cut(f"pod {args.key} has another UID than {args.uid}, which is that of {pod.key}")
                term = self._term()
                if term is None:
                    return "this replica no longer leads"
                placement, body = self._assume(pod, args.node, term)
                self._binding.add(pod.uid)
                answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._binds.start_task(self._send(placement, body, term, answer))
                return await answer
        except BindError as error:
            return cut(str(error))
        except TimeoutError:
            return f"the API server has not answered within {seconds:g} s; the Binding of {args.key} may still succeed"

    async def _read_from_server(self, args: BindArgs) -> PendingPod:
        """Read a pod whose filter another leader has answered, or that was never filtered here."""
        if why := self._conflict(args.uid):
            raise BindError(why)
        try:
            raw = await self._pods.get_pod(args.namespace, args.name)
        except CallError as error:
            raise BindError(f"pod {args.key} cannot be read: {error}") from error
        if raw["metadata"]["uid"] != args.uid:
            raise BindError(f"pod {args.key} has UID {raw['metadata']['uid']}, not {args.uid}")
        if node := raw["spec"].get("nodeName"):
            raise BindError(f"pod {args.key} is already bound to {node}")
        return self._read(raw)

    def _assume(self, pod: PendingPod, node: str, term: int) -> tuple[Placement, dict[str, object]]:
        """Decide a pod for one node, and assume the placement in place of its reservation."""
        if why := self._conflict(pod.uid) or self._refusal(pod):
            raise BindError(why)
        self._cluster.refresh_devices()
        self._cluster.spares.release(pod.uid)
        try:
            with self._without_reservation(pod.uid):
                placement = self._decide_on(pod, node)
            body = binding(placement, term, self._options.lease, now=time.time_ns())
        except (BindError, PluginFailedError, RecordError) as error:
            self.reservations.release(pod.uid)
            raise BindError(str(error)) from error
        self.reservations.hold(placement)
        self.reservations.end(pod.uid)
        return placement, body

    def _decide_on(self, pod: PendingPod, node: str) -> Placement:
        fleet, policy = self._fleet, self._policy(pod)
        rows = extender.rows_of(fleet, [node])
        placement = self._place(pod, policy, extender.bias_of(fleet, rows))
        if placement is None:
            reasons = extender.reasons(fleet, pod, policy, [node], rows, others=cycle.ONLY_NOMINATED)
            [why] = [*reasons.failed.values(), *reasons.unresolvable.values()]
            raise BindError(f"node {node} no longer fits: {why}")
        return placement

    async def _send(
        self, placement: Placement, body: dict[str, object], term: int, answer: asyncio.Future[str]
    ) -> None:
        """Send a Binding until the answer is definite, and apply it to the state."""
        try:
            outcome, why = await self._binds.bind(placement, body, term) or (None, "the term has ended")
        finally:
            self._binding.discard(placement.pod.uid)
        if outcome is not None:
            counters.BINDS.labels(outcome.label).inc()
        if outcome is BindOutcome.BOUND:
            self._fleet.pod_mix.see(placement.pod.request)
            self._cluster.placements.finish_binding(placement.pod.uid)
            self._reporter.scheduled(placement, assigned.devices(self._fleet, placement))
        elif outcome is not None:
            log.warning("bind failed", pod=placement.pod.key, node=placement.node, outcome=outcome.value, why=why)
            self._cluster.placements.forget(placement.pod.uid)
        if not answer.done():
            answer.set_result("" if outcome is BindOutcome.BOUND else why or "the Binding was refused without a reason")

    # --- all calls --------------------------------------------------------------------------------------------

    def pod_gone(self, uid: str) -> None:
        """Handle that a pod no longer waits: it was deleted or bound."""
        self.reservations.pod_gone(uid)
        self._evictions.end(uid)

    def _read(self, raw: protocol.Object) -> PendingPod:
        return extender.pod_of(protocol.read_pod(raw, self._cluster.kinds, min(self._options.schedulers)))

    def _policy(self, pod: PendingPod) -> Policy:
        return extender.policy_of(self._policy_of(pod.scheduler))

    def _refusal(self, pod: PendingPod) -> str:
        """Return why Berth does not take a pod through the extender on any node; empty if it does."""
        if pod.scheduler not in self._options.schedulers:
            allowed = ", ".join(sorted(self._options.schedulers))
            return f'the extender takes no pods with schedulerName "{pod.scheduler}"; allowed are {allowed}'
        if pod.error:
            return invalid_request(pod.error)
        if pod.gang is not None:
            return f"{pod.gang.key}: gangs cannot be scheduled through the extender; {USE_BERTH}"
        if pod.request.devices.labelled:
            return f"the pod requests GPUs by labels alone, which kube-scheduler cannot count; {USE_BERTH}"
        return ""

    def _conflict(self, uid: str) -> str:
        """Return why a pod cannot be decided now; empty if it can."""
        if uid in self._binding:
            return "the Binding of this pod is in flight; try again later"
        charge = self._fleet.charges.get(uid)
        if charge is not None and self.reservations.get(uid) is None:
            return f"pod {charge.pod} is already bound to {charge.node}"
        return ""

    @contextmanager
    def _without_reservation(self, uid: str) -> Iterator[None]:
        """Return a context in which the capacity reserved for a pod is removed from the Fleet."""
        held = self._fleet.charges.get(uid) if self.reservations.get(uid) is not None else None
        with released(self._fleet, () if held is None else (held,)):
            yield
