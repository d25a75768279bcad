"""MIG management of the simulated library, by unmodified nvidia-ml-py."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pynvml
import pytest

from tests.nvml import mig_profiles
from tests.nvml.fixture import Gpu, NvmlFixture, Process, a30, a100, a100_40, h100, mig_uuid, with_profiles

IN_USE: Final = pynvml.NVMLError_InUse
FULL: Final = pynvml.NVMLError_InsufficientResources
ON: Final = pynvml.NVML_DEVICE_MIG_ENABLE
OFF: Final = pynvml.NVML_DEVICE_MIG_DISABLE
EIGHT_SLICES: Final = {
    19: "{0,1,2,3,4,5,6}:1",
    20: "{0,1,2,3,4,5,6}:1",
    15: "{0,2,4,6}:2",
    14: "{0,2,4}:2",
    9: "{0,4}:4",
    5: "{0}:4",
    0: "{0}:8",
}
FOUR_SLICES: Final = {14: "{0,1,2,3}:1", 21: "{0,1,2,3}:1", 5: "{0,2}:2", 6: "{0,2}:2", 0: "{0}:4"}
"""What `nvidia-smi mig -lgipp` prints on real cards: places of GPU instances by profile."""
MEDIA: Final = {20, 21, 6}
"""Profiles with the media engines that a card has once."""

Make = Callable[..., NvmlFixture]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    def build(*gpus: Gpu, **settings: Any) -> NvmlFixture:
        fixture = NvmlFixture(tmp_path, gpus=list(gpus), **settings)
        monkeypatch.setenv("BERTH_NVML_STATE", str(fixture.state))
        fixture.write()
        ctypes.CDLL(str(fixture.library), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        return fixture

    yield build
    pynvml.nvmlShutdown()


def card(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def places(device: Any, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, array, ctypes.byref(count))
    return [(place.start, place.size) for place in array]


def profiles(device: Any) -> dict[int, Any]:
    known = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
        except pynvml.NVMLError_NotSupported:
            continue
        known[info.id] = info
    return known


def create(device: Any, profile: int, start: int, size: int) -> Any:
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, ctypes.byref(place))


def instance_id(instance: Any) -> int:
    return int(pynvml.nvmlGpuInstanceGetInfo(instance).id)


def mig_uuids(device: Any) -> list[str]:
    uuids = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            uuids.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)))
        except pynvml.NVMLError_NotFound:
            continue
    return uuids


def h100_with_profiles(index: int = 0, **fields: Any) -> Gpu:
    return replace(with_profiles(h100(index), mig_profiles.H100_80), **fields)


def a100_80() -> Gpu:
    return with_profiles(a100(), mig_profiles.A100_80)


@pytest.mark.parametrize(
    ("gpu", "table", "whole"),
    [
        (a100_40(), EIGHT_SLICES, "MIG 7g.40gb 98 7 5 1 1 40192"),
        (a100_80(), EIGHT_SLICES, "MIG 7g.80gb 98 7 5 1 1 80896"),
        (h100_with_profiles(), EIGHT_SLICES, "MIG 7g.80gb 132 8 7 7 1 81152"),
        (a30(), FOUR_SLICES, "MIG 4g.24gb 56 4 4 1 1 24000"),
    ],
    ids=["a100-40", "a100-80", "h100-80", "a30"],
)
def test_profiles_and_places_are_those_of_real_cards_in_either_mode(
    machine: Make, gpu: Gpu, table: dict[int, str], whole: str
) -> None:
    for mode in (False, True):
        machine(replace(gpu, mig_mode=mode, mig_pending=mode))
        known = profiles(card())
        printed = {}
        for profile in known:
            starts, sizes = zip(*places(card(), profile), strict=True)
            printed[profile] = f"{{{','.join(map(str, starts))}}}:{sizes[0]}"
        assert printed == table
        info = known[0]
        engines = f"{info.copyEngineCount} {info.decoderCount} {info.jpegCount} {info.ofaCount}"
        assert f"{info.name} {info.multiprocessorCount} {engines} {info.memorySizeMB}" == whole
        first = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card(), 0, version=1)
        assert (first.id, first.memorySizeMB) == (gpu.profiles[0].id, gpu.profiles[0].memory_mib)


@pytest.mark.parametrize("gpu", [a100_40(), a30()], ids=["a100", "a30"])
def test_instances_fit_if_their_places_are_apart_and_the_profile_has_one_left(machine: Make, gpu: Gpu) -> None:
    """Compare each set of instances that can be made with what the public tables allow."""
    machine(replace(gpu, mig_mode=True, mig_pending=True))
    device = card()
    most = {profile: info.instanceCount for profile, info in profiles(device).items()}
    offers = [(profile, start, size) for profile in most for start, size in places(device, profile)]

    def allowed(made: Sequence[tuple[int, int, int]], offer: tuple[int, int, int]) -> bool:
        profile, start, size = offer
        apart = all(start + size <= other or other + width <= start for _, other, width in made)
        media = profile not in MEDIA or not any(other in MEDIA for other, _, _ in made)
        return apart and media and sum(other == profile for other, _, _ in made) < most[profile]

    def walk(made: list[tuple[int, int, int]], first: int) -> int:
        sets = 1
        for index in range(first, len(offers)):
            offer = offers[index]
            try:
                instance = create(device, *offer)
            except FULL:
                assert not allowed(made, offer), (made, offer)
                continue
            assert allowed(made, offer), (made, offer)
            sets += walk([*made, offer], index + 1)
            pynvml.nvmlGpuInstanceDestroy(instance)
        return sets

    # A30: 26 without media engines and 50 with. A100: 38 * 19 + 1 without, 48 * 19 + 38 * 18 with.
    assert walk([], 0) == {40960: 2319, 24576: 76}[gpu.memory >> 20]


def test_places_and_ids_are_chosen_as_a_driver_chooses_them(machine: Make) -> None:
    fixture = machine(h100_with_profiles(mig_mode=True, mig_pending=True))
    made = [pynvml.nvmlDeviceCreateGpuInstance(card(), 19) for _ in range(7)]
    assert [instance_id(instance) for instance in made] == [13, 11, 12, 7, 8, 9, 10]
    with pytest.raises(FULL):
        pynvml.nvmlDeviceCreateGpuInstance(card(), 19)
    pynvml.nvmlGpuInstanceDestroy(made[1])
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(card(), 19) == 1
    again = pynvml.nvmlDeviceCreateGpuInstance(card(), 20)
    assert instance_id(again) == 11
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        create(card(), 14, 6, 2)
    assert len(fixture.gpu_instances(0)) == 7


def test_an_instance_in_use_is_not_destroyed(machine: Make) -> None:
    fixture = machine(h100_with_profiles(mig_mode=True, mig_pending=True))
    instance = create(card(), 9, 4, 4)
    part = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    rest = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE)
    info = pynvml.nvmlComputeInstanceGetInfo(rest)
    assert (info.id, info.placement.start, info.placement.size) == (1, 1, 2)
    assert pynvml.nvmlDeviceGetName(info.device).endswith(" MIG 2c.3g.40gb")
    assert pynvml.nvmlDeviceGetGpuInstanceId(info.device) == instance_id(info.gpuInstance) == 2
    assert mig_uuids(card()) == [mig_uuid(fixture.gpus[0].uuid, 2, compute) for compute in (0, 1)]
    assert fixture.mig_enabled(0)
    with pytest.raises(IN_USE):
        pynvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(IN_USE):
        pynvml.nvmlDeviceSetMigMode(card(), OFF)
    fixture.gpus[0].processes = [Process(pid=7, used=1, gpu_instance=2, compute_instance=1)]
    fixture.write()
    pynvml.nvmlComputeInstanceDestroy(part)
    with pytest.raises(IN_USE):
        pynvml.nvmlComputeInstanceDestroy(rest)
    fixture.gpus[0].processes = []
    fixture.write()
    pynvml.nvmlComputeInstanceDestroy(rest)
    pynvml.nvmlGpuInstanceDestroy(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(card(), 2)
    assert fixture.gpu_instances(0) == []


def test_the_full_compute_instance_is_the_whole_gpu_instance(machine: Make) -> None:
    machine(replace(a30(), mig_mode=True, mig_pending=True))
    instance = pynvml.nvmlDeviceCreateGpuInstance(card(), 5)
    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    )
    assert (info.sliceCount, info.multiprocessorCount, info.name) == (2, 28, "MIG 2g.12gb")
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
    (uuid,) = mig_uuids(card())
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 11968 << 20
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A30 MIG 2g.12gb"
    with pytest.raises(FULL):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
    array, count = (pynvml.c_nvmlGpuInstance_t * 2)(), ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstances(card(), 5, array, ctypes.byref(count))
    assert [instance_id(one) for one in array[: count.value]] == [instance_id(instance)]
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, ctypes.byref(count))
    pynvml.nvmlComputeInstanceDestroy(compute)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(device)


def test_before_hopper_the_mode_waits_for_a_reset_and_outlives_a_boot(machine: Make) -> None:
    fixture = machine(a100_40())
    with pytest.raises(pynvml.NVMLError_NotSupported):
        create(card(), 19, 0, 1)
    assert pynvml.nvmlDeviceSetMigMode(card(), ON) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(card()) == [OFF, ON]
    fixture.reset(0)
    assert pynvml.nvmlDeviceGetMigMode(card()) == [ON, ON]
    create(card(), 19, 0, 1)
    fixture.reboot(minors=[5])
    assert pynvml.nvmlDeviceGetMigMode(card()) == [ON, ON]
    assert pynvml.nvmlDeviceGetMinorNumber(card()) == 5
    assert fixture.gpu_instances(0) == []
    fixture.gpus[0].mig_idle = True
    fixture.write()
    assert pynvml.nvmlDeviceSetMigMode(card(), OFF) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(card()) == [OFF, OFF]


def test_from_hopper_on_the_mode_changes_at_once_and_ends_with_a_boot(machine: Make) -> None:
    fixture = machine(h100_with_profiles(), h100_with_profiles(1), mig_renumbers=True)
    assert pynvml.nvmlDeviceSetMigMode(card(), ON) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(card()) == [ON, ON]
    assert pynvml.nvmlDeviceGetMinorNumber(card()) == 2
    create(card(), 0, 0, 8)
    fixture.reboot()
    assert pynvml.nvmlDeviceGetMigMode(card()) == [OFF, OFF]
    assert fixture.gpu_instances(0) == []
    fixture.gpus[0].processes = [Process(pid=7, used=1)]
    fixture.write()
    with pytest.raises(IN_USE):
        pynvml.nvmlDeviceSetMigMode(card(), ON)


def in_child(work: Callable[[], object], crash: str) -> int:
    """Run a function in another process, and return the status with which it ended."""
    child = os.fork()
    if not child:
        try:
            os.environ["BERTH_NVML_CRASH"] = crash
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize(("crash", "expected"), [("1", 0), ("1+", 1), ("2", 1), ("2+", 2), ("3", 2)])
def test_what_a_killed_process_made_stays(machine: Make, crash: str, expected: int) -> None:
    fixture = machine(h100_with_profiles(mig_mode=True, mig_pending=True))
    device = card()

    def work() -> None:
        create(device, 19, 0, 1)
        pynvml.nvmlGpuInstanceCreateComputeInstance(create(device, 9, 4, 4), 2)

    assert in_child(work, crash) == signal.SIGKILL
    assert len(fixture.gpu_instances(0)) == expected
    assert mig_uuids(device) == []
    assert instance_id(create(device, 14, 2, 2)) == 4
