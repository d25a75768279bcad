"""Run a suite of upstream's tests with kube-scheduler and with Berth in its place.

`make dra-integration`, `make podgroup-integration` and `make upstream-e2e` run it. The last line of the output is JSON.
If kube-scheduler passes a case and Berth does not, the case must be listed with its reason in
`SUITE/differences-VERSION.yaml`, or be in a part that is not run with Berth. These parts have their reason, too.
Otherwise the exit status is 1.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml

from tests.upstream.cases import Outcomes, Part
from tests.upstream.suites import SUITES

ROOT: Final = Path(__file__).parents[2]
KUBE_SCHEDULER: Final = "kube-scheduler"
BERTH: Final = "berth"
SUCCESS: Final = "PASS"
MISSING: Final = "did not end"


def main() -> int:
    """Run, print the table and the result, and return the exit status."""
    arguments = _arguments()
    suite = SUITES[arguments.suite]
    parts = [part for part in suite.parts() if fnmatchcase(part.name, arguments.only)]
    api_server = suite.api_servers[arguments.kubernetes or next(iter(suite.api_servers))]
    record, differences = suite.lists(api_server)
    logs = arguments.logs / suite.name
    recorded: Outcomes = json.loads(record.read_text())
    if arguments.record:
        recorded |= _run(KUBE_SCHEDULER, api_server, parts, logs)
        record.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        return 0
    if arguments.recorded:
        theirs = {case: recorded[case] for case in recorded if any(part.covers(case) for part in parts)}
    else:
        theirs = _run(KUBE_SCHEDULER, api_server, parts, logs)
    ours = _run(BERTH, api_server, [part for part in parts if not part.not_berths], logs)
    return _report(theirs, ours, _reasons(parts, theirs) | yaml.safe_load(differences.read_text()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--recorded", action="store_true", help="take kube-scheduler's outcomes from the record")
    source.add_argument("--record", action="store_true", help="run kube-scheduler alone, and add to the record")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--kubernetes", help="version of the API server and tests, such as 1.37")
    parser.add_argument("--only", default="*", help="glob of the parts to run (tests/upstream/suites.py)")
    parser.add_argument("--logs", type=Path, default=ROOT / ".build/upstream", help="folder of the logs")
    return parser.parse_args()


def _run(scheduler: str, api_server: str, parts: Sequence[Part], folder: Path) -> Outcomes:
    logs = folder / scheduler
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: Outcomes = {}
    for part in parts:
        print(f"{scheduler}: {part.name}: {logs / part.name}.log", file=sys.stderr, flush=True)
        outcomes |= part.outcomes(api_server, logs, with_berth=scheduler == BERTH)
    return outcomes


def _reasons(parts: Sequence[Part], found: Iterable[str]) -> dict[str, str]:
    """Return the reasons of the cases in parts that are not run with Berth."""
    return {case: part.not_berths for part in parts for case in found if part.not_berths and part.covers(case)}


def _report(theirs: Outcomes, ours: Outcomes, reasons: Mapping[str, str]) -> int:
    different = {case for case, outcome in theirs.items() if outcome == SUCCESS != ours.get(case)}
    for case in sorted(theirs | ours):
        reason = reasons.get(case, "NOT LISTED") if case in different else ""
        print(" | ".join((case, theirs.get(case, MISSING), ours.get(case, MISSING), reason)))
    summary = {
        "cases": len(theirs | ours),
        "kube_scheduler_passed": list(theirs.values()).count(SUCCESS),
        "berth_passed": list(ours.values()).count(SUCCESS),
        "listed": len(different & reasons.keys()),
        "unlisted": len(different - reasons.keys()),
    }
    print(json.dumps(summary))
    return bool(summary["unlisted"])


if __name__ == "__main__":
    sys.exit(main())
