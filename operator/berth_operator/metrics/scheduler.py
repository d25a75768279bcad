"""kube-scheduler's metrics with the same names, labels and buckets, so that its dashboards and alerts apply.

Children are cached, because looking one up by its labels takes longer than counting.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from prometheus_client import Counter, Histogram

SCHEDULED: Final = "scheduled"
UNSCHEDULABLE: Final = "unschedulable"
"""The result of an attempt that found no node."""
ERROR: Final = "error"
"""The result of an attempt that failed otherwise, for example because a Binding was refused."""
MOST_ATTEMPTS: Final = 15
"""From this number on, attempts have one label, as in kube-scheduler."""


def exponential(start: float, count: int) -> Sequence[float]:
    """Return the upper limits of buckets, each twice the previous one."""
    return [start * 2**exponent for exponent in range(count)]


SCHEDULE_ATTEMPTS: Final = Counter(
    "scheduler_schedule_attempts_total",
    "Attempts to schedule a pod, by result: scheduled, unschedulable (no node fits) or error",
    ["result", "profile"],
)
ATTEMPT_DURATION: Final = Histogram(
    "scheduler_scheduling_attempt_duration_seconds",
    "Duration of an attempt, from the decision to the answer to the Binding",
    ["result", "profile"],
    buckets=exponential(0.001, 15),
)
ALGORITHM_DURATION: Final = Histogram(
    "scheduler_scheduling_algorithm_duration_seconds",
    "Duration of a decision, preemption included",
    buckets=exponential(0.001, 15),
)
SLI_DURATION: Final = Histogram(
    "scheduler_pod_scheduling_sli_duration_seconds",
    "Time from when a pod enters the queue until it is bound, over all its attempts",
    ["attempts"],
    buckets=exponential(0.01, 20),
)
ATTEMPTS: Final = Histogram(
    "scheduler_pod_scheduling_attempts", "Attempts until a pod was bound", buckets=exponential(1, 5)
)
PREEMPTION_ATTEMPTS: Final = Counter(
    "scheduler_preemption_attempts_total", "Decisions that tried to make room by preemption"
)
PREEMPTION_VICTIMS: Final = Histogram(
    "scheduler_preemption_victims", "Victims chosen in a preemption", buckets=exponential(1, 7)
)


@cache
def attempts_of(result: str, profile: str) -> tuple[Callable[[], None], Callable[[float], None]]:
    """Return a function that counts attempts with this result, and a function that observes their durations."""
    return SCHEDULE_ATTEMPTS.labels(result, profile).inc, ATTEMPT_DURATION.labels(result, profile).observe


@cache
def sli_of(attempts: int) -> Callable[[float], None]:
    """Return what observes the durations until pods were bound at this attempt, at most `MOST_ATTEMPTS`."""
    return SLI_DURATION.labels(f"{attempts}+" if attempts == MOST_ATTEMPTS else str(attempts)).observe
