"""The schedulers that are compared. Each is a process with its own scheduler name and user."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena
from devcluster.building import programs
from tests.programs import kube_scheduler as shipped
from tests.programs.processes import Process

OURS: Final = "ours"
KUBE_SCHEDULER: Final = "kube_scheduler"
EXTENDED: Final = "extended"
"""kube-scheduler with Berth's extender."""

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


def ours(
    arena: Arena,
    folder: Path,
    timing: Mapping[str, object] = STOPPED,
    *,
    via: Via = straight,
    account: str = "bench-ours",
) -> Contestant:
    """Return Berth's operator; `timing` may have any flags of it."""
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


def kube_scheduler(
    arena: Arena, folder: Path, *, elects: bool = False, via: Via = straight, **options: Any
) -> Contestant:
    """Return kube-scheduler with its defaults, except its client's limits, and elections unless it `elects`.

    `options` are further fields of its configuration.
    """
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
        **options,
    }
    return _of_configuration(arena, folder, name=KUBE_SCHEDULER, account=account, config=config)


def extended(arena: Arena, folder: Path, url: str, certificates: Path, *, metrics_port: int) -> Contestant:
    """Return kube-scheduler with the extender at a URL, configured as it is shipped except its client's limits."""
    account, name = "bench-extended", extended_name(arena)
    kubeconfig = arena.service_account(account, "cluster-admin")
    config = shipped.shipped(kubeconfig, name, url, certificates)
    return _of_configuration(arena, folder, name=EXTENDED, account=account, config=config, metrics_port=metrics_port)


def extended_name(arena: Arena) -> str:
    """Return the scheduler name of the kube-scheduler with the extender."""
    return f"{arena.scheduler_name}-extended"


def _of_configuration(
    arena: Arena, folder: Path, *, name: str, account: str, config: Mapping[str, Any], metrics_port: int = 0
) -> Contestant:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    program = str(programs.ensure(["kube-scheduler"])["kube-scheduler"])
    [profile] = config["profiles"]
    options = [
        f"--secure-port={metrics_port}",
        "--bind-address=127.0.0.1",
        "--authorization-always-allow-paths=/metrics",
    ]
    return _contestant(
        arena,
        folder,
        name=name,
        account=account,
        scheduler_name=profile["schedulerName"],
        command=[program, f"--config={file}", *options],
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
