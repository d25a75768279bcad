"""Read the figures of a card from which its health follows."""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from berth_agent.vendors.amd.attributes import TABLE, Attributes
from berth_agent.vendors.amd.rules import CardFigures, Sensor

MILLI: Final = 1000
SENSORS: Final = {"temp1": "the edge", "temp2": "the junction", "temp3": "the memory"}
GONE: Final = "\ufffd\ufffd"
"""How the first bytes of a card that fell off the bus read: two bytes 0xff, which are no text."""
_BLOCK: Final = re.compile(r"([a-z0-9_]{1,32})_err_count")
_COUNTS: Final = re.compile(r"ue: ([0-9]{1,18})\b")
_PAGE: Final = re.compile(r"^0x[0-9a-f]+ : 0x[0-9a-f]+ : ([RPF])$", re.MULTILINE)


def measured(attributes: Attributes, folder: Path) -> CardFigures:
    """Return the figures of the card with this folder; the last ones while the driver does not report them."""
    # Never `xgmi_error`, which the driver clears when it is read.
    uncorrectable = {}
    for name in attributes.names(folder / "ras"):
        if block := _BLOCK.fullmatch(name):
            # During a recovery, it is a sentence.
            counts = _COUNTS.match(attributes.text(folder / "ras" / name, form=_COUNTS))
            if counts and int(counts[1]):
                uncorrectable[block[1]] = int(counts[1])
    pages = Counter(_PAGE.findall(attributes.text(folder / "ras/gpu_vram_bad_pages", limit=TABLE)))
    return CardFigures(
        uncorrectable=uncorrectable,
        retired_pages=pages["R"],
        pending_pages=pages["P"],
        failed_pages=pages["F"],
        sensors=_sensors(attributes, folder),
        fell_off=attributes.text(folder / "config", limit=2) == GONE,
    )


def hwmon(attributes: Attributes, folder: Path) -> Path:
    """Return the folder of a card's sensors; one that does not exist if it has none."""
    return folder / "hwmon" / next(iter(attributes.names(folder / "hwmon")), "none")


def _sensors(attributes: Attributes, folder: Path) -> tuple[Sensor, ...]:
    at, sensors = hwmon(attributes, folder), []
    for prefix, name in SENSORS.items():
        value, limit = (attributes.number(at / f"{prefix}_{kind}") for kind in ("input", "crit"))
        if value is not None and limit is not None and limit > 0:
            sensors.append(Sensor(name, value / MILLI, limit / MILLI))
    return tuple(sensors)
