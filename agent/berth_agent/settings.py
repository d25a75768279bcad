"""What an agent can be told: by options (`--poll-interval 5`) or by `BERTH_AGENT_*` variables; options win."""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from berth_api import names
from berth_api.device import MigStrategy


def _kubeconfig() -> Path | None:
    path = os.environ.get("KUBECONFIG")
    return Path(path) if path else None


def _mig_strategy() -> Any:
    # Checked with all other fields.
    return os.environ.get("MIG_STRATEGY", "mixed")


class Settings(BaseSettings):
    """Berth's node agent: publishes the devices of a node and keeps its heartbeat."""

    model_config = SettingsConfigDict(
        env_prefix="BERTH_AGENT_",
        cli_prog_name="berth-agent",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        use_attribute_docstrings=True,
        frozen=True,
    )

    node_name: str = Field(default_factory=lambda: os.environ.get("NODE_NAME", ""))
    """Node that this agent speaks for; also read from NODE_NAME, which a pod gets from `spec.nodeName`."""

    pod_name: str = Field(default_factory=lambda: os.environ.get("POD_NAME", ""))
    """Name of the agent's pod, also read from POD_NAME; holder of the Lease. Default: the node's name."""

    kubeconfig: Path | None = Field(default_factory=_kubeconfig)
    """Kubeconfig file, also read from KUBECONFIG. Default: the service account of the pod."""

    inventory: Literal["nvml", "simulated"] = "nvml"
    """Where devices come from: NVIDIA's library on this node, or a fleet file for any number of nodes."""

    fleet: Path | None = None
    """Fleet file of the simulated inventory. It is read again when it changes."""

    sysfs_root: Path = Path("/sys")
    """Where sysfs is mounted: NUMA nodes and PCIe switches come from it."""

    mig_strategy: MigStrategy = Field(default_factory=_mig_strategy)
    """What cards in MIG mode are to pods, also read from MIG_STRATEGY as NVIDIA's plugin has it: `mixed`, a
    `nvidia.com/mig-<profile>` for each instance; `single`, an `nvidia.com/gpu` for each, where all cards are divided
    alike; `none`, whole cards all the same. Default: mixed, by which no instance in use is ever given away with its
    card. A fleet file says it for each node."""

    nvml_library: Path | None = None
    """libnvidia-ml.so.1 to load. Default: as the dynamic linker finds it."""

    poll_interval: PositiveFloat = 10.0
    """Seconds between two readings of the inventory: how late a change is seen. A reading of eight cards takes
    some 10 ms of driver time."""

    read_timeout: PositiveFloat = 30.0
    """Seconds after which a reading that does not come back is reported. A driver call can hang on a broken card,
    and the node must not look sound meanwhile."""

    resync_interval: PositiveFloat = 30.0
    """Seconds between two looks at what the API server holds, which find a deleted or changed Device. It costs
    one metadata-only list."""

    request_timeout: PositiveFloat = 10.0
    """Seconds that one API call may take; below the lease duration, so that a hung call costs no heartbeat."""

    concurrency: PositiveInt = 32
    """API calls under way at once. One agent serves thousands of nodes in a simulation."""

    lease_namespace: str = names.LEASE_NAMESPACE
    """Namespace of the heartbeat Leases; created when it is missing."""

    lease_duration: PositiveInt = 40
    """Seconds without renewal after which the node's devices count as stale: four lost renewals, as kubelet does."""

    renew_interval: PositiveFloat = 10.0
    """Seconds between two renewals."""

    jitter: float = Field(default=0.1, ge=0, le=0.5)
    """Share by which each pause between renewals varies, so that agents started together drift apart."""

    log_format: Literal["text", "json"] = "text"
    """Log lines as key=value or as JSON."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.inventory == "nvml" and not self.node_name:
            raise ValueError("--node-name is needed (or NODE_NAME): the node that this agent speaks for")
        if self.inventory == "simulated" and self.fleet is None:
            raise ValueError("--fleet is needed with --inventory simulated")
        if self.lease_duration <= self.renew_interval * (1 + self.jitter):
            raise ValueError("--lease-duration must exceed --renew-interval with its jitter")
        return self
