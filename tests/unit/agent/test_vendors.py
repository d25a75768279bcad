"""The PCI bus decides which vendor a node has, and another one becomes a condition."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

import pytest

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import sysfs
from berth_agent.inventory.completed import CompletedInventory
from berth_agent.inventory.interface import NoGpus
from berth_agent.inventory.plugins import InventoryWithPlugins
from berth_agent.isolation.provider import ListPods, Provider
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.readings import Reading
from berth_agent.vendor import HandOver, Inventory
from berth_agent.vendors import choice
from berth_agent.vendors.nvidia.isolation.hami_core import HamiCoreProvider
from berth_agent.vendors.nvidia.vendor import Nvidia
from berth_api.device import DeviceInfo, DeviceSpec
from berth_api.plugins import PluginError
from tests.objects.sysfs_tree import SysfsTree

NVIDIA: Final = "0x10de"
AMD: Final = "0x1002"
EXAMPLE: Final = "0x1234"
READ: Final = Finding(type="InventoryRead", ok=True, reason="InventoryRead")


class Found:
    """A discovery without any other part."""

    def __init__(self, node: str) -> None:
        self._inner = NoGpus(node=node)

    async def read(self) -> Mapping[str, Reading]:
        return await self._inner.read()

    def close(self) -> None:
        self._inner.close()


class Example:
    """A vendor that another distribution brings."""

    name = "example"

    def is_present(self, sysfs_root: Path) -> bool | None:
        return sysfs.has_gpus(sysfs_root, EXAMPLE)

    def is_driven(self, sysfs_root: Path) -> bool:
        return bool(sysfs.bound_cards(sysfs_root, "example"))

    def discovery(self, settings: Settings) -> Found:
        return Found(settings.node_name)

    def hand_over(self, settings: Settings) -> HandOver | None:  # noqa: ARG002
        return None


class Limiting(Example):
    """It also limits containers to their shares of cards."""

    def providers(self, settings: Settings, *, list_pods: ListPods) -> list[Provider]:  # noqa: ARG002
        return [HamiCoreProvider(Path(folder), kubelet=Path("/none")) for folder in ("/a", "/b")]


class Namesake(Example):
    name = "nvidia"


class Nameless(Example):
    name = "not a label"


class Longwinded(Example):
    """The type of a condition contains the name, and has 63 characters at most."""

    name = "a" * 33


class Unwilling(Example):
    def __init__(self) -> None:
        raise RuntimeError("no")


def vendors(name: str = "Example") -> Sequence[EntryPoint]:
    return (EntryPoint(name="x", value=f"{__name__}:{name}", group=choice.GROUP),)


INTEGRATED = ("0x8086", "0x030000", "")
MANAGEMENT = ("0x1a03", "0x030000", "ast")


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ((), ("nvidia", ())),
        ((INTEGRATED, MANAGEMENT), ("nvidia", ())),
        (((NVIDIA, "0x030200", "nvidia"), INTEGRATED, MANAGEMENT), ("nvidia", ())),
        (((EXAMPLE, "0x030200", ""), INTEGRATED, MANAGEMENT), ("example", ())),
        (((EXAMPLE, "0x030200", "example"), (NVIDIA, "0x030200", "nvidia")), ("nvidia", ("example",))),
        (((EXAMPLE, "0x030200", ""), (NVIDIA, "0x030200", "")), ("nvidia", ("example",))),
        # An NVIDIA card that only drives a screen, without NVIDIA's driver.
        (((EXAMPLE, "0x030200", "example"), (NVIDIA, "0x030000", "nouveau")), ("example", ("nvidia",))),
        # A sound function is no GPU.
        (((EXAMPLE, "0x030200", "example"), (NVIDIA, "0x040300", "snd")), ("example", ())),
    ],
)
def test_the_bus_decides_the_vendor(
    tmp_path: Path, cards: Sequence[tuple[str, str, str]], expected: tuple[str, tuple[str, ...]]
) -> None:
    tree = SysfsTree(tmp_path)
    for slot, (vendor, pci_class, driver) in enumerate(cards):
        address = f"0000:1{slot}:00.0"
        tree.device(address, vendor=vendor, **{"class": pci_class})
        if driver:
            (tree.root / "bus/pci/drivers" / driver / address).mkdir(parents=True)
    chosen = choice.choose((Nvidia(), Example()), tree.root)
    assert (chosen.vendor.name, chosen.others) == expected


@pytest.mark.parametrize(("vendor", "expected"), [(NVIDIA, 1), (AMD, 0), (EXAMPLE, 2)])
def test_the_vendor_of_the_node_limits_shares_and_makes_partitions_if_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, expected: int
) -> None:
    (tmp_path / "example-1.dist-info").mkdir()
    (tmp_path / "example-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1\n")
    points = f"[{choice.GROUP}]\nexample = {__name__}:Limiting\n"
    (tmp_path / "example-1.dist-info/entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    SysfsTree(tmp_path).device("0000:11:00.0", vendor=vendor, **{"class": "0x030200"})
    settings = Settings(node_name="n", sysfs_root=tmp_path, hami_core="/opt/hami")
    assert len(choice.isolation_for(settings, list_pods=no_pods)) == expected
    assert choice.has_partitions(settings) is (vendor == NVIDIA)


async def no_pods() -> tuple[list[Pod], int]:
    return [], 0


def test_where_there_is_one_vendor_the_bus_is_not_read() -> None:
    assert choice.choose((Nvidia(),), Path("/proc/self/mem")).vendor.name == "nvidia"


async def test_a_second_vendor_is_a_condition_of_the_device() -> None:
    chosen = choice.ChosenVendor(Nvidia(), ("example",))
    inventory = InventoryWithPlugins(NoGpus(node="n"), {}, timeout=1, findings=chosen.findings)
    *_, finding = (await inventory.read())["n"].findings
    assert (finding.type, finding.ok, finding.reason) == ("InventoryRead.example", False, "SecondVendor")
    assert finding.message == "the node also has GPUs of this vendor; only those of nvidia are listed"


async def test_a_discovery_without_other_parts_is_an_inventory() -> None:
    inventory = CompletedInventory(Example().discovery(Settings(node_name="n")), node="n", timeout=1)
    assert isinstance(inventory, Inventory)
    assert list(await inventory.read()) == ["n"]
    assert (await inventory.sample(), inventory.xids()) == ({}, {})


class Scripted:
    """A discovery that answers as the test says; None hangs until it is released."""

    def __init__(self, *answers: Sequence[str] | Exception | None) -> None:
        self.answers = list(answers)
        self.released = asyncio.Event()

    async def read(self) -> Mapping[str, Reading]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await self.released.wait()
        cards = [DeviceInfo(type="gpu", minor=int(name[-1]), id=name, health=True) for name in answer or ()]
        return {"n": Reading(spec=DeviceSpec(devices=cards), findings=(READ,))}

    def close(self) -> None:
        pass


async def outcome(inventory: CompletedInventory) -> tuple[list[str], str, str]:
    reading = (await inventory.read())["n"]
    finding = reading.findings[-1]
    return [device.id for device in reading.spec.devices], finding.reason, finding.message


KEPT: Final = "; the devices are those of the last reading"


async def test_a_reading_that_fails_leaves_the_last_cards_and_a_condition() -> None:
    discovery = Scripted(RuntimeError("no driver"), ["GPU-0"], OSError("gone"), ["GPU-0", "GPU-A0"], ["GPU-1"])
    inventory = CompletedInventory(discovery, node="n", timeout=60)
    assert await outcome(inventory) == ([], "ReadFailed", f"RuntimeError: no driver{KEPT}")
    assert await outcome(inventory) == (["GPU-0"], "InventoryRead", "")
    assert await outcome(inventory) == (["GPU-0"], "ReadFailed", f"OSError: gone{KEPT}")
    assert await outcome(inventory) == (["GPU-0"], "ReadFailed", f"ValueError: minor 0 stands 2 times{KEPT}")
    assert await outcome(inventory) == (["GPU-1"], "InventoryRead", "")


async def test_a_reading_that_hangs_is_not_begun_again() -> None:
    discovery = Scripted(None, RuntimeError("a second one"))
    inventory = CompletedInventory(discovery, node="n", timeout=0)
    for _ in range(3):
        assert await outcome(inventory) == ([], "ReadTimedOut", f"the driver did not answer within 0 s{KEPT}")
        assert (await inventory.read())["n"].processes is None
    discovery.released.set()
    while (await outcome(inventory))[1] == "ReadTimedOut":
        pass
    assert len(discovery.answers) == 1


class Broken(Example):
    def is_present(self, sysfs_root: Path) -> bool | None:
        raise RuntimeError(f"{sysfs_root}: no")


def test_a_vendor_that_fails_does_not_keep_the_agent_from_starting(tmp_path: Path) -> None:
    SysfsTree(tmp_path).device("0000:11:00.0", vendor=EXAMPLE, **{"class": "0x030200"})
    assert choice.choose((Nvidia(), Broken(), Example()), tmp_path).vendor.name == "example"
    assert choice.choose((Nvidia(), Broken()), tmp_path).vendor.name == "nvidia"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Namesake", "vendor nvidia exists already; use another name"),
        ("Nameless", "its name is 'not a label'; allowed are values of labels of up to 32 characters, such as example"),
        ("Longwinded", f"its name is '{'a' * 33}'; allowed are values of labels of up to 32 characters"),
        ("Unwilling", "cannot be made: RuntimeError: no"),
        ("Found", "cannot be made: TypeError"),
    ],
)
def test_a_vendor_that_cannot_be_used_is_named(name: str, problem: str) -> None:
    with pytest.raises(PluginError, match=re.escape(problem)):
        choice.load(vendors(name))


def test_a_vendor_of_another_distribution_comes_after_the_built_in_ones() -> None:
    assert [vendor.name for vendor in choice.load(vendors())] == ["nvidia", "amd", "example"]
