"""PodDisruptionBudgets as the API server sends them, and the pods that they protect."""

from typing import Any

import pytest

from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.values.affinity import Identity
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.budgets import budget
from berth_operator.state.watches import sinks


def raw(selector: Any, name: str = "budget", **status: Any) -> dict[str, Any]:
    spec = {} if selector is None else {"selector": selector}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": status}


def identity(namespace: str = "ns", **labels: str) -> Identity:
    return Identity(namespace=namespace, labels=tuple(sorted(labels.items())))


@pytest.mark.parametrize(
    ("selector", "of", "protects"),
    [
        pytest.param({"matchLabels": {"app": "x"}}, identity(app="x"), 1, id="its label"),
        pytest.param({"matchLabels": {"app": "x"}}, identity(app="y"), 0, id="another value"),
        pytest.param({"matchLabels": {"app": "x"}}, identity("other", app="x"), 0, id="another namespace"),
        pytest.param({}, identity(app="x"), 1, id="an empty selector protects all"),
        pytest.param({}, identity(), 1, id="even those without labels"),
        pytest.param(None, identity(app="x"), 0, id="without a selector no pod is protected"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}, identity(), 1, id="NotIn"
        ),
    ],
)
def test_which_pods_a_budget_protects(selector: Any, of: Identity, protects: int) -> None:
    assert len(Budgets({"ns/budget": budget(raw(selector))}).protecting(of)) == protects


def test_allowed_disruptions_and_already_disrupted_pods() -> None:
    parsed = budget(raw({}, disruptionsAllowed=2, disruptedPods={"a": "2026-01-01T00:00:00Z"}))
    assert (parsed.allowed, parsed.disrupted) == (2, frozenset({"a"}))
    fresh = budget({"metadata": {"name": "budget", "namespace": "ns"}, "spec": {"selector": {}}})
    assert (fresh.allowed, fresh.disrupted) == (0, frozenset())


def list_again(table: sinks.Table, *objects: dict[str, Any]) -> None:
    listing = table.listing(requested_at=0.0)
    listing.put(list(objects))
    listing.end("")


def test_budgets_come_change_and_go() -> None:
    cluster = Cluster(grace=1.0)
    table, app = sinks.disruption_budgets(cluster), identity(app="x")
    assert not cluster.budgets
    list_again(table, raw({}), raw({}, "second"))
    assert len(cluster.budgets.protecting(app)) == 2
    table.apply("MODIFIED", raw({"matchLabels": {"app": "y"}}))
    assert len(cluster.budgets.protecting(app)) == 1
    table.apply("DELETED", raw({}, "second"))
    assert cluster.budgets.protecting(app) == ()
    assert cluster.budgets
    list_again(table)
    assert not cluster.budgets
