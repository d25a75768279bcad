"""The storage that claims leave free, in the numbers that kube-scheduler 1.37 would give."""

from typing import Any

import numpy as np
import pytest

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import volume_capacity
from berth_operator.core.values.storage import StorageClass
from tests.builders import GI, add, node_info, score_values
from tests.volumes import bound, capacity, claim, put, volume, wants

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


@pytest.mark.parametrize(
    ("objects", "claims", "expected"),
    [
        pytest.param(
            [claim(), volume("s", on=["a"]), volume("l", on=["b"], size=100 * GI)], ["claim"], (0, 90), id="bound"
        ),
        pytest.param([claim(), volume("s", on=["a"], size=30 * GI)], ["claim"], (67, 0), id="a third, rounded down"),
        pytest.param(
            [claim("c"), claim("d"), volume("s", on=["a"], size=20 * GI), volume("l", on=["a"], size=60 * GI)],
            ["c", "d"],
            (75, 0),
            id="two of one class: sums",
        ),
        pytest.param(
            [
                claim("c"),
                claim("d", storage_class="fast"),
                volume("s", on=["a"], size=20 * GI),
                volume("l", on=["a"], size=40 * GI, storage_class="fast"),
            ],
            ["c", "d"],
            (63, 0),
            id="two classes: the mean, halves up",
        ),
        pytest.param([made("c"), capacity(20 * GI, "a"), capacity(100 * GI, "b")], ["c"], (50, 90), id="provisioned"),
        pytest.param(
            [made("c"), made("d"), capacity(40 * GI, "a"), capacity(15 * GI, "b")],
            ["c", "d"],
            (50, 0),
            id="provisioned twice: of one capacity, which may be too little",
        ),
        pytest.param(
            [made("c"), claim("d"), volume("s", on=["a"], size=20 * GI), capacity(100 * GI, "a")],
            ["c", "d"],
            (50, 0),
            id="what is bound counts alone",
        ),
        pytest.param([claim("c", storage_class="blind")], ["c"], (0, 0), id="unknown"),
    ],
)
def test_free_storage(objects: list[object], claims: list[str], expected: tuple[float, float]) -> None:
    assert scored(world(*objects), *claims) == expected


def test_nothing_is_preferred_for_other_pods_and_before_1_37() -> None:
    fleet = world(bound("b", "s"), claim("c"), volume("s"), volume("l"))
    assert scored(fleet) is None
    assert scored(fleet, "b") is None
    assert scored(fleet, "c") is not None
    fleet.set_kubernetes(36)
    assert scored(fleet, "c") is None
