"""Results of Kubernetes' allocator 0.37.2 in random scenarios, recorded by `python -m tests.claims.record`."""

import json
from pathlib import Path

from tests.claims import scenario
from tests.claims.generate import FEATURES

RECORDED = Path(__file__).with_name("recorded.json")


def test_allocations_are_those_of_kubernetes() -> None:
    rows = json.loads(RECORDED.read_text())
    assert len(rows) > 200
    different = []
    for drawn, theirs in rows:
        ours = scenario.outcome({"features": FEATURES, **drawn})
        if not scenario.same(ours, theirs):
            different.append((drawn, ours, theirs))
    assert different == []
