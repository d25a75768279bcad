"""What the runs of upstream's tests read from their logs and reports, and their lists."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.upstream import __main__ as target
from tests.upstream import cases, perf, specs
from tests.upstream.suites import SUITES, Suite

TABLE = Path(__file__).parents[2] / "docs/testing.md"
LOG = """\
=== RUN   TestDRA/all/PodGroup
    dra.go:519: Starting the scheduler --- PASS: is no line of its own
\x16--- PASS: TestDRA/all/PodGroup/basic-2-pods (3.10s)
\x16--- FAIL: TestDRA/all/PodGroup/gang-5-pods (60.00s)
\x16--- FAIL: TestDRA/all/PodGroup (63.10s)
\x16--- SKIP: TestDRA/all/Pod (0.00s)
"""


def test_cases_are_the_tests_without_sub_tests() -> None:
    assert cases.leaves(LOG) == {
        "TestDRA/all/PodGroup/basic-2-pods": "PASS",
        "TestDRA/all/PodGroup/gang-5-pods": "FAIL",
        "TestDRA/all/Pod": "SKIP",
    }


def spec(text: str, state: str, *above: str, kind: str = "It") -> dict[str, Any]:
    return {"LeafNodeType": kind, "LeafNodeText": text, "ContainerHierarchyTexts": [*above] or None, "State": state}


def test_cases_are_the_specs_with_all_their_words() -> None:
    above = ("[sig-scheduling] LimitRange", "in a namespace")
    found = [
        spec("is set [Conformance]", "passed", *above),
        spec("is read", "panicked", *above),
        spec("is kept", "skipped", *above),
        spec("", "failed", kind="SynchronizedBeforeSuite"),
    ]
    assert dict(specs.reported([{"SpecReports": found}, {"SpecReports": None}])) == {
        "[sig-scheduling] LimitRange in a namespace is set [Conformance]": "PASS",
        "[sig-scheduling] LimitRange in a namespace is read": "FAIL",
        "[sig-scheduling] LimitRange in a namespace is kept": "SKIP",
    }


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


def test_workloads_are_measured_once_and_few_of_them_often() -> None:
    found = list(perf.workloads())
    assert len({each.case for each in found}) == len(found)
    assert 12 <= sum(each.repeated for each in found) < len(found) / 2
    assert {each.case for each in found if each.repeated and not each.has_ceiling} == {
        "PreemptionBasic",
        "Unschedulable",
        "SchedulingWhileGated",
        "EventHandlingPodDelete",
    }


def _written(**data: float) -> str:
    return json.dumps({"dataItems": [{"labels": {"Metric": perf.METRIC}, "data": data}]})


def test_figures_are_read_from_what_the_tests_wrote(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"dataItems": null}')
    (tmp_path / "run.json").write_text(_written(pods=200, seconds=2.0, cpu_seconds=0.5))
    found = perf.read(tmp_path, tmp_path / "log")
    assert (found.rate, found.cpu_ms) == (100.0, 2.5)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param('{"dataItems": null}', id="nothing"),
        pytest.param(_written(pods=0, seconds=1e-7, cpu_seconds=1.8), id="no pod"),
    ],
)
def test_a_run_without_pods_is_an_error_that_names_the_log(tmp_path: Path, written: str) -> None:
    (tmp_path / "run.json").write_text(written)
    with pytest.raises(RuntimeError, match=f"no figures: {tmp_path}/log"):
        perf.read(tmp_path, tmp_path / "log")
