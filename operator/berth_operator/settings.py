"""What can be set, by flag (`--lease x`) or environment (`BERTH_LEASE=x`); flags win.

Scheduler names, node selector and lease confine an instance: several with different ones share a cluster without
seeing each other.
"""

import socket
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Literal, Self
from uuid import uuid4

from pydantic import Field, IPvAnyAddress, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from berth_api import names
from berth_operator import configuration
from berth_operator.configuration import SCHEDULER_NAME, Configuration
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import injected


class Settings(BaseSettings):
    """The Berth operator: decides which pod gets which devices, and binds it.

    With `simulate`, `advise` or `snapshot` in front it answers questions instead: `berth-operator simulate --help`;
    with `webhook` it injects: `berth-operator webhook --help`.
    """

    model_config = SettingsConfigDict(
        env_prefix="BERTH_",
        cli_parse_args=True,
        cli_prog_name="berth-operator",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        use_attribute_docstrings=True,
        frozen=True,
    )

    kubeconfig: Path | None = None
    """Kubeconfig file; without one the pod's own service account is used."""

    config: Path | None = None
    """BerthSchedulerConfiguration file, read again whenever it changes (docs/configuration.md); without one there is a
    default profile for each of `scheduler_names`."""

    scheduler_names: Annotated[str, Field(pattern=f"^{SCHEDULER_NAME}(,{SCHEDULER_NAME})*$")] = names.SCHEDULER
    """The `schedulerName`s of the pods to bind, joined by commas; with `config` that file has them."""

    require_injection: bool = True
    """Whether a pod is placed only if its containers will see just what it is given (docs/protocol.md); with `config`
    that file says it of each profile."""

    node_selector: str = ""
    """Label selector of the nodes to use; empty for all."""

    namespace: str = "berth-system"
    """Namespace of the LeaderLease."""

    pod: Annotated[str, Field(pattern=r"^([^/]+/[^/]+/[^/]+)?$")] = ""
    """This process's own pod, namespace/name/UID, for Events about the process itself; empty for none."""

    lease: str = "berth-operator"
    """Name of the LeaderLease, by which replicas elect a leader; its term fences binds
    (docs/decisions/0002-fencing.md)."""

    require_fence: bool = False
    """Whether a leader decides nothing until the API server refuses Bindings of another term; without this setting, a
    leader that finds no fence logs so and goes on. `manifests/base` installs the fence and sets this."""

    lease_duration: Annotated[int, Field(ge=2, le=300)] = 15
    """Seconds after which another replica may take a LeaderLease that is not renewed."""

    renew_deadline: Annotated[float, Field(gt=0)] = 10.0
    """Seconds after which a leader that could not renew stops; below the duration, so that it stops first."""

    retry_period: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between two renewals."""

    takeover_pause: Annotated[float, Field(ge=0)] = 1.0
    """Seconds between becoming leader and the first list, for API servers that learn the new term later than others."""

    agent_namespace: str = names.LEASE_NAMESPACE
    """Namespace of the agents' Leases."""

    agent_grace: Annotated[float, Field(ge=0)] = 10.0
    """Seconds beyond its Lease's duration for which a silent agent is still believed: one missed renewal."""

    charge_foreign: bool = True
    """Whether cards that processes outside Kubernetes use are handed out to nobody; the agent tells of them."""

    trusted_schedulers: Annotated[str, Field(pattern=f"^({SCHEDULER_NAME}(,{SCHEDULER_NAME})*)?$")] = ""
    """Other schedulers whose allocation annotations are believed, joined by commas, such as koord-scheduler; empty for
    none. The policy in manifests/base/protection.yaml must list their accounts (docs/operations.md)."""

    status_rate: Annotated[float, Field(gt=0)] = 20.0
    """Status writes a second, Nodes and Devices together; binds do not wait for them."""

    volume_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a pod's claims may take to be bound before the pod is decided again; as kube-scheduler's default."""

    gang_timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a pod group may stay bound in part before it is undone, where its PodGroup names none."""

    evictions_per_minute: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Pods a minute that are evicted from cards which only a reset or a reboot brings back; 0 for none."""

    health: str = "http://0.0.0.0:8080/healthz"
    """Where liveness is served; empty for nowhere."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Where Prometheus finds the metrics; 0 for nowhere."""

    debug_address: IPvAnyAddress = IPv4Address("127.0.0.1")
    """Where the debug API listens (docs/debug-api.md). On any other than a loopback address it asks for a bearer token
    that the API server knows and allows."""

    debug_port: Annotated[int, Field(ge=0, le=65535)] = 10251
    """Port of the debug API; 0 for nowhere."""

    debug_certificate: Path | None = None
    """PEM file with the debug API's own certificate chain; without one it speaks plain HTTP, and so do its tokens."""

    debug_key: Path | None = None
    """PEM file with the certificate's key, if that is another file."""

    log_format: Literal["text", "json"] = "json"
    """Form of a log line."""

    identity: Annotated[str, Field(default_factory=lambda settings: _identity(settings.get("pod", "")))]
    """This process's name in the LeaderLease; no two running processes may share it. A container that was restarted
    finds the name of its predecessor, which is dead, and need not wait until that term runs out."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.config is not None and "scheduler_names" in self.model_fields_set:
            raise ValueError("--scheduler-names and --config exclude each other: the file names the schedulers")
        if self.config is not None and "require_injection" in self.model_fields_set:
            named = f"a profile switches off the filter {injected.NAME}"
            raise ValueError(f"--require-injection and --config exclude each other: {named}")
        return self

    @property
    def trusted(self) -> frozenset[str]:
        """Return the other schedulers whose allocations are believed."""
        return frozenset(filter(None, self.trusted_schedulers.split(",")))

    def configuration(self) -> Configuration:
        """Read the configuration file, or give default profiles where there is none.

        Raises:
            ConfigurationError: the file is missing or wrong.
        """
        if self.config is not None:
            return configuration.load(self.config)
        policy = Policy(switched_off=frozenset() if self.require_injection else frozenset({injected.NAME}))
        return Configuration(policies=dict.fromkeys(self.scheduler_names.split(","), policy))


def _identity(pod: str) -> str:
    """Return a name in the Lease: that of the pod, whose UID outlives a restart of its container, if there is one."""
    return f"{socket.gethostname()}_{pod.rpartition('/')[2] or uuid4()}"
