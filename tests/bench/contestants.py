"""The two schedulers of the race, each a process with a name for its pods and a user of its own."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena, programs
from tests.processes import Process

OURS: Final = "ours"
KUBE_SCHEDULER: Final = "kube_scheduler"

STOPPED: Final = {"lease_duration": 300, "renew_deadline": 250, "retry_period": 10, "takeover_pause": 0.1}
"""A leader that stands still while its pods are made must not lose its term."""
BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""Kept from start to start, as in an image, whatever whoever started the benchmark has set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How to start one scheduler."""

    name: str
    scheduler_name: str
    user: str
    """Whom the API server sees."""
    command: tuple[str, ...]
    folder: Path

    def profiled(self, profile: Path) -> "Contestant":
        """Return the same under cProfile, which at the end writes what the main thread did; for Python only."""
        python, *rest = self.command
        return replace(self, command=(python, "-m", "cProfile", "-o", str(profile), *rest))

    def start(self, *more: str) -> Process:
        """Start it, with more arguments."""
        command = [*self.command, *more]
        return Process(name=self.name, command=command, folder=self.folder, environment=BYTECODE)


Via = Callable[[Path], Path]
"""Makes of a kubeconfig one that takes another way to the API server."""


def straight(kubeconfig: Path) -> Path:
    """Return the kubeconfig of the API server itself."""
    return kubeconfig


def ours(arena: Arena, folder: Path, timing: Mapping[str, float | str] = STOPPED, *, via: Via = straight) -> Contestant:
    """Return our operator."""
    account = "bench-ours"
    flags = {
        "kubeconfig": via(arena.service_account(account, "cluster-admin")),
        "scheduler_names": arena.scheduler_name,
        "namespace": arena.namespace,
        "lease": arena.lease_name,
        "health": "",
        "metrics_port": 0,
        "debug_port": 0,
        **timing,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    return _contestant(
        arena,
        folder,
        name=OURS,
        account=account,
        scheduler_name=arena.scheduler_name,
        # These nodes run no containers.
        command=[sys.executable, "-m", "berth_operator", "--no-require-injection", *options],
    )


def kube_scheduler(arena: Arena, folder: Path, *, elects: bool = False, via: Via = straight) -> Contestant:
    """Return kube-scheduler as it is by default, but for its client's limits, and for elections unless it `elects`."""
    account, name = "bench-kube-scheduler", f"{arena.scheduler_name}-kube"
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": elects, "resourceNamespace": arena.namespace, "resourceName": name},
        # What --kube-api-qps and --kube-api-burst would say; beside a file these flags mean nothing.
        "clientConnection": {
            "kubeconfig": str(via(arena.service_account(account, "cluster-admin"))),
            "qps": 5000,
            "burst": 10000,
        },
        "profiles": [{"schedulerName": name}],
    }
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    program = str(programs.ensure(["kube-scheduler"])["kube-scheduler"])
    return _contestant(
        arena,
        folder,
        name=KUBE_SCHEDULER,
        account=account,
        scheduler_name=name,
        command=[program, f"--config={file}", "--secure-port=0"],
    )


def _contestant(
    arena: Arena, folder: Path, *, name: str, account: str, scheduler_name: str, command: Sequence[str]
) -> Contestant:
    return Contestant(
        name=name,
        scheduler_name=scheduler_name,
        user=f"system:serviceaccount:{arena.namespace}:{account}",
        command=tuple(command),
        folder=folder,
    )
