"""Builds that are broken on purpose, and whether the audits find the faults: `python -m tests.chaos.broken`.

Each build is a copy of the tree with one edit, except one: it is Berth's own build, and its audit lacks a record. The
last line is `{"caught": {build: findings and problems}}`. The exit status is 1 if a build is not caught.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.bench import figures as output
from tests.chaos import auditor, faults, history, month
from tests.chaos.findings import FindingKind
from tests.chaos.history import Kind, Revision
from tests.chaos.run import Outcome, Plan, folder_of, run
from tests.chaos.schedule import schedule
from tests.chaos.site import FENCE, HISTORY, ROOT, Build

PACKAGES: Final = ("api", "base", "client", "operator")
PODS: Final = 120
WITHHELD: Final = "a record withheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What breaks a build, and the faults under which that shows."""

    file: Path
    before: str
    after: str
    kinds: Sequence[str]
    shows_as: frozenset[str]
    """One of these has to be the kind of a finding, or part of a problem."""
    events: int = 0
    """Events of a month in which that shows; 0 for chaos."""


OVERBOOKED: Final = frozenset({FindingKind.OVERBOOKED})
EDITS: Final[Mapping[str, Edit]] = {
    "assume off": Edit(
        file=Path("operator/berth_operator/state/cache/placements.py"),
        before="        self._fleet.charge(charge)\n        self._claim_tracker",
        # Without cards: they are charged only when the watch shows the pod.
        after="        self._fleet.charge(replace(charge, grants=()))\n        self._claim_tracker",
        kinds=("answers_delayed", "health_flipped"),
        shows_as=OVERBOOKED,
    ),
    "fence off": Edit(
        file=FENCE,
        before="validationActions: [Deny]",
        after="validationActions: [Audit]",
        kinds=("leader_stopped_while_binding",),
        shows_as=frozenset({FindingKind.OVERBOOKED, FindingKind.ENDED_TERM}),
    ),
    "charging by UUID off": Edit(
        file=Path("operator/berth_operator/core/fleet/nodes/cards.py"),
        before='self.places[row].get(grant.id) if grant.id else (grant.minor, "")',
        after='(grant.minor, "")',
        kinds=("minors_permuted", "minors_permuted_at_a_reboot"),
        shows_as=OVERBOOKED,
    ),
    "eviction bound off": Edit(
        file=Path("operator/berth_operator/core/decision/lost_places.py"),
        before="until = round(now + pause) if pause else 0",
        after="until = 0",
        kinds=("urgent_pod",),
        shows_as=frozenset({FindingKind.EVICTED_AGAIN}),
        events=12,
    ),
    "places given away count as lost": Edit(
        file=Path("operator/berth_operator/binding/evictions/progress.py"),
        before="        self._displaced.append(attempt)",
        after='        self._lose(attempt, "a pod of higher priority took it")',
        kinds=("place_given_away",),
        shows_as=frozenset({"a place that Berth gave away counts as lost"}),
        events=4,
    ),
    "formed gangs forgotten": Edit(
        file=Path("operator/berth_operator/core/queue/gang_tracker.py"),
        before="        entry.formed = not unfinished and (bool(members) or says_formed)",
        after="        entry.formed = False",
        kinds=("gang_member_failed", "job_started", "leader_killed"),
        shows_as=frozenset({FindingKind.HARMED}),
        events=30,
    ),
    "evidence of started nodes off": Edit(
        file=Path("operator/berth_operator/core/decision/autoscaling.py"),
        before="    if rows.any() and starting.most_pods(fleet, request, rows) >= pods:",
        # Whatever the nodes have shown.
        after="    if (rows := fleet.starting & fleet.present).any():",
        kinds=("job_started", "scaled"),
        shows_as=frozenset({FindingKind.NOT_STARTING}),
        events=40,
    ),
    "Events of unheld cards off": Edit(
        file=Path("operator/berth_operator/controllers/reconcile/unheld.py"),
        before="for charge in view.charges for use",
        after="for charge in view.charges[:0] for use",
        kinds=("card_used_by_another_pod",),
        shows_as=frozenset({FindingKind.UNREPORTED}),
        events=4,
    ),
}
"""Builds; those with `events` have the names of what `make month` has to find."""


@contextmanager
def built(name: str, folder: Path) -> Iterator[Build]:
    """Copy what the operator and its fence consist of, edit it, and remove the copy at the end."""
    tree = folder / "tree"
    for part in (*PACKAGES, "manifests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    edit = EDITS[name]
    text = (tree / edit.file).read_text()
    if edit.before not in text:
        raise ValueError(f"{edit.file} does not contain {edit.before!r}: adapt the edit of the build {name!r}")
    (tree / edit.file).write_text(text.replace(edit.before, edit.after))
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    yield Build(tree=tree, environment={"PYTHONPATH": path, "PYTHONSAFEPATH": "1"})
    shutil.rmtree(tree)


def attempt(name: str, *, seed: int) -> Outcome:
    """Run a broken build under the faults that it cannot stand."""
    folder = folder_of(name.replace(" ", "-"))
    if name == WITHHELD:
        return _without_a_record(seed, folder)
    edit = EDITS[name]
    with built(name, folder) as build:
        return run(replace(_plan(edit, seed), build=build), folder)


def _plan(edit: Edit, seed: int) -> Plan:
    if edit.events:
        return month.plan(seed=seed, events=edit.events, pods=PODS, kinds=edit.kinds, rests=1)
    weights = {kind: faults.WEIGHTS[kind] for kind in edit.kinds}
    strikes = schedule(seed=seed, count=max(4, 3 * len(edit.kinds)), weights=weights)
    return Plan(seed=seed, strikes=strikes, pods=PODS, fast=True)


def _without_a_record(seed: int, folder: Path) -> Outcome:
    """Run our own build, and withhold a record of a pod from the audit."""
    outcome = run(month.plan(seed=seed, events=4, pods=PODS // 4, kinds=("scaled",), rests=0), folder)
    revisions = list(history.read(folder / HISTORY))
    revisions.remove(_followed(revisions))
    return replace(outcome, findings=auditor.audit(revisions, auditor.Limits(**month.limits(folder))))


def _followed(revisions: Sequence[Revision]) -> Revision:
    """Return a revision of a pod after which there is another one of the same pod."""
    last = {each.name: each.number for each in revisions}
    return next(each for each in revisions if each.kind is Kind.POD and each.number < last[each.name])


def is_caught(name: str, outcome: Outcome) -> bool:
    """Return whether the audit has found what a build does wrong."""
    shows_as = {FindingKind.REVISION_MISSING} if name == WITHHELD else EDITS[name].shows_as
    found = [*(finding.kind for finding in outcome.findings), *outcome.problems]
    return any(each in text for each in shows_as for text in found)


def main() -> None:
    """Run all broken builds, or those that BUILDS names."""
    chosen = output.chosen("BUILDS", [*EDITS, WITHHELD])
    outcomes = {name: attempt(name, seed=output.number("SEED", 1)) for name in chosen}
    for name, outcome in outcomes.items():
        output.say(f"{name}: {dict(Counter(str(finding.kind) for finding in outcome.findings))}")
        for found in (*outcome.conflicts[:3], *outcome.problems[:3]):
            output.say(f"    {found}")
    caught = {name: len(outcome.conflicts) + len(outcome.problems) for name, outcome in outcomes.items()}
    output.result({"caught": caught})
    sys.exit(not all(is_caught(name, outcome) for name, outcome in outcomes.items()))


if __name__ == "__main__":
    main()
