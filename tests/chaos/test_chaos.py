"""Two minutes of chaos: the run of `make chaos` with few faults, and no limits on how long anything takes."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.chaos import faults
from tests.chaos.run import Plan, run
from tests.chaos.schedule import schedule

SEED: Final = 7
FAULTS: Final = 14
PODS: Final = 200


@pytest.mark.timeout(900)
def test_nothing_is_lost_or_booked_twice_under_faults(tmp_path: Path) -> None:
    strikes = schedule(seed=SEED, count=FAULTS, weights=faults.QUICK)

    outcome = run(Plan(seed=SEED, strikes=strikes, pods=PODS, fast=True), tmp_path)

    print(json.dumps(outcome.summary))  # noqa: T201 - shown if the test fails
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert not outcome.problems, "\n".join(outcome.problems)
    assert int(str(outcome.summary["binds"])) >= PODS
