"""Gangs of controllers: pods that their controller creates to run together, without a group that a user names.

    of_pod(labels, annotations)  ->  ControllerGang("LeaderWorkerSet group", "vllm-0", 4) | None

`RULES` has one row for each kind of controller. A rule reads only what the controller itself writes on its pods. It
concerns members that exist at the same time: a pod that its controller creates only after another pod runs is no member
of this pod's gang, because both would wait forever. Only a kind of which a part is useless has a rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Values = Mapping[str, str]

_LWS: Final = "leaderworkerset.sigs.k8s.io/"
_KUEUE: Final = "kueue.x-k8s.io/"
_DIGITS: Final = 6
"""Digits of the number of members: a larger number is not read, because no cluster has so many pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerGang:
    """The gang of a pod, as its controller's labels define it."""

    kind: str
    """What messages call it."""
    name: str
    """Its name, unique in the namespace among the gangs of the kind."""
    minimum: int
    """The number of members that start together, at least 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How to read the gangs of one kind of controller."""

    kind: str
    reads: tuple[str, ...]
    """The labels and annotations that `members` reads."""
    members: Callable[[Values, Values], tuple[str, int] | None]
    """Returns the name of the pod's gang and its number of members, by labels and annotations; None without a gang."""


def of_pod(labels: Values, annotations: Values) -> ControllerGang | None:
    """Return the gang of a pod's controller; None if no rule concerns the pod, or it has no other member."""
    for rule in RULES:
        if gang := rule.members(labels, annotations):
            name, minimum = gang
            return ControllerGang(kind=rule.kind, name=name, minimum=minimum) if minimum > 1 else None
    return None


def _leader_worker_set(labels: Values, annotations: Values) -> tuple[str, int] | None:
    """Return one group of a LeaderWorkerSet: the leader and its workers.

    With exclusive placement, the controller creates the workers when their leader has a node.
    """
    name, group, worker = (labels.get(f"{_LWS}{word}", "") for word in ("name", "group-index", "worker-index"))
    if not (name and group):
        return None
    size = _number(annotations.get(f"{_LWS}size"))
    if f"{_LWS}exclusive-topology" in annotations:
        size = 0 if worker == "0" else size - 1
    return f"{name}-{group}", size


def _kueue_pod_group(labels: Values, annotations: Values) -> tuple[str, int] | None:
    """Return a pod group of Kueue; not the pods of a StatefulSet, which may be created one after the other."""
    name = labels.get(f"{_KUEUE}pod-group-name")
    is_early = "true" in (annotations.get(f"{_KUEUE}pod-group-{word}") for word in ("fast-admission", "serving"))
    return None if not name or is_early else (name, _number(annotations.get(f"{_KUEUE}pod-group-total-count")))


def _number(text: str | None) -> int:
    """Return a number of pods; 0 for any other text."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if text and is_number else 0


RULES: Final = (
    Rule(
        kind="LeaderWorkerSet group",
        reads=tuple(f"{_LWS}{word}" for word in ("name", "group-index", "worker-index", "size", "exclusive-topology")),
        members=_leader_worker_set,
    ),
    Rule(
        kind="Kueue pod group",
        reads=tuple(f"{_KUEUE}pod-group-{word}" for word in ("name", "total-count", "fast-admission", "serving")),
        members=_kueue_pod_group,
    ),
)
"""One row for each kind. If several concern a pod, the first decides."""
READS: Final = frozenset(name for rule in RULES for name in rule.reads)
"""The labels and annotations that rules read."""
