"""Compare Berth's allocator with upstream's: its tables' rows, and random scenarios (`make dra-rows`).

The last line of the output is JSON. Rows and scenarios that upstream ends by a bound on its work are left out, and so
is a row that JSON cannot carry. Differences that upstream's defects explain are counted by name.

A part of the scenarios has the slices of Berth's own driver (`tests.claims.own`).
Berth's preference is compared in all of them, too. It finds devices wherever the first fit does. If upstream has no
other choice, it gives the same devices (`tests.claims.pinned`), and no later subrequests than Kubernetes' order. On
nodes where constraints leave few devices (`tests.claims.constrained`), Berth finds devices within its bounds wherever
upstream does within its own bounds. What fits on a node together (`tests.claims.together`) is found as one pod and as a
gang, or the search ended at its bound.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import NOT_FINISHED
from tests.claims import constrained, defects, generate, own, pinned, scenario, together, upstream

OLD: Final = "0.36.3"
"""The version with defects."""
CHUNK: Final = 500
PART: Final = 10
"""What part of the scenarios are gangs, whose whole decision is made."""
SHOWN: Final = 10

Object = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What was compared."""

    compared: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    defects: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.compared += other.compared
        self.differences += other.differences
        for name in ("left_out", "kinds", "defects"):
            getattr(self, name).update(getattr(other, name))


def main() -> int:
    """Compare, print the result, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=10_000, help="scenarios for each version")
    parser.add_argument("--seed", type=int, default=0, help="of the first scenario")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    rows, drawn, of_driver, preferred, of_bounds, fitting = (Tally() for _ in range(6))
    for version in upstream.VERSIONS:
        upstream.program(version)
        for variant in ("stable", "incubating"):
            rows.add(of_rows(version, variant))
        for tally in _drawn(of_seeds, version, arguments):
            drawn.add(tally)
        for tally in _drawn(of_own, version, arguments):
            of_driver.add(tally)
        for compare in (of_preference, of_own_preference):
            for tally in _drawn(compare, version, arguments):
                preferred.add(tally)
    for tally in _drawn(of_constrained, upstream.VERSIONS[-1], arguments):
        of_bounds.add(tally)
    for tally in _drawn(of_together, upstream.VERSIONS[-1], arguments, part=PART):
        fitting.add(tally)
    tallies = (rows, drawn, of_driver, preferred, of_bounds, fitting)
    differences = [difference for tally in tallies for difference in tally.differences]
    for difference in differences[:SHOWN]:
        print(difference)
    of_others = _of_others("own", of_driver) | _of_others("constrained", of_bounds) | _of_others("together", fitting)
    print(json.dumps(_summary(rows, drawn, preferred) | of_others))
    return bool(differences)


def _drawn(
    compare: Callable[[str, Sequence[int]], Tally], version: str, arguments: argparse.Namespace, *, part: int = 1
) -> Iterator[Tally]:
    seeds = range(arguments.seed, arguments.seed + -(-arguments.random // part))
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(max_workers=arguments.jobs) as workers:
        yield from workers.map(compare, [version] * len(chunks), chunks)


def _summary(rows: Tally, drawn: Tally, preferred: Tally) -> Object:
    return {
        "rows": rows.compared,
        "different": len(rows.differences),
        "random": drawn.compared,
        "random_different": len(drawn.differences),
        "preferred": preferred.compared,
        "preferred_different": len(preferred.differences),
        "preferred_kinds": dict(preferred.kinds),
        "upstream_defects": dict(rows.defects + drawn.defects + preferred.defects),
        "random_kinds": dict(drawn.kinds),
        "left_out": dict(rows.left_out + drawn.left_out + preferred.left_out),
    }


def _of_others(name: str, tally: Tally) -> Object:
    return {
        name: tally.compared,
        f"{name}_different": len(tally.differences),
        f"{name}_kinds": dict(tally.kinds),
        f"{name}_left_out": dict(tally.left_out),
    }


def of_rows(version: str, variant: str) -> Tally:
    """Compare the rows of the tables that a variant of the allocator supports."""
    tally = Tally()
    for row in upstream.rows(version, variant):
        name, theirs = row["scenario"]["name"], row["outcome"]
        if row.get("lossy"):
            tally.left_out[f"row {name}: JSON cannot carry it"] += 1
            continue
        tally.compared += 1
        ours = scenario.outcome(row["scenario"])
        if variant == "stable":
            # This variant takes pools in any order.
            ours, theirs = _sorted(ours), _sorted(theirs)
        if row.get("broken"):
            tally.differences.append(f"{version} {variant} {name}: upstream itself differs: {row['broken']}")
        elif not scenario.same(ours, theirs):
            _note(
                tally, f"{version} {variant} {name}", defects.ROWS.get(name, "") if version == OLD else "", ours, theirs
            )
    return tally


def of_seeds(version: str, seeds: Sequence[int]) -> Tally:
    """Compare random scenarios."""
    return _same(version, {seed: generate.scenario(seed) for seed in seeds})


def of_own(version: str, seeds: Sequence[int]) -> Tally:
    """Compare random scenarios with slices of Berth's driver."""
    return _same(version, {seed: own.scenario(seed) for seed in seeds})


