"""GPUs that other programs list in files: what is published, and what happens to damaged files."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_agent.conditions import Finding
from berth_agent.health.faults import faults_of
from berth_agent.inventory import device_infos
from berth_agent.inventory.device_infos import MAX_BYTES, MAX_FILES, DeviceInfos, InventoryWithDeviceInfos, ListedGpus
from berth_agent.inventory.interface import NoGpus
from berth_agent.readings import NodeFacts, Reading
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec, Link
from berth_operator.state.objects import devices
from tests.objects.builders import device
from tests.objects.devices import spec

Raw = dict[str, Any]

ISLANDS: Final = ((0, 1, 2, 3), (4, 5, 6, 7))
"""HCCS of an Ascend 910B machine, as HAMi and Koordinator describe it."""


def ascend(minor: int, **changes: Any) -> Raw:
    """Return a device as Koordinator's daemon lists it."""
    peers = [other for island in ISLANDS if minor in island for other in island if other != minor]
    return {
        "vendor": "huawei",
        "model": "Ascend-910B3",
        "uuid": f"npu-{minor}-{minor}",
        "minor": str(minor),
        "resources": {"koordinator.sh/gpu-memory": "65536Mi", "huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7"},
        "topology": {
            "p2pLinks": [{"peerMinor": ",".join(map(str, peers)), "type": "HCCS"}],
            "socketID": "-1",
            "nodeID": str(minor // 4),
            "pcieID": f"pci0000:{minor:02x}",
            "busID": f"0000:{minor:02x}:00.0",
        },
        "status": {"healthy": True},
        **changes,
    }


def write(folder: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    # As a careful writer does it, so that each content is another version of the file.
    (folder / ".draft").write_bytes(text)
    (folder / ".draft").rename(folder / name)


def minors(listed: ListedGpus) -> list[int]:
    return [card.minor for card in listed.cards]


def reason(listed: ListedGpus) -> str:
    assert listed.finding is not None
    assert listed.finding.type == "InventoryRead.xpu"
    assert listed.finding.ok is (listed.finding.reason == "InventoryRead")
    return listed.finding.reason


def test_a_machine_is_published_as_the_operator_reads_it(tmp_path: Path) -> None:
    write(tmp_path, "huawei-0.json", [ascend(minor) for minor in (7, 6, 5, 4)])
    write(tmp_path, "huawei-1.json", [ascend(minor) for minor in (0, 1, 2, 3)])
    listed = DeviceInfos(tmp_path).read()
    assert (reason(listed), listed.vendor, minors(listed)) == ("InventoryRead", "huawei", list(range(8)))
    first = listed.cards[0]
    assert first == DeviceInfo(
        type="gpu",
        minor=0,
        id="GPU-npu-0-0",
        health=True,
        model="Ascend-910B3",
        resources={
            "kubernetes.io/gpu-memory-ratio": 100,
            "kubernetes.io/gpu-memory": "65536Mi",
            "huawei.com/npu-core": "20",
            "huawei.com/npu-cpu": "7",
        },
        topology=first.topology,
        links=[Link(minor=other, type="HCCS") for other in (1, 2, 3)],
    )
    assert first.topology is not None
    assert (first.topology.node_id, first.topology.bus_id) == (0, "0000:00:00.0")

    spec_as_json = DeviceSpec(devices=list(listed.cards)).model_dump(mode="json", by_alias=True)
    record = devices.record({**device("n", labels={names.VENDOR_LABEL: "huawei"}), "spec": spec_as_json})
    assert record.problems == ()
    assert all(card.healthy for card in record.inventory.cards)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": None}, {"health": True}),
        ({"topology": None, "resources": None}, {"links": [], "topology": {"nodeID": -1}}),
        ({"uuid": "GPU-4a1f"}, {"id": "GPU-4a1f"}),
        ({"resources": {"gpu-core": "100"}}, {"resources": {"kubernetes.io/gpu-core": "100"}}),
        # Cards that no file lists, the card itself, and what is no number.
        ({"topology": {"p2pLinks": [{"peerMinor": "0,1, 9,x", "type": "HCCS"}]}}, {"links": [(1, "HCCS")]}),
        ({"topology": {"p2pLinks": [{"peerMinor": "1", "type": "MLU-Link"}]}}, {"links": [(1, "MLULink")]}),
        ({"topology": {"p2pLinks": [{"peerMinor": "1", "type": "New"}]}}, {"links": [(1, "New")]}),
        # The best of several.
        (
            {"topology": {"p2pLinks": [{"peerMinor": "1", "type": "HCCS"}, {"peerMinor": "1", "type": "System"}]}},
            {"links": [(1, "HCCS")]},
        ),
    ],
)
def test_what_a_device_may_leave_out_or_add(tmp_path: Path, changes: Raw, expected: Mapping[str, Any]) -> None:
    write(tmp_path, "devices", [ascend(0, **changes), ascend(1)])
    card = DeviceInfos(tmp_path).read().cards[0].model_dump(by_alias=True)
    card["links"] = [(link["minor"], link["type"]) for link in card["links"]]
    for name, value in expected.items():
        assert card[name] == ({**card[name], **value} if isinstance(value, dict) else value)


