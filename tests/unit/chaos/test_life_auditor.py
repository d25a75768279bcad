"""Each rule about what happens over time finds a history that breaks it, and nothing in one that keeps it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tests.chaos import requests
from tests.chaos.auditor import ALLOCATION, GANG, GANG_SIZE
from tests.chaos.findings import FindingKind
from tests.chaos.history import Kind
from tests.chaos.life_auditor import LifeLimits, Misuse, audit
from tests.unit.chaos.test_auditor import Past

BERTH: Final = "berth"
OTHER: Final = "default-scheduler"
CARDS: Final = 2
SHARES: Final = {"kubernetes.io/gpu": str(100 * CARDS)}
FULL: Final = "0/1 nodes are available: 1 node(s) have too few free GPUs (1 requested)."


class Life(Past):
    """A history of nodes with two cards and pods that request some."""

    def node(self, name: str = "n", *, cpu: str = "8", offered: str = str(CARDS), **spec: Any) -> None:
        shares = SHARES if offered != "0" else {}
        allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110", "nvidia.com/gpu": offered, **shares}
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        self._write(Kind.NODE, name, {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status})

    def device(self, name: str = "n", *, failed: Sequence[int] = ()) -> None:
        cards = [{"type": "gpu", "id": f"{name}-{i}", "health": i not in failed} for i in range(CARDS)]
        self._write(Kind.DEVICE, name, {"metadata": {"name": name}, "spec": {"devices": cards}})
        self._write(Kind.HEARTBEAT, f"berth-node-lease/{name}", {"spec": {"leaseDurationSeconds": 10_000}})

    def pod(
        self, name: str, cards: int = 1, *, priority: int = 0, owner: str = "", scheduler: str = BERTH, **more: Any
    ) -> None:
        """Create a pod; `more` may have gang, size, labels and cpu."""
        amounts = {"cpu": more.get("cpu", "100m"), **({"nvidia.com/gpu": str(cards)} if cards else {})}
        annotations = {GANG: more["gang"], GANG_SIZE: str(more["size"])} if "gang" in more else {}
        owners = [{"uid": owner, "controller": True}] if owner else []
        metadata = {"uid": f"uid-{name}", "annotations": annotations, "labels": more.get("labels", {})}
        containers = [{"resources": {"requests": amounts}}]
        spec = {"priority": priority, "schedulerName": scheduler, "containers": containers}
        self._pod(f"ns/{name}", {"metadata": {**metadata, "ownerReferences": owners}, "spec": spec})

    def runs(self, name: str, *cards: int, node: str = "n") -> None:
        resources = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
        grants = [{"minor": card, "id": f"{node}-{card}", "resources": resources} for card in cards]
        annotations = {ALLOCATION: json.dumps({"gpu": grants})} if cards else {}
        self.changes(f"ns/{name}", annotations=annotations, spec={"nodeName": node})

    def waits(self, name: str, message: str = FULL, reason: str = "Unschedulable", **status: Any) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        self.changes(f"ns/{name}", status={"conditions": [condition], **status})

    def evicted(self, name: str, *, by: str) -> None:
        self.preempted(f"ns/{name}", by=f"ns/{by}")
        self.gone(f"ns/{name}")

    def preempted(self, name: str, *, by: str, node: str = "n") -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self.changes(name, status={"conditions": [condition]})
        self.event(name.removeprefix("ns/"), "Preempted", f"Preempted by pod {by} on node {node}")

    def passes(self, seconds: float) -> None:
        """Let time pass; something that concerns no pod happens each second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self._write(Kind.LEASE, "berth", {"spec": {"term": 1}})


def kinds(life: Life, *, deleted: Sequence[str] = (), **limits: Any) -> list[FindingKind]:
    uids = frozenset(f"uid-{name}" for name in deleted)
    return [finding.kind for finding in audit(life.revisions, LifeLimits(scheduler=BERTH, deleted=uids, **limits))]


@pytest.fixture
def life() -> Life:
    """Return a history of a node with two idle cards."""
    own = Life()
    own.leads(1)
    own.node()
    own.device()
    return own


# --- HARMED ---


