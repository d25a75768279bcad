"""kube-scheduler as a separate program: `python -m tests.upstream.kube_scheduler KUBECONFIG CONFIGURATION`.

It prints a line when its caches are filled, and ends when its standard input ends. It takes the feature gates of the
test, and its client has the same limits as the test's.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import yaml

from devcluster import waiting
from devcluster.building import programs

FEATURE_GATES: Final = "SCHEDULER_FEATURE_GATES"
PROGRAM: Final = "kube-scheduler"
QPS: Final = 5000
READY_SECONDS: Final = 150.0
"""The hook gives three minutes."""
STOP_SECONDS: Final = 30.0


def main(kubeconfig: Path, configuration: Path) -> None:
    """Schedule until the standard input ends."""
    theirs = yaml.safe_load(configuration.read_text()) or {}
    own = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **theirs,
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "configuration.yaml"
        file.write_text(json.dumps(own))
        port = _free_port()
        command = [str(programs.ensure([PROGRAM])[PROGRAM]), f"--config={file}", f"--secure-port={port}"]
        command += [f"--feature-gates={gates}"] if (gates := os.environ.get(FEATURE_GATES)) else []
        with subprocess.Popen(command, stdout=sys.stderr) as scheduler:
            waiting.until(lambda: _is_ready(port) or scheduler.poll() is not None, deadline=READY_SECONDS, what=PROGRAM)
            if scheduler.returncode is not None:
                raise SystemExit(f"{PROGRAM} ended with {scheduler.returncode}")
            print("scheduling", flush=True)
            sys.stdin.read()
            scheduler.terminate()
            scheduler.wait(STOP_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_ready(port: int) -> bool:
    """Return whether it has filled its caches; its certificate is its own."""
    command = ["curl", "--silent", "--fail", "--insecure", f"https://127.0.0.1:{port}/readyz"]
    answer = subprocess.run(command, capture_output=True, check=False)
    return answer.returncode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
