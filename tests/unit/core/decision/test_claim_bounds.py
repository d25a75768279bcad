"""The pods of lowest priority reach the bounds of the victims for devices."""

from typing import Any

import numpy as np
import pytest

from berth_operator.core.decision.claim_bounds import LOWEST_PRIORITY, OFFSET, ClaimBounds, bounds

Pods = list[tuple[int, int, int]]
"""(place, devices, priority)."""


def bound(missing: list[int], pods: Pods) -> ClaimBounds:
    place, devices, priority = np.array(pods, np.int64).reshape(-1, 3).T
    return bounds(np.array(missing, np.int64), place, devices, priority)


def key(found: ClaimBounds, place: int) -> tuple[Any, ...]:
    return tuple(each[place].item() for each in (found.enough, found.highest, found.weight, found.number))


@pytest.mark.parametrize(
    ("missing", "pods", "expected"),
    [
        pytest.param(0, [], (True, LOWEST_PRIORITY, 0, 0), id="nothing is missing"),
        pytest.param(1, [], (False, LOWEST_PRIORITY, 0, 0), id="no pods"),
        pytest.param(1, [(0, 0, 1)], (False, LOWEST_PRIORITY, 0, 0), id="a pod without devices"),
        pytest.param(1, [(0, 1, 5), (0, 1, 2)], (True, 2, 2 + OFFSET, 1), id="the lowest"),
        pytest.param(2, [(0, 1, 5), (0, 1, 2), (0, 1, 3)], (True, 3, 5 + 2 * OFFSET, 2), id="two of three"),
        pytest.param(2, [(0, 2, 5), (0, 1, 2)], (True, 5, 2 + OFFSET, 1), id="one may suffice, but not the lowest"),
        pytest.param(3, [(0, 1, 5), (0, 1, 2)], (False, LOWEST_PRIORITY, 0, 0), id="too few"),
        pytest.param(1, [(1, 1, 1), (0, 1, 7)], (True, 7, 7 + OFFSET, 1), id="pods of another place"),
    ],
)
def test_bounds_of_one_place(missing: int, pods: Pods, expected: tuple[Any, ...]) -> None:
    found = bound([missing, 0], pods)
    assert key(found, 0) == expected
    assert key(found, 1) == (True, LOWEST_PRIORITY, 0, 0)