def _same(version: str, seeds: Mapping[int, Object]) -> Tally:
    tally = Tally()
    scenarios = [_known(drawn, version) for drawn in seeds.values()]
    for seed, drawn, theirs in zip(seeds, scenarios, upstream.outcomes(version, scenarios), strict=True):
        if theirs.get("late"):
            tally.left_out["ended by the bound on upstream's work"] += 1
            continue
        tally.compared += 1
        tally.kinds[scenario.kind(theirs)] += 1
        ours = scenario.outcome(drawn)
        if not scenario.same(ours, theirs):
            name = defects.name_of(drawn, ours, theirs, old=version == OLD)
            _note(tally, f"{version} seed {seed}", name, ours, theirs)
    return tally


def of_preference(version: str, seeds: Sequence[int]) -> Tally:
    """Compare what our preference chooses in random scenarios."""
    return _preferred(version, {seed: pinned.with_places(generate.scenario(seed), seed) for seed in seeds})


def of_own_preference(version: str, seeds: Sequence[int]) -> Tally:
    """Compare what our preference chooses of slices of Berth's driver."""
    return _preferred(version, {seed: own.scenario(seed) for seed in seeds})


def _preferred(version: str, seeds: Mapping[int, Object]) -> Tally:
    tally = Tally()
    placed = {seed: _known(drawn, version) for seed, drawn in seeds.items()}
    ours = {seed: scenario.outcome(each, preferred=True) for seed, each in placed.items()}
    found = [seed for seed, outcome in ours.items() if outcome["results"]]
    for seed in placed.keys() - set(found):
        tally.compared += 1
        first_fit = scenario.outcome(placed[seed])
        if first_fit["results"]:
            _note(tally, f"{version} seed {seed}: nothing was preferred", "", ours[seed], first_fit)
    asked = [pinned.pinned(placed[seed], ours[seed]) for seed in found]
    for seed, one, theirs in zip(found, asked, upstream.outcomes(version, asked), strict=True):
        if theirs.get("late"):
            tally.left_out["pinned: ended by the bound on upstream's work"] += 1
            continue
        tally.compared += 1
        first_fit = scenario.outcome(placed[seed])
        tally.kinds["same as first fit" if first_fit == ours[seed] else "another choice"] += 1
        if first_fit["results"]:
            taken = [scenario.subrequests(placed[seed], outcome) for outcome in (ours[seed], first_fit)]
            tally.kinds["earlier subrequests"] += taken[0] < taken[1]
            if taken[0] > taken[1]:
                _note(tally, f"{version} seed {seed}: later subrequests", "", ours[seed], first_fit)
        placements = pinned.placement(ours[seed]), pinned.placement(theirs)
        if not scenario.same(*placements):
            name = defects.name_of(one, *placements, old=version == OLD)
            _note(tally, f"{version} seed {seed}: not accepted", name, *placements)
    return tally


