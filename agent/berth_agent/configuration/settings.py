"""Settings of the agent: options (`--poll-interval 5`), or `BERTH_AGENT_*` variables. Options win.

The options of the device plugin also have NVIDIA's variables, without the prefix.
"""

import itertools
import os
from collections.abc import Sequence
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, IPvAnyAddress, PositiveFloat, PositiveInt, StringConstraints, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from berth_agent.configuration.options import OTHER_FLAGS, VARIABLES, Flags
from berth_agent.health import checks
from berth_agent.health.checks import Checks
from berth_api import names
from berth_base import start
from berth_base.allowed import Allowed
from berth_base.logs import Form, Level

FPGA_IDS: Final = ("10ee", "1172", "8086:09c4", "8086:0b2b", "8086:0b30", "8086:bcce", "8086:af00")


def _kubeconfig() -> Path | None:
    path = os.environ.get("KUBECONFIG")
    return Path(path) if path else None


class _NvidiasVariables(PydanticBaseSettingsSource):
    """The variables of NVIDIA's plugin."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 -- its interface
        """Return a field's value, the name it was found by, and whether it is JSON."""
        texts = [os.environ[name] for name, flag in VARIABLES.items() if flag == field_name and name in os.environ]
        return next(iter(texts), None), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all that are set."""
        values = {name: self.get_field_value(None, name)[0] for name in Flags.model_fields}
        return {name: value for name, value in values.items() if value is not None}


Hexadecimal = Annotated[
    str,
    StringConstraints(to_lower=True, pattern=r"^[0-9a-fA-F]{4}(:[0-9a-fA-F]{4})?$"),
    Allowed("four hexadecimal digits, or twice four with a colon, such as 10ee or 8086:0b30"),
]
"""A PCI vendor, or a vendor's device: `10ee`, `8086:0b30`."""


