"""The one place that imports pynvml: typed calls, and one exception that says why in a word.

Nothing here is safe to call from two threads; `session` owns the thread.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pynvml

T = TypeVar("T")
Handle = Any
"""What NVML gives out for a card."""

INIT_WITHOUT_CARDS: Final = 1
"""NVML_INIT_FLAG_NO_GPUS: a node without any GPU is no error."""
P2P_READ: Final = 0
MAX_NVLINKS: Final = int(pynvml.NVML_NVLINK_MAX_LINKS)

ANCESTORS: Final[dict[int, "Ancestor"]] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "SameBoard",
    pynvml.NVML_TOPOLOGY_SINGLE: "SingleSwitch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "MultiSwitch",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "HostBridge",
    pynvml.NVML_TOPOLOGY_NODE: "SameNUMANode",
    pynvml.NVML_TOPOLOGY_SYSTEM: "System",
}
Ancestor = Literal["SameBoard", "SingleSwitch", "MultiSwitch", "HostBridge", "SameNUMANode", "System"]

LOST_SESSION: Final = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
UNSUPPORTED: Final = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}


class NvmlError(Exception):
    """NVML refused; `reason` is one word, such as GpuIsLost or DriverNotLoaded."""

    def __init__(self, message: str, *, reason: str, code: int = pynvml.NVML_ERROR_UNKNOWN) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code

    @property
    def lost_session(self) -> bool:
        """Whether the library must be opened anew before anything else works."""
        return self.code in LOST_SESSION


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        reason = type(error).__name__.removeprefix("NVMLError_")
        raise NvmlError(str(error), reason=reason, code=error.value) from error


def unless_unsupported(*, default: T, function: Callable[..., T], of: tuple[Any, ...]) -> T:
    """Call one of ours, and take the default where this card or driver knows no such thing."""
    try:
        return function(*of)
    except NvmlError as error:
        if error.code in UNSUPPORTED:
            return default
        raise


def load(path: Path) -> None:
    """Load the library from a file. nvidia-ml-py then finds it by its name, since it is loaded already."""
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NvmlError(str(error), reason="LibraryNotFound") from error


def open_session() -> None:
    """Begin a session with the driver."""
    ask(pynvml.nvmlInitWithFlags, INIT_WITHOUT_CARDS)


def close_session() -> None:
    """End the session; one that is lost already cannot be ended, and need not be."""
    try:
        ask(pynvml.nvmlShutdown)
    except NvmlError as error:
        if not error.lost_session:
            raise


def driver_version() -> str:
    """Return the driver's version."""
    return str(ask(pynvml.nvmlSystemGetDriverVersion))


def cuda_version() -> str:
    """Return the newest CUDA of the driver, as `12.8`."""
    number = int(ask(pynvml.nvmlSystemGetCudaDriverVersion_v2))
    return f"{number // 1000}.{number % 1000 // 10}"


def cards() -> int:
    """Count the cards."""
    return int(ask(pynvml.nvmlDeviceGetCount))


def card(index: int) -> Handle:
    """Return the handle of a card."""
    return ask(pynvml.nvmlDeviceGetHandleByIndex, index)


def uuid(handle: Handle) -> str:
    """Return the UUID of a card or MIG device."""
    return str(ask(pynvml.nvmlDeviceGetUUID, handle))


def name(handle: Handle) -> str:
    """Return the name of a card or MIG device."""
    return str(ask(pynvml.nvmlDeviceGetName, handle))


def minor(handle: Handle) -> int:
    """Return N of /dev/nvidiaN."""
    return int(ask(pynvml.nvmlDeviceGetMinorNumber, handle))


def module_id(handle: Handle) -> int:
    """Return the position on the baseboard."""
    return int(ask(pynvml.nvmlDeviceGetModuleId, handle))


def memory(handle: Handle) -> int:
    """Return the memory in bytes, all of it: what `nvidia-smi` calls FB Memory Total."""
    return int(ask(pynvml.nvmlDeviceGetMemoryInfo, handle).total)


def bus_id(handle: Handle) -> str:
    """Return the PCI address as the kernel writes it."""
    return kernel_address(ask(pynvml.nvmlDeviceGetPciInfo_v3, handle).busId)


def ancestor(one: Handle, other: Handle) -> Ancestor:
    """Tell where the PCIe paths of two cards meet."""
    return ANCESTORS[int(ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other))]


def peer_to_peer(one: Handle, other: Handle) -> bool:
    """Tell whether the driver lets one card read the other."""
    return bool(ask(pynvml.nvmlDeviceGetP2PStatus, one, other, P2P_READ) == pynvml.NVML_P2P_STATUS_OK)


def nvlink_is_active(handle: Handle, link: int) -> bool:
    """Tell whether an NVLink is up. Of a link that a card does not have, drivers say one of two things."""
    try:
        return bool(ask(pynvml.nvmlDeviceGetNvLinkState, handle, link))
    except NvmlError as error:
        if error.code in {*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            return False
        raise


def nvlink_ends_at_switch(handle: Handle, link: int) -> bool:
    """Tell whether an NVLink leads into an NVSwitch. Drivers before 470 cannot tell."""
    end = ask(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return bool(end == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)


def nvlink_remote(handle: Handle, link: int) -> str:
    """Return the PCI address at the other end of an NVLink."""
    return kernel_address(ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link).busId)


def mig_enabled(handle: Handle) -> bool:
    """Tell whether MIG mode is on; not supported where the card knows no MIG."""
    return bool(ask(pynvml.nvmlDeviceGetMigMode, handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def mig_devices(handle: Handle) -> list[Handle]:
    """Return the MIG devices of a card; their numbers may have gaps."""
    found = (_mig_device(handle, index) for index in range(int(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))))
    return [device for device in found if device is not None]


def _mig_device(handle: Handle, index: int) -> Handle | None:
    try:
        return ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFacts:
    """What NVML tells of a MIG device."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory: int


def mig_facts(handle: Handle) -> MigFacts:
    """Describe a MIG device. Its profile stands at the end of its name: `NVIDIA H200 MIG 1g.18gb`."""
    return MigFacts(
        uuid=uuid(handle),
        profile=name(handle).rpartition(" MIG ")[2],
        gpu_instance=int(ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)),
        compute_instance=int(ask(pynvml.nvmlDeviceGetComputeInstanceId, handle)),
        memory=int(ask(pynvml.nvmlDeviceGetAttributes_v2, handle).memorySizeMB) << 20,
    )


def kernel_address(text: str) -> str:
    """Turn NVML's `00000000:3B:00.0` into the kernel's `0000:3b:00.0`; a domain above 16 bits stays whole."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
