"""Compare what the agent measures for metrics with nvidia-smi. Pure functions, except `ask`.

The two read at different moments. So values may differ by as much as a card can change in between. But both must report
the same kinds of values.
"""

import csv
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

from berth_agent.readings import CardSample
from tests.gpu import smi

Measured = dict[str, dict[str, float | None]]
"""By UUID and by nvidia-smi's name of the field; None is what the card does not report."""

MIB: Final = 1 << 20
MEGA: Final = 10**6
_PERCENT: Final = 100

FIELDS: Final[Mapping[str, tuple[Callable[[CardSample], float | None], float]]] = {
    "memory.used": (lambda sample: sample.memory.used / MIB if sample.memory else None, 512),
    "memory.free": (lambda sample: sample.memory.free / MIB if sample.memory else None, 512),
    "utilization.gpu": (lambda sample: _percent(sample.sm_utilization), _PERCENT),
    "utilization.memory": (lambda sample: _percent(sample.memory_utilization), _PERCENT),
    "power.draw": (lambda sample: sample.power, 150),
    "enforced.power.limit": (lambda sample: sample.power_limit, 0.01),
    "temperature.gpu": (lambda sample: sample.temperature, 10),
    "clocks.current.sm": (lambda sample: _mhz(sample, "sm"), 2000),
    "clocks.current.memory": (lambda sample: _mhz(sample, "memory"), 10000),
    "ecc.errors.corrected.volatile.total": (lambda sample: sample.ecc_errors.get("corrected"), 0),
    "ecc.errors.uncorrected.volatile.total": (lambda sample: sample.ecc_errors.get("uncorrected"), 0),
}
"""Fields of nvidia-smi in its units, how the agent knows them, and by how much the two may differ."""


def of_samples(samples: Mapping[str, CardSample]) -> Measured:
    """Return the agent's samples in nvidia-smi's terms."""
    return {uuid: {name: read(sample) for name, (read, _) in FIELDS.items()} for uuid, sample in samples.items()}


def ask() -> str:
    """Run nvidia-smi, which only reads."""
    command = ["nvidia-smi", f"--query-gpu=uuid,{','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=smi.PATIENCE).stdout


def of_smi(text: str) -> Measured:
    """Return what nvidia-smi printed."""
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return {uuid: dict(zip(FIELDS, map(_number, values), strict=True)) for uuid, *values in lines}


def differences(agent: Measured, nvidia_smi: Measured) -> list[str]:
    """Return each field in which the agent and nvidia-smi differ by more than a card changes in a moment."""
    cards = sorted(agent.keys() | nvidia_smi.keys())
    return [
        f"{uuid} {name}: agent {mine}, nvidia-smi {its}"
        for uuid in cards
        for name, (_, tolerance) in FIELDS.items()
        if not _alike(mine := agent.get(uuid, {}).get(name), its := nvidia_smi.get(uuid, {}).get(name), tolerance)
    ] + [f"{uuid}: only one of them lists it" for uuid in cards if (uuid in agent) != (uuid in nvidia_smi)]


def _alike(mine: float | None, its: float | None, tolerance: float) -> bool:
    if mine is None or its is None:
        return mine is its
    return abs(mine - its) <= tolerance


def _number(text: str) -> float | None:
    normalized = smi.normalized(text)
    return None if normalized == "N/A" else float(normalized)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * _PERCENT


def _mhz(sample: CardSample, clock: str) -> float | None:
    return sample.clocks[clock] / MEGA if clock in sample.clocks else None
