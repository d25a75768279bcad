"""A change that should end a pod's wait, by the operator's answer, binds the pod. Any other change does not.

Each case is a random cluster in virtual time. When the operator is idle and a pod waits, the test makes exactly one
change with objects of the API server. `make wait-answers CASES=5000` runs more cases than `make test`.
"""

import asyncio
import itertools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from berth_operator.core.advice.assumptions import ChangedNode, Gone, Reporting
from berth_operator.core.advice.remedies import Remedy, RemedyKind, is_in_vain
from tests.component.answers.wait_worlds import AFTER, Action, WaitWorld, change_of, drawn, idle

pytestmark = pytest.mark.looptime

CASES = int(os.environ.get("CASES", "80"))
FIRST = int(os.environ.get("SEED", "0"))
AT_ONCE = 40
"""Clusters that share a loop, so that its steps in virtual time cost little."""


async def test_what_is_said_of_a_change_comes_true() -> None:
    cases, differences = Counter[str](), list[str]()
    for first in itertools.count(FIRST, AT_ONCE):
        for seed, case in enumerate(await asyncio.gather(*map(run, range(first, first + AT_ONCE))), start=first):
            if case is not None:
                name, said, is_bound = case
                cases[f"{name}: {said}"] += 1
                differences += [] if said == is_bound else [f"seed {seed}: {name}: said {said}, bound {is_bound}"]
        if cases.total() >= CASES:
            break
    sys.stdout.write(f"{cases.total()} cases: {sorted(cases.items())}\n")
    assert not differences, differences


async def run(seed: int) -> tuple[str, bool, bool] | None:
    """Return a change, whether it was said to end the wait, and whether it did; None if nothing was said."""
    world = WaitWorld(Random(seed))
    async with world.running():
        world.submit(*world.others, *world.wanted)
        await idle()
        waiting = world.waiting()
        if not waiting:
            return None
        asked = world.random.choice(waiting)
        found = world.explained(asked)
        name, said, action = chosen(world, found)
        if said is None:
            return None
        before = world.api.bound().keys()
        action(world)
        await idle(AFTER)
        # What is said holds if no other pod takes the place.
        if {each["metadata"]["name"] for each in world.others} & (world.api.bound().keys() - before):
            return None
        return name, said, world.is_bound(asked.name)


def chosen(world: WaitWorld, found: Sequence[Remedy]) -> tuple[str, bool | None, Action]:
    """Return a change, what was said of it, and how it is made."""
    own = [(each, change) for each in found if (change := change_of(each, world)) is not None]
    if own and world.random.random() < 0.6:
        kind = world.random.choice(sorted({each.kind for each, _ in own}))
        remedy, change = world.random.choice([each for each in own if each[0].kind == kind])
        return f"remedy {remedy.kind}", remedy.ends, change
    actions = list(drawn(world))
    kinds = sorted({each for each, _, _ in actions})
    chosen_kind = world.random.choice(kinds)
    name, target, action = world.random.choice([each for each in actions if each[0] == chosen_kind])
    return name, said_of(world, found, name, target), action


def said_of(world: WaitWorld, found: Sequence[Remedy], name: str, target: Any) -> bool | None:
    """Return whether a change of the list was said to end the wait; None if nothing was said of it."""
    if is_in_vain(found):
        return False
    if any(each.kind is RemedyKind.PREEMPTION for each in found):
        return None
    if any(each.ends is None or each.kind is RemedyKind.MEMBER for each in found) and name not in ("claim", "members"):
        return False
    explanation = world.why.explanation
    if name == "all end":
        return False if explanation.fits_when_empty == 0 and len(world.wanted) == 1 else None
    said = [each.ends for each in found if _is_of(world, each, name, target)]
    return said[0] if said else None


def _is_of(world: WaitWorld, remedy: Remedy, name: str, target: Any) -> bool:
    """Return whether a remedy assumes a change of the list."""
    match name, remedy.assumes:
        case "another node", _ if remedy.is_new:
            return (remedy.is_another and remedy.node == target) or (
                remedy.kind is RemedyKind.NEW_NODE and not remedy.node and not remedy.ends
            )
        case "report", Reporting() as reporting:
            return bool(reporting.node == target)
        case "end", Gone() as gone:
            return gone.uids == (target,)
        case (("claim" | "members"), _):
            return remedy.kind is {"claim": RemedyKind.CLAIM, "members": RemedyKind.MEMBER}[name] and bool(remedy.ends)
        case (_, ChangedNode() as changed) if remedy.node == (target[0] if isinstance(target, tuple) else target):
            now = world.cluster.fleet.node_info(remedy.node)
            return {
                "uncordon": changed.node == replace(now, cordoned=False),
                "untaint": changed.node == replace(now, taints=()),
                "label": changed.node == replace(now, labels={**now.labels, "pool": "1"}),
                "more cpu": remedy.kind is RemedyKind.CAPACITY
                and {**changed.node.allocatable, "cpu": 0} == {**now.allocatable, "cpu": 0},
            }.get(name, False)
    return False
