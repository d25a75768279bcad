"""The inventory of AMD's cards, from trees of each generation."""

import contextlib
import errno
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.readings import Reading
from berth_agent.vendors import choice
from berth_agent.vendors.amd.inventory import AmdInventory
from berth_agent.vendors.amd.vendor import Amd
from berth_api.device import DeviceInfo, Link
from tests.objects import amd_trees
from tests.objects.amd_trees import MI300X, MI308X, MI308X_BANK, AmdTree, refused
from tests.objects.sysfs_tree import SysfsTree

WITHOUT_MEMORY = {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-memory-ratio": 100}


def inventory(root: Path, **settings: Any) -> AmdInventory:
    return AmdInventory(Settings(node_name="n", sysfs_root=root, proc_root=root, **settings))


async def read(root: Path) -> Reading:
    return (await inventory(root).read())["n"]


def cards(reading: Reading) -> list[DeviceInfo]:
    return reading.spec.devices


def findings(reading: Reading) -> dict[str, tuple[bool, str]]:
    return {finding.type: (finding.ok, finding.reason) for finding in reading.findings}


async def test_a_card_of_each_generation(tmp_path: Path) -> None:
    expected = {
        amd_trees.mi210: (
            *(8, "GPU-1901ead3a2ecd4a6", 0, "AMD Instinct MI210", "64Gi", 104),
            *(0, "0000:01:00.0", "0000:63:00.0", {}),
        ),
        amd_trees.mi300x: (
            *(8, "GPU-e3aa140f9a5f9e31", 0, "AMD Instinct MI300X OAM", "192Gi", 304),
            *(0, "pci0000:05", "0000:05:00.0", {"amd.com/gpu.compute-memory-partition": "spx_nps1"}),
        ),
        # Without an id of its own it has its address, and the switch on the card connects it with nothing.
        amd_trees.radeon: (
            *(1, "GPU-0000-03-00.0", 0, "AMD Radeon RX 7900 XTX", "24Gi", 96),
            *(0, "pci0000:00", "0000:03:00.0", {}),
        ),
    }
    for number, (build, facts) in enumerate(expected.items()):
        reading = await read(build(tmp_path / str(number)).root)
        card, amounts = cards(reading)[0], cards(reading)[0].resources
        place = card.topology
        assert place is not None
        assert (
            *(len(cards(reading)), card.id, card.minor, card.model, amounts["kubernetes.io/gpu-memory"]),
            *(card.multiprocessors, place.node_id, place.pcie_id, place.bus_id, card.labels),
        ) == facts
        assert findings(reading) == {
            "DriverLoaded": (True, "DriverLoaded"),
            "InventoryRead": (True, "InventoryRead"),
        }
        assert all(device.health for device in cards(reading))


async def test_labels(tmp_path: Path) -> None:
    reading = await read(amd_trees.mi300x(tmp_path).root)
    assert reading.labels == {
        "node.koordinator.sh/gpu-vendor": "amd",
        "node.koordinator.sh/gpu-model": "Instinct-MI300X-OAM",
        "node.koordinator.sh/gpu-driver-version": "6.10.5",
    }
    assert reading.facts is not None
    assert reading.facts.labels(reading.spec, renamed=False) == {
        "amd.com/gpu.device-id": "74a1",
        "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
        "amd.com/gpu.vram": "192G",
        "amd.com/gpu.cu-count": "304",
        "amd.com/gpu.driver-version": "6.10.5",
        "amd.com/gpu.driver-src-version": "D3B0C1E8A9F4",
        "amd.com/gpu.compute-memory-partition": "spx_nps1",
        "amd.com/gpu.compute-partitioning-supported": "true",
    }


# --- links ------------------------------------------------------------------------------------------------------


def xgmi(minor: int, count: int = 1) -> Link:
    return Link(minor=minor, type="XGMI", count=count, peer_to_peer=True)


async def test_the_links_of_two_hives(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    first, *_, last = cards(await read(tree.root))
    assert first.links == [*map(xgmi, (1, 2, 3)), *(Link(minor=minor, type="System") for minor in (4, 5, 6, 7))]
    assert last.links == [*(Link(minor=minor, type="System") for minor in (0, 1, 2, 3)), *map(xgmi, (4, 5, 6))]
    # Two links to one card, two hops to another, and what the driver does not report.
    folder = tree.root / "bus/pci/devices/0000:63:00.0"
    (folder / "xgmi_num_links").write_text("00 02 02")
    (folder / "xgmi_num_hops").write_text("00 01 02")
    assert cards(await read(tree.root))[0].links[:3] == [xgmi(1, 2), xgmi(2), xgmi(3)]


@pytest.mark.parametrize(
    ("first", "second", "numa", "expected"),
    [
        ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0", "0", "HostBridge"),
        ("pci0000:00", "pci0000:00", "0", "HostBridge"),  # as in a virtual machine
        ("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0", "0", "SameNUMANode"),
        ("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0", "1", "System"),
        ("pci0000:00/r/u/0000:03:00.0", "pci0000:00/r/u/0000:03:01.0", "0", "SingleSwitch"),
        ("pci0000:00/r/u/0000:03:00.0", "pci0000:00/r/u/0000:03:01.0/v/0000:05:00.0", "0", "MultiSwitch"),
        ("pci0000:00/r/u/0000:03:00.0", "pci0000:00/r/u/0000:03:00.0", "0", "SameBoard"),
    ],
)
async def test_paths_over_pcie(tmp_path: Path, first: str, second: str, numa: str, expected: str) -> None:
    tree = AmdTree(tmp_path)
    tree.card("0000:63:00.0", "0x740f", 128, below=first, numa="0")
    tree.card("0000:64:00.0", "0x740f", 129, below=second, numa=numa)
    assert [card.links[0].type for card in cards(await read(tree.root))] == [expected] * 2


# --- partitions -------------------------------------------------------------------------------------------------


async def test_the_partitions_of_a_privileged_agent(tmp_path: Path) -> None:
    reading = await read(amd_trees.mi300x(tmp_path, compute="CPX", memory="NPS4", is_privileged=True).root)
    assert [card.minor for card in cards(reading)] == list(range(64))
    assert len({card.id for card in cards(reading)}) == 64
    last_of_second = cards(reading)[15]
    assert (last_of_second.id, last_of_second.multiprocessors) == ("GPU-2250f807caf2231a-7", 38)
    assert last_of_second.resources["kubernetes.io/gpu-memory"] == "24Gi"
    assert last_of_second.labels == {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}
    assert last_of_second.topology is not None
    assert last_of_second.topology.bus_id == MI300X[1].address
    mixed = await inventory(tmp_path, amd_resource_naming_strategy="mixed").read()
    assert {card.labels["berth.dev/partition"] for card in cards(mixed["n"])} == {"cpx_nps4"}
    # Partitions of one card are closer than other cards.
    counts = {link.minor: link.count for link in last_of_second.links}
    assert (len(counts), counts[8], counts[0], counts[63]) == (63, 2, 1, 1)
    assert all(card.health for card in cards(reading))


async def test_no_partition_gets_the_id_of_another_while_one_cannot_be_read(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path, compute="CPX", memory="NPS4", is_privileged=True)
    nodes = sorted((tree.root / "class/kfd/kfd/topology/nodes").glob("*/properties"))
    with refused(nodes[-2], errno.EIO):
        listed = cards(await read(tree.root))
    assert [(card.health, card.id.count("-")) for card in listed] == [(False, 1)] * 8


async def test_the_partitions_of_a_public_tree(tmp_path: Path) -> None:
    """MI308X in CPX: four partitions each, render nodes in blocks of eight, and a second PCI domain."""
    tree = AmdTree(tmp_path)
    for number, place in enumerate(MI308X):
        files = {"unique_id": place.unique_id, "current_compute_partition": "CPX", "current_memory_partition": "NPS1"}
        tree.card(place.address, "0x74a2", 128 + 32 * number, memory=192 * amd_trees.GIB, **files)
        for partition in range(4):
            tree.kfd(place, partition, 128 + 32 * number + partition, 20, MI308X_BANK)
    reading = await read(tree.root)
    assert [(card.minor, card.id) for card in cards(reading)[3:5]] == [
        (3, "GPU-084cafeae17e7696-3"),
        (32, "GPU-f2640be0c4c5b44b-0"),
    ]
    assert {(card.multiprocessors, card.resources["kubernetes.io/gpu-memory"]) for card in cards(reading)} == {
        (20, "48Gi")
    }


# --- nodes without cards, or with cards of others ---------------------------------------------------------------


async def test_graphics_in_the_processor_are_no_card(tmp_path: Path) -> None:
    tree = amd_trees.apu_and_nvidia(tmp_path)
    assert choice.choose(choice.BUILT_IN, tree.root) == choice.ChosenVendor(choice.BUILT_IN[0])
    assert (Amd().is_present(tree.root), Amd().is_driven(tree.root)) == (False, False)
    reading = await read(tree.root)
    assert (cards(reading), findings(reading)["DriverLoaded"]) == ([], (True, "NotNeeded"))


async def test_a_card_without_its_driver_is_a_finding(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.device("0000:63:00.0", vendor="0x1002", device="0x74a1", **{"class": "0x120000"})
    assert (Amd().is_present(tree.root), Amd().is_driven(tree.root)) == (True, False)
    reading = await read(tree.root)
    assert (cards(reading), findings(reading)["DriverLoaded"]) == ([], (False, "DriverNotLoaded"))
    assert reading.processes is None
    assert "holds none of the node's 1 GPUs of AMD's" in reading.findings[0].message


async def test_a_card_that_the_driver_binds_again_was_reset(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    source, bound = inventory(tree.root), tree.root / amd_trees.DRIVER / "0000:63:00.0"
    assert (await source.read())["n"].reset == frozenset()
    target = bound.readlink()
    bound.unlink()
    assert len(cards((await source.read())["n"])) == 7
    bound.symlink_to(target)
    assert (await source.read())["n"].reset == {"GPU-1901ead3a2ecd4a6"}
    assert (await source.read())["n"].reset == frozenset()


async def test_a_card_that_was_bound_again_between_two_readings_was_reset(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    source, bound = inventory(tree.root), tree.root / amd_trees.DRIVER / "0000:63:00.0"
    await source.read()
    (tmp_path / "fresh").symlink_to(bound.readlink())
    (tmp_path / "fresh").replace(bound)
    assert (await source.read())["n"].reset == {"GPU-1901ead3a2ecd4a6"}
    assert (await source.read())["n"].reset == frozenset()


async def test_a_reset_is_reported_when_its_card_is_listed(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    source, bound = inventory(tree.root), tree.root / amd_trees.DRIVER / "0000:63:00.0"
    await source.read()
    (tmp_path / "fresh").symlink_to(bound.readlink())
    (tmp_path / "fresh").replace(bound)
    render = tree.root / "bus/pci/devices/0000:63:00.0/drm"
    render.rename(aside := render.with_name("later"))
    reading = (await source.read())["n"]
    assert (len(cards(reading)), reading.reset) == (7, frozenset())
    aside.rename(render)
    assert (await source.read())["n"].reset == {"GPU-1901ead3a2ecd4a6"}
    assert (await source.read())["n"].reset == frozenset()


async def test_the_only_card_that_was_removed_from_the_bus_was_reset(tmp_path: Path) -> None:
    tree = amd_trees.radeon(tmp_path)
    tree.device("0000:00:1f.3", vendor="0x8086", device="0x7a50", **{"class": "0x040300"})
    source, bound = inventory(tree.root), tree.root / amd_trees.DRIVER / "0000:03:00.0"
    on_bus, aside, target = tree.root / "bus/pci/devices/0000:03:00.0", tmp_path / "aside", bound.readlink()
    await source.read()
    on_bus.rename(aside)
    bound.unlink()
    assert cards((await source.read())["n"]) == []
    aside.rename(on_bus)
    bound.symlink_to(target)
    assert (await source.read())["n"].reset == {"GPU-0000-03-00.0"}


# --- files that lie or are refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ELOOP], ids=errno.errorcode.get)
async def test_what_cannot_be_read_is_as_it_was(tmp_path: Path, number: int) -> None:
    """The kernel refuses files during a reset, mostly with EPERM."""
    tree = amd_trees.mi300x(tmp_path)
    source, folder = inventory(tree.root), tree.root / "bus/pci/devices/0000:05:00.0"
    before = (await source.read())["n"]
    with contextlib.ExitStack() as refusals:
        for name in ("unique_id", "product_name", "mem_info_vram_total", "current_compute_partition", "xgmi_num_hops"):
            refusals.enter_context(refused(folder / name, number))
        assert (await source.read())["n"] == before


async def test_a_card_that_cannot_be_identified_is_not_listed(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    folder = tree.root / "bus/pci/devices/0000:63:00.0"
    with refused(folder / "mem_info_vram_total", errno.EIO):
        assert cards(await read(tree.root))[0].resources == WITHOUT_MEMORY
    with refused(folder / "unique_id", errno.EIO):
        reading = await read(tree.root)
        assert (len(cards(reading)), findings(reading)["InventoryRead"]) == (7, (False, "CardsUnread"))
        assert "of 0000:63:00.0; not listed" in reading.findings[1].message
    shutil.rmtree(folder / "drm")
    reading = await read(tree.root)
    assert (len(cards(reading)), findings(reading)["InventoryRead"]) == (7, (False, "CardsUnread"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"unique_id": "0"}, {"id": "GPU-0000-63-00.0"}),
        ({"unique_id": "51276ac12ce05db3"}, {"id": "GPU-0000-63-00.0"}),  # another card's
        ({"unique_id": "all"}, {"id": "GPU-0000-63-00.0"}),
        ({"product_name": "x" * 5000}, {"model": "x" * 256}),
        ({"product_name": "\0\n"}, {"model": "AMD Instinct MI210"}),
        ({"device": "0xffff"}, {"model": "AMD GPU ffff", "multiprocessors": None}),
        ({"mem_info_vram_total": "-1"}, {"resources": WITHOUT_MEMORY}),
        ({"current_compute_partition": "XPX"}, {"labels": {}}),
        ({"numa_node": "many"}, {"health": True}),
        ({"xgmi_num_links": "ff ff ff ff"}, {"health": True}),
    ],
)
async def test_files_that_lie(tmp_path: Path, files: Mapping[str, str], expected: Mapping[str, Any]) -> None:
    tree = amd_trees.mi210(tmp_path)
    for name, text in files.items():
        (tree.root / "bus/pci/devices/0000:63:00.0" / name).write_text(text)
    listed = cards(await read(tree.root))
    assert len(listed) == 8
    assert {name: getattr(listed[0], name) for name in expected} == expected
