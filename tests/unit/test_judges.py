"""Which judge runs in a landing, and which failures block."""

import re
from pathlib import Path

import pytest

from tests.judges import choice, record
from tests.judges.choice import DUE, OLDEST, TOLERATED, Result, Run
from tests.judges.table import JUDGES, Judge

ROOT = Path(__file__).parents[2]
A, B, C = (Judge(name=name, short="SEED={seed}", paths=(f"{name}/",)) for name in "abc")
ALL = (A, B, C)


def run(landing: int, judge: str, result: Result = "passed", *, manual: bool = False) -> Run:
    return Run(landing=landing, commit="c", judge=judge, seed=1, result=result, minutes=1, manual=manual)


def test_the_oldest_judge_that_a_change_concerns_runs() -> None:
    runs = [run(1, "a"), run(2, "b"), run(3, "c")]
    assert choice.choose(ALL, runs, ["b/x.py", "c/x.py"]) == B
    assert choice.choose(ALL, runs, ["c/x.py"]) == C


def test_the_oldest_runs_if_a_change_concerns_none() -> None:
    assert choice.choose(ALL, [run(1, "b"), run(2, "a"), run(3, "c")], ["README.md"]) == B


def test_a_judge_that_never_ran_is_the_oldest() -> None:
    assert choice.choose(ALL, [run(1, "a"), run(2, "c")], []) == B


def test_what_did_not_end_or_was_skipped_has_not_run() -> None:
    assert choice.choose(ALL, [run(1, "a"), run(2, "b"), run(3, "c", "unfinished"), run(4, "", "skipped")], []) == C


def test_a_judge_is_due_after_fifteen_landings_whatever_a_change_touches() -> None:
    recent = [run(landing, "abc"[landing % 2]) for landing in range(2, DUE)]
    assert choice.choose((A, B, C), [run(1, "c"), *recent], ["a/x.py"]) == A
    assert choice.choose((A, B, C), [run(1, "c"), *recent, run(DUE, "a")], ["a/x.py"]) == C


@pytest.mark.parametrize("changed", [[judge.paths[0] for judge in JUDGES], [JUDGES[0].paths[0]], []])
def test_no_judge_is_ever_too_old_if_one_runs_in_each_landing(changed: list[str]) -> None:
    runs: list[Run] = []
    for landing in range(1, 100):
        runs.append(run(landing, choice.choose(JUDGES, runs, changed).name))
        assert max(choice.ages(JUDGES, runs).values()) <= OLDEST
        assert list(choice.problems(JUDGES, runs)) == []


def test_a_judge_that_is_too_old_forbids_to_land() -> None:
    runs = [run(1, "a"), *(run(landing, "", "skipped") for landing in range(2, OLDEST + 2))]
    assert list(choice.problems((A,), runs)) == [
        "a has not run for 21 landings, at most 20 are allowed: run it, and record the result"
    ]
    assert list(choice.problems((A,), [*runs, run(22, "a", manual=True)])) == []


def test_runs_of_contributors_do_not_count_as_landings() -> None:
    assert choice.current([run(1, "a"), run(2, "b", manual=True), run(2, "c", manual=True)]) == 2


def test_a_known_failure_blocks_after_three_landings_and_no_longer_once_the_judge_passes() -> None:
    runs = [run(1, "a", "known")]
    blocked = []
    for landing in range(2, 2 + TOLERATED):
        blocked.append(choice.blocks("a", runs))
        runs.append(run(landing, "b"))
    assert [*blocked, choice.blocks("a", runs)] == [False, False, True, True]
    assert list(choice.problems(ALL, runs)) == ["a has failed since landing 1, and 3 landings were tolerated: mend it"]
    assert not choice.blocks("a", [*runs, run(5, "a", manual=True)])


def test_a_known_failure_is_counted_from_when_it_was_found() -> None:
    runs = [run(1, "a", "known"), run(2, "a", "known"), run(3, "b")]
    assert choice.known(runs) == {"a": 1}
    assert "| a | 1 | 4 |" in record.page(runs)


def test_each_judge_is_a_target_of_make_and_its_paths_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {judge.name for judge in JUDGES} <= targets
    assert [path for judge in JUDGES for path in judge.paths if not (ROOT / path).exists()] == []


def test_the_seed_is_part_of_the_command() -> None:
    assert A.command(7) == ["make", "a", "SEED=7"]
    assert JUDGES[-3].command(7) == ["make", "dra-integration", "ARGS=--recorded --only GA"]
