"""Parts of RDMA NICs and FPGAs."""

from collections.abc import Collection, Iterator

from berth_api.allocation import Grant
from berth_api.request import Part
from berth_operator.core.allocators import best_fit, candidates, grants, shortage
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.policy import Policy
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows


def passes(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Pass rows with as many cards that can serve the part."""
    return ~shortage.few(candidates.fitting(fleet, request, part, rows), part)


def could_pass(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Give the rows with as many cards that could serve the part, were they free."""
    return ~shortage.few(candidates.suitable(fleet, request, part), part)


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Give what may be missing, and the rows where it is."""
    yield from shortage.of_cards(fleet, request, part, rejected)


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: Policy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Give the cards, by the policy's strategy."""
    cards, slots = fleet.cards[part.type], candidates.slots(fleet, row, request, part)
    cost = best_fit.cost(cards, row, slots, spread=policy.spreads_cards)
    return grants.cheapest(cards, row, part, slots, cost, near=near)
