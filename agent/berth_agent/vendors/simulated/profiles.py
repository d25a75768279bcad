"""GPU models for simulated nodes, with the figures that `nvidia-smi` and `amd-smi` show for the real ones."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from berth_api.resources import quantity


def _amount(text: str) -> str:
    return quantity.format_bytes(quantity.parse(text))


def _quantity(text: str) -> str:
    quantity.parse(text)
    return text


class CardProfile(BaseModel):
    """One GPU model, and how a machine with such cards is built."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vendor: Literal["nvidia", "amd"] = "nvidia"
    """Whose card it is; all cards of a node are of one vendor."""
    model: str
    """The driver's name for it."""
    memory: Annotated[str, AfterValidator(_amount)]
    """Memory of one card."""
    multiprocessors: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Streaming multiprocessors of one card, or AMD's compute units."""
    memory_bandwidth: Annotated[str, AfterValidator(_quantity)] | None = None
    """Peak bandwidth of its memory in bytes per second."""
    nvlinks: Annotated[int, Field(ge=0, le=64)] = 0
    """NVLinks of each card into an NVSwitch, which connects it with all other cards."""
    mesh: tuple[tuple[int, int, int], ...] = ()
    """Direct NVLinks without NVSwitch: one minor, another, and how many."""
    hive: Annotated[int, Field(ge=0, le=64)] = 0
    """Cards that are connected by XGMI, each with each other: minors 0 to 3, 4 to 7 and so on for a hive of 4."""
    per_switch: Annotated[int, Field(ge=0, le=6)] = 2
    """Cards behind one PCIe switch; 0 gives each card a root complex of its own."""
    mig: bool = False
    """Whether the card is capable of MIG."""
    driver: str = "570.133.20"
    """Driver of the node."""
    cuda: str = "12.8"
    """Newest CUDA of that driver; empty for cards of AMD."""


# Eight V100 in a hybrid cube mesh: each has six links, two of them to two of its neighbours.
_CUBE_MESH: Final = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)

BUILT_IN: Final = {
    "a100": CardProfile(
        model="NVIDIA A100-SXM4-80GB",
        memory="81920Mi",
        nvlinks=12,
        mig=True,
        multiprocessors=108,
        memory_bandwidth="2039040M",
    ),
    "a100-40": CardProfile(
        model="NVIDIA A100-SXM4-40GB",
        memory="40960Mi",
        nvlinks=12,
        mig=True,
        multiprocessors=108,
        memory_bandwidth="1555200M",
    ),
    "a100-pcie": CardProfile(
        model="NVIDIA A100 80GB PCIe", memory="81920Mi", mig=True, multiprocessors=108, memory_bandwidth="1935360M"
    ),
    "h100": CardProfile(
        model="NVIDIA H100 80GB HBM3",
        memory="81559Mi",
        nvlinks=18,
        mig=True,
        multiprocessors=132,
        memory_bandwidth="3352320M",
    ),
    "h200": CardProfile(
        model="NVIDIA H200", memory="143771Mi", nvlinks=18, mig=True, multiprocessors=132, memory_bandwidth="4916736M"
    ),
    "b200": CardProfile(
        model="NVIDIA B200", memory="183359Mi", nvlinks=18, mig=True, multiprocessors=148, memory_bandwidth="8T"
    ),
    "v100": CardProfile(
        model="Tesla V100-SXM2-32GB", memory="32768Mi", mesh=_CUBE_MESH, multiprocessors=80, memory_bandwidth="898048M"
    ),
    "t4": CardProfile(model="Tesla T4", memory="15360Mi", per_switch=0, multiprocessors=40, memory_bandwidth="320064M"),
    "l4": CardProfile(
        model="NVIDIA L4", memory="23034Mi", per_switch=0, multiprocessors=58, memory_bandwidth="300048M"
    ),
    "l40s": CardProfile(model="NVIDIA L40S", memory="46068Mi", multiprocessors=142, memory_bandwidth="864096M"),
    "a10": CardProfile(model="NVIDIA A10", memory="23028Mi", multiprocessors=72, memory_bandwidth="600096M"),
    "mi210": CardProfile(
        vendor="amd",
        model="AMD Instinct MI210",
        memory="65520Mi",
        hive=4,
        multiprocessors=104,
        memory_bandwidth="1638400M",
        driver="6.10.5",
        cuda="",
    ),
    "mi300x": CardProfile(
        vendor="amd",
        model="AMD Instinct MI300X OAM",
        memory="196592Mi",
        hive=8,
        per_switch=1,
        multiprocessors=304,
        memory_bandwidth="5324800M",
        driver="6.10.5",
        cuda="",
    ),
    "a30": CardProfile(model="NVIDIA A30", memory="24576Mi", mig=True, multiprocessors=56, memory_bandwidth="933120M"),
}
