"""PodDisruptionBudgets, parsed from the API."""

from collections.abc import Mapping
from typing import Any

from berth_operator.core.decision.budgets import Budget
from berth_operator.state.objects import affinity

Object = Mapping[str, Any]


def budget(raw: Object) -> Budget:
    """Read a PodDisruptionBudget. Without a selector, it protects no pods; an empty selector protects its namespace.

    kube-scheduler treats an empty selector as none, unlike the API and the disruption controller.
    """
    status = raw.get("status") or {}
    return Budget(
        namespace=raw["metadata"]["namespace"],
        selector=affinity.selector(raw["spec"].get("selector")),
        allowed=status.get("disruptionsAllowed") or 0,
        disrupted=frozenset(status.get("disruptedPods") or ()),
    )
