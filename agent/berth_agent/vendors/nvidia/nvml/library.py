"""Typed calls of pynvml, and one exception whose reason is one word. Only `mig` imports pynvml, too.

No call here is safe from two threads. `session` owns the thread.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pynvml

from berth_agent.readings import MemoryUse, Process

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
UNSUPPORTED: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    # Some figures are for root alone; a card is not broken for not telling them.
    pynvml.NVML_ERROR_NO_PERMISSION,
}

XID_EVENT: Final = int(pynvml.nvmlEventTypeXidCriticalError)
DOUBLE_BIT_EVENT: Final = int(pynvml.nvmlEventTypeDoubleBitEccError)
RETIREMENT_CAUSES: Final = (
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
    pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
)

THROTTLE_REASONS: Final = {
    int(pynvml.nvmlClocksEventReasonGpuIdle): "gpu_idle",
    int(pynvml.nvmlClocksEventReasonApplicationsClocksSetting): "applications_clocks_setting",
    int(pynvml.nvmlClocksEventReasonSwPowerCap): "sw_power_cap",
    int(pynvml.nvmlClocksThrottleReasonHwSlowdown): "hw_slowdown",
    int(pynvml.nvmlClocksEventReasonSyncBoost): "sync_boost",
    int(pynvml.nvmlClocksEventReasonSwThermalSlowdown): "sw_thermal_slowdown",
    int(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown): "hw_thermal_slowdown",
    int(pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown): "hw_power_brake_slowdown",
    int(pynvml.nvmlClocksEventReasonDisplayClockSetting): "display_clock_setting",
}
"""Bits of nvmlClocksEventReasons -> their names."""
_VOLATILE: Final = pynvml.NVML_VOLATILE_ECC


class NvmlError(Exception):
    """NVML refused a call. `reason` is one word, such as GpuIsLost or DriverNotLoaded.

    `function` is the name of NVML's function; empty if the error is of none.
    """

    def __init__(self, message: str, *, reason: str, code: int = pynvml.NVML_ERROR_UNKNOWN, function: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code
        self.function = function

    def about(self, subject: str) -> "NvmlError":
        """Return the error in words that name what the call was about, and the function."""
        failed = f"{self.function} failed for {subject}" if self.function else subject
        return NvmlError(f"{failed}: {self}", reason=self.reason, code=self.code, function=self.function)

    @property
    def lost_session(self) -> bool:
        """Whether the session must be opened again before anything else works."""
        return self.code in LOST_SESSION


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        reason = type(error).__name__.removeprefix("NVMLError_")
        raise NvmlError(str(error), reason=reason, code=error.value, function=function.__name__) from error


def unless_unsupported(*, default: T, function: Callable[..., T], of: tuple[Any, ...]) -> T:
    """Call one of our functions; return the default if this card or driver does not support it."""
    try:
        return function(*of)
    except NvmlError as error:
        if error.code in UNSUPPORTED:
            return default
        raise


def if_reported(function: Callable[[Handle], T], handle: Handle) -> T | None:
    """Return an answer of a card that the agent can do without; None if the call fails for any reason of the card.

    Raises:
        NvmlError: the session is lost.
    """
    try:
        return function(handle)
    except NvmlError as error:
        if error.lost_session:
            raise
        return None


def load(path: Path) -> None:
    """Load the library from a file. nvidia-ml-py then finds it by its name, since it is loaded already."""
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NvmlError(str(error), reason="LibraryNotFound") from error


def open_session() -> None:
    """Begin a session with the driver."""
    call(pynvml.nvmlInitWithFlags, INIT_WITHOUT_CARDS)


def close_session() -> None:
    """End the session. A lost session cannot be ended, and need not be."""
    try:
        call(pynvml.nvmlShutdown)
    except NvmlError as error:
        if not error.lost_session:
            raise


def driver_version() -> str:
    """Return the driver's version."""
    return str(call(pynvml.nvmlSystemGetDriverVersion))


def cuda_version() -> str:
    """Return the newest CUDA of the driver, as `12.8`."""
    number = int(call(pynvml.nvmlSystemGetCudaDriverVersion_v2))
    return f"{number // 1000}.{number % 1000 // 10}"


def cards() -> int:
    """Count the cards."""
    return int(call(pynvml.nvmlDeviceGetCount))


def card(index: int) -> Handle:
    """Return the handle of a card."""
    return call(pynvml.nvmlDeviceGetHandleByIndex, index)


def uuid(handle: Handle) -> str:
    """Return the UUID of a card or MIG device."""
    return str(call(pynvml.nvmlDeviceGetUUID, handle))


def name(handle: Handle) -> str:
    """Return the name of a card or MIG device."""
    return str(call(pynvml.nvmlDeviceGetName, handle))


def minor(handle: Handle) -> int:
    """Return N of /dev/nvidiaN."""
    return int(call(pynvml.nvmlDeviceGetMinorNumber, handle))


