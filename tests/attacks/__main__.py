"""Try all attacks, and print as the last line what held, as JSON (`make attacks`).

attacks              tries
held                 tries that gained nothing
canary_max_s         the longest wait of a pod without devices during a storm, in seconds
decided_max          the most decisions of one second in a storm
evicted_beyond_own   whether pods of others were evicted: the tries about evictions that failed
killed               programs that ended during a try
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tests/attacks", "tests/unit/attacks")
FIGURES: Final = ("canary_max_s", "decided_max")
ABOUT_EVICTIONS: Final = "test_kept_places.py"
KILLED: Final = "exit_code"


class Summary:
    """Counts what held, as a plug-in of pytest."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {
            "attacks": 0,
            "held": 0,
            **dict.fromkeys(FIGURES, 0),
            "evicted_beyond_own": 0,
            "killed": 0,
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; a test that was skipped has tried nothing."""
        if report.when == "call" and not report.skipped:
            self.figures["attacks"] += 1
            self.figures["held"] += report.passed
        if report.failed:
            self.figures["evicted_beyond_own"] += ABOUT_EVICTIONS in report.nodeid
            self.figures["killed"] += KILLED in report.longreprtext
        for name, value in report.user_properties if report.when == "call" else ():
            if name in FIGURES:
                self.figures[name] = max(self.figures[name], value)


def main() -> int:
    """Run all attacks; return the exit status of pytest."""
    summary = Summary()
    status = pytest.main(["-q", *(str(ROOT / folder) for folder in FOLDERS), *sys.argv[1:]], plugins=[summary])
    sys.stdout.write(f"{json.dumps(summary.figures)}\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
