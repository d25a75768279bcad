"""A gang's explanation places what fits, and explains the first member that does not."""

from berth_operator.core.advice.gang_explanation import GangExplanation, explain_gang
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from tests.builders import A100, NVIDIA, cards, fleet, gang, waiting

POLICY = Policy()


def explained(made: Fleet, unit: Gang) -> GangExplanation:
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
    explanation = explained(fleet({"a": cards(2)}), members(1, 1))
    assert (explanation.placed, explanation.first, explanation.explanation) == (2, None, None)


def test_the_first_member_without_a_node_is_explained_beside_the_others() -> None:
    explanation = explained(fleet({"a": cards(4), "b": cards(2)}), members(1, 4, 2, 2))
    assert explanation.placed == 2
    assert explanation.first is not None
    assert explanation.first.name == "m3"
    assert explanation.explanation is not None
    assert isinstance(explanation.explanation.result, Failure)
    [near, further] = explanation.explanation.nearest
    assert (near["node"], len(near["cards"])) == ("a", 2)
    assert (further["node"], len(further["cards"])) == ("b", 2)


def test_a_gang_with_too_few_members_is_not_explained_by_nodes() -> None:
    explanation = explained(fleet({"a": cards(1)}), gang(waiting("m0", {NVIDIA: 1}), minimum=2))
    assert (explanation.placed, explanation.first, explanation.explanation) == (0, None, None)


def test_members_have_the_places_that_the_decision_counts() -> None:
    """GPUs of another model are no place for a member of a gang whose GPUs are alike."""
    explanation = explained(
        fleet({"a": cards(8), "b": cards(8, model="T4"), "c": cards(4, model="T4")}), members(8, 8, 8)
    )
    assert isinstance(explanation.result, Failure)
    assert explanation.first is not None
    assert explanation.first.request.model.exact in {A100, "T4"}  # spelled as the device reports it
    assert f"next member {explanation.first.name}: " in explanation.result.message
    assert f" {explanation.placed} of the 3 required members fit" in explanation.result.message
    assert explanation.explanation is not None
    assert isinstance(explanation.explanation.result, Failure)
