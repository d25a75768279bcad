"""Alibaba's GPU cluster trace of 2023 ("openb"), as values of the core.

It was published with "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC'23, https://github.com/hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0). The files are read from the
folder BERTH_TRACE_DIR. Without this variable, a trace with about the same mix of classes is generated. Figures of the
generated trace are not comparable.
"""

import csv
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth_api.request.model import ANY_MODEL, ModelConstraint
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from tests.objects import builders

PUBLISHED: Final = ("default", "gpushare40", "multigpu30", "gpuspec10", "cpu050", "cpu200")
NODES: Final = "openb_node_list_gpu_node.csv"
MAX_PODS: Final = 1001
"""Pods on each node, as in the published runs."""
SHARES: Final = 10
"""Thousandths of a card in a hundredth, the unit in which pods request shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node of the cluster."""

    name: str
    cpu: int
    memory: int
    """MiB."""
    cards: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A class of pods."""

    cpu: int
    memory: int
    """MiB."""
    cards: int = 0
    milli: int = 0
    """Thousandths of each card."""
    models: tuple[str, ...] = ()
    """The models that the task accepts; any if empty."""

    @property
    def size(self) -> int:
        """Return the thousandths of cards that the task requests."""
        return self.cards * self.milli

    @property
    def request(self) -> PodRequest:
        """Return the request that the core decides on."""
        amounts = {"cpu": self.cpu, "memory": self.memory * builders.MI}
        if self.cards:
            amounts[builders.CORE] = amounts[builders.RATIO] = self.size // SHARES
        globs = tuple(each.lower() for each in self.models)
        return builders.asks(amounts, model=ModelConstraint(globs=globs) if globs else ANY_MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A cluster, and the tasks that arrive."""

    name: str
    machines: tuple[Machine, ...]
    tasks: tuple[Task, ...]
    seconds: tuple[float, ...] = ()
    """How long each task ran; empty if the trace has no times."""

    @property
    def capacity(self) -> int:
        """Return the thousandths of all cards."""
        return 1000 * sum(each.cards for each in self.machines)


def folder() -> Path | None:
    """Return the folder of the traces, or None if BERTH_TRACE_DIR is not set."""
    path = os.environ.get("BERTH_TRACE_DIR", "")
    return Path(path) if path else None


def published() -> Iterator[Trace]:
    """Return the traces of the published runs, or the generated one."""
    where = folder()
    if where is None:
        yield generated()
        return
    for name in PUBLISHED:
        yield read(where / f"openb_pod_list_{name}.csv")


def read(path: Path) -> Trace:
    """Read a trace's pods; the nodes are in the same folder or in BERTH_TRACE_DIR.

    Raises:
            OSError: a file cannot be read.
            ValueError: a field of a file is not a number.
    """
    nodes = path.parent / NODES
    if not nodes.exists():
        nodes = (folder() or path.parent) / NODES
    rows = sorted(_rows(path), key=lambda row: row["name"])
    name = path.stem.removeprefix("openb_pod_list_")
    timed = bool(rows) and "deletion_time" in rows[0]
    return Trace(
        name=name,
        machines=tuple(map(_machine, _rows(nodes))),
        tasks=tuple(map(_task, rows)),
        seconds=tuple(map(_seconds, rows)) if timed else (),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _machine(row: Mapping[str, str]) -> Machine:
    cpu, memory, cards = (int(row[name]) for name in ("cpu_milli", "memory_mib", "gpu"))
    return Machine(name=row["sn"], cpu=cpu, memory=memory, cards=cards, model=row["model"])


def _task(row: Mapping[str, str]) -> Task:
    cpu, memory, cards, milli = (int(row[name]) for name in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    models = tuple(dict.fromkeys(filter(None, (row.get("gpu_spec") or "").split("|"))))
    return Task(cpu=cpu, memory=memory, cards=cards, milli=milli if cards else 0, models=models if cards else ())


def _seconds(row: Mapping[str, str]) -> float:
    """Return how long a task ran, or existed if it never started."""
    return float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"])


# --- from a trace to values of the core -------------------------------------------------------------------------


def arrivals(trace: Trace, rng: random.Random, ratio: float = 1.3) -> list[Task]:
    """Return the tasks in random order, repeated or thinned out until they request `ratio` times all cards."""
    tasks = list(trace.tasks)
    rng.shuffle(tasks)
    total, target = sum(each.size for each in tasks), ratio * trace.capacity
    while total > target:
        total -= tasks.pop(rng.randrange(len(tasks))).size
    while total + (more := rng.choice(trace.tasks)).milli <= target:
        total += more.size
        tasks.append(more)
    return tasks


def fleet(machines: Sequence[Machine], rng: random.Random) -> Fleet:
    """Return an empty fleet with its nodes in random order, because decisions take the first of equal nodes."""
    empty = Fleet()
    for machine in rng.sample(machines, len(machines)):
        node = builders.node_info(machine.name, cpu=machine.cpu, memory=machine.memory * builders.MI, pods=MAX_PODS)
        builders.add(empty, node, builders.inventory(*builders.cards(machine.cards, model=machine.model)))
    return empty


# --- the generated trace ----------------------------------------------------------------------------------------

_MACHINES: Final = (
    # number, cores, GiB, cards, model
    (549, 96, 384, 8, "G2"),
    (387, 104, 512, 2, "T4"),
    (17, 96, 512, 4, "T4"),
    (39, 128, 768, 8, "G3"),
    (134, 64, 256, 2, "P100"),
    (50, 96, 384, 8, "V100"),
)
_TASKS: Final = (
    # per mille of the tasks, millicores, cards, thousandths of each card
    (128, 3152, 1, 810),
    (180, 11400, 1, 1000),
    (58, 3152, 1, 1000),
    (48, 11908, 1, 470),
    (44, 8000, 1, 470),
    (90, 12000, 1, 1000),
    (60, 18708, 1, 1000),
    (29, 11908, 1, 650),
    (40, 4000, 1, 320),
    (80, 9000, 1, 1000),
    (18, 4000, 1, 230),
    (15, 6000, 1, 460),
    (18, 4152, 1, 550),
    (12, 4000, 1, 160),
    (2, 16200, 2, 1000),
    (2, 32200, 4, 1000),
    (5, 64200, 8, 1000),
    (90, 12500, 0, 0),
    (40, 32000, 0, 0),
)
_GENERATED: Final = 8200


def generated(seed: int = 1) -> Trace:
    """Return a generated trace with about the same mix."""
    rng = random.Random(seed)
    machines = [
        Machine(name=f"{model}-{number}-{cards}", cpu=1000 * cores, memory=1024 * memory, cards=cards, model=model)
        for count, cores, memory, cards, model in _MACHINES
        for number in range(count)
    ]
    kinds = [Task(cpu=cpu, memory=2 * cpu, cards=cards, milli=milli) for _, cpu, cards, milli in _TASKS]
    tasks = rng.choices(kinds, weights=[often for often, *_ in _TASKS], k=_GENERATED)
    return Trace(name="generated", machines=tuple(machines), tasks=tuple(tasks))
