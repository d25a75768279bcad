"""Upstream's scheduler_perf, with a scheduler that runs as a separate program."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.building import programs
from tests.upstream import berth, cases, kube_scheduler
from tests.upstream.program import patch, program

ROOT: Final = Path(__file__).parents[2]
API_SERVER: Final = "kube-apiserver"
FOLDER: Final = Path("test/integration/scheduler_perf")
METRIC: Final = "SchedulerCommand"
KUBE_SCHEDULER: Final = "kube-scheduler"
BERTH: Final = "berth"
BARE: Final = "bare-client"
"""A client of the test's own process that binds without deciding: its rate is what the API server can do."""
COMMANDS: Final = {
    KUBE_SCHEDULER: f"{sys.executable} -m {kube_scheduler.__name__}",
    BERTH: f"{sys.executable} -m {berth.__name__}",
    BARE: BARE,
}
MINUTES: Final = 10
WORKLOADS: Final = Path(__file__).with_name("workloads.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload of a test case."""

    package: str
    """Below `scheduler_perf`."""
    case: str
    name: str
    repeated: bool = False
    """Whether it is worth several runs."""
    has_ceiling: bool = True
    """Whether the bare client makes all writes that it needs."""

    def __str__(self) -> str:
        return f"{self.case}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run measured."""

    pods: int
    """Bound while it was measured."""
    seconds: float
    """From the start of the measurement to the last of them."""
    cpu_seconds: float
    """Of the scheduler's processes."""

    @property
    def rate(self) -> float:
        """Pods a second."""
        return self.pods / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU time of a pod, in milliseconds."""
        return 1000 * self.cpu_seconds / self.pods


def workloads() -> Iterator[Workload]:
    """Yield the workloads that are measured."""
    listed = yaml.safe_load(WORKLOADS.read_text())
    without_ceiling = re.compile("|".join(listed["without_ceiling"]))
    for group in ("repeated", "once"):
        for package, names in listed[group].items():
            for case, name in names.items():
                has_ceiling = not without_ceiling.fullmatch(case)
                yield Workload(
                    package=package, case=case, name=name, repeated=group == "repeated", has_ceiling=has_ceiling
                )


def run(workload: Workload, scheduler: str, logs: Path) -> Figures:
    """Run a workload with one of `COMMANDS`.

    Raises:
        RuntimeError: it measured nothing; the log has the reason.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{scheduler}-{workload}.log".replace("/", "-")
    log.unlink(missing_ok=True)
    tests = program(API_SERVER, str(FOLDER / workload.package))
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        folder, results = Path(scratch), Path(scratch) / "results"
        results.mkdir()
        _copy(folder)
        command = [
            str(tests),
            "-test.run=^$",
            "-test.benchtime=1ns",
            f"-test.bench=^BenchmarkPerfScheduling$/^{workload.case}$/^{workload.name}$",
            "-perf-scheduling-label-filter=",
            f"-data-items-dir={results}",
        ]
        cases.execute(
            command,
            API_SERVER,
            log=log,
            environment=_environment(scheduler, logs),
            minutes=MINUTES,
            folder=folder / FOLDER / workload.package,
        )
        return read(results, log)


def _environment(scheduler: str, logs: Path) -> Mapping[str, str]:
    return {
        "SCHEDULER_COMMAND": COMMANDS[scheduler],
        "PYTHONPATH": str(ROOT),
        berth.LOGS: str(logs),
    }


def _copy(folder: Path) -> None:
    """Copy what the tests read, with the workloads that are ours."""
    shutil.copytree(programs.source(API_SERVER) / FOLDER, folder / FOLDER, copy_function=shutil.copyfile)
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "apply", f"--include={FOLDER}/*.yaml", str(patch(API_SERVER))], cwd=folder, check=True)


def read(results: Path, log: Path) -> Figures:
    """Return what the tests wrote to a folder.

    Raises:
        RuntimeError: they measured nothing; the log has the reason.
    """
    items: list[dict[str, Any]] = [
        item for file in results.glob("*.json") for item in json.loads(file.read_text())["dataItems"] or ()
    ]
    found = [item["data"] for item in items if item["labels"]["Metric"] == METRIC]
    if len(found) != 1 or not found[0]["pods"]:
        raise RuntimeError(f"no figures: {log}")
    [data] = found
    return Figures(pods=int(data["pods"]), seconds=data["seconds"], cpu_seconds=data["cpu_seconds"])
