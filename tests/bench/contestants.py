"""The two schedulers that are compared, each a process with its own scheduler name and user."""

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
"""A leader that is paused while its pods are created must not lose its term."""
BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""Bytecode is cached between starts, as in an image, regardless of the environment of the benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How to start one scheduler."""

    name: str
    scheduler_name: str
    user: str
    """The user that the API server sees."""
    command: tuple[str, ...]
    folder: Path

    def profiled(self, profile: Path) -> "Contestant":
        """Return the same contestant under cProfile, which writes the main thread's profile at exit; Python only."""
        python, *rest = self.command
        return replace(self, command=(python, "-m", "cProfile", "-o", str(profile), *rest))

    def start(self, *more: str) -> Process:
        """Start the scheduler, with additional arguments."""
        command = [*self.command, *more]
        return Process(name=self.name, command=command, folder=self.folder, environment=BYTECODE)


Via = Callable[[Path], Path]
"""Returns a kubeconfig that reaches the API server another way, such as through a proxy."""


def straight(kubeconfig: Path) -> Path:
    """Return the kubeconfig of the API server itself."""
    return kubeconfig


def ours(arena: Arena, folder: Path, timing: Mapping[str, float | str] = STOPPED, *, via: Via = straight) -> Contestant:
    """Return Berth's operator."""
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
    """Return kube-scheduler with its defaults, except its client's limits, and elections unless it `elects`."""
    account, name = "bench-kube-scheduler", f"{arena.scheduler_name}-kube"
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": elects, "resourceNamespace": arena.namespace, "resourceName": name},
        # As --kube-api-qps and --kube-api-burst, which kube-scheduler ignores when it has a configuration file.
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
