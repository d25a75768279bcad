"""Upstream's e2e tests of scheduling, which Ginkgo runs as specs on a cluster of real nodes."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.programs.processes import Process
from tests.upstream import rig
from tests.upstream.cases import Outcomes
from tests.upstream.program import e2e

SIG: Final = "[sig-scheduling]"
STATES: Final = {"passed": "PASS", "skipped": "SKIP"}
"""Of Ginkgo; the others are failures."""
SEED: Final = 1
"""Of the order, which is the same for both: pods of one test may still end while the next one counts what is free."""
GRACE_SECONDS: Final = 120.0
"""More than Ginkgo keeps for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """One run of specs, on a cluster of its own."""

    name: str
    subjects: tuple[str, ...]
    """The words after the special interest group."""
    has_workloads: bool = False
    """Whether they need the API of workloads, behind a feature gate."""
    minutes: int = 60
    not_berths: str = ""

    @property
    def focus(self) -> str:
        """The pattern of their names."""
        return rf"{re.escape(SIG)} ({'|'.join(map(re.escape, self.subjects))}) "

    def covers(self, case: str) -> bool:
        """Return whether it runs a case."""
        return re.search(self.focus, case) is not None

    def outcomes(self, api_server: str, logs: Path, *, with_berth: bool) -> Outcomes:
        """Run them and return the outcomes.

        Raises:
            RuntimeError: Ginkgo made no report; the log has the reason.
        """
        tests, report = e2e(api_server), (logs / f"{self.name}.json").absolute()
        report.unlink(missing_ok=True)
        with rig.running(api_server, tests, logs, with_berth=with_berth, has_workloads=self.has_workloads) as cluster:
            flags = [
                f"--kubeconfig={cluster.kubeconfig}",
                "--provider=skeleton",
                f"--ginkgo.focus={self.focus}",
                f"--ginkgo.timeout={self.minutes}m",
                f"--ginkgo.json-report={report}",
                f"--ginkgo.seed={SEED}",
                "--ginkgo.v",
                "--ginkgo.no-color",
            ]
            process = Process(name=self.name, command=[str(tests), *flags], folder=logs, environment={})
            try:
                process.ended(deadline=self.minutes * 60 + GRACE_SECONDS)
            finally:
                process.kill()
        if not report.exists():
            raise RuntimeError(f"no report: {process.log}")
        return {case: outcome for case, outcome in reported(json.loads(report.read_text())) if self.covers(case)}


def reported(report: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each spec of Ginkgo's report with its outcome; one that was not to be run is skipped, too."""
    for suite in report:
        for spec in suite["SpecReports"] or ():
            if spec["LeafNodeType"] == "It":
                words = [*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]]
                yield " ".join(words), STATES.get(spec["State"], "FAIL")
