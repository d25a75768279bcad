"""Code that tests of promised places share: a fleet, the AdmissionCheck, and Kueue's part, in virtual time."""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from berth_api import names
from berth_operator.binding.workloads.fits_check import FitsCheck
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.quota_workload import CheckAnswer, CheckSettings, CheckState, PodSet, QuotaWorkload
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import NVIDIA, device, entry, node, pod, waiting, whole

READY, PENDING, RETRY, REJECTED = CheckState.READY, CheckState.PENDING, CheckState.RETRY, CheckState.REJECTED
POLICY = Policy()
SETTINGS = CheckSettings()
SECOND = 1.0


class Kueue:
    """A fleet, the check, and what Kueue does with the check's answers; time is virtual."""

    def __init__(self, nodes: Mapping[str, int], *, of: CheckSettings = SETTINGS) -> None:
        self.now, self.settings = 1000.0, of
        self.tick = 0.0
        """Seconds that pass whenever the clock is read: what a decision takes."""
        self.cluster = Cluster(grace=1e9, clock=self.clock, wall=lambda: self.now)
        for name, cards in nodes.items():
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, *(entry(minor) for minor in range(cards))))
        self.answers: list[CheckAnswer] = []
        self.last: dict[str, CheckAnswer] = {}
        self.check = self.lead()
        self.numbers = itertools.count()

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def lead(self) -> FitsCheck:
        return FitsCheck(
            cluster=self.cluster, policy=lambda _: POLICY, settings=lambda: self.settings, answer=self.answers.append
        )

    @property
    def fleet(self) -> Fleet:
        return self.cluster.fleet

    def submit(self, name: str, *pod_sets: PodSet, **fields: Any) -> None:
        """Reserve quota for a workload."""
        workload = QuotaWorkload(
            key=f"ns/{name}",
            uid=f"uid-{name}",
            check="fits",
            has_quota=True,
            **{"pod_sets": pod_sets, "created": f"{next(self.numbers):06}", "since": f"{self.now}", **fields},
        )
        self.cluster.workloads.put(workload)

    def ask(self, name: str, *pod_sets: PodSet, **fields: Any) -> None:
        """Submit a workload, and let the check answer."""
        self.submit(name, *pod_sets, **fields)
        self.turn()

    def of(self, name: str) -> QuotaWorkload:
        return self.cluster.workloads.by_key[f"ns/{name}"]

    def change(self, name: str, **fields: Any) -> None:
        self.cluster.workloads.put(replace(self.of(name), **fields))

    def turn(self, seconds: float = 0.0) -> None:
        """Advance the clock, decide, and show the answers."""
        self.now += seconds
        while self.check.follow():
            pass
        for answer in self.drained():
            known = self.cluster.workloads.by_key.get(answer.workload.key)
            if known is not None and known.uid == answer.workload.uid:
                self.cluster.workloads.put(replace(known, state=answer.state, message=answer.message))
        while self.check.follow():
            pass

    def drained(self) -> list[CheckAnswer]:
        shown = self.answers[:]
        self.answers.clear()
        self.last.update({each.workload.name: each for each in shown})
        return shown

    def state(self, name: str) -> CheckState:
        return self.of(name).state

    def requeue(self, name: str) -> None:
        """Take the quota of a workload, and reserve it again, as Kueue does after Retry."""
        retried = self.of(name).retries + 1
        self.change(name, has_quota=False, state=PENDING, retries=retried)
        self.turn()
        self.change(name, has_quota=True, since=f"{self.now}-{retried}")

    def places(self, name: str) -> Counter[str]:
        """Return how many places of a workload are promised on each node."""
        return Counter(place.node for place in self.cluster.promises.places(f"ns/{name}"))

    def come(self, name: str, number: int, **fields: Any) -> None:
        """Create a pod of a workload, which has been admitted."""
        self.put(f"{name}-{number}", workload=name, **fields)

    def put(
        self, name: str, *, workload: str = "", pod_set: str = "main", cards: int = 1, gang: int = 0, **fields: Any
    ) -> None:
        """Create a pod; `gang` is the number of pods of its workload, which are a gang."""
        annotations = {names.WORKLOAD: workload, names.POD_SET: pod_set} if workload else {}
        if gang:
            annotations |= {names.POD_GROUP: workload, names.POD_GROUP_MIN_MEMBER: str(gang)}
        self.cluster.put_pending(pod(name, {NVIDIA: str(cards)}, annotations=annotations, **fields))

    def hold(self, name: str, *minors: int, on: str = "a", **fields: Any) -> None:
        self.cluster.put_bound(pod(name, {NVIDIA: str(len(minors))}, on=on, allocated=whole(*minors), **fields))

    def schedule(self) -> dict[str, str]:
        """Decide all pods and gangs as the scheduler does; return the nodes of the pods that were placed."""
        placed = {}
        while (unit := self.cluster.queue.pop(self.now)) is not None:
            if isinstance(unit, Gang):
                gang_decision = functools.partial(decide_gang, self.fleet, unit, POLICY)
                outcome = self.cluster.decide(unit.lowest, gang_decision)
            else:
                decision = functools.partial(decide, self.fleet, unit, POLICY)
                single = self.cluster.decide(unit.priority, decision)
                outcome = [single] if isinstance(single, Placement) else single
            if isinstance(outcome, Failure):
                self.cluster.queue.park(unit, outcome)
                continue
            self.cluster.placements.assume_all(outcome)
            self.cluster.queue.remove(unit.uid)
            placed.update({placement.pod.name: placement.node for placement in outcome})
        return placed