class Settings(Flags, BaseSettings):
    """Berth's node agent: publishes the devices of a node and keeps its heartbeat. `--version` prints its version."""

    model_config = SettingsConfigDict(
        env_prefix="BERTH_AGENT_",
        cli_prog_name="berth-agent",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_shortcuts=dict(OTHER_FLAGS),
        use_attribute_docstrings=True,
        frozen=True,
    )

    node_name: str = Field(default_factory=lambda: os.environ.get("NODE_NAME", ""))
    """Node whose devices this agent publishes, also NODE_NAME; a pod gets it from `spec.nodeName`."""

    pod_name: str = Field(default_factory=lambda: os.environ.get("POD_NAME", ""))
    """Name of the agent's pod, also POD_NAME: the holder of the Lease. Default: the node's name."""

    kubeconfig: Path | None = Field(default_factory=_kubeconfig)
    """Kubeconfig file, also KUBECONFIG. Default: the pod's service account."""

    inventory: Literal["nvml", "simulated"] = "nvml"
    """Where devices come from: NVIDIA's library on this node, or a fleet file that simulates any number of nodes."""

    fleet: Path | None = None
    """Fleet file of the simulated inventory, read again when it changes."""

    fleet_tokens: Path | None = None
    """Folder with a token for each simulated node, in a file of the node's name: the token of a pod of the agent on
    this node, with which the node's Device and Lease are written. Default: they are written with the agent's own
    token, which the policy `berth-agents` refuses."""

    sysfs_root: Path = Path("/sys")
    """Where sysfs is mounted. NUMA nodes and PCIe switches are read from it."""

    discover: tuple[Literal["gpu", "rdma", "fpga"], ...] = ("gpu", "rdma", "fpga")
    """Types of devices to look for. If the PCI bus has no GPU, a missing driver is no fault."""

    fpga_ids: tuple[Hexadecimal, ...] = FPGA_IDS
    """PCI vendors, or vendors with devices, whose processing accelerators (PCI class 0x1200) are FPGAs; other
    accelerators have the same class. Default: Xilinx, Altera, and Intel's PACs."""

    truth: bool = True
    """Whether to publish which devices kubelet gave to pods: GpuPods, and `held`, `withheld` and `foreign` of the
    Device. Nothing is published before kubelet has answered, and nothing by a simulated fleet."""

    admission: bool = True
    """Whether the device plugin mirrors kubelet's admission, to give each pod the devices that the scheduler chose. If
    false, it behaves like any other device plugin. Requires `--truth`."""

    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of kubelet's PodResources API, which lists the devices of containers."""

    pod_resources_interval: PositiveFloat = 1.0
    """Seconds after which kubelet is queried again if nothing happened."""

    foreign: bool = True
    """Whether to publish which GPUs processes outside Kubernetes use, and which pods use more than they hold. Requires
    that the agent sees the host's processes (`hostPID`)."""

    checkpoint: Path = Path("/var/lib/berth-agent/checkpoint.json")
    """File with what kubelet was promised and which devices pods had. It must outlive the agent's container."""

    device_infos: Path | None = None
    """Folder of JSON files in which agents of other vendors list their devices for koordlet, `xpu-device-infos`. The
    devices become the GPUs of a node that has no others. Default: no such files are read."""

    nvml_library: Path | None = None
    """libnvidia-ml.so.1 to load. Default: as the dynamic linker finds it."""

    poll_interval: PositiveFloat = 10.0
    """Seconds between two readings of the inventory: a change is seen at most this late. Reading eight cards takes
    about 10 ms of driver time."""

    read_timeout: PositiveFloat = 30.0
    """Seconds after which a reading that has not finished is reported. A driver call can hang on a broken card, and the
    node must not look healthy meanwhile."""

    quiet_period: PositiveFloat = 300.0
    """Seconds without another fault after which a GPU is healthy again, if its fault was an application's (Xid 94) or
    an error of the library. Faults that require a reset or a reboot do not end by time."""

    disable_healthchecks: str = Field(default_factory=lambda: os.environ.get("DP_DISABLE_HEALTHCHECKS", ""))
    """Xids that make no GPU unhealthy, also DP_DISABLE_HEALTHCHECKS as in NVIDIA's plugin: `all`, `xids`, or numbers
    separated by commas."""

    enable_healthchecks: str = Field(default_factory=lambda: os.environ.get("DP_ENABLE_HEALTHCHECKS", ""))
    """Xids that make a GPU unhealthy even if they are disabled, also DP_ENABLE_HEALTHCHECKS, in the same form."""

    label_nodes: bool = True
    """Whether the Node gets the labels that GPU Feature Discovery writes (`nvidia.com/gpu.product` …)."""

    resync_interval: PositiveFloat = 30.0
    """Seconds between two checks of the API server for a deleted or changed Device. Each costs one metadata-only
    list."""

    request_timeout: PositiveFloat = 10.0
    """Timeout of one API call in seconds; less than the lease duration, so that a call that hangs costs no
    heartbeat."""

    concurrency: PositiveInt = 32
    """Maximum number of API calls at once. In a simulation, one agent serves thousands of nodes."""

    lease_namespace: str = names.LEASE_NAMESPACE
    """Namespace of the heartbeat Leases; it must exist."""

    lease_duration: PositiveInt = 40
    """Seconds without renewal after which the node's devices count as stale: four lost renewals, as for kubelet's
    Lease."""

    renew_interval: PositiveFloat = 10.0
    """Seconds between two renewals."""

    jitter: float = Field(default=0.1, ge=0, le=0.5)
    """Share by which each pause between renewals varies, so that agents which start together do not renew together."""

    log_format: Form = "text"
    """Format of log lines: key=value or JSON."""

    log_level: Level = "info"
    """Lowest severity that is logged. Libraries log warnings and above."""

    metrics_address: IPvAnyAddress = IPv4Address("0.0.0.0")  # noqa: S104 - Prometheus comes from another node
    """Address on which to serve metrics; `0.0.0.0` or `::`: all addresses, IPv4 and IPv6. Except on loopback, clients
    need a bearer token of a user that may get the nonResourceURL `/metrics`."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port on which to serve metrics for Prometheus; 0 to serve none. The shipped DaemonSet uses 9405."""

    metrics_authentication: bool = True
    """Whether clients of the metrics need that token. If false, anyone who reaches the port can read them; they name
    the pods of all namespaces."""

    device_plugin: bool = False
    """Whether the agent offers the node's cards to kubelet. Only with the inventory `nvml`."""

    numa_to_kubelet: bool = False
    """Whether to report the NUMA node of each card to kubelet. A Topology Manager policy then picks cards before
    kubelet calls the agent, which overrides the scheduler's choice."""

    cdi_specification: Literal["own", "nvidia-ctk"] = "own"
    """Which CDI specification containers use. `own`: the agent writes one with the device nodes of the cards.
    `nvidia-ctk`: `nvidia-ctk cdi generate` maintains one that also has the driver's libraries."""

    amd_resource_naming_strategy: Literal["single", "mixed"] = "single"
    """Which resources AMD's cards are. `single`: `amd.com/gpu`, also for partitions, for which all cards must have the
    same modes. `mixed`: `amd.com/<compute>_<memory>` by the modes of the card, such as `amd.com/cpx_nps4`."""

    amd_visible_devices: bool = False
    """Whether containers with AMD's cards get the variable AMD_VISIBLE_DEVICES, which AMD's container runtime reads."""

    amd_processes: Literal["none", "kfd", "fdinfo"] = "none"
    """Where to read which processes use AMD's cards. `kfd`: from `/sys/class/kfd/kfd/proc`, for which the agent must be
    privileged. `fdinfo`: from the open files of these processes, for which it needs the capability SYS_PTRACE, and not
    for partitions. Both require `--foreign`, `--truth` and the host's processes (`hostPID`)."""

    cdi_folder: Path = Path("/var/run/cdi")
    """Folder in which the agent writes its CDI specifications."""

    mps: bool = False
    """Whether containers can share cards by NVIDIA's Multi-Process Service, on nodes with the label
    `berth.dev/isolation: mps`. Requires `--truth`, and a daemon (docs/mps.md)."""

    mps_folder: Path = Path("/run/berth/mps")
    """Folder of the MPS daemon's sockets, at the same path on the node and for the agent."""

    mps_control: str = "nvidia-cuda-mps-control"
    """The driver's program that controls the MPS daemon."""

    hami_core: Path | None = None
    """Folder with the versions of HAMi-core's library, at the same path on the node and for the agent; `current` is a
    link to one of them. Default: containers do not get the library."""

    nics: bool = False
    """Whether containers get the device files of the RDMA NICs that their pods hold, by the resource `berth.dev/rdma`,
    which admission adds to them. The container runtime must support CDI. Requires `--truth`."""

    nccl_ib_hca: bool = False
    """Whether these containers also get the variable NCCL_IB_HCA with the names of these NICs, unless they set it."""

    dra: bool = False
    """Whether the agent is also a driver of dynamic resource allocation, `gpu.berth.dev`. It gives cards to
    ResourceClaims on nodes with the label `berth.dev/cards: claims`, `shares` or `both`. The container runtime must
    support CDI. Requires `--truth` and, with `--device-plugin`, `--admission`."""

    dra_own_pools: bool = False
    """Whether this driver's pools are Berth's, as the operator's configuration says (`claims.drivers`). Without it, the
    label `berth.dev/cards: both` has no effect."""

    dra_partitions: Path | None = None
    """Folder of the socket of the process that makes MIG instances on demand (`berth_agent.vendors.nvidia.partitions`),
    for claims on nodes with the labels `berth.dev/cards: claims` and `berth.dev/partitions: all`. Default: none are
    made. Requires `--dra`."""

    kubelet_folder: Path = Path("/var/lib/kubelet")
    """Kubelet's folder, at the same path on the node and for the agent. The driver's sockets are in its folders
    `plugins` and `plugins_registry`."""

    proc_root: Path = Path("/proc")
    """Where procfs of the host is mounted. Device nodes of MIG instances, the boot ID, and pods that have processes are
    read from it."""

    dev_folder: Path = Path("/dev")
    """Folder in which the agent sees the host's device nodes."""

    @classmethod
    def read(cls, arguments: Sequence[str]) -> Self:
        """Return the settings of the command line and the variables.

        Raises:
            StartError: one of them is wrong.
        """
        switches = {
            f"--{name.replace('_', '-')}" for name, field in cls.model_fields.items() if field.annotation is bool
        }
        # A switch may stand alone, as in NVIDIA's plugin.
        explicit = [
            f"{argument}=true" if argument in switches and following.lower() not in {"true", "false"} else argument
            for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="")
        ]
        return start.read(cls, explicit)

    @classmethod
    def settings_customise_sources(  # noqa: D102 -- pydantic's
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _NvidiasVariables(settings_cls)

    @cached_property
    def checks(self) -> Checks:
        """Which health checks are made.

        Raises:
            ChecksError: the lists of Xids cannot be read.
        """
        return checks.read(disabled=self.disable_healthchecks, enabled=self.enable_healthchecks)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.checks  # noqa: B018 -- report mistakes at the start
        if self.inventory == "nvml" and not self.node_name:
            raise ValueError("--node-name is needed (or NODE_NAME): the node whose devices this agent publishes")
        if self.inventory == "simulated" and self.fleet is None:
            raise ValueError("--fleet is needed with --inventory simulated")
        if self.fleet_tokens and self.inventory != "simulated":
            raise ValueError("--fleet-tokens needs --inventory simulated: the agent of a node has one token")
        if self.inventory == "simulated" and self.device_plugin:
            raise ValueError(
                "--device-plugin is not supported with --inventory simulated: there are no devices to allocate"
            )
        if self.inventory == "simulated" and (self.mps or self.hami_core or self.nics or self.dra):
            raise ValueError(
                "--mps, --hami-core, --nics and --dra are not supported with --inventory simulated: no container runs "
                "there"
            )
        if self.mps and not self.truth:
            raise ValueError("--mps needs --truth: the agent sets limits by the pods of its node")
        if self.nics and not self.truth:
            raise ValueError("--nics needs --truth: the agent gives NICs by the pods of its node")
        if self.dra and not self.truth:
            raise ValueError("--dra needs --truth: the agent gives claims only cards that no pod of its node holds")
        if self.dra and self.device_plugin and not self.admission:
            raise ValueError(
                "--dra with --device-plugin needs --admission: only it knows at once what kubelet allocated"
            )
        if self.dra_own_pools and not self.dra:
            raise ValueError("--dra-own-pools needs --dra: it says whose the pools of the driver are")
        if self.dra_partitions and not self.dra:
            raise ValueError("--dra-partitions needs --dra: MIG instances are made for claims alone")
        if self.nccl_ib_hca and not self.nics:
            raise ValueError(
                "--nccl-ib-hca needs --nics: the variable names the NICs whose device files a container gets"
            )
        if self.lease_duration <= self.renew_interval * (1 + self.jitter):
            raise ValueError("--lease-duration must exceed --renew-interval with its jitter")
        return self
