"""Workloads in the form of other projects' documents run unchanged in a namespace with one label.

Those whose controllers must be built run in `make workloads`.
"""

from collections.abc import Iterator

import pytest

from tests.workloads import trial
from tests.workloads.rows import FOLDER, WORKLOADS
from tests.workloads.trial import Trial

BUILT = {controller.program for controller in trial.real_controllers()}
SELECTED = [name for name, workload in WORKLOADS.items() if workload.controller not in BUILT]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    with trial.opened(tmp_path_factory.mktemp("workloads") / "cluster") as opened:
        yield opened


@pytest.mark.parametrize("name", SELECTED)
def test_a_workload_runs_as_meant(name: str, site: Trial) -> None:
    assert site.faults(name) == []


def test_each_file_is_tried_and_no_line_is_for_berth() -> None:
    assert sorted(WORKLOADS) == sorted(file.stem for file in FOLDER.glob("*.yaml"))
    assert {name: trial.changed_lines(name) for name in WORKLOADS} == dict.fromkeys(WORKLOADS, 0)