def module_id(handle: Handle) -> int:
    """Return the position on the baseboard."""
    return int(call(pynvml.nvmlDeviceGetModuleId, handle))


def memory(handle: Handle) -> int:
    """Return the memory in bytes, all of it: what `nvidia-smi` calls FB Memory Total."""
    return int(call(pynvml.nvmlDeviceGetMemoryInfo, handle).total)


def cores(handle: Handle) -> int:
    """Return the number of FP32 cores."""
    return int(call(pynvml.nvmlDeviceGetNumGpuCores, handle))


def memory_bus_width(handle: Handle) -> int:
    """Return the bits that the bus of the memory transfers at once."""
    return int(call(pynvml.nvmlDeviceGetMemoryBusWidth, handle))


def max_memory_clock(handle: Handle) -> int:
    """Return the highest clock of the memory in MHz."""
    return int(call(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def processes(handle: Handle) -> tuple[Process, ...]:
    """Return the processes that compute on a card, by the process ids of the host."""
    processes = call(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return tuple(Process(pid=int(process.pid), memory=int(process.usedGpuMemory or 0)) for process in processes)


def memory_use(handle: Handle) -> MemoryUse:
    """Return the used memory. Drivers before 510 count the memory that they reserve as used."""
    try:
        memory = call(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    except NvmlError as error:
        if error.code != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        memory = call(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return MemoryUse(total=int(memory.total), used=int(memory.used), free=int(memory.free))


def utilization(handle: Handle) -> tuple[int, int]:
    """Return in percent how long kernels ran, and how long memory was read or written."""
    rates = call(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return int(rates.gpu), int(rates.memory)


def encoder_utilization(handle: Handle) -> int:
    """Return how busy the video encoders are, in percent."""
    return int(call(pynvml.nvmlDeviceGetEncoderUtilization, handle)[0])


def decoder_utilization(handle: Handle) -> int:
    """Return how busy the video decoders are, in percent."""
    return int(call(pynvml.nvmlDeviceGetDecoderUtilization, handle)[0])


def power(handle: Handle) -> int:
    """Return the power that the card draws, in milliwatts."""
    return int(call(pynvml.nvmlDeviceGetPowerUsage, handle))


def power_limit(handle: Handle) -> int:
    """Return the power that the card may draw now, in milliwatts."""
    return int(call(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle))


def temperature(handle: Handle) -> int:
    """Return the temperature of the chip in degrees Celsius."""
    return int(call(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU))


def sm_clock(handle: Handle) -> int:
    """Return the clock of the multiprocessors in MHz."""
    return int(call(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM))


def memory_clock(handle: Handle) -> int:
    """Return the clock of the memory in MHz."""
    return int(call(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM))


def throttle_reasons(handle: Handle) -> int:
    """Return the bits of THROTTLE_REASONS that keep the clocks below their highest rate."""
    return int(call(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle))


def supported_throttle_reasons(handle: Handle) -> int:
    """Return the bits of THROTTLE_REASONS that the card reports."""
    return int(call(pynvml.nvmlDeviceGetSupportedClocksEventReasons, handle))


def corrected_errors(handle: Handle) -> int:
    """Return the number of ECC errors since the driver was loaded that were corrected."""
    return int(call(pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, _VOLATILE))


def uncorrected_errors(handle: Handle) -> int:
    """Return the number of ECC errors since the driver was loaded that could not be corrected."""
    return int(call(pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, _VOLATILE))


def bus_id(handle: Handle) -> str:
    """Return the PCI address as the kernel writes it."""
    return kernel_address(call(pynvml.nvmlDeviceGetPciInfo_v3, handle).busId)


def ancestor(left: Handle, right: Handle) -> Ancestor:
    """Return where the PCIe paths of two cards meet; the farthest place for a level that only newer drivers know."""
    return ANCESTORS.get(int(call(pynvml.nvmlDeviceGetTopologyCommonAncestor, left, right)), "System")


def peer_to_peer(left: Handle, right: Handle) -> bool:
    """Return whether the driver lets one card read the other."""
    return bool(call(pynvml.nvmlDeviceGetP2PStatus, left, right, P2P_READ) == pynvml.NVML_P2P_STATUS_OK)


def nvlink_is_active(handle: Handle, link: int) -> bool:
    """Return whether an NVLink is up. For a link that a card does not have, drivers return one of two errors."""
    try:
        return bool(call(pynvml.nvmlDeviceGetNvLinkState, handle, link))
    except NvmlError as error:
        if error.code in {*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            return False
        raise


def nvlink_ends_at_switch(handle: Handle, link: int) -> bool:
    """Return whether an NVLink leads into an NVSwitch. Drivers before 470 do not support it."""
    end = call(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return bool(end == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)


def nvlink_remote(handle: Handle, link: int) -> str:
    """Return the PCI address at the other end of an NVLink; empty if the driver does not report this end."""
    try:
        return kernel_address(call(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link).busId)
    except NvmlError as error:
        if error.code in {*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT}:
            return ""
        raise


def mig_enabled(handle: Handle) -> bool:
    """Return whether MIG mode is on; not supported where the card knows no MIG."""
    return bool(call(pynvml.nvmlDeviceGetMigMode, handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def mig_devices(handle: Handle) -> list[Handle]:
    """Return the MIG devices of a card; their numbers may have gaps."""
    devices = []
    for index in range(int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle))):
        try:
            devices.append(call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return devices


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFacts:
    """What NVML reports of a MIG device."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory: int
    parts: Mapping[str, int]
    """How many of each it has, by the names of GPU Feature Discovery: `multiprocessors`, `slices.gi` …"""


def mig_facts(handle: Handle) -> MigFacts:
    """Describe a MIG device. Its profile stands at the end of its name: `NVIDIA H200 MIG 1g.18gb`."""
    attributes = call(pynvml.nvmlDeviceGetAttributes_v2, handle)
    return MigFacts(
        uuid=uuid(handle),
        profile=name(handle).rpartition(" MIG ")[2],
        gpu_instance=int(call(pynvml.nvmlDeviceGetGpuInstanceId, handle)),
        compute_instance=int(call(pynvml.nvmlDeviceGetComputeInstanceId, handle)),
        memory=int(attributes.memorySizeMB) << 20,
        parts={name: int(getattr(attributes, field)) for name, field in _PARTS.items()},
    )


_PARTS: Final = {
    "multiprocessors": "multiprocessorCount",
    "slices.gi": "gpuInstanceSliceCount",
    "slices.ci": "computeInstanceSliceCount",
    "engines.copy": "sharedCopyEngineCount",
    "engines.decoder": "sharedDecoderCount",
    "engines.encoder": "sharedEncoderCount",
    "engines.jpeg": "sharedJpegCount",
    "engines.ofa": "sharedOfaCount",
}


def compute_capability(handle: Handle) -> tuple[int, int]:
    """Return the CUDA compute capability: (8, 0)."""
    major, minor = call(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return int(major), int(minor)


def is_vgpu(handle: Handle) -> bool:
    """Return whether the card is a part of one, which a hypervisor gave to this machine."""
    return bool(call(pynvml.nvmlDeviceGetVirtualizationMode, handle) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)


def remapping_failed(handle: Handle) -> bool:
    """Return whether a row of memory could not be remapped."""
    return bool(call(pynvml.nvmlDeviceGetRemappedRows, handle)[3])


def retirement_pending(handle: Handle) -> bool:
    """Return whether a page of memory is retired at the next reset. Cards that remap rows do not support this."""
    return bool(call(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle))


def retired_pages(handle: Handle) -> int:
    """Count the pages of memory that are retired."""
    return sum(len(call(pynvml.nvmlDeviceGetRetiredPages, handle, cause)) for cause in RETIREMENT_CAUSES)


def recovery_action(handle: Handle) -> int:
    """Return the recovery action that the driver reports for the card (nvmlDeviceGpuRecoveryAction_t), 0 for none."""
    (value,) = call(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    # Drivers before 560 do not know the field, and report that in the value.
    return int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvent:
    """An event of a card, which may not answer any more."""

    handle: Handle
    kind: int
    """XID_EVENT or DOUBLE_BIT_EVENT."""
    data: int
    """Number of an Xid."""
    gpu_instance: int


def event_set() -> Handle:
    """Return a new set of events to wait for."""
    return call(pynvml.nvmlEventSetCreate)


def register(handle: Handle, events: Handle) -> bool:
    """Register a card's events, and return whether it reports Xids; a card that does not is not watched."""
    event_types = (XID_EVENT | DOUBLE_BIT_EVENT) & int(call(pynvml.nvmlDeviceGetSupportedEventTypes, handle))
    if event_types:
        call(pynvml.nvmlDeviceRegisterEvents, handle, event_types, events)
    return bool(event_types & XID_EVENT)


def wait(events: Handle, milliseconds: int) -> NvmlEvent | None:
    """Return the next event, or None if none came in time. May run in another thread than the other calls."""
    try:
        event = call(pynvml.nvmlEventSetWait_v2, events, milliseconds)
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise
    return NvmlEvent(
        handle=event.device, kind=int(event.eventType), data=int(event.eventData), gpu_instance=int(event.gpuInstanceId)
    )


def free(events: Handle) -> None:
    """Free a set. If the session is lost, the set is already freed."""
    try:
        call(pynvml.nvmlEventSetFree, events)
    except NvmlError as error:
        if not error.lost_session:
            raise


def address(handle: Handle) -> int:
    """Return a value that identifies a handle, also when its card does not answer any more."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def kernel_address(text: str) -> str:
    """Turn NVML's `00000000:3B:00.0` into the kernel's `0000:3b:00.0`; a domain above 16 bits stays whole."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
