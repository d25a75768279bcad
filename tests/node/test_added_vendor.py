"""The example of a vendor of GPUs, installed by pip, on a real node. Nothing else of Berth knows this vendor."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.stage import NULL, SHARE, Stage
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.sysfs_tree import SysfsTree

EXAMPLE: Final = Path(__file__).parents[2] / "examples/gpus"
CARDS: Final = "example.com/gpu"
IDS: Final = ("GPU-00000000000000aa", "GPU-00000000000000bb")
ADDRESSES: Final = ("0000:11:00.0", "0000:12:00.0")


class Machine(NvmlFixture):
    """A machine with two cards of the example's, and no NVML."""

    @property
    def library(self) -> Path:
        return self.folder / "no-such-library.so"

    @property
    def sysfs(self) -> Path:
        return self.folder / "sys"

    def write(self) -> None:
        tree = SysfsTree(self.sysfs)
        for index, (address, card) in enumerate(zip(ADDRESSES, IDS, strict=True)):
            files = {"vendor": "0xe0e0", "device": "0x0001", "class": "0x120000", "index": f"{index}"}
            files |= {"memory": f"{64 << 30}", "memory_used": "0", "uncorrectable": "0"}
            tree.device(address, serial=card.removeprefix("GPU-"), **files)
            (self.sysfs / "bus/pci/drivers/example" / address).mkdir(parents=True)

    def set_errors(self, index: int, count: int) -> None:
        (self.sysfs / "bus/pci/devices" / ADDRESSES[index] / "uncorrectable").write_text(f"{count}\n")


class VendorStage(Stage):
    """A stage whose operator and agent have the example."""

    machine: Machine

    def __init__(self, node: RealNode, arena: Arena, folder: Path, site: Path) -> None:
        super().__init__(node, arena, folder, gpus=[a100(0), a100(1)], resync_interval=1.0)
        self.machine = Machine(folder, gpus=self.machine.gpus)
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._processes.environment = {"PYTHONPATH": path}

    def _make_device_nodes(self) -> None:
        (self._folder / "dev").mkdir()
        for index in range(len(IDS)):
            os.mknod(self._folder / f"dev/example{index}", stat.S_IFCHR | 0o666, NULL)

    def check_given(self, name: str) -> None:
        """Check that a pod runs with the cards of its annotation: by kubelet, in its variable, and under /dev."""
        self.wait(lambda: self.is_running(name), what=f"{name} to run")
        entries = self.entries(name)
        ids = sorted(entry["id"] for entry in entries)
        assert sorted(self.held()[name, "main", CARDS]) == ids
        container = self.node.container(self.read(name))
        assert sorted(container.environment["EXAMPLE_VISIBLE_DEVICES"].split(",")) == ids
        nodes = sorted(device for device in container.devices if device.startswith("example"))
        assert nodes == sorted(f"example{entry['minor']}" for entry in entries)
        self.wait(lambda: not self._of_gpu_pod(name, ids), what=f"the GpuPod of {name}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example into a folder of its own, so that the tests' environment does not have it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--target", str(folder), str(EXAMPLE)], check=True, timeout=120)
    return folder


def test_its_cards_are_published_allocated_shared_watched_and_given(
    arena: Arena, node: RealNode, tmp_path: Path, site: Path
) -> None:
    with VendorStage(node, arena, tmp_path, site) as stage:
        device = stage.device()
        assert device["metadata"]["labels"][names.VENDOR_LABEL] == "example"
        assert [(card["id"], card["model"]) for card in device["spec"]["devices"]] == [
            (card, "Example 1") for card in IDS
        ]

        stage.submit({CARDS: "1"}, "one")
        stage.check_given("one")
        # Two shares of the other card, which kubelet then must not give to anybody.
        stage.submit({SHARE: "50"}, "left", "right")
        for name in ("left", "right"):
            stage.wait(lambda name=name: stage.is_running(name), what=f"{name} to run")
        [given], [free] = stage.cards("one"), {0, 1} - set(stage.cards("one"))
        assert stage.cards("left") == stage.cards("right") == [free]
        stage.wait(lambda: stage.healthy()[CARDS] == {IDS[given]}, what="the shared card to be withheld")
        stage.remove("left", "right")

        stage.machine.set_errors(free, 3)
        stage.wait(lambda: stage.healthy()[CARDS] == {IDS[given]}, what="the fault for kubelet")
        stage.wait(
            lambda: [card["id"] for card in stage.device()["spec"]["devices"] if not card["health"]] == [IDS[free]],
            what="the fault for the scheduler",
        )
        stage.submit({CARDS: "1"}, "two")
        stage.wait(lambda: stage.waits("two"), what="the broken card to be refused")
        message = world.condition(stage.read("two"), "PodScheduled")["message"]
        assert "node(s) have too few healthy GPUs" in message or "too few free" in message, message
        faults = stage.device()["spec"]["devices"][free]["conditions"]
        assert [(fault["type"], fault["message"]) for fault in faults][1:] == [
            ("ExampleMemoryErrors", "3 uncorrectable errors")
        ]
        stage.machine.set_errors(free, 0)
        stage.check_given("two")

        stage.agent.stop()
        stage.start_agent()
        stage.wait(stage.is_on_offer, what="the cards on offer again")
        stage.remove("one", "two")
        stage.submit({CARDS: "2"}, "both")
        stage.check_given("both")
