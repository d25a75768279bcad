"""The auditor of limits finds each kind of fault in a history that has it, and nothing else."""

import itertools
import json
from typing import Any

from tests.chaos.auditor import ALLOCATION
from tests.chaos.history import Kind, Revision
from tests.chaos.limits_auditor import ANNOTATIONS, ISOLATION, LimitsAuditor

MEMORY = 80 * 2**30
numbers = itertools.count(1)


def bound(name: str, mode: str, *, asked: str | None = None, memory: str = "40Gi", limit: int = 40960) -> Revision:
    grant = {"id": "GPU-0", "resources": {"kubernetes.io/gpu-memory": memory}}
    annotations = {
        ALLOCATION: json.dumps({"gpu": [grant]}),
        ISOLATION: mode if asked is None else asked,
        f"{ANNOTATIONS}visible": "GPU-0",
        f"{ANNOTATIONS}mps-memory-limit": f"0={limit}M",
        f"{ANNOTATIONS}memory-limit-0": str(limit * 2**20),
    }
    limits = {"kubernetes.io/gpu": "50", **({f"berth.dev/{mode}": "1"} if mode else {})}
    spec = {"nodeName": "node", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    return revision(name, {"metadata": {"annotations": annotations}, "spec": spec})


def revision(name: str, raw: Any) -> Revision:
    return Revision(number=next(numbers), time=0.0, kind=Kind.POD, name=f"storm/{name}", version=1, object=raw)


def found(*revisions: Revision) -> list[str]:
    auditor = LimitsAuditor(MEMORY)
    return [finding.text for one in revisions for finding in auditor.take(one)]


def test_a_node_in_two_modes_is_found_as_long_as_both_are_there() -> None:
    assert "two modes" in found(bound("a", "mps"), bound("b", "hami-core"))[0]
    assert found(bound("a", "mps"), revision("a", None), bound("b", "hami-core")) == []


def test_limits_beyond_the_card_are_found() -> None:
    assert "beyond the card" in found(bound("a", "mps"), bound("b", "mps", memory="41Gi", limit=41984))[0]


def test_a_limit_that_is_not_what_the_pod_holds_is_found() -> None:
    assert "it holds" in found(bound("a", "mps", limit=40961))[0]
    assert "it holds" in found(bound("a", "hami-core", limit=40959))[0]


def test_a_pod_that_is_not_limited_as_it_asks_is_found() -> None:
    assert found(bound("a", "", asked="mps")) == ["it asks for 'mps' and is limited by ''"]
