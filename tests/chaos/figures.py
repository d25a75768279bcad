"""The measurements of a run: how soon pods are bound after a fault has healed, and after a leader has failed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.bench.figures import quantile

HEAL_P90: Final = 2.0
HEAL_MAX: Final = 10.0
RETURNED_MAX: Final = 45.0
"""After a definition has returned, or an API server: it looks for kinds of parameters only every 30 s."""


@dataclass(slots=True)
class Figures:
    """The figures of one run; times are in seconds."""

    faults: Counter[str] = field(default_factory=Counter)
    heals: list[tuple[str, float]] = field(default_factory=list)
    """(kind, from healing to the next bind)."""
    returns: list[tuple[str, float]] = field(default_factory=list)
    """The same after a definition, or an API server, has returned."""
    failovers: list[tuple[str, float]] = field(default_factory=list)
    """(kind, from the leader's failure to the next bind)."""

    def summary(self) -> dict[str, object]:
        """Return the figures for the last line of a run."""
        heals = [seconds for _, seconds in self.heals] or [0.0]
        return {
            "faults": dict(sorted(self.faults.items())),
            "heal_p90_s": round(quantile(heals, 0.9), 2),
            "heal_max_s": round(max(heals), 2),
            "return_max_s": round(max((seconds for _, seconds in self.returns), default=0.0), 2),
            "failover_max_s": round(max((seconds for _, seconds in self.failovers), default=0.0), 2),
        }

    def too_slow(self, *, failover: float) -> list[str]:
        """Return what took longer than it may, with the longest fail-over that the timing of the election allows."""
        limits = ((self.heals, HEAL_MAX), (self.returns, RETURNED_MAX), (self.failovers, failover))
        slow = [
            f"{kind}: {seconds:.1f} s, allowed are {limit:g} s"
            for measured, limit in limits
            for kind, seconds in measured
            if seconds > limit
        ]
        if self.heals and (p90 := quantile([seconds for _, seconds in self.heals], 0.9)) > HEAL_P90:
            slow.append(f"the 90th percentile of healing is {p90:.1f} s, allowed are {HEAL_P90:g} s")
        return slow