def test_the_fault_of_a_device_ends_when_it_is_no_longer_reported(tmp_path: Path) -> None:
    reader = DeviceInfos(tmp_path)
    broken = {"healthy": False, "errCode": "chip error", "errMessage": "NPU index 0 has 2 chip faults"}
    write(tmp_path, "devices", [ascend(0, status=broken)])
    (card,) = reader.read().cards
    assert not card.health
    assert [(fault.kind, fault.message) for fault in faults_of(card)] == [
        ("ReportedByVendor", "chip error: NPU index 0 has 2 chip faults")
    ]
    assert card.conditions[1].reason == "WhileMeasured"
    write(tmp_path, "devices", [ascend(0)])
    assert reader.read().cards[0].health


def large(folder: Path) -> None:
    write(folder, "b", b"[" + b" " * 10 * 2**20 + b"]")


DAMAGES: Final[Mapping[str, tuple[Callable[[Path], object], str]]] = {
    "garbage": (lambda folder: write(folder, "b", b"\x00\xff{"), "Malformed"),
    "half a file": (lambda folder: write(folder, "b", json.dumps([ascend(1)]).encode()[:90]), "Malformed"),
    "an empty file": (lambda folder: write(folder, "b", b""), "Malformed"),
    "no list": (lambda folder: write(folder, "b", ascend(1)), "Malformed"),
    "deep": (lambda folder: write(folder, "b", b"[" * 10**5), "Malformed"),
    "10 MiB": (large, "ReadFailed"),
    "a link": (lambda folder: (folder / "b").symlink_to(folder / "a"), "ReadFailed"),
    "a pipe": (lambda folder: os.mkfifo(folder / "b"), "ReadFailed"),
    "many files": (lambda folder: [(folder / f"b{n}").write_text("[]") for n in range(MAX_FILES)], "TooManyFiles"),
    "many devices": (lambda folder: write(folder, "b", [ascend(n) for n in range(1, 66)]), "Malformed"),
    "too many in all": (lambda folder: write(folder, "b", [ascend(n) for n in range(1, 65)]), "TooManyDevices"),
    "two vendors": (lambda folder: write(folder, "b", [ascend(1, vendor="metax")]), "SecondVendor"),
    "a minor twice": (lambda folder: write(folder, "b", [{**ascend(1), "minor": "0"}]), "Contradiction"),
    "an id twice": (lambda folder: write(folder, "b", [ascend(1, uuid="npu-0-0")]), "Contradiction"),
    "an id that ends another": (lambda folder: write(folder, "b", [ascend(1, uuid="a,all")]), "Malformed"),
    "a minor that is none": (lambda folder: write(folder, "b", [{**ascend(1), "minor": "-1"}]), "Malformed"),
    "a minor above all": (lambda folder: write(folder, "b", [{**ascend(1), "minor": "70000"}]), "Malformed"),
    "a node above all": (lambda folder: write(folder, "b", [ascend(1, topology={"nodeID": "2000"})]), "Malformed"),
    "an amount with a sign": (
        lambda folder: write(folder, "b", [ascend(1, resources={"gpu-memory": "+5"})]),
        "Malformed",
    ),
    "an amount without end": (
        lambda folder: write(folder, "b", [ascend(1, resources={"gpu-memory": "9" * 60})]),
        "Malformed",
    ),
    "an amount that is none": (
        lambda folder: write(folder, "b", [ascend(1, resources={"huawei.com/npu-core": "many"})]),
        "Malformed",
    ),
    "less than nothing": (lambda folder: write(folder, "b", [ascend(1, resources={"gpu-memory": "-1"})]), "Malformed"),
    "a vendor that is no label": (lambda folder: write(folder, "a", [ascend(0, vendor="Ä b")]), "Malformed"),
    "a file that vanishes": (lambda folder: (folder / "a").unlink(), "FileVanished"),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=DAMAGES)
def test_after_any_damage_the_last_good_reading_stays(
    tmp_path: Path, damage: Callable[[Path], object], expected: str
) -> None:
    reader = DeviceInfos(tmp_path)
    write(tmp_path, "a", [ascend(0)])
    good = reader.read()
    damage(tmp_path)
    bad = reader.read()
    assert (reason(bad), bad.cards) == (expected, good.cards)
    assert bad.finding is not None
    assert bad.finding.message.endswith("the GPUs of the last good reading stay listed")
    assert len(bad.finding.message) < 2**11
    # It heals by itself.
    for path in tmp_path.iterdir():
        path.unlink()
    write(tmp_path, "a", [ascend(0)])
    assert (reason(reader.read()), reader.read().cards) == ("InventoryRead", good.cards)


