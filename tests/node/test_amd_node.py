"""Cards of AMD on a real node: pods get the cards of their annotations, by device nodes alone.

The cards are a generated sysfs, and their device nodes stand for real ones.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.boxes import running
from tests.node.other_plugin import OtherPlugin
from tests.node.stage import NULL, Stage
from tests.node.test_own_driver import (
    DEADLINE,
    claim_of,
    classes,
    devices,
    give_by,
    own_pools,
    slices,
    submit_by_claim,
)
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects import amd_trees
from tests.objects.amd_trees import MI210

CARDS = "amd.com/gpu"
PARTITIONS = 8
"""Of an MI300X in the mode CPX. All have the PCI address of their card."""


class Machine(NvmlFixture):
    """A machine with eight MI210 in two hives, and no NVML."""

    @property
    def library(self) -> Path:
        return self.folder / "no-such-library.so"

    def write(self) -> None:
        amd_trees.mi210(self.sysfs)

    def set_errors(self, minor: int, count: int) -> None:
        (self.sysfs / "bus/pci/devices" / MI210[minor].address / "ras/umc_err_count").write_text(
            f"ue: {count}\nce: 0\n"
        )


class Partitioned(Machine):
    """A machine with MI300X in the mode CPX."""

    def __init__(self, folder: Path, *, cards: int) -> None:
        super().__init__(folder, gpus=[a100(minor) for minor in range(cards * PARTITIONS)])
        self.cards = cards

    def write(self) -> None:
        amd_trees.mi300x(self.sysfs, cards=self.cards, compute="CPX", is_privileged=True)


class AmdStage(Stage):
    """A stage with AMD's cards."""

    machine: Machine

    def __init__(
        self, node: RealNode, arena: Arena, folder: Path, *, machine: Machine | None = None, **more: object
    ) -> None:
        machine = machine or Machine(folder, gpus=[a100(minor) for minor in range(len(MI210))])
        options = {"device_list_strategy": "envvar", "resync_interval": 1.0, **more}
        super().__init__(node, arena, folder, gpus=machine.gpus, **options)
        self.machine = machine

    def _make_device_nodes(self) -> None:
        (self._folder / "dev/dri").mkdir(parents=True)
        minors = range(len(self.machine.gpus))
        cards = [f"dri/{kind}" for minor in minors for kind in (f"card{minor + 1}", f"renderD{minor + 128}")]
        for name in ("kfd", *cards):
            os.mknod(self._folder / "dev" / name, stat.S_IFCHR | 0o666, NULL)

    def check_given(self, *pods: str) -> None:
        """Check that pods run with the cards of their annotations: by kubelet, their GpuPods, and under /dev."""
        for name in pods:
            self.wait(lambda name=name: self.is_running(name), what=f"{name} to run")
            entries = self.entries(name)
            ids = sorted(entry["id"] for entry in entries)
            assert sorted(self.held()[name, "main", CARDS]) == ids
            container = self.node.container(self.read(name))
            nodes = {path.name for path in Path(f"/proc/{container.pid}/root/dev/dri").iterdir()}
            of_cards = [{f"card{entry['minor'] + 1}", f"renderD{entry['minor'] + 128}"} for entry in entries]
            assert nodes == set().union(*of_cards)
            assert "kfd" in container.devices
            assert "AMD_VISIBLE_DEVICES" not in container.environment
            self.wait(lambda name=name, ids=ids: not self._of_gpu_pod(name, ids), what=f"the GpuPod of {name}")


