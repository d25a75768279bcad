"""The sentences about a waiting pod, word for word."""

from dataclasses import replace

import pytest

from berth_operator.core.advice import outlook
from berth_operator.core.advice.waits import MAX_MEMBERS, Wait, Waits
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term
from berth_operator.core.values.request import PendingPod
from tests.objects.builders import (
    NVIDIA,
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
    waiting,
)
from tests.unit.core.affinity_worlds import select

ONE = {NVIDIA: 1}
KEPT = charge("x", grant(0, core=100, ratio=100), node="a", priority=9)
NO_PREEMPTION = "Preemption: not possible: 0/1 nodes are available: 1 No preemption victims found for incoming pod."


def said(made: Fleet, pod: PendingPod, of: Gang | None = None) -> tuple[list[str], list[str]]:
    """Return what is said of a pod, and of changes."""
    waits, wait = Waits(made.copy(), Policy(), Budgets()), Wait(pod=pod, gang=of)
    why = waits.why(wait)
    found = [*filter(None, waits.remedies(wait, why))]
    answers, changes = outlook.answers(wait, why, found, int(made.present.sum())), outlook.changes(wait, why, found)
    messages = [] if changes is None else [answer["message"] for answer in changes["answers"]]
    return [f"{answer['title']}: {answer['message']}" for answer in answers], messages


IN_USE = fleet({"a": cards(1)})
IN_USE.charge(KEPT)


@pytest.mark.parametrize(
    ("made", "pod", "answers", "changes"),
    [
        pytest.param(
            IN_USE, waiting(request=ONE),
            [
                "Fits: not now; on 1 of 1 nodes if they were empty",
                "New node: another node like a would end the wait",
                NO_PREEMPTION,
            ],
            ["gpu 0 free on a would end the wait", "the end of pod x on a would end the wait"],
            id="a card in use",
        ),
        pytest.param(
            fleet({"a": (card(0, healthy=False),)}), waiting(request=ONE),
            [
                "Fits: not now; on no node even if empty",
                "New node: another node like a would not help; a node like a with 1 GPU would end the wait",
                NO_PREEMPTION,
            ],
            [],
            id="nothing but a new node",
        ),
        pytest.param(
            fleet({"a": cards(1)}), waiting(request=asks(ONE, selector={"kubernetes.io/hostname": "gone"})),
            [
                "Fits: not now; on no node even if empty",
                "New node: another node like a would not help",
                "Preemption: not possible: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            ],
            ["No single change was found that would end the wait."],
            id="nothing",
        ),
        pytest.param(
            fleet({"a": cards(1)}), waiting(request=ONE),
            ["Fits: it would be placed now"], [],
            id="it fits",
        ),
        pytest.param(
            fleet({"a": cards(1)}), waiting(error="no"), ["In vain: no change of the cluster ends this wait"],
            ["only a corrected pod, created again, can be placed (its request is invalid: no)"],
            id="in vain",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_a_pod(made: Fleet, pod: PendingPod, answers: list[str], changes: list[str]) -> None:
    assert said(made, pod) == (answers, changes)


def test_what_is_said_of_evictions_names_how_many() -> None:
    made = fleet({"a": cards(1)})
    made.charge(charge("x", grant(0, core=100, ratio=100), node="a"))
    answers, changes = said(made, waiting(request=ONE, priority=5))
    assert answers[-1] == "Preemption: possible: 1 pod(s) of lower priority on node a would be evicted"
    assert changes == ["the eviction of 1 pod(s) of lower priority on a would end the wait"]


def members(count: int, request: dict[str, int]) -> tuple[PendingPod, ...]:
    return tuple(waiting(f"m{number:02}", asks(request)) for number in range(count))


def test_nothing_is_said_of_nodes_while_a_gang_lacks_members() -> None:
    [only] = members(1, ONE)
    answers, changes = said(fleet({"a": cards(2)}), only, gang(only, minimum=2))
    assert answers == []
    assert changes == ["1 more member of PodGroup ns/g like m00 (1 of 2 exist) would end the wait"]


def test_empty_nodes_are_counted_for_one_member_of_a_gang() -> None:
    """Each member fits on an empty node, and the two of them do not."""
    two = members(2, {NVIDIA: 2})
    answers, _ = said(fleet({"a": cards(2)}), two[0], gang(*two))
    assert answers[0] == "Fits: not now; member m01 alone on 1 of 1 nodes if they were empty"
    many = members(2, {NVIDIA: 3})
    answers, _ = said(fleet({"a": cards(2)}), many[0], gang(*many))
    assert answers[0] == "Fits: not now; member m00 on no node even if empty"


def test_it_is_said_that_the_search_for_the_victims_of_a_gang_ended_at_its_bound() -> None:
    made, clique = Fleet(), "nvidia.com/gpu.clique"
    for number, value in enumerate("xyzxyz"):
        add(made, node_info(f"n{number}", labels={clique: value}), inventory(*cards(2)))
        for minor in range(2):
            made.charge(charge(f"p{number}-{minor}", grant(minor, core=100, ratio=100), node=f"n{number}"))
    apart = Term(key=clique, peers=Peers(selector=select(app="gang"), namespaces=("ns",)))
    identity = Identity(namespace="ns", labels=(("app", "gang"),))
    wanted = replace(asks(ONE), identity=identity, affinity=Affinity(required_anti_affinity=(apart,)))
    four = [waiting(f"m{number}", wanted, priority=10) for number in range(4)]
    assert said(made, four[0], gang(*four))[1] == [
        "changes after which pods would be evicted are not all known: the search for victims ended at its bound"
    ]


def test_of_a_large_gang_the_pod_itself_is_counted() -> None:
    large = members(MAX_MEMBERS + 1, ONE)
    answers, _ = said(fleet({"a": cards(1)}), large[3], gang(*large))
    assert answers[0] == "Fits: member m03 alone would be placed now"


@pytest.mark.parametrize("request_", [ONE, {NVIDIA: 2}])
def test_changes_of_a_large_gang_are_not_tried(request_: dict[str, int]) -> None:
    large = members(MAX_MEMBERS + 1, request_)
    changes = said(fleet({"a": cards(1)}), large[0], gang(*large))[1]
    assert changes == ["Changes are not tried for a gang with more than 16 waiting members."]


def test_of_a_large_gang_a_member_that_fits_alone_is_no_end_of_the_wait() -> None:
    large, made = members(MAX_MEMBERS + 1, ONE), fleet({"a": cards(1)})
    wait = Wait(pod=large[0], gang=gang(*large))
    why = Waits(made.copy(), Policy(), Budgets()).why(wait)
    assert not outlook.is_placed(wait, why)
    assert not next(outlook.answers(wait, why, [], 1))["helps"]
