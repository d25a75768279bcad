"""Pods by name and by claim with faults, audited by UUID over every revision."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devcluster import waiting
from tests.chaos import claims_site, history
from tests.chaos.claims_auditor import ClaimsAuditor, Limits
from tests.chaos.claims_faults import ClaimsFaults
from tests.chaos.claims_site import ClaimsSite
from tests.chaos.claims_workload import ClaimsWorkload
from tests.chaos.findings import Finding, FindingKind

RELEASED: Final = 30.0
"""Seconds after the last pod within which Kubernetes deallocates its claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has shown."""

    summary: Mapping[str, Any]
    findings: Sequence[Finding]


def run(*, seed: int, pods: int, faults: int, folder: Path) -> Outcome:
    """Run a number of pods and faults, and audit what has happened."""
    began, file = time.monotonic(), folder / "history.jsonl"
    with (
        claims_site.opened(folder, file) as site,
        ClaimsWorkload(arena=site.arena, live=site.live, seed=seed) as workload,
    ):
        strikes = ClaimsFaults(site, seed)
        for number in range(1, faults + 1):
            workload.allow(pods * number // faults)
            strikes.strike()
            site.check()
            workload.check()
        workload.until_arrived()
        workload.drain()
        _settle(site)
    auditor = ClaimsAuditor(Limits(pools=frozenset(site.pools)))
    findings = [each for revision in history.read(file) for each in auditor.take(revision)]
    findings += auditor.end()
    left = sum(each.kind is FindingKind.LEFT_OVER for each in findings)
    summary = {
        "pods": workload.created,
        **auditor.counts,
        "faults": dict(strikes.counts),
        "late_writes": strikes.late,
        "findings": len(findings) - left,
        "left_over": left,
        "seconds": round(time.monotonic() - began),
        "seed": seed,
    }
    return Outcome(summary=summary, findings=findings)


def _settle(site: ClaimsSite) -> None:
    """Wait until no claim is allocated; the audit says which ones stay so."""
    waiting.within(lambda: not _held(site), seconds=RELEASED)  # the audit finds what is left over
    site.recorder.catch_up()


def _held(site: ClaimsSite) -> list[str]:
    return [
        claim["metadata"]["name"]
        for claim in site.arena.list("resourceclaims")
        if (claim.get("status") or {}).get("allocation") or claim["metadata"].get("finalizers")
    ]
