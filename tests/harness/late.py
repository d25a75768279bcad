"""A pytest plugin that records for `tests.harness.steady` which failed tests were only late (`devcluster.waiting`).

The record is a JSON object in the file that the variable names: `failures`, with an entry for each failed phase of a
test.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from devcluster.waiting import WaitError

VARIABLE: Final = "BERTH_LATE_RECORD"
"""The name of the variable with the path of the record."""
SAFETY: Final = "safety"
"""The mark of tests of what must never happen: there a late condition is a failure like any other."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; let the process that prints the results write the record."""
    config.addinivalue_line("markers", f"{SAFETY}: what this tests must never happen, not even late")
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(Path(os.environ[VARIABLE])))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report of a phase that failed whether it was late, and whether it may be."""
    report = yield
    if call.excinfo is not None:
        error = call.excinfo.value
        is_safety = item.get_closest_marker(SAFETY) is not None
        vars(report).update(late=isinstance(error, WaitError) and error.late, safety=is_safety)
    return report


class _Recorder:
    """Collects what the reports of all workers say."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._failures.append(
                {
                    "test": report.nodeid,
                    "late": getattr(report, "late", False),
                    "safety": getattr(report, "safety", False),
                    "message": (crash.message if crash else str(report.longrepr)).partition("\n")[0],
                    "seconds": round(report.duration, 1),
                }
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.append({"test": report.nodeid, "late": False, "message": str(report.longrepr), "seconds": 0})

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps({"failures": self._failures}))
