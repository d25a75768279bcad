"""The list of workloads of upstream's scheduler_perf, against upstream's."""

from pathlib import Path
from typing import Any

import yaml

from devcluster.building import programs
from tests.upstream import perf


def test_each_test_case_is_measured_or_left_out_with_a_reason() -> None:
    listed = yaml.safe_load(perf.WORKLOADS.read_text())
    files = (programs.source(perf.API_SERVER) / perf.FOLDER).rglob("performance-config.yaml")
    cases = {case["name"]: {each["name"] for each in case["workloads"]} for file in files for case in _read(file)}
    ours = {"FirstAvailable": {"1000pods_100nodes"}}
    measured = {each.case: each.name for each in perf.workloads()}
    assert measured.keys() | listed["left_out"].keys() == cases.keys()
    assert measured.keys() & listed["left_out"].keys() == set()
    for case, name in measured.items():
        assert name in cases[case] | ours.get(case, set())


def _read(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(file.read_text()))
