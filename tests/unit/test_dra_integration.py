"""What `make dra-integration` reads from the logs of upstream's tests, and its lists."""

import json

import pytest
import yaml

from tests.claims.integration import __main__ as target
from tests.claims.integration import cases

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


@pytest.mark.parametrize("api_server", cases.API_SERVERS.values())
def test_each_recorded_case_runs_once(api_server: str) -> None:
    recorded = json.loads(target.lists(api_server)[0].read_text())
    assert {case: sum(part.covers(case) for part in cases.parts()) for case in recorded} == dict.fromkeys(recorded, 1)


@pytest.mark.parametrize("api_server", cases.API_SERVERS.values())
def test_only_cases_that_kube_scheduler_passes_are_listed_as_different(api_server: str) -> None:
    record, differences = target.lists(api_server)
    recorded, listed = json.loads(record.read_text()), yaml.safe_load(differences.read_text())
    assert {case for case in listed if recorded.get(case) != target.SUCCESS} == set()
