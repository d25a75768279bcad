"""Describe a machine as a fixture, from its library's answers. The fixture must give the same answers. Pure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pynvml as n

from tests.gpu.ask import CARD, LINKS, MEASURED, Answers
from tests.nvml.fixture import Gpu, MigDevice, NvLink, NvmlFixture, Process

_OTHERS: Final = {
    "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetRetiredPages 0": "nvmlDeviceGetRetiredPages",
    **{
        name: name
        for name in (
            *MEASURED,
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetMaxClockInfo",
            "nvmlDeviceGetPciInfo_v3",
            "nvmlDeviceGetFieldValues",
        )
    },
}
_MAY_FAIL: Final = {function.__name__: function.__name__ for function in CARD} | _OTHERS
"""Functions of a card that can fail, and their names in the library."""
OLDEST_CODES: Final = 28
"""Number of error codes with a text in the oldest drivers that the agent supports; later drivers added some."""
CLOSED_TWICE: Final = {"before nvmlShutdown", "after nvmlShutdown"}
"""Drivers up to 555 answer this with success, later ones with an error."""
NOT_AVAILABLE: Final = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: the memory of a process if the driver does not report it."""
_ENDS: Final = {0: "gpu", 2: "switch"}


class _Card:
    """The answers of one card."""

    def __init__(self, answers: Answers, index: int) -> None:
        start = f"card {index} "
        self._answers = {name.removeprefix(start): each for name, each in answers.items() if name.startswith(start)}

    def get(self, name: str, default: Any) -> Any:
        """Return an answer, or the default if the call failed."""
        answer = self._answers.get(name, default)
        return default if _is_error(answer) else answer

    def fails(self) -> dict[str, int]:
        """Return the functions that fail for the card, and their error codes."""
        return {
            function: int(str(answer).split()[1])
            for name, function in _MAY_FAIL.items()
            if _is_error(answer := self._answers[name])
        }


def describe(answers: Answers, folder: Path) -> NvmlFixture:
    """Return the machine as a fixture in a folder."""
    fixture = NvmlFixture(folder, loaded=not _is_error(answers["nvmlInitWithFlags"]))
    if fixture.loaded:
        fixture.driver = answers["nvmlSystemGetDriverVersion"]
        fixture.cuda = answers["nvmlSystemGetCudaDriverVersion_v2"]
        cards = [_Card(answers, index) for index in range(answers["nvmlDeviceGetCount"])]
        fixture.gpus = [_gpu(card) for card in cards]
        for at, card in enumerate(cards):
            _place(fixture.gpus, at, card)
    return fixture


def _gpu(card: _Card) -> Gpu:
    capability, mode = card.get("nvmlDeviceGetCudaComputeCapability", [0, 0]), card.get("nvmlDeviceGetMigMode", None)
    remapped, action = card.get("nvmlDeviceGetRemappedRows", [0] * 4), card.get("nvmlDeviceGetFieldValues", [0, 1, 0])
    bus_id = card.get("nvmlDeviceGetPciInfo_v3", ["00000000:00:00.0"])[0]
    return Gpu(
        uuid=card.get("nvmlDeviceGetUUID", "GPU-untold"),
        name=card.get("nvmlDeviceGetName", ""),
        minor=card.get("nvmlDeviceGetMinorNumber", 0),
        module=card.get("nvmlDeviceGetModuleId", 0),
        bus_id=bus_id,
        sysfs=f"pci0000:00/{bus_id[4:].lower()}",
        memory=card.get("nvmlDeviceGetMemoryInfo", 0),
        major_capability=capability[0],
        minor_capability=capability[1],
        cores=card.get("nvmlDeviceGetNumGpuCores", 0),
        bus_width=card.get("nvmlDeviceGetMemoryBusWidth", 0),
        max_memory_clock=card.get("nvmlDeviceGetMaxClockInfo", 0),
        power_limit=card.get("nvmlDeviceGetEnforcedPowerLimit", 0),
        supported_reasons=card.get("nvmlDeviceGetSupportedClocksEventReasons", 0),
        virtualization=card.get("nvmlDeviceGetVirtualizationMode", 0),
        event_types=card.get("nvmlDeviceGetSupportedEventTypes", 0),
        mig_capable=mode is not None,
        mig_mode=bool(mode and mode[0]),
        mig_pending=bool(mode and mode[1]),
        remapped_corrected=remapped[0],
        remapped_uncorrected=remapped[1],
        remapped_pending=bool(remapped[2]),
        remapped_failure=bool(remapped[3]),
        retired_pages=card.get("nvmlDeviceGetRetiredPages 1", 0),
        retired_pending=bool(card.get("nvmlDeviceGetRetiredPagesPendingStatus", 0)),
        recovery_action=action[-1],
        links=list(_links(card)),
        migs=list(_migs(card)),
        processes=[
            Process(
                pid=pid, used=NOT_AVAILABLE if used is None else used, gpu_instance=instance, compute_instance=compute
            )
            for pid, used, instance, compute in card.get("nvmlDeviceGetComputeRunningProcesses", [])
        ],
        fails=card.fails(),
    )


