"""GPU models for simulated nodes, with the figures that `nvidia-smi` shows for the real ones."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from berth_api import quantity


def _amount(text: str) -> str:
    return quantity.format_bytes(quantity.parse(text))


class CardProfile(BaseModel):
    """One GPU model, and how a machine with such cards is built."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    """The driver's name for it."""
    memory: Annotated[str, AfterValidator(_amount)]
    """Memory of one card."""
    nvlinks: Annotated[int, Field(ge=0, le=64)] = 0
    """NVLinks of each card into an NVSwitch, by which it reaches all others."""
    mesh: tuple[tuple[int, int, int], ...] = ()
    """Direct NVLinks without NVSwitch: one minor, another, and how many."""
    per_switch: Annotated[int, Field(ge=0, le=6)] = 2
    """Cards behind one PCIe switch; 0 gives each card a root complex of its own."""
    mig: bool = False
    """Whether the card is capable of MIG."""
    driver: str = "570.133.20"
    """Driver of the node."""
    cuda: str = "12.8"
    """Newest CUDA of that driver."""


# Eight V100 in a hybrid cube mesh: each has six links, two of them to two of its neighbours.
_CUBE_MESH: Final = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)

BUILT_IN: Final = {
    "a100": CardProfile(model="NVIDIA A100-SXM4-80GB", memory="81920Mi", nvlinks=12, mig=True),
    "a100-40": CardProfile(model="NVIDIA A100-SXM4-40GB", memory="40960Mi", nvlinks=12, mig=True),
    "a100-pcie": CardProfile(model="NVIDIA A100 80GB PCIe", memory="81920Mi", mig=True),
    "h100": CardProfile(model="NVIDIA H100 80GB HBM3", memory="81559Mi", nvlinks=18, mig=True),
    "h200": CardProfile(model="NVIDIA H200", memory="143771Mi", nvlinks=18, mig=True),
    "b200": CardProfile(model="NVIDIA B200", memory="183359Mi", nvlinks=18, mig=True),
    "v100": CardProfile(model="Tesla V100-SXM2-32GB", memory="32768Mi", mesh=_CUBE_MESH),
    "t4": CardProfile(model="Tesla T4", memory="15360Mi", per_switch=0),
    "l4": CardProfile(model="NVIDIA L4", memory="23034Mi", per_switch=0),
    "l40s": CardProfile(model="NVIDIA L40S", memory="46068Mi"),
    "a10": CardProfile(model="NVIDIA A10", memory="23028Mi"),
    "a30": CardProfile(model="NVIDIA A30", memory="24576Mi", mig=True),
}
