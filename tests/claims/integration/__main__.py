"""Run upstream's `test/integration/dra` with kube-scheduler and with Berth in its place (`make dra-integration`).

The last line of the output is JSON. A case that kube-scheduler passes and Berth does not must be listed with its
reason in `differences-VERSION.yaml`; else the exit status is 1.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml

from devcluster.building import programs, versions
from tests.claims.integration import berth, cases
from tests.claims.integration.cases import API_SERVERS, Outcomes, Part
from tests.claims.integration.program import program

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
KUBE_SCHEDULER: Final = "kube-scheduler"
BERTH: Final = "berth"
SUCCESS: Final = "PASS"
MISSING: Final = "did not end"


def main() -> int:
    """Run, print the table and the result, and return the exit status."""
    arguments = _arguments()
    parts = [part for part in cases.parts() if fnmatchcase(part.name, arguments.only)]
    api_server = API_SERVERS[arguments.kubernetes]
    record, differences = lists(api_server)
    recorded: Outcomes = json.loads(record.read_text())
    if arguments.record:
        recorded |= _run(KUBE_SCHEDULER, api_server, parts, arguments.logs)
        record.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        return 0
    if arguments.recorded:
        theirs = {case: recorded[case] for case in recorded if any(part.covers(case) for part in parts)}
    else:
        theirs = _run(KUBE_SCHEDULER, api_server, parts, arguments.logs)
    reasons: dict[str, str] = yaml.safe_load(differences.read_text())
    return _report(theirs, _run(BERTH, api_server, parts, arguments.logs), reasons)


def lists(api_server: str) -> tuple[Path, Path]:
    """Return the files with what kube-scheduler passes, and with where Berth may differ."""
    version = versions.text(programs.PROGRAMS[api_server].version)
    return HERE / f"{KUBE_SCHEDULER}-{version}.json", HERE / f"differences-{version}.yaml"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--recorded", action="store_true", help="take kube-scheduler's outcomes from the record")
    source.add_argument("--record", action="store_true", help="run kube-scheduler alone, and add to the record")
    parser.add_argument("--kubernetes", choices=API_SERVERS, default="1.36", help="version of the API server and tests")
    names = ", ".join(part.name for part in cases.parts())
    parser.add_argument("--only", default="*", help=f"glob of the parts to run: {names}")
    parser.add_argument("--logs", type=Path, default=ROOT / ".build/dra-integration", help="folder of the logs")
    return parser.parse_args()


def _run(scheduler: str, api_server: str, parts: Sequence[Part], folder: Path) -> Outcomes:
    tests, logs = program(api_server), folder / scheduler
    logs.mkdir(parents=True, exist_ok=True)
    environment = _berth(logs) if scheduler == BERTH else {}
    outcomes: Outcomes = {}
    for part in parts:
        print(f"{scheduler}: {part.name}: {logs / part.name}.log", file=sys.stderr, flush=True)
        outcomes |= cases.run(tests, api_server, part, logs, environment)
    return outcomes


def _berth(logs: Path) -> dict[str, str]:
    return {
        "SCHEDULER_COMMAND": f"{sys.executable} -m {berth.__name__}",
        "PYTHONPATH": str(ROOT),
        berth.LOGS: str(logs),
    }


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