def test_preemption_for_a_pod_that_then_fits_is_no_harm(life: Life) -> None:
    for card, name in enumerate(("a", "b")):
        life.pod(name)
        life.runs(name, card)
    life.pod("urgent", priority=5)
    life.passes(20)
    life.evicted("a", by="urgent")
    life.runs("urgent", 0)

    assert kinds(life, deleted=["a"]) == []


def test_preemption_where_the_pod_cannot_run_is_found(life: Life) -> None:
    life.pod("a")
    life.runs("a", 0)
    life.pod("urgent", 3, priority=5)
    life.passes(20)
    life.evicted("a", by="urgent")

    assert kinds(life, deleted=["a"]) == [FindingKind.HARMED]


@pytest.mark.parametrize(("deleted", "expected"), [([], []), (["a"], [FindingKind.HARMED])])
def test_deletion_by_berth_without_a_reason_is_found(
    life: Life, deleted: list[str], expected: list[FindingKind]
) -> None:
    life.pod("a")
    life.runs("a", 0)
    life.gone("ns/a")

    assert kinds(life, deleted=deleted) == expected


# --- EVICTED_AGAIN ---


def evicts(
    life: Life,
    pauses: Sequence[float],
    *,
    is_bound_after: int = -1,
    is_displaced_after: int = -1,
    displacer_stays: bool = True,
) -> list[str]:
    """Evict the replacement of a victim again after each pause, each time for a new pod of one controller.

    A pod of a higher priority may take what one eviction freed, and end, or get another node.
    """
    for number, pause in enumerate(pauses):
        life.passes(pause)
        life.pod(f"v-{number}", 2, priority=-1, scheduler=OTHER)
        life.runs(f"v-{number}", 0, 1)
        life.pod(f"urgent-{number}", 2, priority=5, owner="rs")
        life.passes(1)
        life.evicted(f"v-{number}", by=f"urgent-{number}")
        if number == is_bound_after:
            life.runs(f"urgent-{number}", 0, 1)
        if number == is_displaced_after:
            life.pod("above", 2, priority=9)
            if displacer_stays:
                life.runs("above", 0, 1)
            else:
                life.changes("ns/above", status={"nominatedNodeName": "n"})
            life.passes(0.1)
            life.changes("ns/above", status={"phase": "Succeeded"})
        life.gone(f"ns/urgent-{number}")
    return [f"v-{number}" for number in range(len(pauses))]


@pytest.mark.parametrize(
    ("pauses", "is_bound_after", "expected"),
    [
        pytest.param([1, 1, 1], -1, [FindingKind.EVICTED_AGAIN], id="a third one at once"),
        pytest.param([1, 1, 1], 1, [], id="bound after the second"),
    ],
)
def test_evictions_for_one_controller_are_bounded(
    life: Life, pauses: list[float], is_bound_after: int, expected: list[FindingKind]
) -> None:
    victims = evicts(life, pauses, is_bound_after=is_bound_after)

    assert kinds(life, deleted=victims) == expected


@pytest.mark.parametrize("stays", [True, False], ids=["bound", "nominated"])
@pytest.mark.parametrize(
    ("pauses", "expected"), [([1, 1, 1], []), ([1, 1, 1, 1], [FindingKind.EVICTED_AGAIN])], ids=["once", "not twice"]
)
def test_a_pod_of_a_higher_priority_explains_one_set_of_victims(
    life: Life, pauses: list[float], expected: list[FindingKind], *, stays: bool
) -> None:
    victims = evicts(life, pauses, is_displaced_after=1, displacer_stays=stays)

    assert kinds(life, deleted=victims) == expected


# --- IDLE, STARVED, NOT_REPLACED ---


@pytest.mark.parametrize(("seconds", "expected"), [(50, []), (70, [FindingKind.IDLE])])
def test_card_that_is_idle_while_a_pod_waits_is_found(life: Life, seconds: int, expected: list[FindingKind]) -> None:
    life.pod("a")
    life.passes(seconds)

    assert [kind for kind in kinds(life) if kind is not FindingKind.UNTRUE] == expected


def test_reservation_that_waits_for_its_own_rollout_is_found(life: Life) -> None:
    for name, revision in (("old", "1"), ("new", "2")):
        life.pod(name, 2, labels={"app": "llm", "pod-template-hash": revision})
    life.runs("old", 0, 1)
    life.waits("new", f"{FULL} reserved on n: 0 of 2 GPUs are free, the rest is held by pod old.")
    life.passes(20)

    assert kinds(life) == [FindingKind.RESERVED_IN_VAIN]


