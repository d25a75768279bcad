"""The runs of the tests, and what their cases did."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster.building import programs
from devcluster.processes import children

API_SERVERS: Final = {"1.36": "kube-apiserver", "1.37": "kube-apiserver-1.37"}
"""Kubernetes' version -> the program of devcluster that pins it."""
HEAVY: Final = (
    "DRANodeAllocatableResources",
    "EvictCluster.*",
    "MaxResourceSlice",
    "PodGroup",
    "ResourceSliceController",
    "ShareResourceClaimSequentially",
    "UsesAllResources",
)
"""Cases with hundreds of pods, or of megabytes, and those that wait for minutes and keep the others waiting."""
CONFIGURATIONS: Final = (
    "disabled",
    "default",
    "GA",
    "GA-1.35",
    "GA-1.36",
    "GA-opt-out",
    "GA-opt-out-1.36",
    "compatibility-groups-without-consumable-capacity",
    "v1beta1",
    "v1beta2",
    "all",
)
"""Those of all versions: a run that a version does not have has no cases."""
WITH_HEAVY: Final = ("default", "GA", "all")
PARALLEL: Final = 4
"""Cases at once; most of their time is waiting."""
GRACE_SECONDS: Final = 120.0
"""More than the time that the program itself keeps, for its end."""
ENDED: Final = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)$", re.MULTILINE)
"""In this form of the output they are written when a test ends; else when the outermost one does."""

Outcomes = dict[str, str]
"""Case -> PASS, FAIL or SKIP. Cases are the tests without sub-tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run of the program, with an API server for each of its configurations."""

    name: str
    run: str
    skip: str = ""
    minutes: int = 20

    def covers(self, case: str) -> bool:
        """Return whether it runs a case."""
        return _matches(self.run, case) and not (self.skip and _matches(self.skip, case))


def parts() -> Iterator[Part]:
    """Yield the runs that are all cases together."""
    heavy = f"^({'|'.join(HEAVY)})$"
    for name in CONFIGURATIONS:
        yield Part(name=name, run=f"^TestDRA$/^{name}$", skip=f"^TestDRA$/.*/{heavy}")
    for name in WITH_HEAVY:
        yield Part(name=f"{name}-heavy", run=f"^TestDRA$/^{name}$/{heavy}")
    yield Part(name="status-requests", run="^TestResourcePoolStatusRequest$")


def run(tests: Path, api_server: str, part: Part, logs: Path, environment: Mapping[str, str]) -> Outcomes:
    """Run a part and return the outcomes of the cases that ended."""
    flags = [
        f"-test.run={part.run}",
        f"-test.timeout={part.minutes}m",
        f"-test.parallel={PARALLEL}",
        "-test.v=test2json",
    ]
    flags += [f"-test.skip={part.skip}"] if part.skip else []
    log = logs / f"{part.name}.log"
    log.unlink(missing_ok=True)
    etcd, modules = programs.ensure(["etcd"])["etcd"], programs.source(api_server).parents[1]
    with tempfile.TemporaryDirectory(prefix="dra-") as scratch:
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
        child = children.spawn(["setsid", str(tests), *flags], log=log, environment={**own, **environment})
        try:
            child.wait(part.minutes * 60 + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{part.name}: killed", file=sys.stderr)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return leaves(log.read_text(errors="replace"))


def _matches(pattern: str, case: str) -> bool:
    """Return whether Go's pattern of a test and its sub-tests matches a case, or a test that contains it."""
    patterns, names = pattern.split("/"), case.split("/")
    return len(patterns) <= len(names) and all(map(re.search, patterns, names))


def leaves(log: str) -> Outcomes:
    """Return the outcomes of the tests in a log that have no sub-tests."""
    outcomes = {name: outcome for outcome, name in ENDED.findall(log)}
    parents = {name.rpartition("/")[0] for name in outcomes}
    return {name: outcome for name, outcome in outcomes.items() if name not in parents}
