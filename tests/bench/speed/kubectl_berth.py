"""How long the commands of `kubectl berth` take: `python -m tests.bench.speed.kubectl_berth`.

NODES, PODS, WAITING and REPEAT are environment variables. So are COMMANDS, the names of some commands, and VISIBILITY,
0 for a cluster without the visibility API. Pods hold all cards but a few, and others wait for a running operator. Each
command is started as a user starts it, without colours or a terminal. The times include Python, kubectl and what they
read. The figures are medians in seconds.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import yaml

from devcluster.building import programs
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, serving, track
from tests.bench.cluster.contestants import STOPPED
from tests.bench.cluster.track import Track

KEPT_FREE: Final = 3
"""Cards that no pod holds."""
FAILED: Final = 2
"""The exit status of a command that could not answer."""
SECONDS: Final = 120
LEFT_OUT: Final = "-"
"""The figure of a command that needs what this cluster does not serve."""


def main() -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 1000), figures.number("PODS", 8000)
    waiting, repeat = figures.number("WAITING", 200), figures.number("REPEAT", 5)
    with track.opened(nodes) as opened:
        measured = measure(opened, pods=pods, waiting=waiting, repeat=repeat)
    sizes = {"nodes": nodes, "pods": pods, "waiting": waiting, "repeat": repeat, "visibility": _is_visible()}
    figures.result({"bench": "kubectl", **measured, **sizes})


def measure(track: Track, *, pods: int, waiting: int, repeat: int) -> dict[str, float | str]:
    """Return the median seconds of each command."""
    held = crowd.cards(track)[:-KEPT_FREE]
    crowd.fill(track, crowd.holders(track.arena, held, pods))
    workload = track.folder / "workload.yaml"
    workload.write_text(_workload())
    named = {name for name in os.environ.get("COMMANDS", "").split() if name}
    served = serving.registered(track) if _is_visible() else contextlib.nullcontext(STOPPED)
    with served as flags, track.settled(contestants.ours(track.arena, track.folder, flags)):
        crowd.wait_for_reasons(track, hopeless := crowd.hopeless(track.arena, waiting))
        time.sleep(track.calm)
        lines = _lines(track, hopeless[0]["metadata"]["name"], workload)
        chosen = {name: line for name, line in lines.items() if not named or name in named}
        return {name: _median(track, name, line, repeat) for name, line in chosen.items()}


def _is_visible() -> bool:
    return bool(figures.number("VISIBILITY", 1))


def _lines(track: Track, pod: str, workload: Path) -> dict[str, list[str]]:
    """Return the command lines by name."""
    arena = track.arena
    place, ours = ["-n", arena.namespace], ["--scheduler-names", arena.scheduler_name]
    profile = track.folder / "profile.yaml"
    head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
    profile.write_text(yaml.safe_dump({**head, "profiles": [{"schedulerName": arena.scheduler_name}]}))
    return {
        "help": ["--help"],
        "help_of_who": ["who", "--help"],
        "completion": ["__complete", "explain", *place, ""],
        "explain": ["explain", pod, *place, *ours],
        "queue": ["queue", "-A", *ours],
        "free": ["free"],
        "who": ["who", "-A"],
        "devices": ["devices"],
        "top": ["top"],
        "doctor": ["doctor", "--system-namespace", arena.namespace, "--lease", arena.lease_name],
        "simulate": ["simulate", "-f", str(workload), *place, "--config", str(profile)],
        "advise": ["advise", pod, *place, "--config", str(profile)],
    }


def _median(track: Track, name: str, line: list[str], repeat: int) -> float | str:
    """Return the median seconds of a command; LEFT_OUT if it cannot answer."""
    took = []
    for _ in range(repeat):
        began = time.monotonic()
        ended = _run(track, line)
        took.append(time.monotonic() - began)
        if ended.returncode == FAILED:
            figures.say(f"{name}: {ended.stderr.strip()}")
            return LEFT_OUT
        figures.say(f"{name}: {took[-1]:.2f} s, {len(ended.stdout.splitlines())} lines")
    return round(statistics.median(took), 3)


def _run(track: Track, line: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "BERTH_KUBECTL": str(programs.ensure(["kubectl"])["kubectl"]),
        "KUBECONFIG": str(track.arena.cluster.kubeconfig),
    }
    command = [sys.executable, "-m", "berth_kubectl", *line]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment)


def _workload() -> str:
    container = {"name": "main", "resources": {"limits": {crowd.GPU: 1}}}
    template = {"spec": {"containers": [container]}}
    return yaml.safe_dump(
        {"kind": "Job", "metadata": {"name": "more"}, "spec": {"parallelism": 100, "template": template}}
    )


if __name__ == "__main__":
    main()
