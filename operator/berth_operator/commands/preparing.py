"""Builds a planner from what a command was given: a cluster or a snapshot of one, a configuration, a workload."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berth_api import names
from berth_operator.commands import workload
from berth_operator.commands.errors import InputError
from berth_operator.commands.planning import Planner
from berth_operator.core.decision.policy import Policy
from berth_operator.core.plugins import kinds_of
from berth_operator.settings import configuration, device_plugins
from berth_operator.settings.configuration import Configuration
from berth_operator.state.watches.snapshot import Snapshot

GRACE: Final = 10.0
"""Seconds; without effect, since the clock of a snapshot stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a command is about."""

    file: str = ""
    """The workload, `-` for standard input; empty if there is none."""
    config: Path | None = None
    """A configuration file; None for a default profile."""
    trusted_schedulers: str = ""
    """Joined by commas."""
    namespace: str = "default"
    """Of objects that name none."""
    min_age: float = 0.0
    """Seconds; younger pods are not moved."""


def planner(inputs: Inputs, read: Callable[[Snapshot], None]) -> Planner:
    """Return a planner; `read` puts the objects of a cluster, or of a snapshot of one.

    Raises:
        InputError: a file is invalid, or cannot be read.
        ConfigurationError: the configuration is invalid.
    """
    plugins = device_plugins.installed()
    configured = _configured(inputs.config).with_plugins(plugins)
    policies = configured.policies
    snapshot = Snapshot(
        grace=GRACE,
        schedulers=policies,
        kinds=kinds_of(plugins),
        trusted_schedulers=frozenset(filter(None, inputs.trusted_schedulers.split(","))),
        min_age=inputs.min_age,
    )
    snapshot.cluster.fleet.set_model_aliases(configured.model_aliases)
    requested = workload.read(_text(inputs.file), inputs.file) if inputs.file else None
    read(snapshot)
    plan = Planner(snapshot, policies, namespace=inputs.namespace)
    if requested is not None:
        plan.add(requested)
    return plan


def _configured(config: Path | None) -> Configuration:
    return Configuration(policies={names.SCHEDULER: Policy()}) if config is None else configuration.load(config)


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error
