"""The output that nvidia-smi would print for the fixture's machine, to test the comparison without a card."""

from collections.abc import Callable

from tests.gpu import smi
from tests.gpu.look import WORDS
from tests.nvml.fixture import MIB, REMAPS, Gpu, NvmlFixture, common_ancestor

LEVELS = dict(zip((0, 10, 20, 30, 40, 50), WORDS.values(), strict=True))
"""nvidia-smi's names for NVML's levels of a common ancestor."""
ACTIONS = dict(enumerate(("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")))


def texts(fixture: NvmlFixture) -> smi.Texts:
    """Return what each command would print."""
    return {
        "query": "".join(f"{_row(fixture, index)}\n" for index in range(len(fixture.gpus))),
        "details": _details(fixture),
        "list": "".join(_listed(index, gpu) for index, gpu in enumerate(fixture.gpus)),
        "topology": _table(fixture, _way, ends=_affinity) + "\nLegend:\n\n  X    = Self\n",
        "peers": _table(fixture, lambda one, other: "NS" if one.p2p.get(other.uuid) else "OK"),
    }


def _row(fixture: NvmlFixture, index: int) -> str:
    gpu = fixture.gpus[index]
    values = {
        "uuid": gpu.uuid,
        "driver_version": fixture.driver,
        "index": str(index),
        "name": gpu.name,
        "pci.bus_id": gpu.bus_id,
        "memory.total": str(gpu.memory // MIB),
        "compute_cap": f"{gpu.major_capability}.{gpu.minor_capability}",
        "mig.mode.current": _mode(gpu.mig_mode) if gpu.mig_capable else "[N/A]",
        **(dict.fromkeys(smi.RETIRED, "[N/A]") if REMAPS.items() <= gpu.fails.items() else _retired(gpu)),
    }
    return ", ".join(values[name] for name in smi.QUERY)


def _retired(gpu: Gpu) -> dict[str, str]:
    return dict(zip(smi.RETIRED, ("0", str(gpu.retired_pages), _yes(gpu.retired_pending)), strict=True))


def _details(fixture: NvmlFixture) -> str:
    cuda = f"{fixture.cuda // 1000}.{fixture.cuda % 1000 // 10}"
    gpus = "".join(_gpu(gpu) for gpu in fixture.gpus)
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
        f"<driver_version>{fixture.driver}</driver_version><cuda_version>{cuda}</cuda_version>{gpus}</nvidia_smi_log>\n"
    )


def _gpu(gpu: Gpu) -> str:
    migs = "".join(
        f"<mig_device><index>{index}</index><gpu_instance_id>{mig.gpu_instance}</gpu_instance_id>"
        f"<compute_instance_id>{mig.compute_instance}</compute_instance_id></mig_device>"
        for index, mig in enumerate(gpu.migs)
    )
    failure = "N/A" if "nvmlDeviceGetRemappedRows" in gpu.fails else _yes(gpu.remapped_failure)
    return (
        f'<gpu id="{gpu.bus_id}"><uuid>{gpu.uuid}</uuid><minor_number>{gpu.minor}</minor_number>'
        f"<mig_devices>{migs or 'None'}</mig_devices>"
        f"<gpu_recovery_action>{ACTIONS[gpu.recovery_action]}</gpu_recovery_action>"
        f"<remapped_rows><remapped_row_failure>{failure}</remapped_row_failure></remapped_rows></gpu>"
    )


def _listed(index: int, gpu: Gpu) -> str:
    migs = (f"  MIG {mig.profile:<11} Device {at:2d}: (UUID: {mig.uuid})\n" for at, mig in enumerate(gpu.migs))
    return f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})\n{''.join(migs)}"


def _table(
    fixture: NvmlFixture, cell: Callable[[Gpu, Gpu], str], *, ends: Callable[[Gpu | None], list[str]] = lambda _: []
) -> str:
    names = [f"GPU{index}" for index in range(len(fixture.gpus))]
    rows = [
        [name, *(" X " if one is other else cell(one, other) for other in fixture.gpus), *ends(one)]
        for name, one in zip(names, fixture.gpus, strict=True)
    ]
    lines = ["\t".join(["\x1b[4m", *names, *ends(None)]) + "\x1b[0m", *("\t".join(row) for row in rows)]
    return "\n".join(lines).replace("\x1b[4m\t", "\t\x1b[4m") + "\n"


def _affinity(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    return ["0-31", str(gpu.numa) if gpu.numa >= 0 else "N/A", "", "N/A"]


def _way(one: Gpu, other: Gpu) -> str:
    here, there = ([link for link in gpu.links if link.active] for gpu in (one, other))
    through = min(sum(link.end == "switch" for link in links) for links in (here, there))
    direct = sum(link.remote == other.bus_id for link in here)
    return f"NV{through + direct}" if through + direct else LEVELS[common_ancestor(one, other)]


def _mode(enabled: bool) -> str:
    return "Enabled" if enabled else "Disabled"


def _yes(flag: bool) -> str:
    return "Yes" if flag else "No"
