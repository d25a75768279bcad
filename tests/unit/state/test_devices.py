"""Devices as the API server sends them: each contradiction is named, and excludes only the cards that it touches."""

from typing import Any

import pytest

from berth_api import names
from berth_api.device import DeviceStatus
from berth_operator.state import devices
from tests.builders import A100, A100_BYTES, CORE, MEMORY, RATIO, condition, device, entry

Raw = dict[str, Any]


def usable(raw: Raw) -> list[tuple[str, int]]:
    return [(card.type, card.minor) for card in devices.record(raw).inventory.cards if card.healthy]


def with_resources(minor: int, **amounts: str) -> Raw:
    long = {"core": CORE, "memory": MEMORY, "ratio": RATIO, "other": "koordinator.sh/gpu-memory"}
    return entry(minor, resources={long[key]: value for key, value in amounts.items()})


def test_a_device_is_read() -> None:
    found = devices.record(device("n", entry(0), generation=7, labels={names.VENDOR_LABEL: "amd"}))
    assert (found.name, found.uid, found.generation) == ("n", "uid-device-n", 7)
    assert (found.driver_version, found.inventory.vendor, found.problems) == ("570.124.06", "amd", ())
    (card,) = found.inventory.cards
    assert (card.type, card.minor, card.id, card.model, card.healthy) == ("gpu", 0, "GPU-0", A100, True)
    assert dict(card.amounts) == {"gpu-core": 100, "gpu-memory": A100_BYTES, "gpu-memory-ratio": 100}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"metadata": {"name": "n", "uid": "u"}}, id="nothing"),
        pytest.param({"metadata": {"name": "n", "uid": "u"}, "spec": None, "status": None}, id="null"),
        pytest.param(device("n"), id="no devices"),
    ],
)
def test_an_empty_device_is_read(raw: Raw) -> None:
    found = devices.record(raw)
    assert (found.inventory.cards, found.inventory.vendor, found.problems) == ((), "nvidia", ())


def test_both_prefixes_are_read() -> None:
    raw = device("n", entry(0, resources={"koordinator.sh/gpu-memory": "16Gi"}))
    (card,) = devices.record(raw).inventory.cards
    assert dict(card.amounts) == {"gpu-core": 100, "gpu-memory": 16 * 2**30, "gpu-memory-ratio": 100}


@pytest.mark.parametrize(
    ("kind", "amounts"),
    [
        pytest.param("rdma", {"rdma": 100}, id="rdma"),
        pytest.param("fpga", {"fpga": 100}, id="fpga"),
    ],
)
def test_a_device_that_does_not_say_its_size_is_a_hundred_hundredths(kind: str, amounts: dict[str, int]) -> None:
    (card,) = devices.record(device("n", entry(0, type=kind, resources={}))).inventory.cards
    assert dict(card.amounts) == amounts


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"health": False}, id="unhealthy"),
        pytest.param({"mig": {"enabled": True}}, id="in MIG mode"),
    ],
)
def test_a_card_that_cannot_be_handed_out_stands_in_the_inventory_all_the_same(fields: Raw) -> None:
    found = devices.record(device("n", entry(0, **fields), entry(1)))
    assert [card.healthy for card in found.inventory.cards] == [False, True]
    assert found.problems == ()
    assert dict(found.inventory.cards[0].amounts)["gpu-memory"] == A100_BYTES


def test_a_card_that_is_only_capable_of_mig_is_whole() -> None:
    assert usable(device("n", entry(0, mig={"enabled": False}))) == [("gpu", 0)]


