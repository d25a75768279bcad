"""Run all workloads with their controllers, and print what became of each: `make workloads`.

The last line is JSON: `workloads` were tried, on a cluster with so many `controllers` of other projects; `as_meant` ran
as meant, and `changed_lines` of their files were there for Berth.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devcluster.building import programs
from tests.workloads import trial
from tests.workloads.rows import WORKLOADS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen workloads, or all; return 1 for a fault, or a line for Berth."""
    parser = argparse.ArgumentParser(prog="python -m tests.workloads", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", choices=WORKLOADS, metavar="workload", help="all by default")
    names = parser.parse_args(arguments).workloads or list(WORKLOADS)
    controllers = trial.real_controllers()
    programs.ensure([*programs.CLUSTER, *(controller.program for controller in controllers)])
    as_meant = 0
    with (
        tempfile.TemporaryDirectory(prefix="berth-workloads-") as folder,
        trial.opened(Path(folder) / "cluster", controllers) as site,
    ):
        for name in names:
            faults = site.faults(name)
            as_meant += not faults
            print(f"{name}: {'; '.join(faults) or 'as meant'}", flush=True)
    changed = sum(map(trial.changed_lines, names))
    result = {"workloads": len(names), "controllers": len(controllers), "as_meant": as_meant, "changed_lines": changed}
    print(json.dumps(result))
    return int(as_meant < len(names) or changed > 0)


if __name__ == "__main__":
    sys.exit(main())
