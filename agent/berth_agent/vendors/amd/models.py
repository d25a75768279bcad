"""Facts of GPU models that the driver does not report without privilege. Pure functions."""

from typing import Final, NamedTuple


class Model(NamedTuple):
    """A GPU model."""

    name: str
    compute_units: int | None = None
    """Of the whole card; None where the device id stands for models with different numbers."""


MODELS: Final = {
    "66a1": Model("AMD Instinct MI60 / MI50"),
    "66af": Model("AMD Radeon VII", 60),
    "738c": Model("AMD Instinct MI100", 120),
    "7408": Model("AMD Instinct MI250X", 110),
    "740c": Model("AMD Instinct MI250X / MI250"),
    "740f": Model("AMD Instinct MI210", 104),
    "74a0": Model("AMD Instinct MI300A", 228),
    "74a1": Model("AMD Instinct MI300X", 304),
    "74a2": Model("AMD Instinct MI308X", 80),
    "74a5": Model("AMD Instinct MI325X", 304),
    "74a8": Model("AMD Instinct MI308X HF", 80),
    "74a9": Model("AMD Instinct MI300X HF", 304),
    "74b5": Model("AMD Instinct MI300X VF", 304),
    "74b6": Model("AMD Instinct MI308X", 80),
    "74bd": Model("AMD Instinct MI300X HF", 304),
    "75a0": Model("AMD Instinct MI350X", 256),
    "75a3": Model("AMD Instinct MI355X", 256),
    "75b0": Model("AMD Instinct MI350X VF", 256),
    "75b3": Model("AMD Instinct MI355X VF", 256),
    "731f:c1": Model("AMD Radeon RX 5700 XT", 40),
    "731f:c4": Model("AMD Radeon RX 5700", 36),
    "73a1": Model("AMD Radeon Pro V620", 72),
    "73a3": Model("AMD Radeon Pro W6800", 60),
    "73a5": Model("AMD Radeon RX 6950 XT", 80),
    "73bf:c0": Model("AMD Radeon RX 6900 XT", 80),
    "73bf:c1": Model("AMD Radeon RX 6800 XT", 72),
    "73bf:c3": Model("AMD Radeon RX 6800", 60),
    "7448": Model("AMD Radeon Pro W7900", 96),
    "744c:c8": Model("AMD Radeon RX 7900 XTX", 96),
    "744c:cc": Model("AMD Radeon RX 7900 XT", 84),
    "744c:ce": Model("AMD Radeon RX 7900 GRE", 80),
    "745e": Model("AMD Radeon Pro W7800", 70),
    "7460": Model("AMD Radeon Pro V710", 54),
    "7461": Model("AMD Radeon Pro V710 MxGPU", 54),
    "7550:c0": Model("AMD Radeon RX 9070 XT", 64),
    "7550:c3": Model("AMD Radeon RX 9070", 56),
    "7551:c0": Model("AMD Radeon AI PRO R9700", 64),
    "7590:c0": Model("AMD Radeon RX 9060 XT", 32),
}
"""Device id, for some with the revision -> model. Names are libdrm's, compute units are from AMD's data sheets."""


def of(device_id: str, revision: str) -> Model:
    """Return the model of a device id (`740f`) and a revision (`c8`); a model that is not known has its id as name."""
    unknown = Model(f"AMD GPU {device_id or 'of an unknown model'}")
    return MODELS.get(f"{device_id}:{revision}") or MODELS.get(device_id) or unknown
