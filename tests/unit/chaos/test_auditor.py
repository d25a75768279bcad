"""Each rule of the auditor finds a constructed history that breaks it, and nothing in one that keeps it."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.chaos.auditor import ALLOCATION, GANG, GANG_SIZE, TERM, Limits, audit
from tests.chaos.findings import FindingKind
from tests.chaos.history import Kind, Revision

LIMITS: Final = Limits(pause=1.0, gang=10.0, memory=5.0, calm_from=1000.0)
WHOLE: Final = ("100", "100")
HALF: Final = ("50", "50")
CARD: Final = "GPU-1"
OTHER: Final = "GPU-2"


class Past:
    """A history under construction."""

    def __init__(self) -> None:
        self.revisions: list[Revision] = []
        self.now = 0.0
        self._objects: dict[str, dict[str, Any]] = {}
        self._versions: dict[tuple[Kind, str], int] = {}

    def leads(self, term: int) -> None:
        self._write(Kind.LEASE, "berth", {"spec": {"term": term, "holderIdentity": f"replica-{term}"}})

    def arrives(self, name: str, *, priority: int = 0, gang: str = "", size: int = 0) -> None:
        annotations = {GANG: gang, GANG_SIZE: str(size)} if gang else {}
        self._pod(
            name,
            {"metadata": {"uid": f"uid-{name}", "annotations": annotations}, "spec": {"priority": priority}},
        )

    def bound(
        self,
        name: str,
        *cards: str,
        node: str = "n",
        term: int = 1,
        amounts: tuple[str, str] = WHOLE,
        event: bool = True,
    ) -> None:
        self.annotated(name, *cards, node=node, term=term, amounts=amounts)
        if event:
            self.event(name, "Scheduled", f"Successfully assigned {name} to {node} with GPU 0")

    def annotated(
        self, name: str, *cards: str, node: str = "n", term: int = 1, amounts: tuple[str, str] = WHOLE
    ) -> None:
        resources = dict(zip(("kubernetes.io/gpu-core", "koordinator.sh/gpu-memory-ratio"), amounts, strict=True))
        allocation = json.dumps({"gpu": [{"minor": 0, "id": card, "resources": resources} for card in cards]})
        self.changes(name, annotations={ALLOCATION: allocation, TERM: str(term)}, spec={"nodeName": node})

    def changes(
        self,
        name: str,
        *,
        annotations: dict[str, str] | None = None,
        spec: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
    ) -> None:
        old = self._objects[name]
        metadata = {**old["metadata"], "annotations": {**old["metadata"]["annotations"], **(annotations or {})}}
        self._pod(name, {"metadata": metadata, "spec": {**old["spec"], **(spec or {})}, "status": status or {}})

    def preempted(self, name: str, *, by: str, node: str = "n") -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self.changes(name, status={"conditions": [condition]})
        self.event(name, "Preempted", f"Preempted by pod {by} on node {node}")

    def gone(self, name: str) -> None:
        self._append(Kind.POD, name, 0, None)

    def event(self, name: str, reason: str, note: str) -> None:
        about = {"involvedObject": {"uid": f"uid-{name}"}, "reason": reason, "message": note}
        self._write(Kind.EVENT, f"event-{len(self.revisions)}", about)

    def lost(self) -> None:
        """Leave out the last revision."""
        self.revisions.pop()

    def _pod(self, name: str, raw: dict[str, Any]) -> None:
        self._objects[name] = raw
        self._write(Kind.POD, name, raw)

    def _write(self, kind: Kind, name: str, raw: dict[str, Any]) -> None:
        self._append(kind, name, self._versions.get((kind, name), 0) + 1, raw)

    def _append(self, kind: Kind, name: str, version: int, raw: dict[str, Any] | None) -> None:
        self._versions[kind, name] = version
        number = len(self.revisions) + 1
        self.revisions.append(Revision(number=number, time=self.now, kind=kind, name=name, version=version, object=raw))


def kinds(past: Past, *, ended: Sequence[str] = ()) -> list[FindingKind]:
    limits = Limits(
        pause=LIMITS.pause,
        gang=LIMITS.gang,
        memory=LIMITS.memory,
        calm_from=LIMITS.calm_from,
        ended=frozenset(f"uid-{name}" for name in ended),
    )
    return [finding.kind for finding in audit(past.revisions, limits)]


@pytest.fixture
def past() -> Past:
    """Return a history in which term 1 has begun."""
    own = Past()
    own.leads(1)
    return own


def test_orderly_history_has_no_findings(past: Past) -> None:
    for name in ("a", "b", "c"):
        past.arrives(name)
    past.bound("a", CARD, amounts=HALF)
    past.bound("b", CARD, amounts=HALF)
    past.gone("a")
    past.gone("b")
    past.bound("c", CARD)
    past.leads(2)
    past.arrives("d", priority=5)
    past.preempted("c", by="d")
    past.gone("c")
    past.bound("d", CARD, term=2)

    assert not kinds(past, ended=["a", "b"])


def test_missing_revision_is_found(past: Past) -> None:
    past.arrives("a")
    past.changes("a")
    past.lost()
    past.bound("a", CARD)

    assert kinds(past) == [FindingKind.REVISION_MISSING]


def test_card_that_is_booked_twice_is_found(past: Past) -> None:
    past.arrives("a")
    past.arrives("b")
    past.bound("a", CARD, amounts=("10", "50"))
    past.bound("b", CARD, amounts=("10", "60"))

    assert kinds(past) == [FindingKind.OVERBOOKED]


def test_card_on_two_nodes_is_found(past: Past) -> None:
    past.arrives("a")
    past.arrives("b")
    past.bound("a", CARD, amounts=HALF)
    past.bound("b", CARD, amounts=HALF, node="m")

    assert kinds(past) == [FindingKind.TWO_NODES]


def test_node_before_its_allocation_is_found(past: Past) -> None:
    past.arrives("a")
    past.changes("a", spec={"nodeName": "n"})
    past.bound("a", CARD)

    assert kinds(past) == [FindingKind.NOT_AT_ONCE, FindingKind.CHANGED]


def test_allocation_that_changes_is_found(past: Past) -> None:
    past.arrives("a")
    past.bound("a", CARD)
    past.annotated("a", OTHER)

    assert kinds(past) == [FindingKind.CHANGED]


def test_bind_after_one_of_a_later_term_is_found(past: Past) -> None:
    past.arrives("a")
    past.arrives("b")
    past.leads(2)
    past.bound("a", CARD, term=2)
    past.bound("b", OTHER, term=1)

    assert kinds(past) == [FindingKind.ENDED_TERM]


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, []), (1.1, [FindingKind.ENDED_TERM])])
def test_bind_after_the_pause_of_the_next_leader_is_found(
    past: Past, seconds: float, expected: list[FindingKind]
) -> None:
    past.arrives("a")
    past.leads(2)
    past.now += seconds
    past.bound("a", CARD, term=1)

    assert kinds(past) == expected


def test_bind_by_a_term_that_never_was_is_found(past: Past) -> None:
    past.arrives("a")
    past.bound("a", CARD, term=7)

    assert kinds(past) == [FindingKind.UNKNOWN_TERM]


def test_gang_that_is_bound_before_it_is_complete_is_found(past: Past) -> None:
    past.arrives("a", gang="g", size=2)
    past.bound("a", CARD)
    past.arrives("b", gang="g", size=2)
    past.bound("b", OTHER)

    assert kinds(past) == [FindingKind.GANG_STARTED_EARLY]


@pytest.mark.parametrize(("phase", "expected"), [("Succeeded", []), ("Failed", [FindingKind.GANG_STARTED_EARLY])])
def test_gang_needs_no_other_member_for_one_that_succeeded(past: Past, phase: str, expected: list[FindingKind]) -> None:
    past.arrives("a", gang="g", size=2)
    past.arrives("b", gang="g", size=2)
    past.bound("a", CARD)
    past.bound("b", OTHER)
    past.changes("a", status={"phase": phase})
    past.gone("a")
    past.gone("b")
    past.now += 10
    past.arrives("c", gang="g", size=2)
    past.bound("c", CARD)

    assert kinds(past, ended=["a", "b"]) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(9.0, []), (11.0, [FindingKind.GANG_IN_PART])])
def test_gang_that_stays_bound_in_part_is_found(past: Past, seconds: float, expected: list[FindingKind]) -> None:
    past.arrives("a", gang="g", size=2)
    past.arrives("b", gang="g", size=2)
    past.bound("a", CARD)
    past.now += seconds
    past.bound("b", OTHER)

    assert kinds(past) == expected


@pytest.mark.parametrize(("priority", "expected"), [(5, []), (0, [FindingKind.PRIORITY]), (-1, [FindingKind.PRIORITY])])
def test_preemption_for_a_pod_of_no_higher_priority_is_found(
    past: Past, priority: int, expected: list[FindingKind]
) -> None:
    past.arrives("a")
    past.bound("a", CARD)
    past.arrives("b", priority=priority)
    past.arrives("c", priority=9)
    past.preempted("a", by="b")
    past.gone("a")
    past.bound("b", CARD)
    past.bound("c", OTHER)

    assert kinds(past) == expected


def test_event_that_names_another_node_is_found(past: Past) -> None:
    past.arrives("a")
    past.bound("a", CARD, event=False)
    past.event("a", "Scheduled", "Successfully assigned a to nowhere")

    assert kinds(past) == [FindingKind.WRONG_EVENT]


@pytest.mark.parametrize(("now", "expected"), [(999.0, []), (1001.0, [FindingKind.NO_EVENT])])
def test_missing_event_is_found_in_a_calm_time(past: Past, now: float, expected: list[FindingKind]) -> None:
    past.now = now
    past.arrives("a")
    past.bound("a", CARD, event=False)

    assert kinds(past) == expected


def test_pod_that_has_gone_without_a_reason_is_lost(past: Past) -> None:
    past.arrives("a")
    past.bound("a", CARD)
    past.gone("a")

    assert kinds(past) == [FindingKind.LOST]
