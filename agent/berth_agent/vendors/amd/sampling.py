"""Samples of cards for metrics. What a card does not report, or not now, is omitted."""

from pathlib import Path
from typing import Final

from berth_agent.readings import CardSample, MemoryUse
from berth_agent.vendors.amd.attributes import Attributes
from berth_agent.vendors.amd.health import MILLI, hwmon

WHOLE: Final = 100
MICRO: Final = 10**6


def sample(folder: Path) -> CardSample:
    """Return what the card with this folder measures now."""
    # Without a memory: a value of before is no measurement of now.
    attributes = Attributes()
    sensors = hwmon(attributes, folder)
    powers = [attributes.number(sensors / name) for name in ("power1_average", "power1_input")]
    power = next((value for value in powers if value is not None), None)
    limit = attributes.number(sensors / "power1_cap")
    edge = attributes.number(sensors / "temp1_input")
    hottest = attributes.number(sensors / "temp2_input") if edge is None else edge
    return CardSample(
        memory=_memory(attributes, folder),
        sm_utilization=_ratio(attributes.number(folder / "gpu_busy_percent")),
        memory_utilization=_ratio(attributes.number(folder / "mem_busy_percent")),
        power=None if power is None or power < 0 else power / MICRO,
        power_limit=None if limit is None or limit < 0 else limit / MICRO,
        temperature=None if hottest is None else hottest // MILLI,
    )


def _memory(attributes: Attributes, folder: Path) -> MemoryUse | None:
    total, used = (attributes.number(folder / f"mem_info_vram_{kind}") for kind in ("total", "used"))
    if total is None or used is None or not 0 <= used <= total:
        return None
    return MemoryUse(total=total, used=used, free=total - used)


def _ratio(percent: int | None) -> float | None:
    return percent / WHOLE if percent is not None and 0 <= percent <= WHOLE else None
