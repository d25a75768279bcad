"""The runs of the tests, and the results of their cases."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from devcluster.building import programs
from devcluster.processes import children
from tests.upstream import berth
from tests.upstream.program import program

PARALLEL: Final = 4
"""Cases at once; most of their time is waiting."""
GRACE_SECONDS: Final = 120.0
"""More than the time that the program itself keeps, for its end."""
ENDED: Final = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)$", re.MULTILINE)
"""In this form of the output they are written when a test ends; else when the outermost one does."""

Outcomes = dict[str, str]
"""Case -> PASS, FAIL or SKIP. Cases are the tests without sub-tests."""


class Part(Protocol):
    """One run of some cases of a suite."""

    @property
    def name(self) -> str:
        """Its name, also of its log."""

    @property
    def not_berths(self) -> str:
        """Why Berth can pass none of its cases, with which it is not run then; empty if it is."""

    def covers(self, case: str) -> bool:
        """Return whether it runs a case."""

    def outcomes(self, api_server: str, logs: Path, *, with_berth: bool) -> Outcomes:
        """Run it with Berth or kube-scheduler, and return the outcomes of the cases that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTests:
    """One run of Go's tests, with an API server for each of their configurations."""

    package: str
    """The package of the tests, below Kubernetes' module."""
    name: str
    run: str
    skip: str = ""
    minutes: int = 60
    not_berths: str = ""

    def covers(self, case: str) -> bool:
        """Return whether it runs a case."""
        return _matches(self.run, case) and not (self.skip and _matches(self.skip, case))

    def outcomes(self, api_server: str, logs: Path, *, with_berth: bool) -> Outcomes:
        """Run them, with an API server of devcluster's programs, and return the outcomes of the cases that ended."""
        flags = [f"-test.run={self.run}", f"-test.parallel={PARALLEL}", "-test.v=test2json"]
        flags += [f"-test.skip={self.skip}"] if self.skip else []
        log = logs / f"{self.name}.log"
        log.unlink(missing_ok=True)
        environment = berth.environment(logs) if with_berth else {}
        tests = program(api_server, self.package)
        execute([str(tests), *flags], api_server, log=log, environment=environment, minutes=self.minutes)
        ended = leaves(log.read_text(errors="replace"))
        return {case: outcome for case, outcome in ended.items() if self.covers(case)}


def execute(
    command: Sequence[str],
    api_server: str,
    *,
    log: Path,
    environment: Mapping[str, str],
    minutes: int,
    folder: Path | None = None,
) -> None:
    """Run tests in a folder, the current one by default, for so many minutes at most."""
    etcd, modules = programs.ensure(["etcd"])["etcd"], programs.source(api_server).parents[1]
    with tempfile.TemporaryDirectory(prefix="upstream-") as scratch:
        own = {
            "PATH": f"{etcd.parent}:{os.environ['PATH']}",
            "TMPDIR": scratch,
            # By Bazel's variables the program finds the certificates of its API server, as it knows no absolute path.
            "TEST_SRCDIR": str(modules.parent),
            "TEST_WORKSPACE": modules.name,
            # An etcd that runs on the usual port is somebody's.
            "KUBE_INTEGRATION_ETCD_URL": "http://127.0.0.1:1",
        }
        # In a session of its own, so that what it leaves behind can be ended: an etcd, if it runs into its timeout.
        session = ["env", f"--chdir={folder or Path.cwd()}", "setsid", *command, f"-test.timeout={minutes}m"]
        child = children.spawn(session, log=log, environment={**own, **environment})
        try:
            child.wait(minutes * 60 + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{log.stem}: killed", file=sys.stderr)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _matches(pattern: str, case: str) -> bool:
    """Return whether Go's pattern of a test and its sub-tests matches a case, or a test that contains it."""
    patterns, names = pattern.split("/"), case.split("/")
    return len(patterns) <= len(names) and all(map(re.search, patterns, names))


def leaves(log: str) -> Outcomes:
    """Return the outcomes of the tests in a log that have no sub-tests."""
    outcomes = {name: outcome for outcome, name in ENDED.findall(log)}
    parents = {name.rpartition("/")[0] for name in outcomes}
    return {name: outcome for name, outcome in outcomes.items() if name not in parents}
