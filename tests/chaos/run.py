"""Faults of all kinds while pods come and go, audited by UUID over every revision: `python -m tests.chaos.run`.

SEED, FAULTS, PODS and FAST (1 for LeaderLeases of 7 s) are environment variables. KINDS=a,b selects a few kinds of
faults. PART=1/2 selects the first half of the faults and pods, for machines where one run may not take so long. The
last line is `{"faults": {kind: n}, "pods", "binds", "conflicts", "lost", "heal_p90_s", "heal_max_s", "failover_max_s",
…}`. The exit status is 1 if anything is lost, contradictory or too slow. The history and the logs stay in
`.build/chaos/<seed>`.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devcluster import waiting
from tests.bench import figures as output
from tests.chaos import faults, history
from tests.chaos import site as site_module
from tests.chaos.auditor import Auditor, Limits
from tests.chaos.findings import Finding, FindingKind
from tests.chaos.schedule import Strike, schedule
from tests.chaos.site import CHAOS, HISTORY, OURS, Build, Scene, Site

DEFAULT: Final[Mapping[str, object]] = {}
FAST: Final[Mapping[str, object]] = {"lease_duration": 7, "renew_deadline": 5, "retry_period": 1}
FAILOVER: Final = {"default": 18.0, "fast": 10.0}
LINE: Final = 1000
"""Characters of a line of a log that are shown."""
LAST_LINES: Final = 8
"""Of each log, if a fault does not end in time."""
FOLDER: Final = Path(__file__).parents[2] / ".build" / "chaos"
CALM_SECONDS: Final = 2.0
"""Between the last fault and the moment from which no Event may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    seed: int
    strikes: Sequence[Strike]
    pods: int
    fast: bool
    build: Build = OURS
    scene: Scene = CHAOS

    @property
    def timing(self) -> Mapping[str, object]:
        """Return the flags of the election."""
        return FAST if self.fast else DEFAULT

    @property
    def failover(self) -> float:
        """Return the longest fail-over that the election allows, in seconds."""
        return FAILOVER["fast" if self.fast else "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has shown."""

    summary: Mapping[str, object]
    findings: Sequence[Finding]
    problems: Sequence[str]
    """Errors of programs, and faults that did not end in time."""
    slow: Sequence[str]

    @property
    def conflicts(self) -> Sequence[Finding]:
        """Return the findings other than lost pods."""
        return [each for each in self.findings if each.kind is not FindingKind.LOST]


def run(plan: Plan, folder: Path) -> Outcome:
    """Run the faults of a plan, and audit what has happened."""
    with site_module.opened(folder, timing=plan.timing, seed=plan.seed, build=plan.build, scene=plan.scene) as site:
        site.until_probed()
        for number, strike in enumerate(plan.strikes, start=1):
            site.workload.allow(plan.pods * number // len(plan.strikes))
            try:
                _strike(site, strike)
            except waiting.WaitError as error:
                output.say(f"{strike.kind}: {error}")
                _say_logs(site)
                site.failures.append(f"{strike.kind}: {error}")
                site.undo()
            site.check()
        calm_from = _settle(site)
        site.failures += plan.scene.epilogue(site)
    causes = {"ended": frozenset(site.workload.ended), **plan.scene.limits(folder)}
    with_causes = Limits(calm_from=calm_from, **causes)
    return _audited(plan, site, folder, with_causes)


def _strike(site: Site, strike: Strike) -> None:
    began = time.monotonic()
    healed = faults.strike(site, strike)
    site.figures.faults[strike.kind] += 1
    took = 0.0
    if healed is not None:
        since = site.until_served(healed.path)
        took = site.until_probed(node=healed.node).bound_at - since
        (site.figures.returns if healed.returned else site.figures.heals).append((strike.kind, took))
    output.say(
        f"{strike.kind}: {time.monotonic() - began:.1f} s, healed in {took:.2f} s; "
        f"{site.workload.created} pods, {site.live.binds} binds, load {os.getloadavg()[0]:.1f}"
    )


def _say_logs(site: Site) -> None:
    """Show the ends of all logs: what holds a run up is often gone before it can be looked at."""
    for process in site.world.processes.started:
        output.say(f"{process.name} (exit code {process.exit_code}):")
        for line in process.text().splitlines()[-LAST_LINES:]:
            output.say(f"  {line[:LINE]}")


def _settle(site: Site) -> float:
    """Wait until all pods have arrived and left; return from when on there was no fault."""
    time.sleep(CALM_SECONDS)
    calm_from = time.monotonic()
    try:
        site.workload.until_arrived()
        site.workload.drain()
    except waiting.WaitError as error:
        output.say(str(error))  # the audit finds what is lost
    site.until_probed()
    time.sleep(CALM_SECONDS)  # for the last Events
    site.recorder.catch_up()
    return calm_from


def _audited(plan: Plan, site: Site, folder: Path, limits: Limits) -> Outcome:
    auditor = Auditor(limits)
    findings = [each for revision in history.read(folder / HISTORY) for each in auditor.take(revision)]
    findings += auditor.end()
    more = plan.scene.audit(folder)
    findings += more.findings
    lost = sum(each.kind is FindingKind.LOST for each in findings)
    measured = site.figures.summary()
    summary = {
        "faults": measured.pop("faults"),
        "pods": site.workload.created,
        "binds": auditor.binds,
        "conflicts": len(findings) - lost,
        "lost": lost,
        **measured,
        **more.figures,
        "seed": plan.seed,
    }
    return Outcome(
        summary=summary,
        findings=findings,
        problems=[*site.failures, *_problems(site)],
        slow=site.figures.too_slow(failover=plan.failover),
    )


def _problems(site: Site) -> list[str]:
    """Return the errors that no program expects, with the names of the programs."""
    return [
        f"{process.name} (exit code {process.exit_code}): {line[:LINE]}"
        for process in site.world.processes.started
        if process.name not in site.excused
        for line in process.text().splitlines()
        if _is_unexpected(line)
    ]


def _is_unexpected(line: str) -> bool:
    """Return whether a line of a log shows an error that nothing has handled; after one of kopf, kopf starts again."""
    return line.startswith("Traceback ") or ('"exception": ' in line and '"logger": "kopf.' not in line)


def folder_of(name: str) -> Path:
    """Return an empty folder for the history and the logs of a run."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch("([1-9])/([1-9])", text)
    if match is None or match[1] > match[2]:
        sys.exit(f"PART: must be one part of several, such as 1/2, not {text!r}")
    return int(match[1]), int(match[2])


def main() -> None:
    """Run the faults of a seed."""
    seed, fast = output.number("SEED", 1), bool(output.number("FAST", 0))
    weights = {kind: faults.WEIGHTS[kind] for kind in output.chosen("KINDS", faults.WEIGHTS)}
    strikes = schedule(seed=seed, count=output.number("FAULTS", 200), weights=weights)
    part, parts = _part(os.environ.get("PART") or "1/1")
    first, last = (len(strikes) * number // parts for number in (part - 1, part))
    plan = Plan(seed=seed, strikes=strikes[first:last], pods=output.number("PODS", 3000) // parts, fast=fast)
    output.say_load()
    outcome = run(plan, folder_of(str(seed) if parts == 1 else f"{seed}-{part}"))
    for line in (*outcome.findings, *outcome.problems, *outcome.slow):
        output.say(str(line))
    output.result(outcome.summary)
    sys.exit(bool(outcome.findings or outcome.problems or outcome.slow))


if __name__ == "__main__":
    main()
