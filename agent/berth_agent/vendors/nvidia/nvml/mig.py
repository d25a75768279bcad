"""Typed calls of MIG management: profiles, placements, GPU instances and compute instances.

Profiles are asked for by the numbers of an enumeration, and all other calls take the profile's id. The same id is
another profile on another card. All calls need the right that decision 40 describes.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from berth_agent.vendor import PartitionProfile
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError, call

IN_USE: Final = int(pynvml.NVML_ERROR_IN_USE)
NO_ROOM: Final = int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
NOT_FOUND: Final = int(pynvml.NVML_ERROR_NOT_FOUND)
ABSENT: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    # What a driver says about numbers that are newer than itself.
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
}
SHARED_ENGINES: Final = int(pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)


ENGINES: Final = {
    "multiprocessors": "multiprocessorCount",
    "copyEngines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpegEngines": "jpegCount",
    "ofaEngines": "ofaCount",
}
"""Names of NVIDIA's own driver for the capacities of a device, and NVML's."""


def changes_mode_at_once(handle: Handle) -> bool:
    """Return whether the card needs no reset to change its MIG mode: from Hopper on."""
    return bool(call(pynvml.nvmlDeviceGetArchitecture, handle) >= pynvml.NVML_DEVICE_ARCH_HOPPER)


def set_mode(handle: Handle, *, on: bool) -> None:
    """Turn the MIG mode of a card on or off. Handles and minors from before are not valid afterwards.

    Raises:
        NvmlError: the call failed, or the mode waits for a reset.
    """
    mode = pynvml.NVML_DEVICE_MIG_ENABLE if on else pynvml.NVML_DEVICE_MIG_DISABLE
    activation = call(pynvml.nvmlDeviceSetMigMode, handle, mode)
    if activation != pynvml.NVML_SUCCESS:
        error = pynvml.NVMLError(activation)
        reason = type(error).__name__.removeprefix("NVMLError_")
        raise NvmlError(str(error), reason=reason, code=activation, function=pynvml.nvmlDeviceSetMigMode.__name__)


def profiles(handle: Handle) -> tuple[PartitionProfile, ...]:
    """Return the kinds of GPU instances of a card, in the order of NVML's enumeration. The mode does not matter."""
    return tuple(
        PartitionProfile(
            id=int(info.id),
            name=str(info.name).removeprefix("MIG "),
            slices=int(info.sliceCount),
            instances=int(info.instanceCount),
            memory_mib=int(info.memorySizeMB),
            engines={name: int(getattr(info, field)) for name, field in ENGINES.items()},
            size=places[0].size,
            starts=tuple(int(place.start) for place in places),
        )
        for info in _known(
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, count=pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
        )
        if (places := _placements(handle, int(info.id)))
    )


def _known(function: Callable[..., Any], *arguments: Any, count: int, more: tuple[Any, ...] = ()) -> Iterator[Any]:
    for number in range(count):
        try:
            yield call(function, *arguments, number, *more)
        except NvmlError as error:
            if error.code not in ABSENT:
                raise


def _placements(handle: Handle, profile: int) -> list[Any]:
    count = ctypes.c_uint()
    call(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, array, ctypes.byref(count))
    return list(array[: count.value])


def gpu_instances(handle: Handle, profile: PartitionProfile) -> list[Any]:
    """Return the GPU instances of a profile on a card in MIG mode."""
    count, array = ctypes.c_uint(), (pynvml.c_nvmlGpuInstance_t * profile.instances)()
    call(pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, array, ctypes.byref(count))
    return list(array[: count.value])


def gpu_instance(handle: Handle, number: int) -> Any:
    """Return a GPU instance by its id."""
    return call(pynvml.nvmlDeviceGetGpuInstanceById, handle, number)


def gpu_instance_info(instance: Any) -> Any:
    """Return NVML's description of a GPU instance: `id`, `profileId`, `placement`."""
    return call(pynvml.nvmlGpuInstanceGetInfo, instance)


def create_gpu_instance(handle: Handle, profile: int, *, start: int, size: int) -> None:
    """Make a GPU instance at a placement."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    call(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, handle, profile, ctypes.byref(place))


def destroy_gpu_instance(instance: Any) -> None:
    """Destroy a GPU instance without compute instances."""
    call(pynvml.nvmlGpuInstanceDestroy, instance)


def processes_in(handle: Handle, instance: int | None) -> tuple[int, ...]:
    """Return the process ids of the host of what computes in a GPU instance, or anywhere on the card."""
    processes = call(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return tuple(sorted({int(process.pid) for process in processes if instance in {None, process.gpuInstanceId}}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A compute instance."""

    id: int
    slices: int
    device: Handle
    """Its MIG device."""


def compute_instances(instance: Any) -> list[Compute]:
    """Return the compute instances of a GPU instance."""
    computes = []
    for profile in _compute_profiles(instance):
        count, array = ctypes.c_uint(), (pynvml.c_nvmlComputeInstance_t * max(1, profile.instanceCount))()
        call(pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile.id, array, ctypes.byref(count))
        for compute in array[: count.value]:
            info = call(pynvml.nvmlComputeInstanceGetInfo, compute)
            computes.append(Compute(id=int(info.id), slices=int(profile.sliceCount), device=info.device))
    return computes


def _compute_profiles(instance: Any) -> Iterator[Any]:
    """Return the kinds of compute instances; of several with the same slices, the first is the usual one."""
    function, count = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
    return _known(function, instance, count=count, more=(SHARED_ENGINES,))


def create_whole_compute_instance(instance: Any, *, slices: int) -> None:
    """Make the compute instance that has all compute slices of a GPU instance.

    Raises:
        NvmlError: it cannot be made, or there is no such kind.
    """
    for profile in _compute_profiles(instance):
        if profile.sliceCount == slices:
            call(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile.id)
            return
    raise NvmlError(f"no compute instance of {slices} slices", reason="NotFound", code=NOT_FOUND)


def destroy_compute_instance(instance: Any, number: int) -> None:
    """Destroy a compute instance."""
    compute = call(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, number)
    call(pynvml.nvmlComputeInstanceDestroy, compute)
