"""Pods that arrive and end: Poisson arrivals of a trace's tasks, each with a lifetime. Times are in mean lifetimes.

The number of pods is stationary from the start. At time 0, as many pods arrive as would run on average if none had to
wait. Each has the rest of a lifetime that began earlier.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tests.bench.decisions.openb import Task, Trace

MAX_SECONDS: Final = 86_400.0
"""Lifetimes of a trace are cut to this: a few pods of openb exist for all of its five months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A pod, when it arrives, and how long it runs."""

    at: float
    lifetime: float
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Tasks to sample from, equally often."""

    tasks: tuple[Task, ...]
    lifetimes: tuple[float, ...] = ()
    """The lifetime of each task, 1 on average; empty if lifetimes are exponential."""

    @property
    def work(self) -> float:
        """Return the mean of size times lifetime, in thousandths of a card."""
        lifetimes = self.lifetimes or (1.0,) * len(self.tasks)
        return sum(each.size * lasts for each, lasts in zip(self.tasks, lifetimes, strict=True)) / len(self.tasks)

    def sample(self, rng: random.Random) -> tuple[Task, float]:
        """Return a task that arrives, and its lifetime."""
        index = rng.randrange(len(self.tasks))
        return self.tasks[index], self.lifetimes[index] if self.lifetimes else rng.expovariate(1.0)

    def sample_running(self, rng: random.Random, count: int) -> Iterator[tuple[Task, float]]:
        """Yield tasks as they are found running, each with the rest of its lifetime."""
        if not self.lifetimes:
            # The rest of an exponential lifetime is distributed as the whole.
            yield from (self.sample(rng) for _ in range(count))
            return
        # A task that runs twice as long is found twice as often.
        sums = list(accumulate(self.lifetimes))
        for index in rng.choices(range(len(self.tasks)), cum_weights=sums, k=count):
            yield self.tasks[index], rng.uniform(0.0, self.lifetimes[index])


def mix(trace: Trace, *, timed: bool) -> Mix:
    """Return the mix of a trace; if `timed`, with the trace's lifetimes.

    Raises:
        ValueError: the trace has no times.
    """
    if not timed:
        return Mix(tasks=trace.tasks)
    if not trace.seconds:
        raise ValueError(f"trace {trace.name} has no times; use exponential lifetimes")
    cut = [min(max(each, 1.0), MAX_SECONDS) for each in trace.seconds]
    mean = sum(cut) / len(cut)
    return Mix(tasks=trace.tasks, lifetimes=tuple(each / mean for each in cut))


def arrivals(
    mixes: Sequence[tuple[float, Mix]], *, load: float, capacity: int, end: float, rng: random.Random
) -> Iterator[Arrival]:
    """Yield the pods that arrive until `end`, in order.

    Args:
        mixes: (when it begins, mix), in order; the first begins at 0.
        load: what the pods request, in parts of all cards, if none waits.
        capacity: thousandths of all cards.
        end: when the last may arrive.
        rng: the source of all samples.
    """
    _, first = mixes[0]
    for task, rest in first.sample_running(rng, _poisson(load * capacity / first.work, rng)):
        yield Arrival(at=0.0, lifetime=rest, task=task)
    ends = [begins for begins, _ in mixes[1:]] + [end]
    for (now, current), until in zip(mixes, ends, strict=True):
        rate, at = load * capacity / current.work, now
        while (at := at + rng.expovariate(rate)) < until:
            task, lifetime = current.sample(rng)
            yield Arrival(at=at, lifetime=lifetime, task=task)


def _poisson(mean: float, rng: random.Random) -> int:
    """Return a Poisson sample by its normal approximation, which is exact enough for hundreds of pods."""
    return max(0, round(rng.gauss(mean, math.sqrt(mean))))
