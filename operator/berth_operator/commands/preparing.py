"""Build a planner from a command's inputs: a cluster or its snapshot, settings, a workload."""

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth_api.values import keys
from berth_operator.commands import effective, snapshots, workload
from berth_operator.commands.effective import NOTHING, Effective, Given, Served
from berth_operator.commands.errors import InputError
from berth_operator.commands.planning import Planner
from berth_operator.core.plugins import kinds_of
from berth_operator.settings import device_plugins
from berth_operator.state.watches.snapshot import Snapshot

GRACE: Final = 10.0
"""Seconds; without effect, since the clock of a snapshot stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a command is about."""

    file: str = ""
    """The workload, `-` for standard input; empty if there is none."""
    pod: str = ""
    """Namespace/name of a pod in the cluster; empty if there is none."""
    settings: Given = NOTHING
    namespace: str = "default"
    """The namespace of objects that name none."""
    min_age: float = 0.0
    """Seconds; younger pods are not moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the state of a cluster comes from."""

    ask: Callable[[Collection[str]], Served]
    """Returns the settings that the operator serves, at least for the pods of these namespaces."""
    read: Callable[[Snapshot, Effective], None]
    """Puts the objects that an operator with these settings reads."""


def of_file(path: Path) -> Origin:
    """Return the origin for a snapshot that was saved."""
    return Origin(ask=lambda _: snapshots.served(path), read=lambda snapshot, _: snapshots.load(path, snapshot))


def planner(inputs: Inputs, origin: Origin) -> tuple[Planner, str]:
    """Return a planner, and a note about settings of the operator that are assumed; empty if none are.

    Raises:
        InputError: a file is invalid, or cannot be read.
        ConfigurationError: the configuration is invalid.
    """
    plugins = device_plugins.installed()
    gpus = device_plugins.gpu_resources(plugins)
    requested = None
    if inputs.file:
        try:
            text = sys.stdin.read() if inputs.file == "-" else Path(inputs.file).read_text()
        except OSError as error:
            raise InputError(f"{inputs.file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{inputs.file}: {error}") from error
        requested = workload.read(text, inputs.file)
    if inputs.pod:
        namespaces = {keys.split(inputs.pod)[0]}
    else:
        pods = [] if requested is None else requested.pods
        namespaces = {pod["metadata"].get("namespace") or inputs.namespace for _, pod in pods}
    settings = effective.combined(inputs.settings, origin.ask(namespaces))
    configured = settings.configuration.with_plugins(plugins)
    policies = configured.policies
    snapshot = Snapshot(
        grace=GRACE,
        schedulers=policies,
        kinds=kinds_of(plugins, settings.memory_units, settings.nic_resources, gpus, settings.gpu_vendors),
        trusted_schedulers=settings.trusted_schedulers,
        priorities=settings.priorities,
        charges_foreign=settings.charges_foreign,
        charges_unheld=settings.charges_unheld,
        min_age=inputs.min_age,
        confined=bool(settings.node_selector),
    )
    snapshot.cluster.fleet.set_model_aliases(configured.model_aliases)
    snapshot.cluster.fleet.set_namespace_limits(configured.namespace_limits)
    snapshot.cluster.set_own_pools(configured.own_pools)
    origin.read(snapshot, settings)
    if settings.mix is not None:
        # In place of that of the existing pods: it has those that have ended, too.
        snapshot.cluster.fleet.pod_mix = settings.mix
    plan = Planner(snapshot, policies, namespace=inputs.namespace, reserved=settings.reserved_nodes)
    if requested is not None:
        plan.add(requested)
    return plan, settings.note
