"""Berth in kube-scheduler's place: `python -m tests.claims.integration.berth KUBECONFIG CONFIGURATION`.

It prints a line when Berth leads, and ends when its standard input does. Kube-scheduler's configuration has no
counterpart here and is ignored. The tests name their drivers when they create them, so that the drivers which are
Berth's follow the ResourceSlices.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import IO, Final

from devcluster.building import programs
from tests.processes import LEADING, Process

SCHEDULER: Final = "default-scheduler"
LOGS: Final = "BERTH_DRA_LOGS"
"""The variable with the folder of the logs."""
MAX_DRIVERS: Final = 64
"""What a configuration may name."""
TERMS: Final = {"lease_duration": 90, "renew_deadline": 80.0, "retry_period": 2.0}
"""A test has one replica, and its machine may be busy."""
START_SECONDS: Final = 150.0
"""The hook gives three minutes."""
WATCH: Final = ("get", "resourceslices", "--watch", '-o=jsonpath={.spec.driver}{"\\n"}')


def main(kubeconfig: Path) -> None:
    """Schedule until the standard input ends."""
    kubectl = [str(programs.ensure(["kubectl"])["kubectl"]), f"--kubeconfig={kubeconfig}"]
    subprocess.run(
        [sys.executable, "-m", "berth_operator", "crds", "apply", f"--kubeconfig={kubeconfig}"],
        check=True,
        stdout=sys.stderr,
    )
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "configuration.yaml"
        _write(configuration, ())
        with subprocess.Popen([*kubectl, *WATCH], stdout=subprocess.PIPE, text=True) as slices:
            Thread(target=_follow, args=(slices.stdout, configuration), daemon=True).start()
            operator = _start(kubeconfig, configuration)
            print("scheduling", flush=True)
            sys.stdin.read()
            operator.stop()
            slices.terminate()


def _start(kubeconfig: Path, configuration: Path) -> Process:
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
        folder=Path(os.environ[LOGS]),
        environment={"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
    )
    operator.logged(LEADING, deadline=START_SECONDS)
    return operator


def _follow(slices: IO[str] | None, configuration: Path) -> None:
    """Write the drivers of the ResourceSlices into the configuration, the newest of them."""
    drivers: deque[str] = deque(maxlen=MAX_DRIVERS)
    for line in slices or ():
        if line.strip() not in drivers:
            drivers.append(line.strip())
            _write(configuration, drivers)


def _write(configuration: Path, drivers: Iterable[str]) -> None:
    profile = {"schedulerName": SCHEDULER, "plugins": {"filters": {"disabled": ["injected"]}}}
    draft = configuration.with_suffix(".new")
    draft.write_text(
        json.dumps(
            {
                "apiVersion": "config.berth.dev/v1alpha1",
                "kind": "BerthSchedulerConfiguration",
                "profiles": [profile],
                "claims": {"drivers": list(drivers)},
            }
        )
    )
    draft.replace(configuration)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
