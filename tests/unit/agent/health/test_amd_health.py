"""The faults of AMD's cards: how each begins, and what ends it."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.health import catalogue as kinds
from berth_agent.health.catalogue import Remedy
from berth_agent.health.faults import FaultEvent, faults_of
from berth_agent.health.monitor import HealthMonitor
from berth_agent.readings import Reading
from berth_agent.vendors.amd import catalogue
from berth_agent.vendors.amd.events import KernelEvents, Wedged, wedged
from berth_agent.vendors.amd.inventory import AmdInventory
from berth_api.device import DeviceSpec
from tests.objects import amd_trees
from tests.objects.amd_trees import AmdTree, refused

FIRST = "0000:63:00.0"
ID = "GPU-1901ead3a2ecd4a6"
QUIET = 300
PAGES = "0x{:08x} : 0x00001000 : {}\n"


class Socket:
    """The kernel's messages, sent by the test."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def receive(self) -> bytes | None:
        try:
            return self._end.recv(8192)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self._end.close()


class Node:
    """A node with eight MI210, and the monitor of its health."""

    def __init__(self, tree: AmdTree, **settings: Any) -> None:
        self.tree, self.now, self.boot = tree, 1000.0, "boot-1"
        self.folder = tree.root / "bus/pci/devices" / FIRST
        self.kernel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        end.settimeout(0)
        options = Settings(node_name="n", sysfs_root=tree.root, proc_root=tree.root, **settings)
        self.inventory = AmdInventory(options, open_events=lambda: Socket(end))
        self.monitor = self._monitor(DeviceSpec())
        self.inventory.listen(self._record)
        self.events: list[FaultEvent] = []
        self.reading: Reading | None = None

    async def faults(self) -> list[str]:
        """Read the cards, and return the faults of the first."""
        readings = await self.inventory.read()
        self.monitor.observe(readings)
        self.reading = self.monitor.apply_faults("n", readings["n"], device_annotations={})
        first, *others = sorted(self.reading.spec.devices, key=lambda device: device.id != ID)
        assert all(other.health for other in others)
        return [fault.kind for fault in faults_of(first)]

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    async def send(self, **values: str) -> None:
        """Send a message as the kernel writes it."""
        path = f"/{self.folder.resolve().relative_to(self.tree.root.resolve())}/drm/card1"
        shown = {"ACTION": "change", "DEVPATH": path, "SUBSYSTEM": "drm", **values}
        self.kernel.send("\0".join([f"change@{path}", *(f"{key}={text}" for key, text in shown.items()), ""]).encode())
        await asyncio.sleep(0)

    def rebind(self) -> None:
        """Bind the card again, as the driver's reload does."""
        bound = self.tree.root / amd_trees.DRIVER / FIRST
        bound.symlink_to(self.folder.resolve())

    def unbind(self) -> None:
        (self.tree.root / amd_trees.DRIVER / FIRST).unlink()

    def restart(self) -> None:
        """Continue with another monitor, from what this one published."""
        assert self.reading is not None
        self.monitor = self._monitor(self.reading.spec.model_copy(update={"boot_id": self.boot}))

    def close(self) -> None:
        self.inventory.close()
        self.kernel.close()

    def _monitor(self, spec: DeviceSpec) -> HealthMonitor:
        monitor = HealthMonitor(boot_id=self.boot, quiet=QUIET, clock=lambda: self.now)
        monitor.restore("n", spec)
        return monitor

    def _record(self, event: FaultEvent) -> None:
        self.events.append(event)
        self.monitor.record_event(event)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(amd_trees.mi210(tmp_path))
    yield node
    node.close()


Change = Callable[[Node], None]


def write(name: str, text: str) -> Change:
    return lambda node: node.write(name, text)


@pytest.mark.parametrize(
    ("begins", "ends", "kind", "message"),
    [
        (
            write("ras/umc_err_count", "ue: 2\nce: 7\nde: 1\n"),
            write("ras/umc_err_count", "ue: 0\nce: 0\nde: 0\n"),
            *(catalogue.UNCORRECTABLE, "uncorrectable errors: umc 2"),
        ),
        (
            write("ras/gpu_vram_bad_pages", PAGES.format(1, "R") + PAGES.format(2, "F")),
            write("ras/gpu_vram_bad_pages", PAGES.format(1, "R") + PAGES.format(2, "R")),
            *(catalogue.RETIREMENT_FAILED, "1 bad memory pages could not be retired: reload the driver"),
        ),
        (
            write("ras/gpu_vram_bad_pages", PAGES.format(1, "P")),
            write("ras/gpu_vram_bad_pages", PAGES.format(1, "R")),
            *(kinds.RETIREMENT_PENDING, "1 bad memory pages are in use, and are retired later"),
        ),
        (
            write("ras/gpu_vram_bad_pages", "".join(PAGES.format(page, "R") for page in range(655))),
            write("ras/gpu_vram_bad_pages", "".join(PAGES.format(page, "R") for page in range(654))),
            *(kinds.PAGES_RETIRED, "655 memory pages are retired; from 655 on the GPU is to be replaced"),
        ),
        (
            lambda node: (node.folder / "config").write_bytes(b"\xff\xff\xff\xff"),
            lambda node: (node.folder / "config").write_bytes(b"\x02\x10\x0f\x74"),
            *(kinds.OFF_THE_BUS, "the GPU does not answer on the PCI bus"),
        ),
    ],
    ids=["ras", "failed page", "pending page", "retired pages", "off the bus"],
)
async def test_a_fault_lasts_while_it_is_measured(
    node: Node, begins: Change, ends: Change, kind: str, message: str
) -> None:
    assert await node.faults() == []
    begins(node)
    assert await node.faults() == [kind]
    assert node.reading is not None
    summary, detail = node.reading.spec.devices[0].conditions
    assert (summary.reason, detail.reason, detail.message) == (kind, "WhileMeasured", message)
    node.restart()
    node.now += 10 * QUIET
    assert await node.faults() == [kind]
    ends(node)
    assert await node.faults() == []


