"""The effect of a policy on decisions."""

from collections import Counter

import pytest

from berth_operator.core import filters, scores
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import ALWAYS, CARD_STRATEGIES, NODE_STRATEGIES, Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import card_spreading
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import Taint
from tests.objects.builders import GPU, NVIDIA, add, asks, cards, charge, fleet, grant, inventory, node_info, waiting


def spreading() -> Policy:
    return Policy(weights=tuple(CARD_STRATEGIES["LeastAllocated"].items()), card_strategy="LeastAllocated")


def placed(on: Fleet, name: str, amounts: dict[str, int], policy: Policy) -> Placement:
    """Decide a pod that must fit, and charge it."""
    outcome = decide(on, waiting(name, amounts), policy)
    assert isinstance(outcome, Placement), outcome
    on.charge(outcome.charge)
    return outcome


def test_every_weight_is_that_of_a_score() -> None:
    known = {each.NAME for each in scores.ALL}
    named = [ALWAYS, *NODE_STRATEGIES.values(), *CARD_STRATEGIES.values()]
    assert {name for weights in named for name in weights} <= known


# --- filters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node"),
    [
        pytest.param("cordon", node_info(cordoned=True), id="cordon"),
        pytest.param("taints", node_info(taints=[Taint(key="a")]), id="taints"),
        pytest.param("node-ready", node_info(ready=False), id="readiness"),
    ],
)
def test_a_filter_that_is_switched_off_rejects_nothing(name: str, node: NodeInfo) -> None:
    made = fleet({})
    add(made, node)
    pod = waiting("pod", {"cpu": 1})
    assert isinstance(decide(made, pod, Policy()), Failure)
    assert isinstance(decide(made, pod, Policy(switched_off=frozenset({name}))), Placement)


def test_a_filter_that_is_switched_off_is_no_reason() -> None:
    made = fleet({})
    add(made, node_info(cordoned=True, cpu=0))
    pod = waiting("pod", {"cpu": 1})
    blind = decide(made, pod, Policy(switched_off=frozenset({"cordon"})))
    assert isinstance(blind, Failure)
    assert [reason for reason, _ in blind.reasons] == ["Insufficient cpu"]


def test_what_nothing_may_be_bound_without() -> None:
    assert {
        "supported",
        "resource-claims",
        "dynamic-resources",
        "namespace-limits",
        "resources",
        "host-ports",
        "isolation",
        "devices",
        "volume-in-use",
        "volume-conflicts",
        "volume-claims",
        "volume-binding",
    } <= {each.NAME for each in filters.ORDER if each.TRAITS.needed}


# --- strategies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "used"),
    [
        pytest.param(Policy(), [2, 2, 2, 2], id="packed"),
        pytest.param(spreading(), [1] * 8, id="spread"),
    ],
)
def test_halves_on_the_cards_of_one_node(policy: Policy, used: list[int]) -> None:
    made = fleet({"node": cards(8)})
    chosen = [placed(made, f"pod-{i}", {GPU: 50}, policy).grants[0].minor for i in range(8)]
    assert sorted(Counter(chosen).values()) == used


@pytest.mark.parametrize(
    ("policy", "node"),
    [pytest.param(Policy(), "fuller", id="packed"), pytest.param(spreading(), "emptier", id="spread")],
)
@pytest.mark.parametrize(
    ("amounts", "used"),
    [
        pytest.param({NVIDIA: 1}, {"fuller": 1, "emptier": 1}, id="whole cards"),
        pytest.param({GPU: 20}, {"fuller": 2, "emptier": 3}, id="shares"),
    ],
)
def test_strategies_of_cards(amounts: dict[str, int], used: dict[str, int], policy: Policy, node: str) -> None:
    made = fleet({"fuller": cards(2), "emptier": cards(3)})
    for name, taken, count in (("fuller", 60, used["fuller"]), ("emptier", 40, used["emptier"])):
        for minor in range(count):
            made.charge(charge(f"{name}-{minor}", grant(minor, core=taken, ratio=taken), node=name))
    assert placed(made, "pod", amounts, policy).node == node


def test_card_spreading_ignores_pods_without_devices() -> None:
    made = fleet()
    assert card_spreading.score(made, asks({"cpu": 1}), made.present) is None


@pytest.mark.parametrize(
    ("strategy", "node"),
    [pytest.param("LeastAllocated", "idle", id="spread"), pytest.param("MostAllocated", "used", id="packed")],
)
def test_strategies_of_nodes(strategy: str, node: str) -> None:
    made = fleet({})
    for name in ("used", "idle"):
        add(made, node_info(name), inventory())
    made.charge(charge("a", node="used", resources=(("cpu", 32_000), ("memory", 1))))
    policy = Policy(weights=tuple({**ALWAYS, **NODE_STRATEGIES[strategy], "balanced-allocation": 0.0}.items()))
    assert placed(made, "pod", {"cpu": 1_000}, policy).node == node
