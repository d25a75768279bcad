"""The parser of logs and reports of upstream's tests, and their lists."""

import json
from datetime import date
from pathlib import Path

import pytest
import yaml

from tests.upstream import __main__ as target
from tests.upstream.suites import SUITES, Suite

TABLE = Path(__file__).parents[2] / "docs/testing.md"


LISTS = [pytest.param(suite, api, id=f"{suite.name} {api}") for suite in SUITES.values() for api in suite.api_servers]


@pytest.mark.parametrize(("suite", "version"), LISTS)
def test_each_recorded_case_runs_once(suite: Suite, version: str) -> None:
    recorded = json.loads(suite.lists(suite.api_servers[version])[0].read_text())
    assert recorded
    assert {case: sum(part.covers(case) for part in suite.parts()) for case in recorded} == dict.fromkeys(recorded, 1)


@pytest.mark.parametrize(("suite", "version"), LISTS)
def test_only_cases_that_kube_scheduler_passes_are_listed_as_different(suite: Suite, version: str) -> None:
    record, differences = suite.lists(suite.api_servers[version])
    recorded, listed = json.loads(record.read_text()), yaml.safe_load(differences.read_text())
    assert {case for case in listed if recorded.get(case) != target.SUCCESS} == set()


@pytest.mark.parametrize(("suite", "version"), LISTS)
def test_the_results_are_shown_for_the_pinned_version(suite: Suite, version: str) -> None:
    record, differences = suite.lists(suite.api_servers[version])
    passed = [case for case, outcome in json.loads(record.read_text()).items() if outcome == target.SUCCESS]
    left_out = [case for part in suite.parts() if part.not_berths for case in passed if part.covers(case)]
    figures = [len(passed), len(yaml.safe_load(differences.read_text())), len(left_out)]
    [*shown, recorded] = row(f"`{suite.name}`", record.stem.removeprefix("kube-scheduler-"))
    assert shown == list(map(str, figures))
    assert date.fromisoformat(recorded)


def row(*begin: str) -> list[str]:
    """Return the other cells of the one row of the table that begins with these."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.read_text().splitlines()]
    [found] = [each[len(begin) :] for each in cells if each[: len(begin)] == [*begin]]
    return found
