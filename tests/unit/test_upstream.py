"""What the runs of upstream's integration tests read from their logs, and their lists."""

import json

import pytest
import yaml

from tests.upstream import __main__ as target
from tests.upstream import cases, perf
from tests.upstream.suites import SUITES, Suite

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
