"""Each rule of the auditor of claims finds a constructed history that breaks it, and nothing in one that keeps it."""

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.chaos.auditor import ALLOCATION
from tests.chaos.claims_auditor import CONTENDER, OTHER, SCHEDULER, ClaimsAuditor, Limits
from tests.chaos.findings import FindingKind
from tests.chaos.history import Kind, Revision

NODE: Final = "node"
CARDS: Final = ("GPU-0", "GPU-1", "GPU-2")
LIMITS: Final = Limits(pools=frozenset({NODE}), unseen=2.0)
FINALIZER: Final = "resource.kubernetes.io/delete-protection"


class Past:
    """A history under construction, of a node with three cards; `gpu-N` of its pool is the card `GPU-N`."""

    def __init__(self) -> None:
        self.revisions: list[Revision] = []
        self.now = 0.0
        self._versions: dict[tuple[Kind, str], int] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        self.numbered(CARDS)
        self.listed(CARDS)

    def numbered(self, cards: Sequence[str]) -> None:
        devices = [{"minor": minor, "id": card} for minor, card in enumerate(cards)]
        self._write(Kind.DEVICE, NODE, {"spec": {"devices": devices}})

    def listed(self, cards: Sequence[str]) -> None:
        devices = [
            {"name": f"gpu-{number}", "attributes": {"uuid": {"string": card}}} for number, card in enumerate(cards)
        ]
        self._write(Kind.SLICE, "slice", {"spec": {"driver": "d", "pool": {"name": NODE}, "devices": devices}})

    def named(self, pod: str, number: int, amount: int = 100, *, minor: int = -1) -> None:
        """Bind a pod to a card by name."""
        entry = {
            "minor": number if minor < 0 else minor,
            "id": CARDS[number],
            "resources": {"kubernetes.io/gpu-core": amount, "koordinator.sh/gpu-memory-ratio": amount},
        }
        annotations = {ALLOCATION: json.dumps({"gpu": [entry]})}
        self._pod(pod, annotations=annotations, spec={"nodeName": NODE})

    def uses(self, pod: str, *claims: str) -> None:
        """Bind a pod with claims."""
        references = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        self._pod(pod, spec={"nodeName": NODE, "resourceClaims": references})

    def ended(self, pod: str) -> None:
        raw = self._objects[pod]
        self._pod(pod, annotations=raw["metadata"]["annotations"], spec=raw["spec"], phase="Succeeded")

    def gone(self, pod: str) -> None:
        self._append(Kind.POD, f"ns/{pod}", 0, None)

    def claims(self, claim: str, *numbers: int, pods: Sequence[str] = (), scheduler: str = "", **fields: Any) -> None:
        """Write a claim with some devices, reserved for pods."""
        results = [{"driver": "d", "pool": NODE, "device": f"gpu-{number}", **fields} for number in numbers]
        status: dict[str, Any] = {"allocation": {"devices": {"results": results}}} if numbers else {}
        status["reservedFor"] = [{"uid": f"uid-{pod}"} for pod in pods]
        labels = {SCHEDULER: scheduler} if scheduler else {}
        metadata = {"labels": labels, "finalizers": [FINALIZER] if numbers else []}
        self._write(Kind.CLAIM, f"ns/{claim}", {"metadata": metadata, "status": status})

    def deleted(self, claim: str) -> None:
        self._append(Kind.CLAIM, f"ns/{claim}", 0, None)

    def lost(self) -> None:
        """Leave out the last revision."""
        self.revisions.pop()

    def _pod(
        self,
        name: str,
        *,
        spec: dict[str, Any],
        annotations: dict[str, str] | None = None,
        phase: str = "",
    ) -> None:
        metadata = {"uid": f"uid-{name}", "annotations": annotations or {}}
        self._objects[name] = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
        self._write(Kind.POD, f"ns/{name}", self._objects[name])

    def _write(self, kind: Kind, name: str, raw: dict[str, Any]) -> None:
        self._append(kind, name, self._versions.get((kind, name), 0) + 1, raw)

    def _append(self, kind: Kind, name: str, version: int, raw: dict[str, Any] | None) -> None:
        self._versions[kind, name] = version
        number = len(self.revisions) + 1
        self.revisions.append(Revision(number=number, time=self.now, kind=kind, name=name, version=version, object=raw))