def of_constrained(version: str, seeds: Sequence[int]) -> Tally:
    """Compare what is found within the bounds of the operator, in both orders, with what upstream finds."""
    tally = Tally()
    scenarios = [constrained.scenario(seed) for seed in seeds]
    for seed, drawn, theirs in zip(seeds, scenarios, upstream.outcomes(version, scenarios), strict=True):
        for preferred in (False, True):
            ours = scenario.outcome(drawn, preferred=preferred, bounds=scenario.BOUNDED)
            if theirs.get("late"):
                tally.left_out[f"ended by the bound on upstream's work; ours: {scenario.kind(ours)}"] += 1
                continue
            tally.compared += 1
            tally.kinds[f"{scenario.kind(theirs)}; ours: {scenario.kind(ours)}"] += 1
            if bool(theirs["results"]) != bool(ours["results"]):
                _note(tally, f"{version} constrained seed {seed}, preferred {preferred}", "", ours, theirs)
    return tally


def of_together(version: str, seeds: Sequence[int]) -> Tally:
    """Compare what is found of claims that fit, as one pod in both orders and as a gang; upstream must accept it."""
    tally, found = Tally(), []
    for seed in seeds:
        drawn = together.fitting(seed)
        as_gang = together.Board(drawn.slices, drawn.members).of_gang()
        tally.compared += 1
        tally.kinds["gang: ended" if isinstance(as_gang, Failure) else "gang: found"] += 1
        if isinstance(as_gang, Failure):
            if not as_gang.message.endswith(NOT_FINISHED):
                tally.differences.append(f"together seed {seed}, gang: {as_gang.message}")
        else:
            found.append((f"seed {seed}, gang", *together.written(drawn, as_gang)))
        asked = own.asked(drawn.slices, together.claims_of(drawn.members), [])
        for preferred in (False, True):
            ours = scenario.outcome(asked, preferred=preferred, bounds=scenario.BOUNDED)
            tally.compared += 1
            tally.kinds[f"pod: {scenario.kind(ours)}"] += 1
            if scenario.kind(ours) == "none":
                tally.differences.append(f"together seed {seed}, pod, preferred {preferred}: nothing was found")
            elif ours["results"]:
                found.append((f"seed {seed}, pod, preferred {preferred}", asked, ours))
    pins = [pinned.pinned(asked, ours) for _, asked, ours in found]
    for (name, _, ours), theirs in zip(found, upstream.outcomes(version, pins), strict=True):
        placements = pinned.placement(ours), pinned.placement(theirs)
        if theirs.get("late"):
            tally.left_out["pinned: ended by the bound on upstream's work"] += 1
        elif not scenario.same(*placements):
            _note(tally, f"{version} together {name}: not accepted", "", *placements)
    return tally


def _known(drawn: Object, version: str) -> Object:
    """Return a scenario without the features that a version lacks."""
    lacking = {"FractionalCapacityRange"} if version == OLD else set()
    return drawn | {"features": [name for name in drawn["features"] if name not in lacking]}


def _note(tally: Tally, what: str, defect: str, ours: Object, theirs: Object) -> None:
    if defect:
        tally.defects[defect] += 1
    else:
        tally.differences.append(f"{what}\n  ours   {json.dumps(ours)}\n  theirs {json.dumps(theirs)}")


def _text(value: Object) -> str:
    return json.dumps(value, sort_keys=True)


def _sorted(outcome: Object) -> Object:
    """Return an outcome with what follows from the order of pools in an order of its own."""
    for allocation in outcome["results"] or ():
        allocation["devices"].get("results", []).sort(key=_text)
        for term in allocation.get("nodeSelector", {}).get("nodeSelectorTerms", ()):
            term.get("matchExpressions", []).sort(key=_text)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
