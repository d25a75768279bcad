"""Gangs whose members share the cards of a node by ResourceClaims: what fits is found, or the message says why not."""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.names import DRA_DRIVER
from berth_operator.core.claims.allocation.allocator import PREFERRED
from berth_operator.core.claims.allocation.candidates import MAX_LOOKS
from berth_operator.core.claims.allocation.narrowing import STEP
from berth_operator.core.claims.allocation.preference import MAX_LOOKS as MAX_RANKED
from berth_operator.core.claims.bounds.errors import NoWorkError, TooMuchWorkError
from berth_operator.core.claims.pools.pools import MAX_SELECTORS
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import NOT_FINISHED
from berth_operator.core.decision.gang_search import GangSearch, work_for
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet import claim_choice, claim_counts
from tests.claims import own, scenario, together
from tests.claims.together import Board, Claims, Object, divided, in_order, split, splits

AT_LEAST_5 = f'device.capacity["{DRA_DRIVER}"].memory.compareTo(quantity("5Gi")) >= 0'
ALL = [(counts, place) for counts in splits(6) for place in range(len(counts))]
ONE_SEARCH = (
    claim_choice.MAX_STEPS // PREFERRED
    + MAX_LOOKS
    + STEP * claim_choice.MAX_NARROWING
    + claim_choice.MAX_STEPS
    + 2 * MAX_RANKED
)
"""Work of one search for devices that ends at all of its bounds, about."""


def a100(order: str = "as listed") -> list[Object]:
    """Return the slices of a node with one A100-40GB that is open for MIG instances."""
    return in_order(divided("A100"), order, random.Random(0))


def of_split(counts: Sequence[int], place: int) -> list[Claims]:
    """Return members with one claim each: any instances, and one member another one of 5 GiB or more."""
    return [[requests] for requests in split(counts, place, expression=AT_LEAST_5)]


def missing(order: str, cases: Sequence[tuple[Sequence[int], int]]) -> list[str]:
    """Return the message of each gang that waits."""
    slices = a100(order)
    outcomes = (Board(slices, of_split(*case)).of_gang() for case in cases)
    return [outcome.message for outcome in outcomes if isinstance(outcome, Failure)]


def test_a_card_has_25_places_and_112_ways_to_split_seven_instances() -> None:
    assert sum(len(made["spec"].get("devices", ())) for made in a100()) == 25
    assert len(ALL) == 112


@pytest.mark.parametrize(
    ("counts", "place"), [((3, 3), 0), ((3, 3), 1), ((2, 2, 2), 0), ((1,) * 6, 5), ((6,), 0), ((5, 1), 1)]
)
@pytest.mark.parametrize("order", together.ORDERS)
def test_a_gang_gets_all_instances_of_a_card(counts: Sequence[int], place: int, order: str) -> None:
    outcome = Board(a100(order), of_split(counts, place)).of_gang()
    assert not isinstance(outcome, Failure), outcome.message
    assert devices_of(outcome) == Counter({**{f"gpu-0-1g-5gb-{start}": 1 for start in range(6)}, "gpu-0-1g-10gb-6": 1})


def devices_of(placements: Sequence[Placement]) -> Counter[str]:
    """Return the allocated instances, without the profile's number and `+me`."""
    names = (
        result.device.id.device
        for placement in placements
        for one in placement.claims.allocations
        for result in one.results
    )
    parts = (name.replace("-me-", "-").split("-") for name in names)
    return Counter("-".join((*part[:4], part[-1])) for part in parts)


def test_all_112_ways_fit_as_a_gang() -> None:
    assert missing("as listed", ALL) == []


@pytest.mark.parametrize("order", together.ORDERS[1:])
def test_they_fit_in_any_order_of_devices(order: str) -> None:
    assert missing(order, ALL[::7]) == []


@pytest.mark.parametrize("order", together.ORDERS)
@pytest.mark.parametrize("preferred", [False, True])
def test_they_fit_as_one_pod(order: str, preferred: bool) -> None:
    slices = a100(order)
    for case in ALL[::5]:
        drawn = own.asked(slices, together.claims_of(of_split(*case)), [])
        assert scenario.outcome(drawn, preferred=preferred, bounds=scenario.BOUNDED[:1])["results"]


