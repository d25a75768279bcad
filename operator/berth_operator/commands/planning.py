"""Simulation and advice: add a workload to a snapshot, then compute whether it fits or which pods to move."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from berth_api.admission import routing
from berth_api.objects.visibility import ClaimDevices
from berth_operator.commands.claims import WorkloadClaims
from berth_operator.commands.errors import InputError
from berth_operator.commands.workload import CREATED, Admission, WorkloadFile
from berth_operator.core.advice import claim_devices
from berth_operator.core.advice.defragmentation import Advice, Move, Tenant, advise, first_moves
from berth_operator.core.advice.simulate import NO_NODES, Outcome, Simulation, simulate
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit, nominated_pods
from berth_operator.core.queue.gang_tracker import SETTLE
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.objects import pods
from berth_operator.state.watches.snapshot import Object, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a simulation."""

    simulation: Simulation
    pods: tuple[Outcome, ...]
    """The pods of the workload, in its order."""
    waiting: tuple[Outcome, ...]
    """The pods that already wait in the cluster, and are decided with the workload."""
    notes: tuple[str, ...]
    left_out: bool = False
    """Whether pods of the workload were left out, because another scheduler places them."""

    @property
    def fits(self) -> bool:
        """Return whether all pods of the workload fit; false if all were left out."""
        return all(outcome.fits for outcome in self.pods) and not (self.left_out and not self.pods)


