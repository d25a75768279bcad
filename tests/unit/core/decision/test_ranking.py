"""A placement has the points of its node and of the runners-up, whose sum decides."""

import numpy as np
import pytest

from berth_operator.binding.reports.recent_binds import MAX_BINDS, RecentBinds
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.ranking import rank
from tests.objects.builders import GPU, NVIDIA, cards, charge, fleet, grant, place, waiting

POLICY = Policy()


def test_the_best_come_first_and_of_equal_ones_the_lowest_row() -> None:
    totals = np.array([1.0, 5.0, -np.inf, 5.0, 3.0, 0.0])
    ranking = rank("abcdef", totals, [("x", totals), ("y", np.zeros(6))])
    assert (ranking.rows, ranking.nodes) == ((1, 3, 4), ("b", "d", "e"))
    assert ranking.terms == (("x", (5.0, 5.0, 3.0)), ("y", (0.0, 0.0, 0.0)))


@pytest.mark.parametrize(("tie", "row"), [(0, 1), (1, 3), (2, 4), (7, 3)])
def test_of_the_best_the_tie_chooses_the_first(tie: int, row: int) -> None:
    ranking = rank("abcde", np.array([0.0, 5.0, -np.inf, 5.0, 5.0]), [], tie=tie)
    assert ranking.rows[0] == row
    assert set(ranking.rows) == {1, 3, 4}


def test_pods_that_request_nothing_go_to_all_of_the_equal_nodes_and_others_to_the_first() -> None:
    made = fleet({f"n{number}": cards(1) for number in range(4)})
    first, again = ([place(made, waiting(str(number))).node for number in range(40)] for _ in range(2))
    assert set(first) == {"n0", "n1", "n2", "n3"}
    assert again == first
    for request in ({NVIDIA: 1}, {"cpu": 500}):
        placed = [cycle.place(made, waiting(str(number), request=request), POLICY) for number in range(40)]
        assert {placement.node for placement in placed if placement} == {"n0"}


def test_rows_that_do_not_fit_are_no_runners_up() -> None:
    assert rank("ab", np.array([-np.inf, 1.0]), []).nodes == ("b",)


@pytest.mark.parametrize("resources", [{NVIDIA: 1}, {GPU: 40}, {"cpu": 500}])
def test_points_add_up_to_the_totals_that_decide(resources: dict[str, int]) -> None:
    made = fleet({f"n{number}": cards(2 + number) for number in range(5)})
    made.charge(charge("a", grant(0, core=60, ratio=60), node="n2"))
    pod = waiting(request=resources)
    fits = cycle.feasible(made, pod.request)
    totals = cycle.totals(made, pod.request, POLICY, fits)
    placement = place(made, pod)
    scores = placement.ranking.scores()
    assert scores[0]["node"] == placement.node
    assert [score["total"] for score in scores] == pytest.approx(sorted(totals[fits], reverse=True)[:3], abs=0.01)
    assert all(sum(score["terms"].values()) == pytest.approx(score["total"], abs=0.1) for score in scores)


def test_only_the_last_binds_are_kept() -> None:
    binds, ranking = RecentBinds(), rank("a", np.zeros(1), [])
    for number in range(MAX_BINDS + 1):
        binds.keep(Placement(pod=waiting(f"p{number}"), node="a", ranking=ranking))
    assert binds.of("uid-p0") is None
    assert binds.of("uid-p1") is binds.of(f"uid-p{MAX_BINDS}") is ranking