CONTRADICTIONS = [
    pytest.param(
        [entry(0, id="X"), entry(1, id="X"), entry(2)],
        ["spec.devices[0].id: X stands more than once", "spec.devices[1].id: X stands more than once"],
        [2],
        id="one UUID twice",
    ),
    pytest.param(
        [entry(0, links=[{"minor": 5, "type": "NVLink"}]), entry(1)],
        ["spec.devices[0].links: minor 5 is not another gpu device"],
        [1],
        id="a link to nothing",
    ),
    pytest.param(
        [entry(0, links=[{"minor": 0, "type": "NVLink"}]), entry(1)],
        ["spec.devices[0].links: minor 0 is not another gpu device"],
        [1],
        id="a link to itself",
    ),
    pytest.param(
        [with_resources(0, memory="lots"), entry(1)],
        [f'spec.devices[0].resources.{MEMORY}: "lots" is not a quantity'],
        [1],
        id="a word for memory",
    ),
    pytest.param(
        [with_resources(0, memory="-1Gi"), entry(1)],
        [f"spec.devices[0].resources.{MEMORY}: -1Gi is negative"],
        [1],
        id="negative memory",
    ),
    pytest.param(
        [with_resources(0, memory="1Gi", core="200"), entry(1)],
        [f"spec.devices[0].resources.{CORE}: 200; a card has 100"],
        [1],
        id="two cards' core",
    ),
    pytest.param(
        [with_resources(0, memory="1Gi", ratio="50"), entry(1)],
        [f"spec.devices[0].resources.{RATIO}: 50; a card has 100"],
        [1],
        id="half a card's ratio",
    ),
    pytest.param(
        [with_resources(0, memory="1Gi", other="2Gi"), entry(1)],
        ["spec.devices[0].resources.koordinator.sh/gpu-memory: 2Gi; under its other prefix it is another amount"],
        [1],
        id="two amounts under two prefixes",
    ),
    pytest.param(
        [with_resources(0, core="100"), entry(1)],
        [f"spec.devices[0].resources: a healthy GPU has no {MEMORY}"],
        [1],
        id="no memory",
    ),
    pytest.param(
        [with_resources(0, memory="0"), entry(1)],
        [f"spec.devices[0].resources: a healthy GPU has no {MEMORY}"],
        [1],
        id="zero memory",
    ),
]


@pytest.mark.parametrize(("entries", "problems", "left"), CONTRADICTIONS)
def test_a_contradiction_is_named_and_excludes_its_cards_alone(
    entries: list[Raw], problems: list[str], left: list[int]
) -> None:
    raw = device("n", *entries)
    found = devices.record(raw)
    assert len(found.problems) == len(problems)
    for told, words in zip(found.problems, problems, strict=True):
        assert told.startswith(words)
    assert usable(raw) == [("gpu", minor) for minor in left]


def test_an_excluded_card_offers_nothing() -> None:
    (card,) = devices.record(device("n", with_resources(0, memory="lots"))).inventory.cards
    assert card.amounts == ()


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([entry(0, id="X"), entry(0, type="rdma", id="X", resources={})], id="one id, two types"),
        pytest.param([entry(0, health=False, resources={})], id="an unhealthy card may not know its memory"),
        pytest.param(
            [entry(0, links=[{"minor": 1, "type": "NVLink"}]), entry(1, links=[{"minor": 0, "type": "NVLink"}])],
            id="links to each other",
        ),
    ],
)
def test_what_only_looks_like_a_contradiction(entries: list[Raw]) -> None:
    assert devices.record(device("n", *entries)).problems == ()


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        pytest.param({"minor": -1}, "spec.devices[0].minor: ", id="a number out of range"),
        pytest.param({"type": "tpu"}, "spec.devices[0].type: ", id="another type"),
        pytest.param({"id": ""}, "spec.devices[0].id: ", id="no id"),
        pytest.param({"topology": {"nodeID": "x"}}, "spec.devices[0].topology.nodeID: ", id="deep down"),
    ],
)
def test_a_spec_that_cannot_be_read_is_told_and_offers_nothing(bad: Raw, place: str) -> None:
    found = devices.record(device("n", {**entry(0), **bad}, entry(1)))
    assert found.inventory.cards == ()
    (problem,) = found.problems
    assert problem.startswith(place)


def test_a_field_of_another_version_is_passed_over() -> None:
    assert usable(device("n", entry(0, color="green"))) == [("gpu", 0)]


def test_conditions_are_read_from_the_status() -> None:
    first = devices.record(device("n", conditions=[condition("Ready", "Unknown")]))
    second = devices.record(device("n", conditions=[condition("Ready", "True")]), known=first)
    for found, status in ((first, "Unknown"), (second, "True")):
        assert [(each.type, each.status) for each in found.conditions] == [("Ready", status)]
        assert tuple(found.status.conditions) == found.conditions


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"gpus": "many"}, id="a word for a number"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="a condition without status"),
        pytest.param({"devices": {}}, id="not a list"),
    ],
)
def test_a_status_that_cannot_be_read_counts_as_empty(status: Raw) -> None:
    found = devices.record(device("n", entry(0), status=status))
    assert found.status == DeviceStatus()
    assert found.conditions == ()
    assert len(found.inventory.cards) == 1
