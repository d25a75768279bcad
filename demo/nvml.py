"""The cards of the node whose agent uses a C library: unequal ones, so that each must count by its own memory."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.nvml.fixture import NvmlFixture, a100, t4

A100S: Final = 4


def machine(folder: Path) -> NvmlFixture:
    """Put a machine with four A100 and one T4 into a folder."""
    # The T4 comes with minor 0; here the A100s have the first ones.
    fixture = NvmlFixture(folder, gpus=[*map(a100, range(A100S)), replace(t4(), minor=A100S)])
    fixture.write()
    return fixture