def test_pods_get_the_cards_of_their_annotations(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with AmdStage(node, arena, tmp_path) as stage:
        device = stage.device()
        assert device["metadata"]["labels"][names.VENDOR_LABEL] == "amd"
        assert [card["id"] for card in device["spec"]["devices"]] == [f"GPU-{place.unique_id}" for place in MI210]

        # The pair is of one hive, and so are the four, which leaves one hive whole for them.
        stage.submit({CARDS: "1"}, "one")
        stage.submit({CARDS: "2"}, "two")
        stage.check_given("one", "two")
        stage.submit({CARDS: "4"}, "four")
        stage.check_given("four")
        hives = {name: {MI210[minor].hive for minor in stage.cards(name)} for name in ("two", "four")}
        assert all(len(hive) == 1 for hive in hives.values()), hives

        stage.agent.stop()
        stage.start_agent()
        node.restart_daemon("kubelet")
        stage.wait(stage.is_on_offer, what="the cards on offer again")
        stage.check_given("one", "two", "four")

        [last] = set(range(len(MI210))) - {minor for name in ("one", "two", "four") for minor in stage.cards(name)}
        stage.machine.set_errors(last, 1)
        broken = f"GPU-{MI210[last].unique_id}"
        stage.wait(lambda: broken not in stage.healthy()[CARDS], what="the fault for kubelet")
        stage.wait(
            lambda: [card["id"] for card in stage.device()["spec"]["devices"] if not card["health"]] == [broken],
            what="the fault for the scheduler",
        )
        stage.submit({CARDS: "1"}, "late")
        stage.wait(lambda: stage.waits("late"), what="the broken card to be refused")
        stage.machine.set_errors(last, 0)
        stage.check_given("late")


def test_the_cards_that_amds_plugin_gave_are_charged(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    plugin = OtherPlugin(node, resource=CARDS, ids=[place.address for place in MI210])
    with AmdStage(node, arena, tmp_path, device_plugin=None) as stage, plugin:
        stage.wait(lambda: node.allocatable(CARDS) == len(MI210), what="the cards on offer")
        stage.submit({CARDS: "3"}, "three")
        stage.wait(lambda: stage.is_running("three"), what="three to run")
        addresses = stage.held()["three", "main", CARDS]
        given = {minor for minor, place in enumerate(MI210) if place.address in addresses}
        stage.wait(lambda: set(stage.free()) == set(range(len(MI210))) - given, what="these cards to be charged")
        [held] = stage.wait(lambda: stage.device()["status"].get("held"), what="what kubelet gave to be shown")
        assert {device["id"] for device in held["devices"]} == {f"GPU-{MI210[minor].unique_id}" for minor in given}
        stage.remove("three")


@contextlib.contextmanager
def by_name_and_by_claim(node: RealNode, arena: Arena, folder: Path, *, cards: int) -> Iterator[AmdStage]:
    """Run a node whose partitions of MI300X are given by name and, by Berth's own driver, to claims."""
    options = {"dra": True, "dra_own_pools": True, "kubelet_folder": node.root}
    machine = Partitioned(folder, cards=cards)
    with AmdStage(node, arena, folder, machine=machine, **options) as stage, classes(arena):
        stage.operator.stop()
        stage.start_operator(config=own_pools(arena, folder), scheduler_names=None)
        try:
            give_by(stage, "both")
            stage.wait(lambda: len(devices(slices(stage))) == cards * PARTITIONS, what="the partitions in slices")
            yield stage
        finally:
            # Pods cannot end without their driver.
            for name in stage.names():
                stage.remove(name)
            give_by(stage, None)
            stage.wait(lambda: not slices(stage), what="the slices to go")


def of_claim(stage: AmdStage, pod: Manifest) -> int:
    """Check that a pod's container has the partition of its claim alone; return the minor."""
    claim = stage.arena.get("resourceclaims", claim_of(pod))
    [result] = claim["status"]["allocation"]["devices"]["results"]
    [minor] = [card["minor"] for card in stage.device()["spec"]["devices"] if card["id"].lower() == result["device"]]
    assert render_nodes(stage, pod) == {f"renderD{minor + 128}"}
    return int(minor)


def render_nodes(stage: AmdStage, pod: Manifest) -> set[str]:
    """Return the render nodes that a pod's container sees."""
    folder = Path(f"/proc/{stage.node.container(pod).pid}/root/dev/dri")
    return {path.name for path in folder.iterdir() if path.name.startswith("renderD")}


@pytest.mark.parametrize("first", ["by name", "by claim"])
def test_pods_by_name_and_by_claim_share_one_partitioned_card(
    arena: Arena, node: RealNode, tmp_path: Path, first: str
) -> None:
    def by_name() -> None:
        stage.submit({CARDS: "1"}, "named")
        stage.wait(lambda: stage.is_running("named"), what="the pod by name to run")

    def by_claim() -> None:
        submit_by_claim(stage, "claimed", arena.scheduler_name)
        running(arena, "claimed", deadline=DEADLINE)

    with by_name_and_by_claim(node, arena, tmp_path, cards=1) as stage:
        for start in (by_name, by_claim) if first == "by name" else (by_claim, by_name):
            start()
        [named] = stage.cards("named")
        claimed = of_claim(stage, stage.read("claimed"))
        assert named != claimed
        assert render_nodes(stage, stage.read("named")) == {f"renderD{named + 128}"}
        others = [minor for minor in range(PARTITIONS) if minor not in (named, claimed)]
        stage.wait(lambda: stage.free() == others, what="the other partitions to be free")


def test_ten_claims_hold_ten_partitions(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with by_name_and_by_claim(node, arena, tmp_path, cards=8) as stage:
        names = [f"claimed-{number}" for number in range(10)]
        for name in names:
            submit_by_claim(stage, name, arena.scheduler_name)
        held = {of_claim(stage, running(arena, name, deadline=DEADLINE)) for name in names}
        assert len(held) == len(names)
        free = [minor for minor in range(8 * PARTITIONS) if minor not in held]
        stage.wait(lambda: stage.free() == free, what="the other partitions to be free")
