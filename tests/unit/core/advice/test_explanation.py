"""Each node's reasons agree with the decision, and the nearest node takes the pod once it has what it lacks."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from berth_api.objects.visibility import LackingNode
from berth_operator.core.advice.explanation import MAX_NEAREST, Explanation, explain
from berth_operator.core.advice.gang_explanation import GangExplanation, explain_gang
from berth_operator.core.decision.cycle import ONLY_NOMINATED, Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod, Taint
from tests.objects.builders import (
    A100,
    GI,
    GPU,
    NVIDIA,
    RDMA,
    T4,
    add,
    asks,
    card,
    cards,
    charge,
    fleet,
    gang,
    grant,
    inventory,
    node_info,
    other_card,
    waiting,
)

POLICY = Policy()


def explained(made: Fleet, pod: PendingPod) -> Explanation:
    """Return the explanation of a pod that fits nowhere, whose reasons agree with those of its condition."""
    explanation = explain(made, pod, POLICY)
    assert isinstance(explanation.result, Failure)
    assert_agrees(made, explanation)
    return explanation


def assert_agrees(made: Fleet, explanation: Explanation) -> None:
    """Compare the first reasons of all nodes with the counts of the condition."""
    assert isinstance(explanation.result, Failure)
    counts = Counter(dict(explanation.result.reasons))
    nominated = counts.pop(ONLY_NOMINATED, 0)
    counted: Counter[str] = Counter()
    for group in explanation.groups:
        assert set(group["counted"]) <= set(group["reasons"])
        counted.update(dict.fromkeys(group["counted"], group["count"]))
    assert counted == counts
    nodes = [node for group in explanation.groups for node in group["nodes"]]
    assert len(nodes) == len(set(nodes)) == int(made.present.sum()) - nominated


def given(made: Fleet, lack: LackingNode) -> Fleet:
    """Return a copy of the fleet in which a node has what it lacks, and nothing else."""
    copied, row = made.copy(), made.rows[lack["node"]]
    amounts = np.zeros((len(copied.requested), 1), np.int64)
    for name, amount in lack["resources"].items():
        amounts[copied.resources[name]] = amount
    copied.move_requested(np.array([row]), amounts, -1)
    for each in lack["cards"]:
        columns = copied.cards[each["type"]]
        slot = int(np.flatnonzero(columns.minor[row] == each["minor"])[0])
        used = columns.used[:, row, slot].copy()
        for name, amount in each["amounts"].items():
            used[columns.index[name]] -= amount
        free = not each["amounts"]
        copied.set_card_use(
            each["type"], row, slot, np.zeros_like(used) if free else used, 0 if free else int(columns.users[row, slot])
        )
    return copied


def test_a_pod_that_fits_has_no_reasons() -> None:
    explanation = explain(fleet(), waiting(request={NVIDIA: 1}), POLICY)
    assert isinstance(explanation.result, Placement)
    assert (explanation.groups, explanation.nearest) == ((), ())


def test_an_invalid_pod_has_the_reason_of_its_condition_alone() -> None:
    explanation = explain(fleet(), waiting(error="no"), POLICY)
    assert isinstance(explanation.result, Failure)
    assert explanation.groups == ()


def test_nodes_that_are_no_candidates_do_not_hide_those_that_are() -> None:
    made = fleet({f"n{number}": cards(1) for number in range(MAX_NEAREST + 1)})
    for name in made.rows:
        made.charge(charge(name, grant(0, core=100, ratio=100), node=name))
        made.set_fresh(name, fresh=name == f"n{MAX_NEAREST}")
    assert [near["node"] for near in explained(made, waiting(request={NVIDIA: 1})).nearest] == [f"n{MAX_NEAREST}"]


# --- random fleets ----------------------------------------------------------------------------------------------

REQUESTS: tuple[Any, ...] = (
    {NVIDIA: 1},
    {NVIDIA: 2},
    {NVIDIA: 4},
    {GPU: 30},
    {GPU: 60},
    {GPU: 300},
    {"cpu": 40000, NVIDIA: 1},
    {"cpu": 90000},
    {"memory": 900 * GI},
    {RDMA: 100, NVIDIA: 1},
    {"example.com/x": 1},
)
SELECTORS: tuple[dict[str, str], ...] = ({}, {}, {}, {"zone": "a"})


def random_fleet(rng: random.Random) -> Fleet:
    """Return a fleet of ten nodes, most of whose cards are in use."""
    made = Fleet()
    for number in range(10):
        name, model = f"n{number}", rng.choice((A100, T4))
        devices = inventory(
            *(card(minor, model=model, healthy=rng.random() > 0.1) for minor in range(rng.choice((2, 4)))),
            *(other_card("rdma", minor) for minor in range(rng.choice((0, 2)))),
        )
        taints = (Taint(key="x", value="", effect="NoSchedule"),) if rng.random() < 0.15 else ()
        add(
            made,
            node_info(name, labels={"zone": rng.choice("ab")}, taints=taints),
            devices if rng.random() > 0.1 else None,
            fresh=rng.random() > 0.1,
        )
    for number in range(60):
        amount = rng.choice((20, 40, 60, 100))
        request = asks(rng.choice(({NVIDIA: 1}, {GPU: amount}, {"cpu": 20000}, {RDMA: 100})))
        placed = decide(made, waiting(f"p{number}", request=request), POLICY)
        if isinstance(placed, Placement):
            made.charge(placed.charge)
    return made


@pytest.mark.parametrize("seed", range(40))
def test_explanations_of_random_fleets_agree_with_decisions(seed: int) -> None:
    rng = random.Random(seed)
    made = random_fleet(rng)
    for number in range(10):
        request = asks(rng.choice(REQUESTS), selector=rng.choice(SELECTORS))
        pod = waiting(f"w{number}", request=request)
        before = decide(made, pod, POLICY)
        explanation = explain(made, pod, POLICY)
        assert explanation.result == before == decide(made, pod, POLICY)
        if isinstance(before, Placement):
            continue
        assert_agrees(made, explanation)
        for near in explanation.nearest:
            assert near["resources"] or near["cards"]
            result = decide(given(made, near), pod, POLICY)
            assert isinstance(result, Placement)
            assert result.node == near["node"]
            assert_necessary(made, near, pod)


def assert_necessary(made: Fleet, lack: LackingNode, pod: PendingPod) -> None:
    """Check that the node does not take the pod if one of the cards stays in use."""
    for each in lack["cards"]:
        fewer: LackingNode = {**lack, "cards": [other for other in lack["cards"] if other != each]}
        assert isinstance(decide(given(made, fewer), pod, POLICY), Failure)


# --- gangs ---------------------------------------------------------------------------------------------------------


def gang_explained(made: Fleet, unit: Gang) -> GangExplanation:
    """Return the explanation, whose result is the decision's; the fleet is left as it was."""
    charges = dict(made.charges)
    before = decide_gang(made, unit, POLICY)
    explanation = explain_gang(made, unit, POLICY)
    assert explanation.result == (before if isinstance(before, Failure) else tuple(before))
    assert made.charges == charges
    return explanation


