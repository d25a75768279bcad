"""Compare selectors with Kubernetes' own implementation: `python -m tests.claims.selectors_rows`. It needs Go.

`--record` writes what `make test` replays. `--seed` and `--random` draw other random expressions.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.claims.selectors_rows.devices import DEVICES
from tests.claims.selectors_rows.rows import RANDOM, SEED, all_expressions, outcome, views, write

_HERE: Final = Path(__file__).parent
_JUDGE: Final = _HERE.parents[2] / ".build" / "selectors-judge"


def main() -> int:
    """Print each difference, then the counts as JSON; return 1 if there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the random expressions")
    parser.add_argument("--random", type=int, default=RANDOM, help="how many random expressions")
    parser.add_argument("--record", action="store_true", help="write what `make test` replays")
    arguments = parser.parse_args()
    expressions = all_expressions(arguments.seed, arguments.random)
    judged = dict(zip(expressions, judge(expressions), strict=True))
    if arguments.record:
        write(judged)
    devices = views()
    different = 0
    for expression, expected in judged.items():
        if (found := outcome(expression, devices)) != expected:
            different += 1
            print(f"{expression}: {found}, expected {expected} as in Kubernetes")
    print(json.dumps({"rows": len(judged), "devices": len(devices), "different": different}))
    return 1 if different else 0


def judge(expressions: list[str]) -> list[str]:
    """Return the results of Kubernetes' implementation for each expression, as `outcome` returns ours."""
    subprocess.run(["go", "build", "-o", str(_JUDGE), "."], cwd=_HERE / "judge", check=True)
    lines = "".join(json.dumps({"expression": each, "devices": DEVICES}) + "\n" for each in expressions)
    answered = subprocess.run([str(_JUDGE)], input=lines, stdout=subprocess.PIPE, check=True, text=True)
    return [_recorded(json.loads(line)) for line in answered.stdout.splitlines()]


def _recorded(answer: dict[str, object]) -> str:
    results = answer["results"]
    return "c" if answer["compile"] or not isinstance(results, list) else "".join(result[0] for result in results)


if __name__ == "__main__":
    sys.exit(main())