def audited(past: Past) -> tuple[list[FindingKind], ClaimsAuditor]:
    auditor = ClaimsAuditor(LIMITS)
    findings = [finding for revision in past.revisions for finding in auditor.take(revision)]
    return [finding.kind for finding in (*findings, *auditor.end())], auditor


def kinds(past: Past) -> list[FindingKind]:
    return audited(past)[0]


@pytest.fixture
def past() -> Past:
    return Past()


def test_cards_that_turn_over_between_names_and_claims_have_no_findings(past: Past) -> None:
    past.named("a", 0, 40)
    past.named("b", 0, 60)
    past.claims("c", 1, 2, pods=["d", "e"])
    past.uses("d", "c")
    past.uses("e", "c")
    past.ended("a")
    past.gone("b")
    past.numbered(CARDS[::-1])
    past.named("f", 0, minor=2)
    past.gone("d")
    past.gone("e")
    past.claims("c")
    past.deleted("c")
    past.named("g", 1)
    past.claims("h", 1, adminAccess=True, pods=["g"])
    past.claims("h")
    found, auditor = audited(past)
    assert not found
    assert (auditor.counts["pods by name"], auditor.counts["pods by claim"]) == (4, 2)


def test_a_card_by_name_and_by_claim_is_found(past: Past) -> None:
    past.named("a", 0, 30)
    past.claims("c", 0, pods=["a"])
    assert kinds(past) == [FindingKind.OVERBOOKED]


def test_two_claims_on_a_card_are_found(past: Past) -> None:
    past.uses("p")
    past.claims("c", 0, pods=["p"])
    past.claims("d", 1, 0, pods=["p"])
    assert kinds(past) == [FindingKind.OVERBOOKED]


def test_a_pod_that_is_bound_without_its_claims_is_found(past: Past) -> None:
    past.claims("c", 0, pods=["other"])
    past.uses("other", "c")
    past.uses("a", "c")
    past.uses("b", "missing")
    assert kinds(past) == [FindingKind.NO_CLAIM] * 2


def test_cards_that_nothing_lists_are_found(past: Past) -> None:
    past.named("a", 0, minor=1)
    past.claims("c", 9, pods=["a"])
    assert kinds(past) == [FindingKind.UNKNOWN_CARD] * 2


def test_changes_of_what_was_given_are_found(past: Past) -> None:
    past.named("a", 0)
    past.named("a", 1)
    past.claims("c", 2, pods=["a"])
    past.claims("c", 0, pods=["a"])
    past.listed(CARDS[::-1])
    assert kinds(past) == [FindingKind.CHANGED] * 4


def test_missing_revision_is_found(past: Past) -> None:
    past.uses("p")
    past.claims("c", 0)
    past.lost()
    past.claims("c", 0, pods=["p"])
    assert kinds(past) == [FindingKind.REVISION_MISSING]


def test_what_is_left_over_is_found(past: Past) -> None:
    past.named("p", 2)
    past.claims("of-gone", 0, pods=["gone"])
    past.claims("of-no-pod", 1)
    past.claims("of-ended", 2, pods=["p"])
    past.ended("p")
    assert kinds(past) == [FindingKind.OVERBOOKED, *[FindingKind.LEFT_OVER] * 3]


# --- two schedulers in one pool ----------------------------------------------------------------------------------


def test_a_claim_of_another_scheduler_behind_the_taint_is_found(past: Past) -> None:
    past.uses("p")
    past.claims("c", 0, pods=["p"], scheduler=OTHER)
    assert kinds(past) == [FindingKind.NOT_KEPT_AWAY]


def test_a_pool_that_another_scheduler_uses_is_not_served(past: Past) -> None:
    past.uses("p")
    past.claims("theirs", 0, pods=["p"], scheduler=CONTENDER)
    past.now = 1.9
    past.claims("decided", 1, pods=["p"])
    assert not kinds(past)
    past.now = 2.1
    past.claims("late", 2, pods=["p"])
    past.claims("decided")
    past.named("a", 1)
    assert kinds(past) == [FindingKind.NOT_STOPPED] * 2


@pytest.mark.parametrize("is_free", [False, True])
def test_a_card_that_another_scheduler_held_first_is_used_only_once_it_is_free(past: Past, is_free: bool) -> None:
    past.uses("p")
    past.claims("theirs", 0, pods=["p"], scheduler=CONTENDER)
    past.claims("ours", 0, pods=["q"])
    if is_free:
        past.claims("theirs")
    past.uses("q", "ours")
    assert kinds(past) == ([] if is_free else [FindingKind.OVERBOOKED])
