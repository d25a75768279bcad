"""Static facts of GPU models that NVML does not report directly. Pure functions.

NVML reports cores and the width of the memory bus. It reports the number of video engines only for MIG instances.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

Capability = tuple[int, int]
"""CUDA compute capability: (8, 0)."""

CORES: Final[dict[Capability, int]] = {
    **dict.fromkeys(((3, 0), (3, 5), (3, 7)), 192),
    **dict.fromkeys(((5, 0), (5, 2), (5, 3), (6, 1), (6, 2)), 128),
    **dict.fromkeys(((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)), 128),
}
"""FP32 cores of one multiprocessor, as `helper_cuda.h` of NVIDIA's CUDA samples lists them."""
RATE: Final = 2
"""Transfers in one cycle of the memory clock that NVML reports: all memories of these cards are DDR."""

VIDEO_ENGINES: Final = {
    **dict.fromkeys(("A100", "A800"), (0, 5)),
    "A30": (0, 4),
    **dict.fromkeys(("H100", "H800", "H200", "H20", "GH200"), (0, 7)),
    **dict.fromkeys(("A2", "A10", "A16", "A40", "RTX A6000", "RTX A5500", "RTX A5000"), (1, 2)),
    "L4": (2, 4),
    **dict.fromkeys(("L40", "L40S", "RTX 6000 Ada"), (3, 3)),
    "T4": (1, 2),
    **dict.fromkeys(("V100", "V100S", "P100"), (3, 1)),
    **dict.fromkeys(("P4", "P40"), (2, 1)),
}
"""Model -> its NVENC and NVDEC, as NVIDIA's Video Encode and Decode Support Matrix lists them. Only models with certain
numbers are listed: a wrong number would mislead a score, a missing number counts for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Static facts of one card; None where they are not known."""

    multiprocessors: int | None = None
    memory_bandwidth: str | None = None
    """A quantity in bytes per second."""
    encoders: int | None = None
    decoders: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the known capabilities, by the names of the fields of a DeviceInfo."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def multiprocessors(cores: int, capability: Capability) -> int | None:
    """Return the number of multiprocessors of a card with so many cores."""
    cores_of_one = CORES.get(capability)
    return cores // cores_of_one if cores_of_one and cores and cores % cores_of_one == 0 else None


def memory_bandwidth(bus_bits: int, clock_mhz: int) -> str | None:
    """Return the peak bandwidth of the memory in bytes per second: `2039040M`."""
    return f"{bus_bits * clock_mhz * RATE // 8}M" if bus_bits and clock_mhz else None


def video_engines(model: str) -> tuple[int, int] | None:
    """Return how many encoders and decoders a model has: `NVIDIA A100-SXM4-80GB` has none and five."""
    text = f" {model.replace('-', ' ')} "
    # "RTX A6000" and "RTX 6000 Ada" contain the name of no other model.
    return next((engines for name, engines in VIDEO_ENGINES.items() if f" {name} " in text), None)
