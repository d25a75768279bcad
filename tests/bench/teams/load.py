"""A seeded load of three teams: Jobs, JobSets, LeaderWorkerSets and pods, by all protocols, with one large Job."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tests.bench.teams import history as teams_history
from tests.bench.teams.history import CARDS, UNIT, WHOLE
from tests.bench.teams.rules import LARGE
from tests.kueue.team import spec

TEAMS: Final = ("team-a", "team-b", "team-c")
GRACE_SECONDS: Final = 5
COMPLETES: Final = "pod-complete.stage.kwok.x-k8s.io/delay"
"""The annotation by which kwok lets pods of Jobs complete."""
BURST_SECONDS: Final = 600.0
KEPT_SECONDS: Final = 10
"""Of a Job that has finished."""
WHOLES: Final = ({CARDS: "1"}, {CARDS: "1"}, {CARDS: "2"}, {CARDS: "4"}, {CARDS: "8"})
PARTS: Final[Sequence[Mapping[str, str]]] = (
    {"kubernetes.io/gpu": "30"},
    {"koordinator.sh/gpu-memory-ratio": "20"},
    {"kubernetes.io/gpu-memory-ratio": "20", "kubernetes.io/gpu-core": "10"},
    {"kubernetes.io/gpu-memory": "8Gi"},
    {"nvidia.com/gpumem": "8192"},
    {"nvidia.com/gpumem-percentage": "25"},
    {"aliyun.com/gpu-mem": "8"},
)
HIGH: Final = "high"
"""The WorkloadPriorityClass of the large Job."""

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"

Raw = dict[str, Any]
Limits = Mapping[str, str]


class Origin(NamedTuple):
    """What is the same for all kinds of units."""

    name: str
    team: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is created at once: one object of a controller, or one pod."""

    name: str
    team: str
    labels: Mapping[str, str]
    plural: str
    body: Raw
    pods: int
    hundredths: int
    """What all its pods request."""
    seconds: float
    """How long they run."""
    completes: bool
    """Whether it ends by itself; else it has to be deleted."""

    @property
    def manifest(self) -> Raw:
        """The object."""
        return {"metadata": {"name": self.name, "namespace": self.team, "labels": dict(self.labels)}, "spec": self.body}


def units(count: int, *, seed: int, seconds: float, named: bool = False) -> list[Unit]:
    """Return random units that run for so many seconds on average, the large one in the middle.

    `named`: whether each names its LocalQueue, which is the default one in any case.
    """
    rng = random.Random(seed)
    made = [_unit(rng, f"unit-{number}", seconds) for number in range(count - 1)]
    made.insert(count // 2, _large(f"unit-{count - 1}", seconds))
    return [replace(each, labels={**each.labels, QUEUE_LABEL: "default"}) for each in made] if named else made


def arrivals(made: Sequence[Unit], *, seed: int, load: float, hundredths: int) -> list[float]:
    """Return when each unit comes, so that all together would hold this part of the fleet if none had to wait."""
    rng = random.Random(seed)
    mean = sum(each.hundredths * each.seconds for each in made) / len(made)
    at, times = 0.0, []
    for _ in made:
        at += rng.expovariate(load * hundredths / mean)
        times.append(at)
    return times


def burst(count: int) -> list[Unit]:
    """Return small Jobs that all fit at once."""
    origins = [Origin(f"burst-{number}", TEAMS[number % len(TEAMS)], BURST_SECONDS) for number in range(count)]
    return [_as_unit(each, "jobs", _job(each, PARTS[1], 1), [PARTS[1]]) for each in origins]


def _unit(rng: random.Random, name: str, seconds: float) -> Unit:
    make = rng.choices((_random_job, _random_pod, _random_job_set, _random_leader_worker_set), (45, 25, 20, 10))[0]
    duration = min(max(rng.expovariate(1 / seconds), seconds / 6), 4 * seconds)
    return make(rng, Origin(name, rng.choice(TEAMS), round(duration, 1)))


def _limits(rng: random.Random) -> Limits:
    return rng.choices((*WHOLES, *PARTS), (*(8, 8, 6, 3, 1), *(4 for _ in PARTS)))[0]


def _random_job(rng: random.Random, origin: Origin) -> Unit:
    limits, pods = _limits(rng), rng.choice((1, 1, 2, 4))
    return _as_unit(origin, "jobs", _job(origin, limits, pods), pods * [limits])


def _random_pod(rng: random.Random, origin: Origin) -> Unit:
    limits = _limits(rng)
    return _as_unit(origin, "pods", _spec(limits), [limits])


def _random_job_set(rng: random.Random, origin: Origin) -> Unit:
    driver, workers, pods = rng.choice(PARTS), _limits(rng), rng.choice((1, 2))
    jobs = {"driver": _job(origin, driver, 1), "workers": _job(origin, workers, pods)}
    for each in jobs.values():
        del each["ttlSecondsAfterFinished"]
    replicated = [{"name": name, "template": {"spec": each}} for name, each in jobs.items()]
    body = {"replicatedJobs": replicated, "ttlSecondsAfterFinished": KEPT_SECONDS}
    return _as_unit(origin, "jobsets", body, [driver, *(pods * [workers])])


def _random_leader_worker_set(rng: random.Random, origin: Origin) -> Unit:
    limits, groups, size = rng.choice((WHOLES[0], *PARTS)), rng.choice((1, 2)), 2
    template = {"size": size, "workerTemplate": {"metadata": {"labels": {UNIT: origin.name}}, "spec": _spec(limits)}}
    body = {"replicas": groups, "leaderWorkerTemplate": template}
    return _as_unit(origin, "leaderworkersets", body, groups * size * [limits])


def _large(name: str, seconds: float) -> Unit:
    origin, limits = Origin(name, TEAMS[-1], seconds), WHOLES[0]
    unit = _as_unit(origin, "jobs", _job(origin, limits, LARGE), LARGE * [limits])
    return replace(unit, labels={**unit.labels, PRIORITY_LABEL: HIGH})


def _job(origin: Origin, limits: Limits, pods: int) -> Raw:
    metadata = {"labels": {UNIT: origin.name}, "annotations": {COMPLETES: f"{origin.seconds}s"}}
    return {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 100,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": {"metadata": metadata, "spec": {**_spec(limits), "restartPolicy": "Never"}},
    }


def _spec(limits: Limits) -> Raw:
    made = spec(limits)
    made["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "64Mi"}
    return {**made, "terminationGracePeriodSeconds": GRACE_SECONDS}


def _as_unit(origin: Origin, plural: str, body: Raw, requests: Sequence[Limits]) -> Unit:
    shapes = [teams_history.shape({"containers": [{"resources": {"limits": each}}]}) for each in requests]
    return Unit(
        name=origin.name,
        team=origin.team,
        labels={UNIT: origin.name},
        plural=plural,
        body=body,
        pods=len(requests),
        hundredths=sum(WHOLE * each.cards + each.part for each in shapes),
        seconds=origin.seconds,
        completes=plural in ("jobs", "jobsets"),
    )