class Planner:
    """A snapshot of the cluster, and the pods of a workload that are added to it."""

    def __init__(
        self,
        snapshot: Snapshot,
        policies: Mapping[str, Policy],
        *,
        namespace: str,
        reserved: Mapping[str, str] = NO_NODES,
    ) -> None:
        """Create a planner; `reserved` has the reserved nodes by the UIDs of the pods that wait for them."""
        self._snapshot, self._cluster, self._policies = snapshot, snapshot.cluster, policies
        self._namespace, self._reserved = namespace, reserved
        self._pods: dict[str, Object] = {}
        """UID -> pod of the workload."""
        self._existing = {charge.pod for charge in self._cluster.fleet.charges.values()}
        self._existing |= {pod.key for pod in self._cluster.pending.values()}
        self._notes: list[str] = []
        self._left_out = False

    # --- workload ---------------------------------------------------------------------------------------------

    def add(self, workload: WorkloadFile) -> None:
        """Add the pods of a workload as pending pods.

        Raises:
            InputError: a pod would be refused by admission, or cannot be read.
        """
        for priority_class in workload.priority_classes:
            self._snapshot.put_priority_class(priority_class)
        admission = Admission(
            namespace=self._namespace,
            schedulers=tuple(self._policies),
            priority_classes=self._snapshot.priority_classes,
        )
        self._notes += workload.notes
        for document, group in workload.groups:
            metadata = {"namespace": self._namespace, **group["metadata"]}
            # One that exists keeps its age and status.
            known = self._cluster.gangs.view(f"{metadata['namespace']}/{metadata['name']}")
            metadata |= {
                "uid": known.group.uid if known else f"simulated/{document.where}",
                "creationTimestamp": known.group.created if known else CREATED,
            }
            self._cluster.gangs.put_group({**group, "metadata": metadata, "status": known.status if known else {}})
        claims = WorkloadClaims(self._snapshot, workload.claim_objects, self._namespace)
        for document, pod in workload.pods:
            where = f"{document.where} ({document.title})"
            admitted, is_ours = pods.transform(admission.admit(document, pod)), admission.is_ours(pod)
            added = claims.of_pod(document, admitted) if is_ours else admitted
            uid, spec = added["metadata"]["uid"], added["spec"]
            if uid in self._pods:
                raise InputError(f"{where}: there is a second pod {_key(added)}")
            try:
                if is_ours:
                    self._cluster.put_pending(added)
                    self._pods[uid] = added
                elif spec.get("nodeName"):
                    self._cluster.put_bound(added)
                    self._note(f"{where} is counted on {spec['nodeName']}, which it names")
                else:
                    self._left_out = True
                    why_not = routing.not_ours(spec["schedulerName"], self._policies)
                    self._note(f"{where} is left out, because the nodes of its pods are not known: {why_not}")
            except (KeyError, TypeError, AttributeError) as error:
                raise InputError(f"{where}: spec cannot be read: {error!r}") from error
            for template in claims.missing(admitted) if is_ours else ():
                self._note(f"{where}: there is no ResourceClaimTemplate {template}")
        if repeated := sorted(self._existing.intersection(map(_key, self._pods.values()))):
            self._notes.append(f"there already, and simulated once more: {', '.join(repeated)}")

    def _note(self, note: str) -> None:
        """Add a note, once for all pods of a document."""
        if self._notes[-1:] != [note]:
            self._notes.append(note)

    # --- answers ----------------------------------------------------------------------------------------------

    def simulate(self, without: Sequence[str] = ()) -> Answer:
        """Decide all pending pods, as if the placed pods that match these patterns were deleted."""
        placed = self._snapshot.placed.items()
        gone = [uid for uid, pod in placed if any(fnmatchcase(_key(pod), pattern) for pattern in without)]
        self._cluster.gangs.judge()
        units: list[PendingPod | Gang] = []
        # Also those that the operator would give some time, for ResourceClaims that are not made yet.
        while (unit := self._cluster.queue.pop(math.inf)) is not None:
            units.append(unit)
        simulation = simulate(
            self._cluster.fleet,
            units,
            self._policies,
            budgets=self._cluster.budgets,
            gone=gone,
            now=self._snapshot.now,
            reserved=self._reserved,
        )
        outcomes = {outcome.pod.uid: outcome for outcome in simulation.outcomes}
        gang_tracker = self._cluster.gang_tracker
        _ = list(gang_tracker.unready(0.0))  # starts the period after which a gang's lack is reported
        for lack, members in gang_tracker.unready(SETTLE):
            outcomes |= {pod.uid: _not_now(pod, lack) for pod in members}
        for raw in self._pods.values():
            if pods.is_gated(raw):
                gated = self._read(raw)
                outcomes[gated.uid] = _not_now(gated, _gates(raw))
        notes = list(self._notes)
        if count := len(simulation.evicted):
            notes.append(
                f"{count} pod(s) would be evicted: what waits may fit once they have ended, but which pod is first "
                "depends on when they end"
            )
        return Answer(
            simulation=simulation,
            pods=tuple(outcomes[uid] for uid in self._pods),
            waiting=tuple(outcome for uid, outcome in outcomes.items() if uid not in self._pods),
            notes=tuple(notes),
            left_out=self._left_out,
        )

    def advise(self, key: str = "") -> tuple[PendingPod, Advice]:
        """Return a pod and the pods to move for it.

        The pod is the workload's only pod, or a pending pod (namespace/name).

        Raises:
            InputError: there is no such pod, or it is a member of a gang.
        """
        # Of the pods that a controller would create again; whether their owners allow it is for them to say.
        tenants = {uid: replace(tenant, refuses="") for uid, tenant in (self._cluster.tenants or {}).items()}
        return self._advise(key, tenants)

    def _advise(self, key: str, tenants: Mapping[str, Tenant]) -> tuple[PendingPod, Advice]:
        if key:
            waiting = next((pod for pod in self._cluster.pending.values() if pod.key == key), None)
            if waiting is None:
                raise InputError(self._why_not_waiting(key))
            pod = waiting
        else:
            if len(self._pods) != 1:
                raise InputError(f"the workload has {len(self._pods)} pods; allowed is one")
            [raw] = self._pods.values()
            if pods.has_gates(raw):
                raise InputError(f"{_key(raw)} would not wait yet: {_gates(raw)}")
            pod = self._read(raw)
        if pod.gang is not None:
            raise InputError(
                f"{pod.key} is a member of {pod.gang.key}: advice is for pods that are decided by themselves"
            )
        fleet = self._cluster.fleet
        for nominated_pod in nominated_pods(self._cluster.pending.values()):
            policy = self._policies[nominated_pod.scheduler]
            if (nominee := nominated_fit(fleet, nominated_pod, policy, nominated_pod.nominated_node)) is not None:
                fleet.nominate(nominee)
        return pod, advise(fleet, pod, tenants, self._policies, self._cluster.budgets)

    def claims(self, pod: PendingPod) -> list[str]:
        """Return what each request of a pod's ResourceClaims finds; empty if they do not keep the pod from a node."""
        steps = claim_devices.of_pod(self._cluster.fleet.copy(), pod, self._policies[pod.scheduler])
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            answer: ClaimDevices | None = stop.value
        if answer is None:
            return []
        return [*map(claim_devices.sentence, answer["requests"]), *filter(None, [answer["together"]])]

    def defragment(self, key: str, most: int) -> tuple[PendingPod, Advice, tuple[Move, ...]]:
        """Return a pending pod and the pods to move for it.

        The pod is given as namespace/name. Only pods that allow it are moved. The result also has which of them to move
        first.

        Raises:
            InputError: there is no such pod, or it is a member of a gang.
        """
        tenants: Mapping[str, Tenant] = self._cluster.tenants or {}
        pod, advice = self._advise(key, tenants)
        return pod, advice, first_moves(self._cluster.fleet, advice, tenants, self._policies, most)

    def _why_not_waiting(self, key: str) -> str:
        """Return why a pod of the cluster does not wait for a scheduler with a profile."""
        placed, unplaced = self._snapshot.placed.values(), self._snapshot.unplaced.values()
        pod = next((pod for pod in (*unplaced, *placed) if _key(pod) == key), None)
        if pod is None:
            return f"there is no pod {key}, or it has ended"
        scheduler = pod["spec"].get("schedulerName") or ""
        if scheduler not in self._policies:
            return f"{key}: {routing.not_ours(scheduler, self._policies)}"
        if node := pod["spec"].get("nodeName"):
            return f"{key} does not wait: it is bound to {node}"
        if pod["metadata"].get("deletionTimestamp"):
            return f"{key} does not wait: it is being deleted"
        return f"{key} does not wait yet: {_gates(pod)}"

    def _read(self, pod: Object) -> PendingPod:
        return pods.pending(pod, self._cluster.kinds, self._cluster.priorities)


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _gates(pod: Object) -> str:
    return f"waits for its scheduling gates: {', '.join(gate['name'] for gate in pod['spec']['schedulingGates'])}"


def _not_now(pod: PendingPod, why: str) -> Outcome:
    return Outcome(pod=pod, result=Failure(message=why, wakes_on=Change(0)))
