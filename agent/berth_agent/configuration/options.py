"""Options of the device plugin, with the names, variables and configuration file of NVIDIA's plugin.

A flag overrides a variable, a variable overrides the file, and the file overrides the default. An option that NVIDIA's
plugin supports and this one does not is an error. An option without effect here is accepted with a warning.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import NoDecode

from berth_api.device import MAX_REPLICAS, MigStrategy
from berth_base import documents
from berth_base.documents import DocumentError

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]

KUBELET_SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"
VERSION: Final = "v1"
VENDOR: Final = "nvidia.com"
MAX_NAME: Final = 63

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_REFUSED_MPS: Final = "MPS is not supported; use sharing.timeSlicing, or fractions of a card by kubernetes.io/gpu"


class OptionsError(Exception):
    """The options cannot be used; the text says which, where it stands and what is allowed."""


def _listed(raw: Any) -> Any:
    """Return a list that was given as text, separated by commas."""
    if isinstance(raw, str):
        return tuple(item.strip() for item in raw.split(",") if item.strip())
    return raw


def _no_mps(raw: str) -> str:
    if raw:
        raise ValueError(_REFUSED_MPS)
    return raw


class Flags(BaseModel):
    """Options that are flags, variables and `flags.*` of the file alike; a variable is the flag in capitals."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid")

    mig_strategy: MigStrategy = "mixed"
    """How cards in MIG mode are offered to pods, also MIG_STRATEGY. `mixed`: each instance is
    `nvidia.com/mig-<profile>`. `single`: each instance is `nvidia.com/gpu`; all cards must be divided alike. `none`:
    whole cards, MIG mode or not. Default: `mixed`, so that a card is never allocated while an instance on it is in use.
    A fleet file sets it for each node."""

    fail_on_init_error: bool = True
    """Whether the agent exits if the device plugin finds no driver at startup, also FAIL_ON_INIT_ERROR. If false, it
    waits for a driver."""

    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...], NoDecode, BeforeValidator(_listed), Field(min_length=1)
    ] = ("envvar",)
    """How a container gets its devices, also DEVICE_LIST_STRATEGY; several are separated by commas."""

    device_id_strategy: Literal["uuid", "index"] = "uuid"
    """Which IDs of its devices a container gets, also DEVICE_ID_STRATEGY."""

    pass_device_specs: bool = False
    """Whether kubelet also gets the device nodes, also PASS_DEVICE_SPECS: required with its static CPU manager."""

    nvidia_driver_root: str = "/"
    """Folder of the driver on the host, also NVIDIA_DRIVER_ROOT."""

    nvidia_dev_root: str = ""
    """Folder with the host's /dev, also NVIDIA_DEV_ROOT. Default: the driver's folder."""

    gdrcopy_enabled: bool = False
    """Whether containers get GDRCopy, also GDRCOPY_ENABLED."""

    gds_enabled: bool = False
    """Whether containers get GPUDirect Storage, also GDS_ENABLED."""

    mofed_enabled: bool = False
    """Whether containers get the devices of MOFED, also MOFED_ENABLED."""

    cdi_annotation_prefix: str = "cdi.k8s.io/"
    """Prefix of the annotations of `cdi-annotations`, also CDI_ANNOTATION_PREFIX."""

    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"
    """Which replicas are allocated first, also SHARED_DEVICES_ALLOCATION_POLICY. `distributed`: replicas of the card
    with the fewest in use. `packed`: of the card with the most. Applies only to pods whose devices the scheduler has
    not chosen."""

    imex_channel_ids: Annotated[
        tuple[Annotated[int, Field(ge=0, le=0)], ...], NoDecode, BeforeValidator(_listed), Field(max_length=1)
    ] = ()
    """IMEX channels that each container gets, also IMEX_CHANNEL_IDS: none, or 0."""

    imex_required: bool = False
    """Whether a channel that the node does not have is an error, also IMEX_REQUIRED. If false, it is left out."""

    kubelet_socket: str = KUBELET_SOCKET
    """Socket on which kubelet accepts registrations, also KUBELET_SOCKET. The plugin's own sockets are in the same
    folder. Empty: the plugin serves, but does not register."""

    config_file: Path | None = None
    """Configuration file, also CONFIG_FILE; SIGHUP reloads it."""

    device_discovery_strategy: Literal["auto", "nvml"] = "auto"
    """How cards are found, also DEVICE_DISCOVERY_STRATEGY: both values use NVML."""

    nvidia_ctk_path: str = "/usr/bin/nvidia-ctk"
    """Accepted for compatibility, also NVIDIA_CTK_PATH, and not used: the agent's CDI specification has no hooks."""

    container_driver_root: str = "/driver-root"
    """Accepted for compatibility, also CONTAINER_DRIVER_ROOT, and not used: the agent finds the driver's library by
    itself."""

    mps_root: Annotated[str, AfterValidator(_no_mps)] = ""
    """Must be empty, also MPS_ROOT: MPS is not supported by this option."""

    cdi_feature_flags: str = ""
    """Accepted for compatibility, also CDI_FEATURE_FLAGS, and not used: the agent's CDI specification has no such
    features."""

    cdi_disable_hooks: str = ""
    """Accepted for compatibility, also CDI_DISABLE_HOOKS, and not used: the agent's CDI specification has no hooks."""

    @property
    def dev_root(self) -> str:
        """Folder of the host's /dev."""
        return self.nvidia_dev_root or self.nvidia_driver_root

    @property
    def by_cdi(self) -> bool:
        """Whether any strategy is CDI's."""
        return any(strategy.startswith("cdi-") for strategy in self.device_list_strategy)

    @property
    def by_cdi_only(self) -> bool:
        """Whether all strategies are CDI's."""
        return all(strategy.startswith("cdi-") for strategy in self.device_list_strategy)


VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name.upper(): name for name in Flags.model_fields},
        "NVIDIA_CDI_HOOK_PATH": "nvidia_ctk_path",
        "DRIVER_ROOT_CTR_PATH": "container_driver_root",
    }
)
"""Variable -> the flag that it stands for."""

OTHER_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nvidia-driver-root": "driver-root",
        "nvidia-dev-root": "dev-root",
        "nvidia-ctk-path": "nvidia-cdi-hook-path",
        "container-driver-root": "driver-root-ctr-path",
    }
)
"""Flag -> its other name."""

_WITHOUT_EFFECT: Final = ("nvidia_ctk_path", "container_driver_root", "cdi_feature_flags", "cdi_disable_hooks")

_KEYS: Final = {
    "flags.migStrategy": "mig_strategy",
    "flags.failOnInitError": "fail_on_init_error",
    "flags.nvidiaDriverRoot": "nvidia_driver_root",
    "flags.nvidiaDevRoot": "nvidia_dev_root",
    "flags.gdrcopyEnabled": "gdrcopy_enabled",
    "flags.gdsEnabled": "gds_enabled",
    "flags.mofedEnabled": "mofed_enabled",
    "flags.mpsRoot": "mps_root",
    "flags.deviceDiscoveryStrategy": "device_discovery_strategy",
    "flags.plugin.passDeviceSpecs": "pass_device_specs",
    "flags.plugin.deviceListStrategy": "device_list_strategy",
    "flags.plugin.deviceIDStrategy": "device_id_strategy",
    "flags.plugin.cdiAnnotationPrefix": "cdi_annotation_prefix",
    "flags.plugin.nvidiaCTKPath": "nvidia_ctk_path",
    "flags.plugin.containerDriverRoot": "container_driver_root",
    "flags.plugin.sharedDevicesAllocationPolicy": "shared_devices_allocation_policy",
    "imex.channelIDs": "imex_channel_ids",
    "imex.required": "imex_required",
}
_SECTIONS: Final = ("version", "flags", "resources", "sharing", "imex", "health")
_PARTS: Final = {
    "sharing": ("timeSlicing", "mps"),
    "sharing.timeSlicing": ("strategy", "renameByDefault", "failRequestsGreaterThanOne", "resources"),
    "sharing.timeSlicing.resources": ("name", "replicas", "rename", "devices"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Time slicing: how many replicas devices have."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """Resource -> replicas of each of its devices; one of another resource is whole."""
    rename: bool = False
    """Whether a replica is `nvidia.com/gpu.shared` rather than `nvidia.com/gpu`."""
    one_at_most: bool = False
    """Whether a container that requests several replicas is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of the device plugin."""

    flags: Flags = field(default_factory=Flags)
    sharing: Sharing = field(default_factory=Sharing)
    warnings: tuple[str, ...] = ()


def load(raw: Flags) -> Options:
    """Return the options of flags and variables, completed by the configuration file.

    Raises:
        OptionsError: the file cannot be used.
    """
    file_flags: Mapping[str, Any] = {}
    sharing, warnings = Sharing(), list[str]()
    if path := raw.config_file:
        try:
            top = _mapping(documents.read(path.read_bytes()), where="")
            _known(top, _SECTIONS, where="")
            if (version := top.get("version") or VERSION) != VERSION:
                raise OptionsError(f"version: unknown version: {version}; allowed is {VERSION}")  # noqa: TRY301 -- with the path
            sharing, of_sharing = _sharing(_mapping(top.get("sharing"), where="sharing"))
            if any(_mapping(top.get("resources"), where="resources").values()):
                warnings.append("resources: own names of resources are not supported; ignored")
            warnings += of_sharing
            file_flags = _flags(top)
        except OSError as error:
            raise OptionsError(f"{path}: {error.strerror}") from error
        except DocumentError as error:
            raise OptionsError(f"{path}: not YAML: {error}") from error
        except OptionsError as error:
            raise OptionsError(f"{path}: {error}") from error
    set_flags = {name: getattr(raw, name) for name in raw.model_fields_set & Flags.model_fields.keys()}
    flags = Flags.model_validate({**file_flags, **set_flags})
    default = Flags()
    idle = [name for name in _WITHOUT_EFFECT if getattr(flags, name) != getattr(default, name)]
    warnings += [f"--{name.replace('_', '-')} has no effect in Berth's agent" for name in idle]
    return Options(flags=flags, sharing=sharing, warnings=tuple(warnings))


def _flags(top: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that the sections `flags` and `imex` set, by the names of their fields."""
    leaves: dict[str, Any] = {}
    for section in ("flags", "imex"):
        for name, value in _mapping(top.get(section), where=section).items():
            if name == "plugin":
                inner = _mapping(value, where=f"{section}.plugin")
                leaves |= {f"{section}.plugin.{key}": option for key, option in inner.items()}
            else:
                leaves[f"{section}.{name}"] = value
    raw: dict[str, Any] = {}
    for where, value in leaves.items():
        # The labels of NVIDIA's feature discovery are configured by the same file.
        if value is None or where.startswith("flags.gfd"):
            continue
        if where not in _KEYS:
            allowed = ", ".join(key for key in _KEYS if key.startswith(where.partition(".")[0]))
            raise OptionsError(f"{where}: no such option; there are {allowed}")
        raw[_KEYS[where]] = value
    try:
        Flags.model_validate(raw)
    except ValidationError as error:
        keys = {flag: key for key, flag in _KEYS.items()}
        mistakes = [
            f"{keys[str(mistake['loc'][0])]}: {mistake['msg'].removeprefix('Value error, ')}"
            for mistake in error.errors()
        ]
        raise OptionsError("; ".join(mistakes)) from error
    return raw


def _sharing(raw: Mapping[str, Any]) -> tuple[Sharing, tuple[str, ...]]:
    _known(raw, _PARTS["sharing"], where="sharing")
    if raw.get("mps") is not None:
        raise OptionsError(f"sharing.mps: {_REFUSED_MPS}")
    if raw.get("timeSlicing") is None:
        return Sharing(), ()
    where = "sharing.timeSlicing"
    slicing = _mapping(raw["timeSlicing"], where=where)
    _known(slicing, _PARTS[where], where=where)
    if strategy := slicing.get("strategy"):
        raise OptionsError(f"{where}.strategy: unknown time-slicing strategy: {strategy}; allowed is none")
    listed = slicing.get("resources")
    if not isinstance(listed, list) or not listed:
        raise OptionsError(f"{where}.resources: no resources specified; allowed is a list of name and replicas")
    by_name: dict[str, int] = {}
    for index, entry in enumerate(listed):
        place = f"{where}.resources[{index}]"
        body = _mapping(entry, where=place)
        _known(body, _PARTS["sharing.timeSlicing.resources"], where=place)
        if body.get("name") is None:
            raise OptionsError(f"{place}.name: no resource name specified")
        if body.get("replicas") is None:
            raise OptionsError(f"{place}.replicas: no replicas specified")
        name, replicas = resource_name(body["name"], where=f"{place}.name"), body["replicas"]
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 2:  # noqa: PLR2004 -- one is no sharing
            raise OptionsError(f"{place}.replicas: {replicas}: number of replicas must be >= 2")
        if replicas > MAX_REPLICAS:
            raise OptionsError(f"{place}.replicas: {replicas}: number of replicas must be <= {MAX_REPLICAS}")
        if name in by_name:
            raise OptionsError(f"{place}.name: {name} is there twice")
        by_name[name] = replicas
    sharing = Sharing(
        replicas=by_name,
        rename=_boolean(slicing, "renameByDefault", where=where),
        one_at_most=_boolean(slicing, "failRequestsGreaterThanOne", where=where),
    )
    warnings = []
    for index, (name, body) in enumerate(zip(by_name, listed, strict=True)):
        place = f"{where}.resources[{index}]"
        if body.get("rename") not in (None, f"{name}.shared" if sharing.rename else None):
            warnings.append(f"{place}.rename: own names of resources are not supported; ignored")
        if (body.get("devices") or "all") != "all":
            warnings.append(f"{place}.devices: choosing devices is not supported; ignored, all are sliced")
    return sharing, tuple(warnings)


def resource_name(raw: Any, *, where: str) -> str:
    """Return the full name of a resource; `gpu` is `nvidia.com/gpu`.

    Raises:
        OptionsError: it cannot be one.
    """
    text = str(raw)
    name = text if text.startswith(f"{VENDOR}/") else f"{VENDOR}/{text}"
    if len(name) > MAX_NAME:
        raise OptionsError(f"{where}: fully-qualified resource name must be {MAX_NAME} characters or less: {name}")
    if not _SUBDOMAIN.fullmatch(name.removeprefix(f"{VENDOR}/")):
        raise OptionsError(
            f"{where}: incorrect format for resource name '{name}'; allowed are small letters, digits, '-' and '.'"
        )
    return name


def _mapping(raw: Any, *, where: str) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise OptionsError(f"{where or 'the file'}: must be a mapping, is {type(raw).__name__}")
    return raw


def _known(raw: Mapping[str, Any], allowed: Iterable[str], *, where: str) -> None:
    for name in raw:
        if name not in allowed:
            place = f"{where}.{name}" if where else name
            raise OptionsError(f"{place}: no such field; there are {', '.join(allowed)}")


def _boolean(raw: Mapping[str, Any], name: str, *, where: str) -> bool:
    value = raw.get(name)
    if value is not None and not isinstance(value, bool):
        raise OptionsError(f"{where}.{name}: {value}: must be true or false")
    return bool(value)
