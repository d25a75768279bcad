"""The storage that claims leave free, in the numbers that kube-scheduler 1.37 would give."""

from typing import Any

import numpy as np
import pytest

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import volume_capacity
from berth_operator.core.values.storage import StorageClass
from tests.objects.builders import GI, add, node_info, score_values
from tests.objects.volumes import bound, capacity, claim, put, volume, wants

FAST = StorageClass(name="fast", provisioner="kubernetes.io/no-provisioner", delayed=True)
NO_CAPACITY = StorageClass(name="blind", provisioner="blind.example", delayed=True)


def world(*objects: object) -> Fleet:
    """Return a fleet with the nodes a and b, each in its own zone; the class `made` reports its capacity."""
    fleet = Fleet()
    for name in ("a", "b"):
        add(fleet, node_info(name, labels={"zone": name}))
    fleet.volumes.tracked.add("csi.example")
    return put(fleet, FAST, NO_CAPACITY, *objects)


def scored(fleet: Fleet, *claims: str) -> tuple[float, float] | None:
    mask = np.ones(len(fleet.names), np.bool_)
    if volume_capacity.score(fleet, wants(*claims), mask) is None:
        return None
    points = score_values(volume_capacity, fleet, wants(*claims), mask)
    return float(points[fleet.rows["a"]]), float(points[fleet.rows["b"]])


def made(name: str, **fields: Any) -> Any:
    return claim(name, storage_class="made", **fields)


def on_a(name: str, gibibytes: int, **fields: Any) -> Any:
    return volume(name, on=["a"], size=gibibytes * GI, **fields)


def space(gibibytes: int, zone: str) -> Any:
    return capacity(gibibytes * GI, zone)


C, D, OF_FAST = claim("c"), claim("d"), claim("d", storage_class="fast")
SMALL, LARGE = volume("s", on=["a"]), volume("l", on=["b"], size=100 * GI)
FAST_VOLUME = on_a("l", 40, storage_class="fast")


@pytest.mark.parametrize(
    ("objects", "claims", "expected"),
    [
        pytest.param([C, SMALL, LARGE], "c", (0, 90), id="bound"),
        pytest.param([C, on_a("s", 30)], "c", (67, 0), id="a third, rounded down"),
        pytest.param([C, D, on_a("s", 20), on_a("l", 60)], "cd", (75, 0), id="two of one class: sums"),
        pytest.param([C, OF_FAST, on_a("s", 20), FAST_VOLUME], "cd", (63, 0), id="two classes: the mean, halves up"),
        pytest.param([made("c"), space(20, "a"), space(100, "b")], "c", (50, 90), id="provisioned"),
        pytest.param(
            [made("c"), made("d"), space(40, "a"), space(15, "b")],
            "cd",
            (50, 0),
            id="provisioned twice: of one capacity, which may be too little",
        ),
        pytest.param([made("c"), D, on_a("s", 20), space(100, "a")], "cd", (50, 0), id="what is bound counts alone"),
        pytest.param([claim("c", storage_class="blind")], "c", (0, 0), id="unknown"),
    ],
)
def test_free_storage(objects: list[object], claims: str, expected: tuple[float, float]) -> None:
    assert scored(world(*objects), *claims) == expected


def test_nothing_is_preferred_for_other_pods_and_before_1_37() -> None:
    fleet = world(bound("b", "s"), claim("c"), volume("s"), volume("l"))
    assert scored(fleet) is None
    assert scored(fleet, "b") is None
    assert scored(fleet, "c") is not None
    fleet.set_kubernetes(36)
    assert scored(fleet, "c") is None