def members(*counts: int) -> Gang:
    return gang(*(waiting(f"m{number}", {NVIDIA: count}) for number, count in enumerate(counts)))


def test_a_gang_that_fits_has_a_place_for_all() -> None:
    explanation = gang_explained(fleet({"a": cards(2)}), members(1, 1))
    assert (explanation.placed, explanation.first, explanation.explanation) == (2, None, None)


def test_the_first_member_without_a_node_is_explained_beside_the_others() -> None:
    explanation = gang_explained(fleet({"a": cards(4), "b": cards(2)}), members(1, 4, 2, 2))
    assert explanation.placed == 2
    assert explanation.first is not None
    assert explanation.first.name == "m3"
    assert explanation.explanation is not None
    assert isinstance(explanation.explanation.result, Failure)
    [near, further] = explanation.explanation.nearest
    assert (near["node"], len(near["cards"])) == ("a", 2)
    assert (further["node"], len(further["cards"])) == ("b", 2)


def test_a_gang_with_too_few_members_is_not_explained_by_nodes() -> None:
    explanation = gang_explained(fleet({"a": cards(1)}), gang(waiting("m0", {NVIDIA: 1}), minimum=2))
    assert (explanation.placed, explanation.first, explanation.explanation) == (0, None, None)


def test_members_have_the_places_that_the_decision_counts() -> None:
    """GPUs of another model are no place for a member of a gang whose GPUs are alike."""
    explanation = gang_explained(
        fleet({"a": cards(8), "b": cards(8, model="T4"), "c": cards(4, model="T4")}), members(8, 8, 8)
    )
    assert isinstance(explanation.result, Failure)
    assert explanation.first is not None
    assert explanation.first.request.model.exact in {A100, "T4"}  # spelled as the device reports it
    assert f"next member {explanation.first.name}: " in explanation.result.message
    assert f" {explanation.placed} of the 3 required members fit" in explanation.result.message
    assert explanation.explanation is not None
    assert isinstance(explanation.explanation.result, Failure)
