"""A month in the life of a cluster within minutes: `python -m tests.chaos.month`.

`python -m tests.chaos.month FOLDER` audits a recorded month again.

SEED, EVENTS and PODS are environment variables, and so is KINDS=a,b for a few kinds of events. The last line is
`{"pods", "events", "findings", …}`. The exit status is 1 if the audits find anything, or a program has failed. The
history and the logs stay in `.build/chaos/month-<seed>`.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from tests.attacks.accounts import OPERATOR
from tests.bench import figures as output
from tests.chaos import auditor, faults, history, requests, run
from tests.chaos.auditor import Limits
from tests.chaos.autoscaler import CAPACITY, Autoscaler
from tests.chaos.history import NODES
from tests.chaos.life_auditor import LifeAuditor, LifeLimits, Misuse
from tests.chaos.life_workload import LifeWorkload
from tests.chaos.machines import Park
from tests.chaos.restore import restored
from tests.chaos.run import Plan
from tests.chaos.schedule import Strike, schedule
from tests.chaos.site import HISTORY, MISUSES, Audit, Scene
from tests.programs import surroundings

STARTUP: Final = 120
"""Seconds for which a node counts as starting."""
RESERVE_AFTER: Final = 30
"""Seconds after which a node is reserved for a pod that waits."""
RESTS: Final = 4
REST: Final = "rest"


def flags(arena: Arena, folder: Path) -> Mapping[str, object]:
    """Return flags that compress the long times; the configuration is written to the folder."""
    file = folder / "berth.yaml"
    profile = {
        "schedulerName": arena.scheduler_name,
        "plugins": {"filters": {"disabled": ["injected"]}},
        "reserveAfterSeconds": RESERVE_AFTER,
    }
    head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
    file.write_text(json.dumps({**head, "profiles": [profile]}))
    account = f"system:serviceaccount:{arena.namespace}:{OPERATOR}"
    (folder / requests.RUN).write_text(json.dumps({"scheduler": arena.scheduler_name, "account": account}))
    return {"config": file, "scheduler_names": None, "node_startup_timeout": STARTUP}


def limits(folder: Path) -> Mapping[str, Any]:
    """Return what audits have to know of a run: Berth's scheduler name, and which pods Berth has deleted."""
    known = json.loads((folder / requests.RUN).read_text())
    return {"scheduler": known["scheduler"], "deleted": requests.deleted(folder / requests.LOG, known["account"])}


def audit(folder: Path) -> Audit:
    """Audit a recorded month by the rules of `tests.chaos.life_auditor`."""
    own = LifeAuditor(LifeLimits(startup=STARTUP, misuses=_misuses(folder / MISUSES), **limits(folder)))
    findings = [each for revision in history.read(folder / HISTORY) for each in own.take(revision)]
    findings += own.end()
    return Audit(findings=findings, figures={"pods": own.pods, "reasons_checked": own.reasons_checked})


def _misuses(file: Path) -> list[Misuse]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Misuse(**json.loads(line)) for line in lines]


def surround(arena: Arena) -> list[Manifest]:
    """Return what others have in the cluster: a policy that changes Berth's writes, limits of requests and of pods."""
    return [
        *surroundings.mutating_policy(arena),
        *surroundings.priority_level(arena),
        *surroundings.namespace_rules(arena),
    ]


MONTH: Final = Scene(
    park=Park(simulated=4, with_nvml=2, capacity=CAPACITY),
    workload=LifeWorkload,
    sources=NODES,
    flags=flags,
    surroundings=surround,
    arguments=requests.arguments,
    addition=Autoscaler,
    limits=limits,
    epilogue=restored,
    audit=audit,
)


def plan(*, seed: int, events: int, pods: int, kinds: Sequence[str] = (), rests: int = RESTS) -> Plan:
    """Return what happens in a month: events in a random order, with rests in which reasons are compared."""
    weights = {kind: faults.LIFE[kind] for kind in kinds or faults.LIFE if kind != REST}
    ordered = schedule(seed=seed, count=events - rests, weights=weights)
    for number in range(rests, 0, -1):
        ordered.insert(number * (events - rests) // rests, Strike(kind=REST, seed=number))
    return Plan(seed=seed, strikes=ordered, pods=pods, fast=True, scene=MONTH)


def main() -> None:
    """Run the month of a seed, or audit a recorded one again."""
    if sys.argv[1:]:
        folder = Path(sys.argv[1])
        again = [*auditor.audit(history.read(folder / HISTORY), Limits(**limits(folder))), *audit(folder).findings]
        sys.stdout.writelines(f"{finding}\n" for finding in again)
        sys.exit(bool(again))
    seed, kinds = output.number("SEED", 1), output.chosen("KINDS", (kind for kind in faults.LIFE if kind != REST))
    chosen = plan(seed=seed, events=output.number("EVENTS", 320), pods=output.number("PODS", 1000), kinds=kinds)
    output.say_load()
    began = time.monotonic()
    outcome = run.run(chosen, run.folder_of(f"month-{seed}"))
    for line in (*outcome.findings, *outcome.problems):
        output.say(str(line))
    figures = {
        "pods": outcome.summary["pods"],
        "events": len(chosen.strikes),
        "findings": len(outcome.findings),
        "kinds": dict(Counter(str(finding.kind) for finding in outcome.findings)),
        "binds": outcome.summary["binds"],
        "reasons_checked": outcome.summary["reasons_checked"],
        "problems": len(outcome.problems),
        "seconds": round(time.monotonic() - began),
        "seed": seed,
    }
    output.result(figures)
    sys.exit(bool(outcome.findings or outcome.problems))


if __name__ == "__main__":
    main()
