"""Which card kubelet means by the id of a unit."""

from pathlib import Path

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.admission.units import Units
from berth_agent.vendors.amd.vendor import Amd
from berth_agent.vendors.nvidia.vendor import Nvidia
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, Topology
from tests.objects import amd_trees

CARDS = [f"GPU-a1000000-0000-4000-8000-{number:012d}" for number in range(12)]
MIG = "MIG-c1000000-0000-4000-8000-000000000000"
ALL = frozenset(CARDS)
SETTINGS = Settings(node_name="n")


def card(minor: int, place: int) -> DeviceInfo:
    topology = Topology(bus_id=f"0000:{place:02x}:00.0")
    return DeviceInfo(type="gpu", minor=minor, id=CARDS[place], topology=topology)


def spec() -> DeviceSpec:
    """Return twelve cards. The first two have minors in another order than NVML's indices, and one is in MIG mode."""
    cards = [card(place ^ 1 if place < 2 else place, place) for place in range(len(CARDS))]
    instance = MigInstance(id=MIG, profile="1g.10gb", gpu_instance=1, compute_instance=0, memory="10Gi")
    cards[3] = cards[3].model_copy(update={"mig": Mig(enabled=True, instances=[instance])})
    return DeviceSpec(devices=cards)


def units() -> Units:
    return Units.of(spec(), Nvidia().card_names(SETTINGS, spec()))


@pytest.mark.parametrize(
    ("unit", "matched"),
    [
        (CARDS[4], CARDS[4]),
        (f"{CARDS[4]}::3", f"{CARDS[4]}::3"),
        (f"{CARDS[4]}-3", CARDS[4]),
        (f"{CARDS[4].lower()}-3", CARDS[4]),
        (MIG, MIG),
        ("nvidia0", CARDS[1]),
        ("nvidia1", CARDS[0]),
        ("nvidia11", CARDS[11]),
        ("nvidia1/gi1", CARDS[0]),
        ("nvidia1/vgpu1", CARDS[0]),
        ("nvidia1/gi1/vgpu1", CARDS[0]),
        ("nvidia3/gi1", MIG),
        ("nvidia3/gi1/vgpu0", MIG),
        ("nvidia3/gi2", CARDS[3]),
        ("nvidia2::1", CARDS[2]),
        ("0000:0B:00.0", CARDS[11]),
        ("2", CARDS[2]),
        # No card of the node has these, wherever they are.
        ("GPU-a1000000-0000-4000-8000-0000000000ff", "GPU-a1000000-0000-4000-8000-0000000000ff"),
        ("MIG-GPU-a1000000-0000-4000-8000-0000000000ff/1/0", "MIG-GPU-a1000000-0000-4000-8000-0000000000ff/1/0"),
    ],
)
def test_an_id_that_can_only_be_one_card_is_this_card(unit: str, matched: str) -> None:
    assert units().matched(unit) == matched


@pytest.mark.parametrize(
    ("unit", "cards"),
    [
        ("0", {CARDS[0], CARDS[1]}),
        ("1", {CARDS[0], CARDS[1]}),
        ("0-3", ALL),
        ("nvidia12", ALL),
        ("nvidia", ALL),
        ("xnvidia0", ALL),
        ("unit-7", ALL),
        ("", ALL),
    ],
)
def test_any_other_id_may_be_each_card_that_it_names_or_all(unit: str, cards: frozenset[str]) -> None:
    assert units().matched(unit) is None
    assert units().candidates(unit) == cards


def test_a_name_of_a_card_that_is_gone_and_of_another_one_stands_for_both() -> None:
    first, second = DeviceSpec(devices=[card(0, 0)]), DeviceSpec(devices=[card(0, 5)])
    before = Units.of(first, Nvidia().card_names(SETTINGS, first))
    assert before.joined(Units.of(DeviceSpec(devices=[]))).matched("nvidia0") == CARDS[0]
    after = before.joined(Units.of(second, Nvidia().card_names(SETTINGS, second)))
    assert after.matched("nvidia0") is None
    assert after.candidates("nvidia0") == {CARDS[0], CARDS[5]}


def test_cards_of_amd_have_the_names_of_their_devices(tmp_path: Path) -> None:
    amd_trees.mi300x(tmp_path, compute="DPX")
    settings = Settings(node_name="n", sysfs_root=tmp_path)
    topology = Topology(bus_id=amd_trees.MI300X[0].address)
    cards = [DeviceInfo(type="gpu", minor=minor, id=CARDS[minor], topology=topology) for minor in range(2)]
    spec = DeviceSpec(devices=cards)
    units = Units.of(spec, Amd().card_names(settings, spec))
    assert units.matched("renderD129") == CARDS[1]
    assert units.matched("amdgpu_xcp_1") == CARDS[1]
    assert units.matched("amdgpu_xcp_9") is None
    assert units.matched(topology.bus_id) is None
    assert units.candidates(topology.bus_id) == set(CARDS[:2])
