"""What AMD's cards measure."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.readings import CardSample, MemoryUse, Process
from berth_agent.vendors.amd.inventory import AmdInventory
from berth_agent.vendors.amd.sampling import sample
from tests.objects import amd_trees
from tests.objects.amd_trees import GIB, AmdTree, refused

IDLE = CardSample(
    memory=MemoryUse(total=64 * GIB, used=0, free=64 * GIB), sm_utilization=0.0, power=90.0, temperature=40
)


@pytest.fixture
def card(tmp_path: Path) -> Path:
    return AmdTree(tmp_path).card("0000:63:00.0", "0x740f", 128)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"gpu_busy_percent": "93", "mem_busy_percent": "40"}, {"sm_utilization": 0.93, "memory_utilization": 0.4}),
        ({"mem_info_vram_used": str(16 * GIB)}, {"memory": MemoryUse(total=64 * GIB, used=16 * GIB, free=48 * GIB)}),
        ({"hwmon/hwmon4/power1_cap": "300000000"}, {"power_limit": 300.0}),
        # Values that are none.
        ({"gpu_busy_percent": "101"}, {"sm_utilization": None}),
        ({"mem_info_vram_used": str(65 * GIB)}, {"memory": None}),
        ({"hwmon/hwmon4/power1_average": "4294967295 W"}, {"power": None}),
        ({"hwmon/hwmon4/temp1_input": ""}, {"temperature": 45}),
    ],
)
def test_a_sample(card: Path, files: Mapping[str, str], expected: Mapping[str, Any]) -> None:
    assert sample(card) == IDLE
    for name, text in files.items():
        (card / name).write_text(text)
    assert {name: getattr(sample(card), name) for name in expected} == expected


def test_a_value_of_before_is_no_measurement(card: Path) -> None:
    (card / "hwmon/hwmon4/power1_average").rename(card / "hwmon/hwmon4/power1_input")  # as on newer cards
    assert sample(card).power == 90.0
    with refused(card / "gpu_busy_percent", errno.EAGAIN):
        assert sample(card).sm_utilization is None


@pytest.mark.parametrize(
    ("compute", "processes", "samples", "measured"),
    [("SPX", "none", 8, 8), ("CPX", "none", 0, 0), ("SPX", "kfd", 8, 8), ("CPX", "kfd", 64, 0)],
)
async def test_whole_cards_are_measured_and_partitions_show_their_processes(
    tmp_path: Path, compute: str, processes: str, samples: int, measured: int
) -> None:
    tree = amd_trees.mi300x(tmp_path, compute=compute, is_privileged=True)
    tree.process(7, 136, memory={136: GIB})
    options: dict[str, Any] = {"amd_processes": processes, "sysfs_root": tree.root, "proc_root": tree.root}
    inventory = AmdInventory(Settings(node_name="n", **options))
    assert await inventory.sample() == {}
    while (await inventory.read())["n"].processes is None:
        pass  # the round of a slow machine has not ended
    by_id = await inventory.sample()
    assert (len(by_id), sum(card.memory is not None for card in by_id.values())) == (samples, measured)
    used = [card.processes for card in by_id.values() if card.processes]
    assert used == ([(Process(pid=7, memory=GIB),)] if processes == "kfd" else [])
