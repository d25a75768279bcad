"""Builds that are broken on purpose, and whether the audit finds what they do: `python -m tests.chaos.broken`.

Each is a copy of the tree with one edit. The last line is `{"caught": {build: conflicts}}`; the exit status is 1 if a
build is not caught.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import figures as output
from tests.chaos import faults
from tests.chaos.findings import FindingKind
from tests.chaos.run import Outcome, Plan, folder_of, run
from tests.chaos.schedule import schedule
from tests.chaos.site import FENCE, ROOT, Build

PACKAGES: Final = ("api", "base", "client", "operator")
PODS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What breaks a build, and the faults under which that shows."""

    file: Path
    before: str
    after: str
    kinds: Sequence[str]
    shows_as: frozenset[FindingKind]
    """One of these has to be found."""


OVERBOOKED: Final = frozenset({FindingKind.OVERBOOKED})
EDITS: Final[Mapping[str, Edit]] = {
    "assume off": Edit(
        file=Path("operator/berth_operator/state/cache/placements.py"),
        before="        self._fleet.charge(charge)\n        self._claims",
        # Without cards: they are charged only when the watch shows the pod.
        after="        self._fleet.charge(replace(charge, grants=()))\n        self._claims",
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
}


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
    edit = EDITS[name]
    folder = folder_of(name.replace(" ", "-"))
    weights = {kind: faults.WEIGHTS[kind] for kind in edit.kinds}
    strikes = schedule(seed=seed, count=max(4, 3 * len(edit.kinds)), weights=weights)
    with built(name, folder) as build:
        return run(Plan(seed=seed, strikes=strikes, pods=PODS, fast=True, build=build), folder)


def is_caught(name: str, outcome: Outcome) -> bool:
    """Return whether the audit has found what a build does wrong."""
    return any(finding.kind in EDITS[name].shows_as for finding in outcome.findings)


def main() -> None:
    """Run all broken builds, or those that BUILDS names."""
    chosen = list(filter(None, os.environ.get("BUILDS", "").split(","))) or list(EDITS)
    outcomes = {name: attempt(name, seed=output.number("SEED", 1)) for name in chosen}
    for name, outcome in outcomes.items():
        output.say(f"{name}: {dict(Counter(str(finding.kind) for finding in outcome.findings))}")
        for finding in outcome.conflicts[:3]:
            output.say(f"    {finding}")
    output.result({"caught": {name: len(outcome.conflicts) for name, outcome in outcomes.items()}})
    sys.exit(not all(is_caught(name, outcome) for name, outcome in outcomes.items()))


if __name__ == "__main__":
    main()
