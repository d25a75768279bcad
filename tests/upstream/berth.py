"""Berth in kube-scheduler's place: `python -m tests.upstream.berth KUBECONFIG CONFIGURATION`.

It prints a line when Berth leads, and ends when its standard input ends. kube-scheduler's configuration has no
counterpart here and is ignored.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.programs.processes import LEADING, Process

ROOT: Final = Path(__file__).parents[2]
SCHEDULER: Final = "default-scheduler"
LOGS: Final = "BERTH_UPSTREAM_LOGS"
"""The variable with the folder of the logs."""
CONFIGURATION: Final = {
    "apiVersion": "config.berth.dev/v1alpha1",
    "kind": "BerthSchedulerConfiguration",
    "profiles": [{"schedulerName": SCHEDULER, "plugins": {"filters": {"disabled": ["injected"]}}}],
    "claims": {"drivers": ["*"]},
}
TERMS: Final = {"lease_duration": 90, "renew_deadline": 80.0, "retry_period": 2.0}
"""A test has one replica, and its machine may be busy."""
START_SECONDS: Final = 150.0
"""The hook gives three minutes."""


def main(kubeconfig: Path) -> None:
    """Schedule until the standard input ends."""
    with running(kubeconfig, Path(os.environ[LOGS])):
        print("scheduling", flush=True)
        sys.stdin.read()


def environment(logs: Path) -> dict[str, str]:
    """Return the variables by which patched tests start it."""
    return {
        "SCHEDULER_COMMAND": f"{sys.executable} -m {__name__}",
        "PYTHONPATH": str(ROOT),
        LOGS: str(logs),
    }


@contextlib.contextmanager
def running(kubeconfig: Path, logs: Path) -> Iterator[None]:
    """Schedule in a cluster, from the time that Berth leads."""
    subprocess.run(
        [sys.executable, "-m", "berth_operator", "crds", "apply", f"--kubeconfig={kubeconfig}"],
        check=True,
        stdout=sys.stderr,
    )
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "configuration.yaml"
        configuration.write_text(json.dumps(CONFIGURATION))
        operator = _start(kubeconfig, configuration, logs)
        try:
            yield
        finally:
            operator.stop()


def _start(kubeconfig: Path, configuration: Path, logs: Path) -> Process:
    flags = {
        **TERMS,
        "kubeconfig": kubeconfig,
        "config": configuration,
        "namespace": "default",
        "takeover_pause": 0.1,
        "node_startup_timeout": 0,
        "health": "",
        "metrics_port": 0,
        "debug_port": 0,
    }
    command = [sys.executable, "-m", "berth_operator"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    operator = Process(
        name=f"berth-{time.time_ns()}",
        command=command,
        folder=logs,
        environment={"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
    )
    operator.logged(LEADING, deadline=START_SECONDS)
    return operator


if __name__ == "__main__":
    main(Path(sys.argv[1]))