def test_new_member_of_a_formed_gang_that_does_not_start_is_found(life: Life) -> None:
    for card, name in enumerate(("a", "b")):
        life.pod(name, gang="g", size=2)
        life.runs(name, card)
    life.changes("ns/a", status={"phase": "Succeeded"})
    life.gone("ns/a")
    life.pod("c", gang="g", size=2)
    life.waits("c", "PodGroup ns/g: waiting for members: 1 of 2", "PodGroupNotReady")
    life.passes(70)

    assert kinds(life) == [FindingKind.NOT_REPLACED]


@pytest.mark.parametrize(("members", "expected"), [(2, True), (3, False)])
def test_gang_that_fits_and_waits_is_found(life: Life, members: int, expected: bool) -> None:
    for number in range(members):
        life.pod(f"m-{number}", gang="g", size=members)
        life.waits(f"m-{number}", "PodGroup ns/g: 1 of the required members fit")
    life.passes(40)

    assert (FindingKind.STARVED in kinds(life)) is expected


# --- UNTRUE, NOT_STARTING ---


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu.", []),
        ("0/2 nodes are available: 2 Insufficient cpu.", [FindingKind.UNTRUE]),
        ("0/1 nodes are available: 1 node(s) have too few healthy GPUs (1 requested).", [FindingKind.UNTRUE]),
    ],
)
def test_reason_that_is_not_true_once_it_is_quiet_is_found(
    life: Life, message: str, expected: list[FindingKind]
) -> None:
    life.pod("x", 2)
    life.runs("x", 0, 1)
    life.pod("a", cpu="16")
    life.waits("a", message)
    life.passes(40)

    assert kinds(life) == expected


@pytest.mark.parametrize(
    ("offered", "was_used", "expected"),
    [("0", False, []), ("2", False, [FindingKind.NOT_STARTING]), ("0", True, [FindingKind.NOT_STARTING])],
)
def test_node_that_is_up_and_called_starting_is_found(
    life: Life, offered: str, was_used: bool, expected: list[FindingKind]
) -> None:
    life.node(offered=offered)
    life.pod("x", 2)
    if was_used:
        life.runs("x", 0, 1)
    life.gone("ns/x")
    life.pod("a", 2, cpu="16")
    life.waits("a", "1 node(s) that may take the pod are starting.", "NodeStarting")
    life.passes(34)

    assert kinds(life, quiet=1000) == expected


# --- UNREPORTED, and who deleted a pod ---


@pytest.mark.parametrize(("reason", "expected"), [("CardNotHeld", []), ("Scheduled", [FindingKind.UNREPORTED])])
def test_use_of_another_pods_card_that_is_not_reported_is_found(
    life: Life, reason: str, expected: list[FindingKind]
) -> None:
    life.pod("a", 0)
    life.runs("a")
    life.passes(5)
    life.event("a", reason, "its processes use 2Gi of gpu 4")

    assert kinds(life, misuses=[Misuse(uid="uid-a", name="ns/a", node="n", since=1.0)]) == expected


def test_deletions_of_an_account_are_read_from_the_audit_log(tmp_path: Any) -> None:
    def entry(user: str, code: int, body: Mapping[str, Any]) -> str:
        return json.dumps({"user": {"username": user}, "responseStatus": {"code": code}, "requestObject": body})

    log = tmp_path / requests.LOG
    by_uid = {"preconditions": {"uid": "deleted"}}
    entries = [
        entry("berth", 200, by_uid),
        entry("berth", 201, {"kind": "Eviction", "deleteOptions": {"preconditions": {"uid": "evicted"}}}),
        entry("berth", 409, {"preconditions": {"uid": "refused"}}),
        entry("berth", 200, {"preconditions": {"uid": "asked"}, "dryRun": ["All"]}),
        entry("other", 200, {"preconditions": {"uid": "others"}}),
        entry("berth", 200, {}),
    ]
    log.write_text("\n".join(entries))

    assert requests.deleted(log, "berth") == {"deleted", "evicted"}
