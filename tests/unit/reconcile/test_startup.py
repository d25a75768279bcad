"""The startup taint is removed once the Node shows what its agent reported."""

from collections.abc import Collection
from typing import Any

import pytest

from berth_operator.controllers.reconcile import startup, sums
from berth_operator.state.cache.views import NodeView
from berth_operator.state.objects import devices, nodes
from tests.objects.builders import bare_node, condition, device, entry

Raw = dict[str, Any]

OTHER = {"key": "team", "effect": "NoSchedule"}
TAINT = {"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"}
PREFIXED = "startup-taint.cluster-autoscaler.kubernetes.io/berth-agent-not-ready"


def removal(position: int, key: str) -> list[Raw]:
    """Return the patch that removes a taint."""
    path = f"/spec/taints/{position}"
    return [{"op": "test", "path": f"{path}/key", "value": key}, {"op": "remove", "path": path}]


def view(
    *taints: Raw,
    shows: Collection[str] = ("sums", "labels"),
    has_device: bool = True,
    alive: bool = True,
    **status: Any,
) -> NodeView:
    """Return the view of a node with a card; `shows`: what of its devices the Node shows."""
    record = devices.record(device("node", entry(0), **status)) if has_device else None
    raw = bare_node(taints=list(taints))

    def seen() -> NodeView:
        return NodeView(name="node", node=nodes.record(raw), device=record, ours=True, alive=alive, charges=())

    before = seen()
    if "sums" in shows:
        for field, amounts in (sums.status_patch(before) or {"status": {}})["status"].items():
            raw["status"][field] |= amounts
    if "labels" in shows:
        raw["metadata"]["labels"] |= (sums.label_patch(before) or {"metadata": {"labels": {}}})["metadata"]["labels"]
    return seen()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(view(OTHER, TAINT), removal(1, TAINT["key"]), id="started"),
        pytest.param(view(OTHER), None, id="no such taint"),
        pytest.param(view(TAINT | {"key": PREFIXED}), removal(0, PREFIXED), id="the taint of cluster-autoscaler"),
        pytest.param(view(OTHER, TAINT, shows=["labels"]), None, id="sums not written yet"),
        pytest.param(view(OTHER, TAINT, shows=["sums"]), None, id="labels not written yet"),
        pytest.param(view(OTHER, TAINT, has_device=False), None, id="no Device"),
        pytest.param(view(OTHER, TAINT, alive=False), None, id="agent silent"),
        pytest.param(
            view(OTHER, TAINT, conditions=[condition("DriverLoaded", "False", reason="Missing", message="")]),
            None,
            id="no driver",
        ),
    ],
)
def test_the_startup_taint_is_removed_last(seen: NodeView, expected: list[Raw] | None) -> None:
    assert startup.patch(seen) == expected
