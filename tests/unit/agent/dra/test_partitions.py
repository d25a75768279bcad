"""Instances that can be made, as devices with counters. The simulated NVML reports their profiles."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.partitions import PartitionedCard, partitioned
from berth_agent.vendor import PartitionProfile
from berth_agent.vendors.nvidia.nvml import library, mig
from berth_api.allocation.device_ids import device_name
from tests.nvml import mig_profiles
from tests.nvml.fixture import Gpu, NvmlFixture, a30, a100, a100_40, h100, with_profiles
from tests.nvml.probe import Machine

GPUS: Final[Mapping[str, Gpu]] = {
    "a100-40": a100_40(),
    "a100-80": with_profiles(a100(), mig_profiles.A100_80),
    "h100-80": with_profiles(h100(), mig_profiles.H100_80),
    "a30": a30(),
}
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def whole(gpu: Gpu) -> ListedDevice:
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}, "productName": {"string": gpu.name}}
    return ListedDevice(
        name=device_name(gpu.uuid), id=gpu.uuid, card=gpu.uuid, place="", attributes=attributes, memory=str(gpu.memory)
    )


def reported(fixture: NvmlFixture) -> tuple[PartitionProfile, ...]:
    library.load(fixture.library)
    library.open_session()
    try:
        return mig.profiles(library.card(0))
    finally:
        library.close_session()


def listed(machine: Machine, gpu: Gpu) -> PartitionedCard:
    card = partitioned(whole(gpu), reported(machine(gpu)), opened=True, keeps_counters=True)
    assert card
    return card


def amounts(counters: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(counter["value"]) for name, counter in counters.items()}


def sets(card: PartitionedCard) -> Iterator[tuple[list[str], set[str]]]:
    """Yield each set of devices that the counters allow, with the devices that can be added to it."""
    uses = {device["name"]: amounts(device["consumesCounters"][0]["counters"]) for device in card.devices}
    names = list(uses)

    def fits(left: Mapping[str, int], name: str) -> bool:
        return all(left[counter] >= amount for counter, amount in uses[name].items())

    def walk(taken: list[str], left: dict[str, int], first: int) -> Iterator[tuple[list[str], set[str]]]:
        yield taken, {name for name in names if fits(left, name)}
        for index in range(first, len(names)):
            if fits(left, names[index]):
                use = uses[names[index]]
                rest = {counter: amount - use.get(counter, 0) for counter, amount in left.items()}
                yield from walk([*taken, names[index]], rest, index + 1)

    yield from walk([], amounts(card.counters["counters"]), 0)


@pytest.mark.parametrize(("name", "count"), [("a100-40", 2320), ("h100-80", 2320), ("a30", 77)])
def test_counters_allow_what_placements_allow_and_nothing_else(machine: Machine, name: str, count: int) -> None:
    """Compare all sets of devices with the rule for placements: they are apart, and a profile has a maximum.

    `tests/unit/nvml` shows that the library makes the same sets. Here the set with the whole card is one more.
    """
    gpu = GPUS[name]
    card = listed(machine, gpu)
    most = {profile.id: profile.instances for profile in gpu.profiles}
    media = {
        profile.id for profile in gpu.profiles if profile.ofas and profile.instances == 1 and "+me" in profile.name
    }

    def allowed(taken: Sequence[str], other: str) -> bool:
        if device_name(gpu.uuid) in {*taken, other}:
            return not taken
        held = [card.placements[device] for device in taken]
        place = card.placements[other]
        return (
            all(place.start + place.size <= at.start or at.start + at.size <= place.start for at in held)
            and sum(at.profile == place.profile for at in held) < most[place.profile]
            and not (place.profile in media and any(at.profile in media for at in held))
        )

    names = [device["name"] for device in card.devices]
    found = 0
    for taken, addable in sets(card):
        found += 1
        assert addable == {other for other in names if allowed(taken, other)}, taken
    assert found == count


@pytest.mark.parametrize("name", GPUS)
def test_devices_keep_the_limits_of_the_api(machine: Machine, name: str) -> None:
    gpu = GPUS[name]
    card = listed(machine, gpu)
    names = [device["name"] for device in card.devices]
    assert len(set(names)) == len(names) == 1 + sum(len(profile.starts) for profile in gpu.profiles) <= 64
    assert len(card.counters["counters"]) <= 32
    counters = {key for device in card.devices for use in device["consumesCounters"] for key in use["counters"]}
    assert counters == set(card.counters["counters"])
    for label in (*names, *counters, card.counters["name"]):
        assert LABEL.fullmatch(label), label
        assert len(label) <= 63
    assert card.devices[0]["consumesCounters"][0]["counters"] == card.counters["counters"]


def test_an_instance_says_what_it_will_have(machine: Machine) -> None:
    gpu = GPUS["h100-80"]
    card = listed(machine, gpu)
    device = next(device for device in card.devices if device["name"].endswith("-3g-40gb-9-4"))
    assert device["attributes"] == {
        "type": {"string": "mig"},
        "parentUUID": {"string": gpu.uuid},
        "profile": {"string": "3g.40gb"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    }
    assert device["capacity"]["memory"] == {"value": "40448Mi"}
    assert device["capacity"]["multiprocessors"] == {"value": "60"}
    assert device["consumesCounters"][0]["counters"] == {
        "multiprocessors": {"value": "60"},
        "copy-engines": {"value": "3"},
        "decoders": {"value": "3"},
        "jpeg-engines": {"value": "3"},
        **{f"memory-slice-{index}": {"value": "1"} for index in (4, 5, 6, 7)},
    }


def test_the_first_placement_of_a_profile_leaves_the_most_room_for_others(machine: Machine) -> None:
    """4g can begin at 0 only, and 2g and 3g not at 6."""
    card = listed(machine, GPUS["h100-80"])
    assert card.devices[0]["attributes"]["type"] == {"string": "gpu"}
    starts: dict[str, list[int]] = {}
    for device in card.devices[1:]:
        starts.setdefault(device["attributes"]["profile"]["string"], []).append(card.placements[device["name"]].start)
    assert {profile: starts[profile] for profile in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb")} == {
        "1g.10gb": [6, 4, 5, 0, 1, 2, 3],
        "1g.20gb": [6, 4, 0, 2],
        "2g.20gb": [4, 0, 2],
        "3g.40gb": [4, 0],
    }


def test_only_opened_cards_are_listed_and_only_where_counters_are_kept(machine: Machine) -> None:
    gpu = GPUS["a30"]
    profiles = reported(machine(gpu))
    assert partitioned(whole(gpu), profiles, opened=False, keeps_counters=True) is None
    assert partitioned(whole(gpu), profiles, opened=True, keeps_counters=False) is None
    assert partitioned(whole(gpu), [], opened=True, keeps_counters=True) is None
    many = [replace(profiles[0], id=number, starts=range(40), size=1) for number in (1, 2)]
    assert partitioned(whole(gpu), many, opened=True, keeps_counters=True) is None


def test_the_card_has_what_any_kind_of_instance_has(machine: Machine) -> None:
    """The largest profile may lack an engine, and a card can have more of one than one instance has."""
    gpu = GPUS["a30"]
    *small, large = reported(machine(gpu))
    media = replace(small[0], id=90, instances=2, engines={**small[0].engines, "encoders": 2})
    card = partitioned(whole(gpu), [*small, media, large], opened=True, keeps_counters=True)
    assert card
    assert "encoders" not in {name for name, count in large.engines.items() if count}
    assert card.counters["counters"]["encoders"] == {"value": "4"}
    used = amounts(card.devices[0]["consumesCounters"][0]["counters"])
    assert used == amounts(card.counters["counters"])