@settings(max_examples=40)
@given(st.integers(0, 2**40))
def test_what_fits_is_found_or_the_search_ended_at_its_bound(seed: int) -> None:
    fitting = together.fitting(seed)
    outcome = Board(fitting.slices, fitting.members).of_gang()
    assert not isinstance(outcome, Failure) or outcome.message.endswith(NOT_FINISHED)
    for preferred in (False, True):
        drawn = own.asked(fitting.slices, together.claims_of(fitting.members), [])
        got = scenario.outcome(drawn, preferred=preferred, bounds=scenario.BOUNDED)
        assert got["results"] or "within" in got["error"]


# --- the bounds -------------------------------------------------------------------------------------------------


def shares(*gib: int) -> list[Object]:
    """Return requests for shares of cards of 40 GiB."""
    amounts = [{"requests": {"memory": f"{amount}Gi", "cores": "0"}} for amount in gib]
    return [
        {
            "name": f"r{place}",
            "exactly": {"deviceClassName": own.GPU, "allocationMode": "ExactCount", "count": 1, "capacity": capacity},
        }
        for place, capacity in enumerate(amounts)
    ]


def shared(cards: int) -> list[Object]:
    draw = own.Draw(random.Random(0), together.NODE)
    draw.gives_shares, draw.models = True, ["A100"] * cards
    return in_order([dict(made) for made in draw.manifests()], "as listed", random.Random(0))


@pytest.mark.parametrize("reverse", [False, True])
def test_shares_that_fill_all_cards_fit(reverse: bool) -> None:
    amounts = [(10, 10, 30, 25), (5, 10), (10, 5, 25), (10, 10), (10,)]
    members = [[shares(*of_member)] for of_member in sorted(amounts, reverse=reverse)]
    assert sum(map(sum, amounts)) == 4 * 40
    outcome = Board(shared(4), members).of_gang()
    assert not isinstance(outcome, Failure), outcome.message


def test_a_search_for_devices_that_ends_at_its_bound_is_in_the_message() -> None:
    outcome = Board(shared(8), [[shares(25)]] * 9).of_gang()
    assert isinstance(outcome, Failure)
    assert outcome.message.endswith(NOT_FINISHED)


def test_a_member_whose_own_search_ended_at_its_bound_is_in_the_message() -> None:
    outcome = Board(shared(8), [[shares(*[25] * 9)], [shares(1)]]).of_gang()
    assert isinstance(outcome, Failure)
    assert "no devices were found within" in outcome.message
    assert outcome.message.endswith(NOT_FINISHED)


def test_members_with_more_selections_together_than_a_pod_may_have_are_not_known_not_to_fit() -> None:
    exactly = {"deviceClassName": own.MIG, "allocationMode": "ExactCount", "count": 1}
    selectors = [[{"cel": {"expression": " && ".join(["true"] * (1 + number))}}] for number in range(MAX_SELECTORS + 1)]
    board = Board(
        a100(),
        [[[{"name": "r", "exactly": {**exactly, "selectors": one}}]] for one in selectors],
    )
    fleet = board.cluster.fleet
    fleet.claims.supply.work.refill(together.TURN)
    row = fleet.rows[together.NODE]
    assert claim_choice.choose_together(fleet, row, board.members[:2], (), first_fit=False) is not None
    with pytest.raises(TooMuchWorkError, match="33 different selections of devices; allowed are 32"):
        claim_choice.choose_together(fleet, row, board.members, (), first_fit=False)


@pytest.mark.parametrize("cards", [1, 2, 4, 8])
def test_the_work_of_a_search_is_bounded(cards: int) -> None:
    board = Board(shared(cards), [[shares(25)]] * (cards + 1))
    fleet, most = board.cluster.fleet, work_for(len(board.members))
    work = fleet.claims.supply.work
    work.refill(together.TURN)
    for member in board.members:
        claim_counts.rows_with_devices(fleet, member.request)
    search = GangSearch(fleet, board.members, Policy(), needed=len(board.members), rows=fleet.present)
    with work.limited(most):
        with suppress(NoWorkError, TooMuchWorkError):
            assert search.place() == []
        assert most - work.left <= most + ONE_SEARCH
