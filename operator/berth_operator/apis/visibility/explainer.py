"""Explain pods on request: one at a time, each at most once a second, in a small share of the loop's time.

An explanation costs dozens of decisions on a copy of the Fleet. It is computed in slices of a few decisions. After each
slice comes a pause several times as long.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

import orjson
import structlog

from berth_api import names
from berth_api.admission import routing
from berth_api.objects import device_text
from berth_api.objects.visibility import API_VERSION, ObjectMeta, PodExplanation
from berth_api.values import keys
from berth_api.words import no_devices
from berth_client.errors import ApiError
from berth_client.objects import Object
from berth_operator.apis.aggregated.statuses import not_found, too_many, unavailable
from berth_operator.apis.visibility import explanation, sources
from berth_operator.apis.visibility.kinds import EXPLANATION
from berth_operator.apis.visibility.slices import Slices, TurnBudget
from berth_operator.clients.bucket import Bucket
from berth_operator.core.advice.holders import held_by_claim, holds_devices
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.advice.waits import Wait, Waits, Why
from berth_operator.core.claims.objects import near_names
from berth_operator.core.decision import assigned
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import Ranking
from berth_operator.core.fleet.nodes.cards import card_id
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.queue.order import Place, places
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.pods import gates_text, has_gates

RATE: Final = 20.0
"""Explanations a second for one user."""
KEPT_SECONDS: Final = 1.0
MAX_KEPT: Final = 256
MAX_USERS: Final = 1024

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PodReader(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""


class Explainer:
    """Answers with explanations as JSON."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: PodReader,
        policy: Callable[[str], Policy],
        managed: Callable[[], Collection[str]],
        ranking: Callable[[str], Ranking | None],
        reservation: Callable[[str], str],
        refusal: Callable[[str], str],
        term: Callable[[], int | None],
    ) -> None:
        """Create an explainer.

        `managed` returns the scheduler names whose pods Berth places. `ranking` returns the points of the bind of a
        pod's UID. `reservation` returns the sentence about the node reservation of a pod's UID, and `refusal` which
        writes for it the API server refuses. `term` returns the leader's term.
        """
        self._cluster, self._pods, self._policy = cluster, pods, policy
        self._managed, self._ranking, self._reservation, self._term = managed, ranking, reservation, term
        self._refusal = refusal
        self._kept: dict[tuple[str, str], tuple[float, bytes]] = {}
        """(namespace, name) -> when it was explained, and the explanation."""
        self._buckets: dict[str, Bucket] = {}
        """User -> the rest of their rate."""
        self._budget = TurnBudget(cluster.clock)
        self._queue: tuple[float, dict[str, Place]] | None = None
        """When the order of the queue was computed, and the places by UID."""

    async def explain(self, user: str, namespace: str, name: str) -> bytes:
        """Return the explanation of a pod for a user.

        Raises:
            StatusError: the pod does not exist, or there are too many requests.
            ApiError: the API server refused to show the pod.
            Unreachable: the API server did not answer.
        """
        if user not in self._buckets and len(self._buckets) >= MAX_USERS:
            self._buckets.pop(next(iter(self._buckets)))
        bucket = self._buckets.setdefault(user, Bucket(rate=RATE, clock=self._cluster.clock))
        if not bucket.take():
            raise too_many("too many explanations, try again later", retry_after=1)
        if (kept := self._fresh(namespace, name)) is not None:
            return kept
        async with self._budget.turn():
            # Another request may have asked for the same pod meanwhile.
            if (kept := self._fresh(namespace, name)) is None:
                cluster, key = self._cluster, keys.join(namespace, name)
                began = time.thread_time()
                try:
                    pending = cluster.pending.values()
                    pod = next((pod for pod in pending if pod.name == name and pod.namespace == namespace), None)
                    charge = None
                    if pod is None:
                        charge = next((charge for charge in cluster.fleet.charges.values() if charge.pod == key), None)
                finally:
                    self._budget.spend(time.thread_time() - began)
                if pod is not None:
                    explained = await self._of_pending(pod)
                elif charge is not None:
                    meta = ObjectMeta(name=name, namespace=namespace, uid=charge.uid)
                    explained = await self._of_bound(meta, charge)
                else:
                    explained = self._of_unknown(await self._read(key))
                kept = orjson.dumps({"kind": EXPLANATION, "apiVersion": API_VERSION, **explained})
                if len(self._kept) >= MAX_KEPT:
                    self._kept.clear()
                self._kept[namespace, name] = self._cluster.clock(), kept
        return kept

    def _fresh(self, namespace: str, name: str) -> bytes | None:
        at, kept = self._kept.get((namespace, name), (0.0, b""))
        return kept if kept and self._cluster.clock() - at < KEPT_SECONDS else None

    async def _of_bound(self, pod: ObjectMeta, charge: Charge) -> PodExplanation:
        by_claim, _ = held_by_claim(self._cluster.fleet, charge)
        charge = replace(charge, grants=(*charge.grants, *by_claim))
        listed = assigned.of_grants(self._cluster.fleet, charge.node, charge.grants)
        questions = near_names.of_memory(state.claim for state in self._cluster.fleet.claims.of_pod(charge.uid))
        sentences = [explanation.bound_message(charge.node, listed, charge), questions]
        device = self._cluster.node_cache.devices.get(charge.node)
        faults = {} if device is None else device.fault_texts
        held = {(grant.type, card_id(grant)): grant.minor for grant in charge.grants}
        claimed = {(grant.type, card_id(grant)) for grant in by_claim}
        for (device_type, card), minor in held.items():
            # That claims alone get a card is no fault of the claim's pod.
            is_fault = (device_type, card) not in claimed or (device and (device_type, card) in dict(device.faults))
            if (device_type, card) in faults and is_fault:
                shown = device_text.of_device(device_type, minor, card)
                sentences.append(f"{shown} is unhealthy: {faults[device_type, card]}")
        managed = self._managed()
        if charge.scheduler in managed and not holds_devices(charge):
            raw = await self._read(charge.pod)
            if raw["metadata"]["uid"] == charge.uid:
                sentences.append(no_devices.why_none(raw, self._cluster.kinds))
        message = "; ".join(filter(None, sentences))
        if charge.scheduler not in managed:
            not_ours = routing.why_not_ours(await self._read(charge.pod), managed)
            matters = charge.unknown or charge.grants or charge.lacks_cards
            costs = explanation.held_message(message, charge) if matters else ""
            message = "; ".join(filter(None, (not_ours, costs)))
            return PodExplanation(metadata=pod, state=explanation.NOT_MANAGED, message=message)
        ranking, why_not = self._ranking(charge.uid), ""
        if ranking is None:
            # The pod records the leader's term that bound it.
            annotations = (await self._read(charge.pod))["metadata"].get("annotations") or {}
            why_not = explanation.why_not_kept(annotations.get(names.EPOCH), self._term())
        points = explanation.bind(charge.node, ranking, why_not)
        return {"metadata": pod, "state": explanation.BOUND, "message": message, "bind": points}

    async def _of_pending(self, pod: PendingPod) -> PodExplanation:
        cluster = self._cluster
        pod_id = ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid)
        if pod.uid in cluster.fleet.charges:
            node = cluster.fleet.charges[pod.uid].node
            return PodExplanation(metadata=pod_id, state=explanation.BINDING, message=f"it is being bound to {node}")
        queue = await self._places()
        if (current := cluster.pending.get(pod.uid)) is None or pod.uid in cluster.fleet.charges:
            raise unavailable("the pod has just been bound or deleted, ask again")
        pod = current
        nodes, slices = int(cluster.fleet.present.sum()), Slices()
        try:
            # In slices of the loop's time: the what-ifs read a copy of the state.
            steps = [step async for step in slices.of(_steps(cluster, pod, self._policy(pod.scheduler)))]
        except PluginFailedError as error:
            raise unavailable(f"the pod cannot be explained: {error}") from error
        finally:
            self._budget.spend(slices.spent)
            counters.VISIBILITY_EXPLANATIONS.inc()
        wait, why, *remedies = filter(None, steps)
        return explanation.of_waiting(
            cast("Wait", wait),
            queue.get(pod.uid),
            cast("Why", why),
            cast("list[Remedy]", remedies),
            nodes=nodes,
            queued=max((place.position for place in queue.values()), default=0),
            now=cluster.clock(),
            gang=sources.gang(cluster, pod),
            reservation=self._reservation(pod.uid),
            refusal=self._refusal(pod.uid),
        )

    def _of_unknown(self, raw: Object) -> PodExplanation:
        """Return the explanation of a pod that decisions do not know: it has gates, has ended, or is new."""
        metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
        pod = ObjectMeta(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
        is_ours = (spec.get("schedulerName") or "") in self._managed()
        if has_gates(raw) and is_ours:
            return PodExplanation(metadata=pod, state=explanation.GATED, message=gates_text(raw))
        if (phase := status.get("phase")) in ("Succeeded", "Failed"):
            return PodExplanation(metadata=pod, state=explanation.NOT_MANAGED, message=f"the pod has ended: {phase}")
        if metadata.get("deletionTimestamp"):
            return PodExplanation(metadata=pod, state=explanation.NOT_MANAGED, message="the pod is being deleted")
        if is_ours:
            raise unavailable("the operator has not seen the pod yet")
        untried = routing.why_untried(raw, datetime.fromtimestamp(self._cluster.wall(), UTC))
        message = "; ".join(filter(None, (routing.why_not_ours(raw, self._managed()), untried)))
        return PodExplanation(metadata=pod, state=explanation.NOT_MANAGED, message=message)

    async def _read(self, key: str) -> Any:
        namespace, name = keys.split(key)
        # A user chooses the name, and the pod is read with the operator's rights.
        if not (keys.NAME.fullmatch(namespace) and keys.NAME.fullmatch(name)):
            raise not_found(f'pods "{name}" not found')
        try:
            return await self._pods.get_pod(namespace, name)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise not_found(f'pods "{name}" not found') from error
            raise

    async def _places(self) -> dict[str, Place]:
        """Return the places of all waiting pods by UID, at most a second old."""
        cluster = self._cluster
        if self._queue is None or cluster.clock() - self._queue[0] >= KEPT_SECONDS:
            at, slices = cluster.clock(), Slices()
            steps = slices.of(places(cluster.queue, cluster.pending, cluster.fleet.charges))
            try:
                self._queue = at, {place.pod.uid: place async for place in steps if place is not None}
            finally:
                self._budget.spend(slices.spent)
        return self._queue[1]


def _steps(cluster: Cluster, pod: PendingPod, policy: Policy) -> Iterator[Wait | Why | Remedy | None]:
    """Yield the pod once the state is copied, then why it waits, then what ends its wait."""
    waits = Waits(cluster.fleet.copy(), policy, cluster.budgets, tuple(cluster.placements.in_flight()))
    wait = Wait(pod=pod)
    if pod.gang is not None:
        gang, problem = cluster.gang_tracker.waiting(pod.gang)
        parked = None if gang is None else cluster.queue.parked_failure(gang)
        if gang is not None:
            # As it is decided: alone, if the pods that come later would not be created.
            gang = cluster.gangs.admitted(gang)
        wait = Wait(pod=pod, gang=gang, problem=problem, parked=parked)
    yield wait
    why = waits.why(wait)
    why = replace(why, claims=(yield from waits.claims(wait, why)))
    yield why
    yield from waits.remedies(wait, why)
