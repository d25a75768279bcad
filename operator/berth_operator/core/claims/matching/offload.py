"""Evaluations that take too long for the operator's loop, pending until a worker process has done them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth_operator.core.claims.bounds.turns import NamespaceTurns
from berth_operator.core.claims.objects.slices import Device

BATCH: Final = 64
"""Devices of one job."""
MAX_JOBS: Final = 1_024
"""Expressions that wait for the worker. The caller asks again for further ones when one is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An expression that is to be evaluated for devices."""

    expression: str
    devices: Sequence[Device]
    namespace: str
    """The namespace of the pod that needs it."""


@dataclass(slots=True)
class Offload:
    """The jobs, at most one for each expression."""

    turns: NamespaceTurns
    on_ask: Callable[[], None] = lambda: None
    """Called when there is a job."""
    asked: set[str] = field(default_factory=set)
    """The expressions that the decision in progress waits for."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _in_progress: Job | None = None

    def ask(self, expression: str, devices: Collection[Device], namespace: str) -> None:
        """Request an evaluation, unless it is requested already."""
        self.asked.add(expression)
        in_progress = self._in_progress is not None and self._in_progress.expression == expression
        if expression not in self._jobs and not in_progress and len(self._jobs) < MAX_JOBS:
            self._jobs[expression] = Job(expression=expression, devices=tuple(devices), namespace=namespace)
            self.on_ask()

    def is_asked(self, expression: str) -> bool:
        """Return whether an expression is going to be evaluated."""
        return expression in self._jobs

    def next_job(self) -> Job | None:
        """Begin and return the next job in turn; None if there is none. `done` ends it."""
        if self._jobs:
            job = min(self._jobs.values(), key=lambda job: self.turns.taken(job.namespace))
            self._in_progress = self._jobs.pop(job.expression)
        return self._in_progress

    def done(self) -> None:
        """End the job in progress."""
        self._in_progress = None
