"""kube-scheduler's requirements for the members of Kubernetes' PodGroups, in its words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod


def missing(name: str) -> str:
    """Return the message of a pod whose PodGroup does not exist."""
    return f'waiting for pods\'s pod group "{name}" to appear in scheduling queue'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What must be equal."""

    scheduler: str
    priority: int
    preempts: bool | None
    """None if it is placed: its policy no longer matters."""


def conflict(priority: int, waiting: Sequence[PendingPod], placed: Sequence[Charge]) -> str:
    """Return how a member contradicts its group's priority, or another member; empty if none does."""
    members = [
        *(_Member(scheduler=pod.scheduler, priority=pod.priority, preempts=pod.preempts) for pod in waiting),
        *(_Member(scheduler=pod.scheduler, priority=pod.priority, preempts=None) for pod in placed),
    ]
    return next((text for member in members for text in _conflicts(priority, members[0], member)), "")


def _conflicts(priority: int, first: _Member, member: _Member) -> Iterator[str]:
    if member.scheduler != first.scheduler:
        yield (
            "all pods in a single pod group should have the same .spec.schedulerName set, "
            f'got: "{member.scheduler}" and "{first.scheduler}"'
        )
    if member.priority != priority:
        yield (
            "all pods in a single pod group should have the same priority as the pod group's priority, "
            f"got {member.priority} and {priority}"
        )
    if None not in (member.preempts, first.preempts) and member.preempts != first.preempts:
        yield (
            "all pods in a single pod group should have the same preemption policy, "
            f"got {_policy(member)} and {_policy(first)}"
        )


def _policy(member: _Member) -> str:
    return "PreemptLowerPriority" if member.preempts else "Never"
