"""Read a machine with AMD's cards from the output of amd-smi. Pure functions, except `ask`."""

import json
import re
import subprocess
from typing import Any, Final

Facts = dict[str, dict[str, str]]
"""What is compared of each card, by its PCI address."""

COMMAND: Final = ("amd-smi", "static", "--asic", "--bus", "--vram", "--numa", "--json")
PATIENCE: Final = 60
"""Longest time in seconds of amd-smi."""
_NUMBER: Final = re.compile(r"(?:0x)?([0-9a-fA-F]+)")


def ask() -> str:
    """Run amd-smi, which only reads."""
    return subprocess.run(COMMAND, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout


def facts(text: str) -> Facts:
    """Return what amd-smi reports. Versions differ in the outer object, and in how amounts have their unit."""
    answer = json.loads(text)
    cards = answer["gpu_data"] if isinstance(answer, dict) else answer
    return {card["bus"]["bdf"].lower(): _card(card) for card in cards}


def _card(card: dict[str, Any]) -> dict[str, str]:
    asic, size = card["asic"], card["vram"]["size"]
    serial = _NUMBER.fullmatch(str(asic["asic_serial"]))
    return {
        # A serial of zeros is none.
        "id": f"{int(serial[1], 16):016x}" if serial and int(serial[1], 16) else "",
        "device": str(asic["device_id"]).removeprefix("0x").lower(),
        "mebibytes": str(size["value"] if isinstance(size, dict) else str(size).split()[0]),
        "units": str(asic.get("num_compute_units", "")),
        "numa": str(card["numa"]["node"]),
    }
