"""Record random scenarios and the results of upstream's newest allocator: `python -m tests.claims.record FILE`.

The scenarios are small.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.claims import generate, scenario, upstream

SEEDS: Final = range(5000)
KEPT: Final = {"found": 14, "none": 5, "error": 4}
"""How many rows are kept with each word, by what came of them: the shortest, as `make test` reads them in each run."""
WORDS: Final = (
    "adminAccess",
    '"All"',
    "bindingConditions",
    "config",
    "consumesCounters",
    "distinctAttribute",
    "firstAvailable",
    "matchAttribute",
    "matchExpressions",
    "perDeviceNodeSelection",
    "requestPolicy",
    "shareID",
    "taints",
    "tolerations",
)


def main() -> None:
    """Write the rows: scenarios without the features if all are on, and outcomes."""
    scenarios = [generate.scenario(seed, small=True) for seed in SEEDS]
    rows: dict[str, list[str]] = {kind: [] for kind in KEPT}
    for drawn, theirs in zip(scenarios, upstream.outcomes(upstream.VERSIONS[-1], scenarios), strict=True):
        if not theirs.get("late"):
            rows[scenario.kind(theirs)].append(_written(drawn, theirs))
    kept: dict[str, None] = {}
    for kind, most in KEPT.items():
        shortest = sorted(rows[kind], key=len)
        for word in WORDS:
            kept |= dict.fromkeys([row for row in shortest if word in row][:most])
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(kept) + "\n]\n")


def _written(drawn: dict[str, Any], theirs: dict[str, Any]) -> str:
    given = {key: value for key, value in drawn.items() if value != list(generate.FEATURES)}
    return json.dumps([given, theirs], separators=(",", ":"))


if __name__ == "__main__":
    main()