def _links(card: _Card) -> Iterator[NvLink]:
    for link in LINKS:
        active = card.get(f"link {link} nvmlDeviceGetNvLinkState", None)
        if active is not None:
            end = card.get(f"link {link} nvmlDeviceGetNvLinkRemoteDeviceType", 0)
            remote = card.get(f"link {link} nvmlDeviceGetNvLinkRemotePciInfo", "-")
            yield NvLink(end=_ENDS.get(end, "gpu"), remote=remote, active=bool(active))


def _migs(card: _Card) -> Iterator[MigDevice]:
    for at in range(card.get("nvmlDeviceGetMaxMigDeviceCount", 0)):
        if (uuid := card.get(f"mig {at} nvmlDeviceGetUUID", None)) is not None:
            count, copy, decoders, encoders, jpegs, ofas, slices, compute, memory = card.get(
                f"mig {at} nvmlDeviceGetAttributes_v2", [0] * 9
            )
            yield MigDevice(
                uuid=uuid,
                profile=card.get(f"mig {at} nvmlDeviceGetName", "").rpartition(" MIG ")[2],
                gpu_instance=card.get(f"mig {at} nvmlDeviceGetGpuInstanceId", 0),
                compute_instance=card.get(f"mig {at} nvmlDeviceGetComputeInstanceId", 0),
                gpu_slices=slices,
                compute_slices=compute,
                memory_mib=memory,
                multiprocessors=count,
                copy_engines=copy,
                decoders=decoders,
                encoders=encoders,
                jpegs=jpegs,
                ofas=ofas,
            )


def _place(gpus: list[Gpu], at: int, card: _Card) -> None:
    """Record how one card reaches the others."""
    for to, other in enumerate(gpus):
        if to != at:
            gpus[at].topology[other.uuid] = card.get(f"to {to} nvmlDeviceGetTopologyCommonAncestor", 0)
            gpus[at].p2p[other.uuid] = card.get(f"to {to} nvmlDeviceGetP2PStatus", 0)


def _is_error(answer: Any) -> bool:
    return isinstance(answer, str) and answer.startswith("error ")


def differences(real: Answers, fixture: Answers) -> list[str]:
    """Return each question to which the two answers differ, except where one library is only older."""
    return [
        f"{name}: real {mine!r}, fixture {its!r}"
        for name in sorted(real.keys() | fixture.keys())
        if (mine := real.get(name)) != (its := fixture.get(name)) and not _is_age(name, mine, its)
    ]


def _is_age(name: str, *answers: Any) -> bool:
    """Return whether the answers differ only because one library is older."""
    if name in CLOSED_TWICE:
        return set(answers) <= {None, f"error {n.NVML_ERROR_UNINITIALIZED}"}
    question, _, code = name.partition(" ")
    return question == "nvmlErrorString" and int(code) >= OLDEST_CODES and "Unknown Error" in answers