def pods(count: int, cards: int = 1, name: str = "main", **fields: Any) -> PodSet:
    """Return a pod set."""
    return PodSet(name=name, pods=tuple(waiting(f"{name}-{n}", {NVIDIA: cards}, **fields) for n in range(count)))


def cards_of(each: PendingPod) -> int:
    return sum(part.count for part in each.request.devices.parts)


def answered(nodes: Mapping[str, int], *, count: int = 1, of: CheckSettings = SETTINGS) -> Kueue:
    """Return Kueue after the check's answer to a workload `train` of this many pods."""
    kueue = Kueue(nodes, of=of)
    kueue.ask("train", pods(count))
    return kueue


def restarted(old: Kueue) -> Kueue:
    """Return another leader's state, built from the same objects."""
    new = Kueue({})
    new.now, new.tick, new.settings, new.numbers = old.now, old.tick, old.settings, old.numbers
    for name, record in old.cluster.node_cache.nodes.items():
        new.cluster.node_cache.put_node(node(name, unschedulable=record.info.cordoned))
    for name in old.fleet.rows:
        minors = [minor for minor in old.fleet.cards["gpu"].minor[old.fleet.rows[name]].tolist() if minor >= 0]
        new.cluster.node_cache.put_device(device(name, *(entry(minor) for minor in minors)))
    for charge in old.fleet.charges.values():
        of_workload = charge.workload.split("/") if charge.workload else ()
        annotations = dict(zip((names.WORKLOAD, names.POD_SET), of_workload, strict=False))
        minors = [grant.minor for grant in charge.grants]
        going = {"deletionTimestamp": "2026-01-01T00:10:00Z"} if charge.terminating else {}
        new.hold(charge.pod.partition("/")[2], *minors, on=charge.node, annotations=annotations, metadata=going)
    for workload in old.cluster.workloads.by_key.values():
        new.cluster.workloads.put(workload)
    for waiting_pod in old.cluster.pending.values():
        if waiting_pod.uid not in old.fleet.charges:
            workload_name, _, pod_set = waiting_pod.workload.partition("/")
            gang = 0 if waiting_pod.gang is None else waiting_pod.gang.minimum or 0
            new.put(waiting_pod.name, workload=workload_name, pod_set=pod_set, cards=cards_of(waiting_pod), gang=gang)
    new.check.restore(old.check.record())
    return new
