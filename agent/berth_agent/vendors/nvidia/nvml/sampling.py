"""Samples of cards for metrics, taken in the thread that owns NVML.

If a call fails, its value is omitted. Readings report that the card fails.
"""

from collections.abc import Callable, Mapping
from typing import Final

from berth_agent.readings import CardSample, MemoryUse
from berth_agent.vendors.nvidia.nvml import library
from berth_agent.vendors.nvidia.nvml.library import Handle, if_reported

WHOLE: Final = 100
MEGA: Final = 10**6
MILLI: Final = 10**3


def sample(handle: Handle) -> CardSample:
    """Return what a card measures now.

    Raises:
        NvmlError: the session is lost.
    """
    sm, memory = if_reported(library.utilization, handle) or (None, None)
    return CardSample(
        memory=if_reported(library.memory_use, handle),
        sm_utilization=_ratio(sm),
        memory_utilization=_ratio(memory),
        encoder_utilization=_ratio(if_reported(library.encoder_utilization, handle)),
        decoder_utilization=_ratio(if_reported(library.decoder_utilization, handle)),
        power=_watts(if_reported(library.power, handle)),
        power_limit=_watts(if_reported(library.power_limit, handle)),
        temperature=if_reported(library.temperature, handle),
        clocks={name: mhz * MEGA for name, mhz in _numbers(handle, CLOCKS).items()},
        throttle_reasons=_throttle_reasons(handle),
        ecc_errors=_numbers(handle, ECC_ERRORS),
        instances=if_reported(_instances, handle) or {},
        processes=if_reported(library.processes, handle) or (),
    )


CLOCKS: Final = {"sm": library.sm_clock, "memory": library.memory_clock}
ECC_ERRORS: Final = {"corrected": library.corrected_errors, "uncorrected": library.uncorrected_errors}


def _numbers(handle: Handle, functions: Mapping[str, Callable[[Handle], int]]) -> dict[str, int]:
    answers = {name: if_reported(function, handle) for name, function in functions.items()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def _ratio(percent: int | None) -> float | None:
    return percent / WHOLE if percent is not None and 0 <= percent <= WHOLE else None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / MILLI


def _throttle_reasons(handle: Handle) -> dict[str, bool]:
    bits = if_reported(library.throttle_reasons, handle)
    supported = if_reported(library.supported_throttle_reasons, handle)
    if bits is None:
        return {}
    return {
        name: bool(bits & bit)
        for bit, name in library.THROTTLE_REASONS.items()
        if supported is None or supported & bit or bits & bit
    }


def _instances(handle: Handle) -> dict[str, MemoryUse]:
    if not library.mig_enabled(handle):
        return {}
    return {
        uuid: memory
        for device in library.mig_devices(handle)
        if (uuid := if_reported(library.uuid, device)) and (memory := if_reported(library.memory_use, device))
    }
