"""How many of the GPUs are allocated, free and usable."""

from dataclasses import replace
from typing import Any

import pytest

from berth_operator.core.advice.fleet_figures import Gpus, fleet_figures
from berth_operator.core.fleet.fleet import Fleet
from tests.objects.builders import (
    NVIDIA,
    add,
    asks,
    cards,
    charge,
    divided,
    fleet,
    grant,
    instance,
    inventory,
    node_info,
)


def held(on: Fleet, node: str, *minors: int, hundredths: int = 100) -> Fleet:
    parts = tuple(grant(minor, core=hundredths, ratio=hundredths) for minor in minors)
    on.charge(charge(f"holder-{node}-{minors}", *parts, node=node))
    return on


def test_parts_of_cards_count_as_fractions() -> None:
    half = held(held(fleet({"a": cards(4)}), "a", 0), "a", 1, hundredths=50)
    [gpus] = fleet_figures(half).gpus.values()
    assert gpus == Gpus(allocated=1.5, free=2.5, unavailable=0.0)
    assert gpus.total == 4


def test_an_instance_counts_by_its_slices() -> None:
    built = fleet({"a": (divided(0, "1g.10gb", "2g.20gb", "3g.40gb"),)})
    built.charge(charge("p", instance(0, 2, "3g.40gb"), node="a"))
    assert [gpus.allocated for gpus in fleet_figures(built).gpus.values()] == [0.5]


@pytest.mark.parametrize(
    ("node", "fresh"),
    [
        pytest.param({"cordoned": True}, True, id="cordoned"),
        pytest.param({"ready": False}, True, id="not ready"),
        pytest.param({}, False, id="silent agent"),
    ],
)
def test_what_cannot_be_allocated_is_unavailable(node: dict[str, Any], *, fresh: bool) -> None:
    built = Fleet()
    add(built, node_info("a", **node), inventory(*cards(2)), fresh=fresh)
    held(built, "a", 0)
    figures = fleet_figures(built)
    assert list(figures.gpus.values()) == [Gpus(allocated=1.0, free=0.0, unavailable=1.0)]
    assert set(figures.fragmentation.values()) == {0.0}


def test_unhealthy_cards_are_unavailable_and_models_are_apart() -> None:
    one, two = cards(2)
    figures = fleet_figures(fleet({"a": (replace(one, healthy=False), two), "b": (replace(one, model="L4"),)}))
    assert figures.gpus["L4"] == Gpus(allocated=0.0, free=1.0, unavailable=0.0)
    assert figures.gpus[two.model] == Gpus(allocated=0.0, free=1.0, unavailable=1.0)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        pytest.param({"a": 8}, {1: 0, 2: 0, 4: 0, 8: 0}, id="whole node"),
        pytest.param({"a": 5, "b": 3}, {1: 0, 2: 0.25, 4: 0.5, 8: 1}, id="spread"),
        pytest.param({"a": 0}, {1: 0, 2: 0, 4: 0, 8: 0}, id="nothing free"),
    ],
)
def test_fragmentation(free: dict[str, int], expected: dict[int, float]) -> None:
    built = fleet({name: cards(8) for name in free})
    for name, count in free.items():
        held(built, name, *range(count, 8))
    assert fleet_figures(built).fragmentation == expected


def test_rests_of_cards_are_fragments_for_whole_cards() -> None:
    built = held(fleet({"a": cards(2)}), "a", 0, hundredths=50)
    assert fleet_figures(built).fragmentation[1] == pytest.approx(1 / 3)


def test_free_cards_without_cpu_are_stranded() -> None:
    built = Fleet()
    add(built, node_info("rich"), inventory(*cards(3)))
    add(built, node_info("poor", cpu=1_000), inventory(*cards(1)))
    built.pod_mix.see(asks({NVIDIA: 1, "cpu": 8_000}))
    assert fleet_figures(built).stranded == pytest.approx(0.25)


def test_empty_fleet() -> None:
    figures = fleet_figures(Fleet())
    assert (figures.gpus, figures.stranded) == ({}, 0.0)
