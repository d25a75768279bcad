"""A run's report, and which values it calls too slow."""

from typing import Any

import pytest

from tests.chaos.figures import Figures


def measured(**seconds: list[float]) -> Figures:
    kinds: dict[str, Any] = {what: [("kind", value) for value in values] for what, values in seconds.items()}
    return Figures(**kinds)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        pytest.param(measured(heals=[1.9] * 10), [], id="in time"),
        pytest.param(measured(heals=[0.1] * 19 + [9.9]), [], id="one slow"),
        pytest.param(
            measured(heals=[0.1] * 8 + [3.0] * 2),
            ["the 90th percentile of healing is 3.0 s, allowed are 2 s"],
            id="too many slow",
        ),
        pytest.param(measured(heals=[0.1] * 19 + [10.1]), ["kind: 10.1 s, allowed are 10 s"], id="one too slow"),
        pytest.param(measured(returns=[44.0]), [], id="returned in time"),
        pytest.param(measured(returns=[46.0]), ["kind: 46.0 s, allowed are 45 s"], id="returned late"),
        pytest.param(measured(failovers=[17.0]), [], id="failed over in time"),
        pytest.param(measured(failovers=[18.5]), ["kind: 18.5 s, allowed are 18 s"], id="failed over late"),
    ],
)
def test_what_is_too_slow(figures: Figures, expected: list[str]) -> None:
    assert figures.too_slow(failover=18.0) == expected


def test_the_last_line_has_the_worst_of_each() -> None:
    figures = measured(heals=[0.1, 0.5], returns=[30.0], failovers=[8.0, 9.0])

    assert figures.summary() == {
        "faults": {},
        "heal_p90_s": 0.5,
        "heal_max_s": 0.5,
        "return_max_s": 30.0,
        "failover_max_s": 9.0,
    }


def test_without_faults_there_is_nothing_to_report() -> None:
    assert Figures().too_slow(failover=18.0) == []
    assert Figures().summary()["heal_max_s"] == 0.0
