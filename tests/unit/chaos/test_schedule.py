"""The schedule of faults depends only on its seed."""

import pytest

from tests.chaos import faults, month
from tests.chaos.broken import EDITS
from tests.chaos.schedule import schedule
from tests.chaos.site import ROOT

WEIGHTS = {"seldom": 1, "often": 9}


def test_a_seed_is_one_schedule() -> None:
    first, again, other = (schedule(seed=seed, count=50, weights=WEIGHTS) for seed in (1, 1, 2))

    assert first == again != other


def test_there_are_enough_kinds_and_each_is_a_method() -> None:
    assert len(faults.WEIGHTS) >= 25
    assert [kind for kind, family in faults.KINDS.items() if not callable(getattr(family, kind, None))] == []


@pytest.mark.parametrize("name", EDITS)
def test_a_broken_build_edits_what_is_there(name: str) -> None:
    edit = EDITS[name]

    assert edit.before in (ROOT / edit.file).read_text()


@pytest.mark.parametrize("seed", range(3))
def test_a_month_has_each_kind_and_rests_between(seed: int) -> None:
    strikes = month.plan(seed=seed, events=300, pods=1).strikes

    assert len(strikes) == 300
    assert {strike.kind for strike in strikes} == faults.LIFE.keys()
    assert [place for place, strike in enumerate(strikes) if strike.kind == month.REST] == [74, 149, 224, 299]
