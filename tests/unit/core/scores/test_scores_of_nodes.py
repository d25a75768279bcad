"""Scores about nodes, in the numbers that kube-scheduler would give."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from berth_operator.core import scores
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import (
    balanced_allocation,
    image_locality,
    least_allocated,
    most_allocated,
    node_affinity,
    taints,
)
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import NodeTerm, PodImages, PodRequest, Taint, Toleration
from tests.objects.builders import GI, MI, add, asks, charge, label, node_info, score_values

BIG = 1000


def fleet_of(*nodes: NodeInfo, taken: Mapping[str, tuple[int, int]] | None = None) -> Fleet:
    """Return a Fleet of these nodes; `taken` is (cpu, memory) by node."""
    made = Fleet()
    for node in nodes:
        add(made, node)
    for name, (cpu, memory) in (taken or {}).items():
        made.charge(charge(f"on-{name}", node=name, resources=(("cpu", cpu), ("memory", memory))))
    return made


def scored(module: Any, fleet: Fleet, request: PodRequest, *, fits: set[str] | None = None) -> dict[str, float]:
    mask = np.zeros(len(fleet.names), np.bool_)
    for name in fleet.rows if fits is None else fits:
        mask[fleet.rows[name]] = True
    points = score_values(module, fleet, request, mask)
    return {name: float(points[row]) for name, row in fleet.rows.items()}


def in_zone(value: str) -> NodeTerm:
    return NodeTerm(labels=(label("zone", "In", value),))


# --- node affinity ----------------------------------------------------------------------------------------------

ZONES = (node_info("a", labels={"zone": "a", "disk": ""}), node_info("b", labels={"zone": "b"}), node_info("c"))
DISK = NodeTerm(labels=(label("disk", "Exists"),))


@pytest.mark.parametrize(
    ("preferred", "expected"),
    [
        pytest.param([], {"a": 0, "b": 0, "c": 0}, id="nothing preferred"),
        pytest.param([(in_zone("a"), 1)], {"a": 100, "b": 0, "c": 0}, id="one term"),
        pytest.param([(in_zone("a"), 2), (in_zone("b"), 1)], {"a": 100, "b": 50, "c": 0}, id="by weight"),
        pytest.param([(in_zone("a"), 1), (DISK, 1), (in_zone("b"), 1)], {"a": 100, "b": 50, "c": 0}, id="added up"),
        pytest.param([(in_zone("a"), 3), (in_zone("b"), 1)], {"a": 100, "b": 33, "c": 0}, id="rounded down"),
        pytest.param([(in_zone("x"), 100)], {"a": 0, "b": 0, "c": 0}, id="no node matches"),
        pytest.param([(NodeTerm(), 100)], {"a": 0, "b": 0, "c": 0}, id="an empty term"),
    ],
)
def test_preferred_node_affinity(preferred: Any, expected: dict[str, float]) -> None:
    assert scored(node_affinity, fleet_of(*ZONES), asks(preferred=preferred)) == expected


def test_the_best_of_the_nodes_that_fit_is_the_measure_of_affinity() -> None:
    wanted = asks(preferred=[(in_zone("a"), 100), (in_zone("b"), 10)])
    assert scored(node_affinity, fleet_of(*ZONES), wanted, fits={"b", "c"})["b"] == 100


# --- taints -----------------------------------------------------------------------------------------------------

SOFT = [Taint(key=key, effect="PreferNoSchedule") for key in "xyz"]
TAINTED = (node_info("none"), node_info("one", taints=SOFT[:1]), node_info("three", taints=SOFT))


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], {"none": 100, "one": 67, "three": 0}, id="not tolerated"),
        pytest.param([Toleration(key="x", operator="Exists")], {"none": 100, "one": 100, "three": 0}, id="one of them"),
        pytest.param([Toleration(operator="Exists")], {"none": 0, "one": 0, "three": 0}, id="all: no preference"),
        pytest.param(
            [Toleration(operator="Exists", effect="NoSchedule")],
            {"none": 100, "one": 67, "three": 0},
            id="of another effect",
        ),
    ],
)
def test_prefer_no_schedule_taints(tolerations: Any, expected: dict[str, float]) -> None:
    assert scored(taints, fleet_of(*TAINTED), asks(tolerations=tolerations)) == expected


def test_hard_taints_are_no_preference() -> None:
    assert scored(taints, fleet_of(node_info("a", taints=[Taint(key="x")])), asks()) == {"a": 0}


def test_the_worst_of_the_nodes_that_fit_is_the_measure_of_taints() -> None:
    assert scored(taints, fleet_of(*TAINTED), asks(), fits={"none", "one"})["one"] == 0


# --- images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "requested", "expected"),
    [
        pytest.param({}, ["x:1"], 0, id="no node has it"),
        pytest.param({"x:1": 2000 * MI}, [], 0, id="nothing asked"),
        pytest.param({"x:1": 2000 * MI}, ["x:1"], 100, id="the largest that counts: half of the nodes have it"),
        pytest.param({"x:1": 1000 * MI}, ["x:1"], 48, id="half of it"),
        pytest.param({"x:1": 46 * MI}, ["x:1"], 0, id="the smallest that counts"),
        pytest.param({"x:1": 500 * MI, "y:1": 500 * MI}, ["x:1", "y:1"], 48, id="two images"),
        pytest.param({"x:1": 1000 * MI}, ["x:2"], 0, id="another tag"),
    ],
)
def test_images_that_are_there(images: dict[str, int], requested: list[str], expected: float) -> None:
    fleet = fleet_of(node_info("a", images=images), node_info("b"))
    assert scored(image_locality, fleet, asks(images=requested)) == {"a": expected, "b": 0}


@pytest.mark.parametrize(("release", "expected"), [(36, 48), (37, 24)])
def test_image_volumes_count_from_one_release_on(release: int, expected: float) -> None:
    fleet = fleet_of(node_info("a", images={"x:1": 1000 * MI}), node_info("b"))
    fleet.set_kubernetes(release)
    request = replace(asks(), images=PodImages(names=("v:1", "x:1"), containers=1, volumes=1))
    assert scored(image_locality, fleet, request)["a"] == expected


def test_an_image_that_is_pulled_and_removed_is_kept_current() -> None:
    fleet = fleet_of(node_info("a"), node_info("b"))
    wanted = asks(images=["x:1"])
    fleet.put_node(node_info("a", images={"x:1": BIG * MI}))
    fleet.put_node(node_info("b", images={"x:1": BIG * MI, "y:1": 1}))
    assert scored(image_locality, fleet, wanted) == {"a": 100, "b": 100}
    fleet.put_node(node_info("a"))
    assert scored(image_locality, fleet, wanted) == {"a": 0, "b": 48}
    fleet.remove_node("b")
    assert fleet.images.found("x:1") is None
    assert fleet.images.found("y:1") is None


def test_images_are_those_of_their_node_however_many_come() -> None:
    fleet = fleet_of(*(node_info(f"n{i}", images={"x:1": 100 * BIG * MI} if i == 3 else {}) for i in range(40)))
    points = scored(image_locality, fleet, asks(images=["x:1"]))
    assert {name for name, worth in points.items() if worth} == {"n3"}


# --- cpu and memory ---------------------------------------------------------------------------------------------

FULL = node_info("node", cpu=1000, memory=GI)


@pytest.mark.parametrize(
    ("taken", "wanted", "least", "most"),
    [
        pytest.param((0, 0), {"cpu": 100, "memory": GI // 2}, 70, 30, id="the mean of both"),
        pytest.param((500, GI // 2), {"cpu": 100, "memory": 0}, 45, 55, id="on top of what is taken"),
        pytest.param((0, 0), {"cpu": 333, "memory": 0}, 83, 16, id="rounded down, each and the mean"),
        pytest.param((900, 0), {"cpu": 200, "memory": 0}, 50, 50, id="more than there is"),
    ],
)
def test_least_and_most_allocated(taken: tuple[int, int], wanted: dict[str, int], least: int, most: int) -> None:
    fleet = fleet_of(FULL, taken={"node": taken})
    assert scored(least_allocated, fleet, asks(wanted)) == {"node": least}
    assert scored(most_allocated, fleet, asks(wanted)) == {"node": most}


def test_pods_that_ask_for_nothing_are_assumed_to_take_something() -> None:
    fleet = fleet_of(node_info("node", cpu=1000, memory=2000 * MI))
    assert scored(least_allocated, fleet, asks()) == {"node": 90}


@pytest.mark.parametrize("module", [least_allocated, most_allocated, balanced_allocation])
def test_a_resource_that_a_node_does_not_have_does_not_count(module: Any) -> None:
    fleet = fleet_of(node_info("node", cpu=1000, memory=0))
    expected = {"least-allocated": 75, "most-allocated": 25, "balanced-allocation": 75}
    assert scored(module, fleet, asks({"cpu": 250})) == {"node": expected[module.NAME]}


@pytest.mark.parametrize(
    ("taken", "wanted", "expected"),
    [
        pytest.param((0, 0), {}, 0, id="a pod that asks for nothing"),
        pytest.param((0, 0), {"cpu": 500, "memory": GI // 2}, 75, id="in proportion"),
        pytest.param((0, 0), {"cpu": 1000}, 50, id="as far apart as can be"),
        pytest.param((0, GI), {"cpu": 1000}, 100, id="from apart to even"),
        pytest.param((0, GI // 2), {"cpu": 250}, 81, id="closer"),
        pytest.param((0, 0), {"cpu": 100}, 72, id="a little apart"),
        pytest.param((2000, 0), {"cpu": 1000}, 75, id="more than all is all"),
    ],
)
def test_balanced_allocation(taken: tuple[int, int], wanted: dict[str, int], expected: int) -> None:
    assert scored(balanced_allocation, fleet_of(FULL, taken={"node": taken}), asks(wanted)) == {"node": expected}


# --- all of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [pytest.param(each, id=each.NAME) for each in scores.ALL])
def test_a_score_is_from_0_to_100_even_where_nothing_fits(module: Any) -> None:
    fleet = fleet_of(*ZONES, *TAINTED, node_info("empty", cpu=0, memory=0), taken={"a": (10**9, 10**15)})
    wanted = asks({"cpu": 1}, preferred=[(in_zone("a"), 100)], images=["x"])
    fits: set[str] | None
    for fits in (None, set()):
        points = scored(module, fleet, wanted, fits=fits)
        assert all(np.isfinite(each) for each in points.values())
        assert fits is not None or all(0 <= each <= 100 for each in points.values())