def test_where_no_reading_was_good_nothing_is_listed(tmp_path: Path) -> None:
    write(tmp_path, "a", [ascend(0), ascend(1, vendor="metax")])
    listed = DeviceInfos(tmp_path).read()
    assert (reason(listed), listed.cards) == ("SecondVendor", ())
    assert listed.finding is not None
    assert listed.finding.message == "devices of huawei and metax; allowed is one vendor; no GPU is listed"


def test_a_device_may_move_to_another_file_or_go(tmp_path: Path) -> None:
    reader = DeviceInfos(tmp_path)
    write(tmp_path, "a", [ascend(0), ascend(1)])
    reader.read()
    write(tmp_path, "b", [ascend(0), ascend(1)])
    (tmp_path / "a").unlink()
    assert (reason(reader.read()), minors(reader.read())) == ("InventoryRead", [0, 1])
    write(tmp_path, "b", [ascend(1)])
    assert (reason(reader.read()), minors(reader.read())) == ("InventoryRead", [1])


def test_hidden_files_and_folders_are_not_read(tmp_path: Path) -> None:
    assert DeviceInfos(tmp_path / "none").read() == ListedGpus()
    (tmp_path / "folder").mkdir()
    (tmp_path / ".hidden").write_text("garbage")
    assert DeviceInfos(tmp_path).read() == ListedGpus()


CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.integers(0, 5), unique=True, max_size=4).map(lambda listed: [ascend(minor) for minor in listed]),
    st.sampled_from([b"null", b"[null]", b'[{"minor": 0}]', [ascend(0, vendor="metax")]]),
    st.none(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), CONTENTS), max_size=6))
def test_whatever_is_written_only_good_readings_are_published(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("infos")
    reader, last, now = DeviceInfos(folder), ListedGpus(), dict[str, Any]()
    for name, content in writes:
        if content is None:
            (folder / name).unlink(missing_ok=True)
            now.pop(name, None)
        else:
            write(folder, name, content)
            now[name] = content
        listed = reader.read()
        if listed.finding is not None and listed.finding.ok:
            # Exactly what stands in the files, and each file is good.
            assert sorted(minors(listed)) == sorted(int(each["minor"]) for part in now.values() for each in part)
            last = listed
        else:
            assert listed.cards == last.cards


# --- next to other GPUs -------------------------------------------------------------------------------------------


class Gpus(NoGpus):
    """An inventory with this reading."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(node="node")
        self._readings = {"node": reading}


def gpus_of(reading: Reading, folder: Path) -> InventoryWithDeviceInfos:
    return InventoryWithDeviceInfos(Gpus(reading), DeviceInfos(folder), timeout=60.0)


DRIVER = Finding(type=names.DRIVER_LOADED, ok=False, reason="NoDriver")
WITHOUT = Reading(spec=DeviceSpec(), findings=(DRIVER,), facts=NodeFacts(machine="Atlas 800"))


async def test_a_node_without_other_gpus_gets_those_of_the_files(tmp_path: Path) -> None:
    inventory = gpus_of(WITHOUT, tmp_path)
    assert (await inventory.read())["node"] is WITHOUT
    write(tmp_path, "a", [ascend(0), ascend(1)])
    reading = (await inventory.read())["node"]
    assert [card.id for card in reading.spec.devices] == ["GPU-npu-0-0", "GPU-npu-1-1"]
    assert reading.labels == {names.VENDOR_LABEL: "huawei", names.MODEL_LABEL: "Ascend-910B3"}
    assert [(finding.type, finding.ok) for finding in reading.findings] == [
        ("DriverLoaded", True),
        ("InventoryRead", True),
        ("InventoryRead.xpu", True),
    ]
    # The vendor's own plugin offers them, and they are not labelled as other cards are.
    assert (reading.offered, reading.facts) == (False, NodeFacts(machine="Atlas 800"))
    assert (await inventory.read())["node"] is reading


async def test_a_node_with_other_gpus_keeps_these(tmp_path: Path) -> None:
    write(tmp_path, "a", [ascend(0)])
    known = Reading(spec=spec(2), findings=(DRIVER,), labels={names.VENDOR_LABEL: "nvidia"})
    reading = (await gpus_of(known, tmp_path).read())["node"]
    assert (reading.spec, reading.labels, reading.offered) == (known.spec, known.labels, True)
    finding = reading.findings[-1]
    assert (finding.type, finding.ok, finding.reason) == ("InventoryRead.xpu", False, "SecondVendor")
    assert finding.message == "files list GPUs of huawei, too; only the node's other GPUs are listed"


async def test_damaged_files_of_a_node_without_gpus_are_a_condition(tmp_path: Path) -> None:
    write(tmp_path, "a", b"garbage")
    reading = (await gpus_of(WITHOUT, tmp_path).read())["node"]
    assert reading.spec == WITHOUT.spec
    assert [finding.reason for finding in reading.findings] == ["NoDriver", "Malformed"]


def test_the_largest_machine_fits_a_file() -> None:
    assert len(json.dumps([ascend(minor) for minor in range(device_infos.MAX_CARDS)])) < MAX_BYTES / 8
