"""No card is given twice, by name or by claim, whatever happens, and no claim is left over.

BERTH_PODS sets the number of pods, and BERTH_FAULTS the number of faults. The test prints one line of JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.claims_run import run

PODS: Final = int(os.environ.get("BERTH_PODS", "60"))
FAULTS: Final = int(os.environ.get("BERTH_FAULTS", "2"))
SEED: Final = int(os.environ.get("BERTH_SEED", "1"))


@pytest.mark.timeout(240 + 2 * PODS)
def test_no_card_is_given_twice_by_name_or_by_claim(tmp_path: Path) -> None:
    outcome = run(seed=SEED, pods=PODS, faults=FAULTS, folder=tmp_path)
    sys.stdout.write(json.dumps({"chaos": "claims", **outcome.summary}) + "\n")
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.summary["pods by name"]
    assert outcome.summary["pods by claim"]
