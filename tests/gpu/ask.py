"""Call everything in one libnvidia-ml that the agent calls, and print each answer: `python -m tests.gpu.ask`.

It is a program, because a process can load only one libnvidia-ml. It loads the library in BERTH_AGENT_NVML_LIBRARY, or
else the linker's. An answer is a value, or `error 3`. Questions have names: `card 0 nvmlDeviceGetName`.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pynvml as n

Answer = tuple[str, Any]
Answers = dict[str, Any]
Handle = Any

ROOT: Final = Path(__file__).parents[2]
CONTROL: Final = Path("/dev/nvidiactl")
VARIABLE: Final = "BERTH_AGENT_NVML_LIBRARY"
FIXTURE: Final = tuple(ROOT / "tests/nvml" / name for name in ("nvml.c", "mig.c"))
PATIENCE: Final = 120
"""Seconds: a driver without persistence mode takes some for each card."""
HANDLE: Final = "handle"
NO_LIBRARY: Final = "library"
"""The only question if there is no library."""
WITHOUT_CARDS: Final = 1
P2P_READ: Final = 0
WAIT: Final = 10
"""Milliseconds."""
EVENTS: Final = n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeDoubleBitEccError
"""Event types that an idle card does not report."""
SHORT: Final = 4
"""Bytes of a buffer that is too small for any answer."""
CODES: Final = (-1, *range(40), 999, 1000)
LINKS: Final = (*range(n.NVML_NVLINK_MAX_LINKS + 1), 99)
CAUSES: Final = (0, 1)
WRONG_UUIDS: Final = (b"", b"GPU-none", b"GPU-00000000-0000-0000-0000-000000000000", b"MIG-none")

SYSTEM: Final = (n.nvmlSystemGetDriverVersion, n.nvmlSystemGetCudaDriverVersion_v2, n.nvmlDeviceGetCount)
DEVICE: Final = (n.nvmlDeviceGetUUID, n.nvmlDeviceGetName)
CARD: Final = (
    *DEVICE,
    n.nvmlDeviceGetMinorNumber,
    n.nvmlDeviceGetModuleId,
    n.nvmlDeviceGetCudaComputeCapability,
    n.nvmlDeviceGetVirtualizationMode,
    n.nvmlDeviceGetMigMode,
    n.nvmlDeviceGetMaxMigDeviceCount,
    n.nvmlDeviceGetRemappedRows,
    n.nvmlDeviceGetRetiredPagesPendingStatus,
    n.nvmlDeviceGetSupportedEventTypes,
    n.nvmlDeviceGetNumGpuCores,
    n.nvmlDeviceGetMemoryBusWidth,
    n.nvmlDeviceGetEnforcedPowerLimit,
    n.nvmlDeviceGetSupportedClocksEventReasons,
)
MEASURED: Final[Mapping[str, Callable[[Handle], Any]]] = {
    "nvmlDeviceGetMemoryInfo_v2": lambda card: n.nvmlDeviceGetMemoryInfo(card, n.nvmlMemory_v2),
    "nvmlDeviceGetClockInfo": lambda card: n.nvmlDeviceGetClockInfo(card, n.NVML_CLOCK_SM),
    "nvmlDeviceGetTemperature": lambda card: n.nvmlDeviceGetTemperature(card, n.NVML_TEMPERATURE_GPU),
    "nvmlDeviceGetTotalEccErrors": lambda card: n.nvmlDeviceGetTotalEccErrors(card, 0, n.NVML_VOLATILE_ECC),
    **{
        function.__name__: function
        for function in (
            n.nvmlDeviceGetUtilizationRates,
            n.nvmlDeviceGetEncoderUtilization,
            n.nvmlDeviceGetDecoderUtilization,
            n.nvmlDeviceGetPowerUsage,
            n.nvmlDeviceGetCurrentClocksEventReasons,
        )
    },
}
"""What changes all the time: only whether the card reports it is compared."""
INSTANCE: Final = (n.nvmlDeviceGetGpuInstanceId, n.nvmlDeviceGetComputeInstanceId)


def ask(variables: Mapping[str, str]) -> Answers:
    """Ask in a separate process, with these environment variables set."""
    command = [sys.executable, "-m", "tests.gpu.ask"]
    environment = os.environ | variables
    had_control = CONTROL.exists()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    if not had_control:
        # The real library creates it as root, even where there is no driver.
        CONTROL.unlink(missing_ok=True)
    return dict(json.loads(done.stdout))


def _everything() -> Iterator[Answer]:
    """Ask before a session, in one, and after it."""
    try:
        ctypes.CDLL(os.environ.get(VARIABLE, "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        yield NO_LIBRARY, str(error)
        return
    n._LoadNvmlLibrary()
    yield from _library()
    yield from _without_session("before")
    opened = _answer(n.nvmlInitWithFlags, WITHOUT_CARDS)
    yield "nvmlInitWithFlags", opened
    if not _failed(opened):
        yield from _session()
        yield "nvmlShutdown", _answer(n.nvmlShutdown)
    yield from _without_session("after")


def _library() -> Iterator[Answer]:
    """Ask what needs no driver. Only functions that the fixture has are compared."""
    yield "nvmlSystemGetNVMLVersion", re.sub(r"\d+(\.\d+)+", "a version", _text("nvmlSystemGetNVMLVersion", 80))
    yield "nvmlSystemGetNVMLVersion short", _text("nvmlSystemGetNVMLVersion", SHORT)
    for code in CODES:
        yield f"nvmlErrorString {code}", n.nvmlErrorString(n.c_uint(code))
    for name in sorted({name for file in FIXTURE for name in re.findall(r"\bnvml[A-Z]\w+", file.read_text())}):
        yield f"has {name}", hasattr(n.nvmlLib, name)


def _without_session(when: str) -> Iterator[Answer]:
    for function in SYSTEM:
        yield f"{when} {function.__name__}", _answer(function)
    yield f"{when} nvmlDeviceGetHandleByIndex", _answer(n.nvmlDeviceGetHandleByIndex, 0)
    yield f"{when} nvmlDeviceGetName of nothing", _answer(n.nvmlDeviceGetName, None)
    yield f"{when} nvmlEventSetCreate", _answer(n.nvmlEventSetCreate)
    yield f"{when} nvmlEventSetFree of nothing", _answer(n.nvmlEventSetFree, None)
    yield f"{when} nvmlShutdown", _answer(n.nvmlShutdown)


def _session() -> Iterator[Answer]:
    for function in SYSTEM:
        yield function.__name__, _answer(function)
    yield "nvmlSystemGetDriverVersion short", _text("nvmlSystemGetDriverVersion", SHORT)
    count = n.nvmlDeviceGetCount()
    cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    for at, card in enumerate(cards):
        yield from ((f"card {at} {name}", answer) for name, answer in _card(card))
        yield from ((f"card {at} {name}", answer) for name, answer in _instances(card))
        for to, other in enumerate(cards):
            if to != at:
                yield from ((f"card {at} to {to} {name}", answer) for name, answer in _pair(card, other))
    yield from _events(cards)
    yield from _wrong(count)


def _card(card: Handle) -> Iterator[Answer]:
    for function in CARD:
        yield function.__name__, _answer(function, card)
    yield "nvmlDeviceGetMemoryInfo", _answer(lambda: n.nvmlDeviceGetMemoryInfo(card).total)
    for name, measure in MEASURED.items():
        yield name, _reported(measure, card)
    yield "nvmlDeviceGetMaxClockInfo", _answer(n.nvmlDeviceGetMaxClockInfo, card, n.NVML_CLOCK_MEM)
    yield "nvmlDeviceGetPciInfo_v3", _answer(lambda: _address(n.nvmlDeviceGetPciInfo_v3(card)))
    yield "nvmlDeviceGetComputeRunningProcesses", _answer(_processes, card)
    yield "nvmlDeviceGetFieldValues", _answer(_recovery_action, card)
    for cause in CAUSES:
        yield f"nvmlDeviceGetRetiredPages {cause}", _answer(_retired, card, cause)
    for link in LINKS:
        yield from _link(card, link)
    for function in DEVICE:
        yield f"{function.__name__} short", _text(function.__name__, SHORT, card)
    # A physical card is not a MIG instance.
    for function in INSTANCE:
        yield function.__name__, _answer(function, card)
    yield (
        "nvmlDeviceGetHandleByUUID of its own",
        _answer(lambda: n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(card)))),
    )


def _link(card: Handle, link: int) -> Iterator[Answer]:
    state = _answer(n.nvmlDeviceGetNvLinkState, card, link)
    yield f"link {link} nvmlDeviceGetNvLinkState", state
    if state == n.NVML_FEATURE_ENABLED:
        yield (
            f"link {link} nvmlDeviceGetNvLinkRemoteDeviceType",
            _answer(n.nvmlDeviceGetNvLinkRemoteDeviceType, card, link),
        )
        yield (
            f"link {link} nvmlDeviceGetNvLinkRemotePciInfo",
            _answer(lambda: n.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId),
        )


def _instances(card: Handle) -> Iterator[Answer]:
    count = _answer(n.nvmlDeviceGetMaxMigDeviceCount, card)
    for at in range(0 if _failed(count) else count):
        instance = _answer(n.nvmlDeviceGetMigDeviceHandleByIndex, card, at)
        yield f"mig {at} nvmlDeviceGetMigDeviceHandleByIndex", instance
        if not _failed(instance):
            for function in (*DEVICE, *INSTANCE):
                yield f"mig {at} {function.__name__}", _answer(function, instance)
            yield f"mig {at} nvmlDeviceGetAttributes_v2", _answer(_attributes, instance)


def _pair(card: Handle, other: Handle) -> Iterator[Answer]:
    yield "nvmlDeviceGetTopologyCommonAncestor", _answer(n.nvmlDeviceGetTopologyCommonAncestor, card, other)
    yield "nvmlDeviceGetP2PStatus", _answer(n.nvmlDeviceGetP2PStatus, card, other, P2P_READ)


def _events(cards: list[Handle]) -> Iterator[Answer]:
    """Ask for events; none is expected to arrive."""
    events = n.nvmlEventSetCreate()
    for at, card in enumerate(cards):
        types = _answer(n.nvmlDeviceGetSupportedEventTypes, card)
        if not _failed(types):
            supported = types & EVENTS
            yield f"card {at} nvmlDeviceRegisterEvents", _answer(n.nvmlDeviceRegisterEvents, card, supported, events)
    yield "nvmlEventSetWait_v2", _answer(n.nvmlEventSetWait_v2, events, WAIT)
    yield "nvmlEventSetFree", _answer(n.nvmlEventSetFree, events)


def _wrong(count: int) -> Iterator[Answer]:
    for index in (count, count + 1000):
        yield f"nvmlDeviceGetHandleByIndex count+{index - count}", _answer(n.nvmlDeviceGetHandleByIndex, index)
    for uuid in WRONG_UUIDS:
        yield f"nvmlDeviceGetHandleByUUID {uuid!r}", _answer(n.nvmlDeviceGetHandleByUUID, uuid)
    yield "nvmlDeviceGetHandleByPciBusId", _answer(n.nvmlDeviceGetHandleByPciBusId, b"ffff:ff:1f.0")


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"error {error.value}"


def _reported(measure: Callable[[Handle], Any], card: Handle) -> Any:
    answer = _answer(measure, card)
    return answer if _failed(answer) else "a value"


def _failed(answer: Any) -> bool:
    return isinstance(answer, str) and answer.startswith("error ")


def _text(name: str, length: int, *device: Handle) -> str:
    """Call a function that fills a buffer of this many bytes."""
    buffer = ctypes.create_string_buffer(length)
    code = n._nvmlGetFunctionPointer(name)(*device, buffer, ctypes.c_uint(length))
    return f"error {code}" if code else buffer.value.decode()


def _address(info: Any) -> list[Any]:
    return [info.busId, info.busIdLegacy, info.domain, info.bus, info.device]


def _processes(card: Handle) -> list[list[int | None]]:
    processes = n.nvmlDeviceGetComputeRunningProcesses(card)
    return [[each.pid, each.usedGpuMemory, each.gpuInstanceId, each.computeInstanceId] for each in processes]


def _retired(card: Handle, cause: int) -> int:
    return len(n.nvmlDeviceGetRetiredPages(card, cause))


def _recovery_action(card: Handle) -> list[int]:
    (value,) = n.nvmlDeviceGetFieldValues(card, [n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return [value.nvmlReturn, value.valueType, value.value.uiVal] if value.nvmlReturn == 0 else [value.nvmlReturn]


def _attributes(instance: Handle) -> list[int]:
    attributes = n.nvmlDeviceGetAttributes_v2(instance)
    return [getattr(attributes, name) for name, _ in attributes._fields_]


if __name__ == "__main__":
    print(json.dumps(dict(_everything()), default=lambda _: HANDLE))  # noqa: T201 -- its result