async def test_a_temperature_ends_after_a_quiet_period(node: Node) -> None:
    node.tree.sensors(node.folder, temp2_input="105000")
    assert await node.faults() == []
    node.tree.sensors(node.folder, temp2_input="106000")
    assert await node.faults() == [catalogue.OVERHEATED]
    assert node.reading is not None
    assert node.reading.spec.devices[0].conditions[1].message == "the junction has 106 °C; its critical limit is 105 °C"
    node.tree.sensors(node.folder, temp2_input="90000")
    node.now += QUIET - 1
    assert await node.faults() == [catalogue.OVERHEATED]
    node.now += 1
    assert await node.faults() == []


async def test_a_wedged_card_must_be_reset(node: Node) -> None:
    await node.faults()
    await node.send(WEDGED="none")
    assert await node.faults() == []
    await node.send(WEDGED="rebind,bus-reset")
    assert await node.faults() == [catalogue.WEDGED]
    [event] = node.events
    assert (event.card, event.faults[0].message) == (
        ID,
        "the driver gave the GPU up; what may recover it, by the driver: rebind,bus-reset",
    )
    node.now += 10 * QUIET
    node.restart()
    assert await node.faults() == [catalogue.WEDGED]
    node.unbind()
    await node.inventory.read()
    node.rebind()
    assert await node.faults() == []


async def test_counters_hold_while_the_driver_recovers(node: Node) -> None:
    node.write("ras/umc_err_count", "ue: 1\nce: 0\n")
    assert await node.faults() == [catalogue.UNCORRECTABLE]
    node.write("ras/umc_err_count", "Query currently inaccessible\n")
    assert await node.faults() == [catalogue.UNCORRECTABLE]
    node.write("ras/umc_err_count", "ue: 1\nce: 0\n")
    with refused(node.folder / "ras/umc_err_count", errno.EIO):
        assert await node.faults() == [catalogue.UNCORRECTABLE]


async def test_partitions_that_cannot_be_read_are_not_handed_out(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path, compute="CPX", memory="NPS4")
    inventory = AmdInventory(Settings(node_name="n", sysfs_root=tree.root, proc_root=tree.root))
    devices = (await inventory.read())["n"].spec.devices
    assert {tuple(fault.kind for fault in faults_of(device)) for device in devices} == {(catalogue.PARTITIONS_UNREAD,)}
    assert (len(devices), faults_of(devices[0])[0].message) == (
        8,
        "the GPU is in mode cpx_nps4; only a privileged agent can read its partitions",
    )


@pytest.mark.parametrize("earlier", [[], [catalogue.WEDGED]])
async def test_once_a_card_answers_that_did_not_at_the_start_it_has_its_earlier_faults_only(
    node: Node, earlier: list[str]
) -> None:
    await node.faults()
    for _ in earlier:
        await node.send(WEDGED="rebind")
    await node.faults()
    assert node.reading is not None
    after = Node(node.tree)
    after.monitor.restore("n", node.reading.spec)
    with refused(after.folder / "unique_id", errno.EIO):
        assert await after.faults() == [*earlier, "NoAnswer"]
    assert await after.faults() == earlier
    after.close()


async def test_checks_can_be_disabled(tmp_path: Path) -> None:
    node = Node(amd_trees.mi210(tmp_path), disable_healthchecks="all")
    node.write("ras/umc_err_count", "ue: 2\n")
    await node.faults()
    await node.send(WEDGED="rebind")
    assert await node.faults() == []
    node.close()


def test_each_kind_has_a_remedy() -> None:
    assert {kind: kinds.of(kind) for kind in catalogue.REMEDIES} == catalogue.REMEDIES
    assert Remedy.NOTHING not in catalogue.REMEDIES.values()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", None),
        ("x\0DEVPATH=/devices/pci0000:00/0000:63:00.0/drm/card1\0SUBSYSTEM=drm\0HOTPLUG=1", None),
        ("x\0DEVPATH=/devices/pci0000:00/0000:63:00.0/drm/card1\0SUBSYSTEM=drm\0WEDGED=", None),
        ("x\0DEVPATH=/devices/pci0000:00/0000:63:00.0/drm/card1\0SUBSYSTEM=usb\0WEDGED=rebind", None),
        ("x\0DEVPATH=/devices/virtual/drm/card1\0SUBSYSTEM=drm\0WEDGED=rebind", None),
        ("x\0DEVPATH=/d/0000:63:00.0/drm/card1\0SUBSYSTEM=drm\0WEDGED=a\nb", None),
        ("x\0DEVPATH=/d/0000:63:00.0/drm/card1\0SUBSYSTEM=drm\0WEDGED=rebind", Wedged(FIRST, "rebind")),
    ],
)
def test_which_messages_are_events(message: str, expected: Wedged | None) -> None:
    assert wedged(message.encode()) == expected


def test_the_kernel_lets_everyone_listen() -> None:
    source = KernelEvents()
    assert source.fileno() >= 0
    while (message := source.receive()) is not None:
        assert wedged(message) is None
    source.close()
