"""When a pod of Berth's programs can no longer write."""

from typing import Any

import pytest

from berth_operator.commands.cleanup.programs import TOKEN_SECONDS, Ending


def pod(name: str = "p", *, phase: str = "Running", grace: int | None = None, **metadata: Any) -> dict[str, Any]:
    if grace is not None:
        metadata |= {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
    own = {"name": name, "uid": f"uid-{name}", **metadata}
    return {"metadata": own, "spec": {"nodeName": "a"}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("one", "seconds", "named"),
    [
        (pod(), 10_000, ["p (node a)"]),
        (pod(phase="Failed"), 0, []),
        (pod(phase="Succeeded"), 0, []),
        (pod(grace=30), 30 + TOKEN_SECONDS, ["p (node a)"]),
        (pod(grace=30), 31 + TOKEN_SECONDS, []),
        (pod(grace=0), 1 + TOKEN_SECONDS, []),
        (pod(deletionTimestamp="2020-01-01T00:00:00Z"), 30 + TOKEN_SECONDS, ["p (node a)"]),
    ],
)
def test_a_pod_counts_until_it_has_ended_or_its_token_has_expired(
    one: dict[str, Any], seconds: float, named: list[str]
) -> None:
    ending = Ending()
    ending.running([one], 5.0)
    assert ending.running([one], 5.0 + seconds) == named


def test_each_pod_has_its_own_time() -> None:
    ending = Ending()
    assert ending.running([pod("p", grace=0)], 0.0) == ["p (node a)"]
    assert ending.running([pod("p", grace=0), pod("q", grace=0)], 100.0) == ["q (node a)"]


def test_a_pod_without_a_node_is_named() -> None:
    unplaced = pod()
    del unplaced["spec"]["nodeName"]
    assert Ending().running([unplaced], 0.0) == ["p (node none)"]
