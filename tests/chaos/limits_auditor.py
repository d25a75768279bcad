"""Audit limits of shares at every revision of pods, in the order of etcd. The auditor uses no code of Berth.

* no node is in two modes: the pods that exist on a node and hold GPUs are all limited by MPS, or none of them is;
* a pod that requests a limit is limited in this way, and each limit is its allocation's part of the card;
* the limits of the pods on a card add up to at most the card.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.auditor import ALLOCATION, has_ended
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.history import Revision

ISOLATION: Final = "berth.dev/isolation"
MPS: Final = "mps"
MODES: Final = (MPS, "hami-core")
CONTAINER: Final = "main"
ANNOTATIONS: Final = f"{CONTAINER}.devices.berth.dev/"
MIB: Final = 2**20
UNITS: Final = {"Ki": 2**10, "Mi": MIB, "Gi": 2**30}

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod on a node."""

    key: str
    node: str
    mode: str
    """What limits it; empty for nothing."""
    limits: Mapping[str, int]
    """UUID -> bytes, of a pod that is limited."""


@dataclass(slots=True)
class LimitsAuditor:
    """The pods that hold GPUs at one revision; every card has `memory` bytes."""

    memory: int
    counts: Counter[str] = field(default_factory=Counter)
    """Pods that were bound, by what limits them."""
    _pods: dict[str, Pod] = field(default_factory=dict)
    """`namespace/name` -> pod on a node."""

    def take(self, revision: Revision) -> Iterator[Finding]:
        """Take one more revision of a pod."""
        raw = revision.object
        if raw is None or has_ended(raw):
            self._pods.pop(revision.name, None)
            return
        allocation = (raw["metadata"].get("annotations") or {}).get(ALLOCATION, "")
        if not raw["spec"].get("nodeName") or revision.name in self._pods or not _gpus(allocation):
            return
        mode = _mode(raw)
        self.counts[mode or "not limited"] += 1
        asked = raw["metadata"]["annotations"].get(ISOLATION, "")
        if mode != asked:
            yield _finding(revision, f"it asks for {asked!r} and is limited by {mode!r}")
        by_card: Mapping[str, int] = {}
        if mode:
            limits, grants = _limits(raw, mode), _gpus(allocation)
            held = {grant["id"]: _bytes(_amount(grant, "gpu-memory")) for grant in grants}
            by_card = dict(zip(held, limits, strict=False))
            if not _agree(limits, list(held.values()), mode):
                yield _finding(revision, f"its limits are {limits}, it holds {held}")
        pod = Pod(key=revision.name, node=raw["spec"]["nodeName"], mode=mode, limits=by_card)
        self._pods[revision.name] = pod
        yield from self._on_node(revision, pod)

    def _on_node(self, revision: Revision, pod: Pod) -> Iterator[Finding]:
        there = [each for each in self._pods.values() if each.node == pod.node]
        if len({each.mode == MPS for each in there}) > 1:
            yield _finding(revision, f"{pod.node} is in two modes: {[(each.key, each.mode) for each in there]}")
        sums: defaultdict[str, int] = defaultdict(int)
        for each in there:
            for card, limit in each.limits.items():
                sums[card] += limit
        if beyond := {card: total for card, total in sums.items() if total > self.memory}:
            yield _finding(revision, f"limits beyond the card: {beyond}")


def _finding(revision: Revision, text: str) -> Finding:
    return Finding(kind=FindingKind.WRONG_LIMIT, revision=revision.number, about=revision.name, text=text)


def _gpus(allocation: str) -> list[Any]:
    return list(json.loads(allocation).get("gpu", ())) if allocation else []


def _mode(raw: Object) -> str:
    """Return what limits a pod: the resource that its containers have."""
    requested = {name for each in raw["spec"]["containers"] for name in each.get("resources", {}).get("limits", {})}
    return next((mode for mode in MODES if f"berth.dev/{mode}" in requested), "")


def _limits(raw: Object, mode: str) -> list[int]:
    """Return the bytes by which a pod's container is limited on each card that it sees, in this order."""
    annotations = raw["metadata"]["annotations"]
    if mode == MPS:
        text = annotations.get(f"{ANNOTATIONS}mps-memory-limit", "")
        return [int(each.partition("=")[2].removesuffix("M")) * MIB for each in text.split(",") if each]
    cards = annotations.get(f"{ANNOTATIONS}visible", "").split(",")
    return [int(annotations.get(f"{ANNOTATIONS}memory-limit-{number}", 0)) for number in range(len(cards))]


def _agree(limits: list[int], held: list[int], mode: str) -> bool:
    """Return whether limits are what is held, by MPS in whole MiB."""
    return limits == [each // MIB * MIB for each in held] if mode == MPS else limits == held


def _amount(grant: Object, name: str) -> str:
    return next(str(amount) for key, amount in grant["resources"].items() if key.endswith(f"/{name}"))


def _bytes(text: str) -> int:
    number, unit = text[:-2], text[-2:]
    return int(number) * UNITS[unit] if unit in UNITS else int(text)
