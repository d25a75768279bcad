"""The units that a container should get if the scheduler did not choose them.

Whole cards are the set with the best links to each other. Links are scored as in NVIDIA's plugin, except that NVLinks
through NVSwitch count, too. Among equal sets, the set that leaves the best cards to others is preferred. Replicas and
instances come from the card with the fewest or the most in use.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Final, Literal

from berth_agent.vendor import Offer, RefusedError
from berth_api import links
from berth_api.allocation import visible
from berth_api.device import DeviceInfo, DeviceSpec

MAX_SETS: Final = 20_000
"""Maximum number of sets that are compared, in some 0.2 s. If there are more sets, cards are picked one by one."""

Policy = Literal["distributed", "packed"]


class PreferenceError(RefusedError):
    """There is no set of the requested size. The text is NVIDIA's."""


def prefer(
    spec: DeviceSpec, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int, *, policy: Policy
) -> list[str]:
    """Return `size` units, all of `must_include` and the rest of `available`.

    Raises:
        PreferenceError: there are not so many.
    """
    free = set(available).difference(must_include)
    # Kubelet has no order; the offer's makes the answer always the same.
    candidates = [unit.id for unit in offer.units if unit.id in free]
    needed = size - len(must_include)
    if needed > len(candidates):
        raise PreferenceError("not enough available devices to satisfy allocation")
    if needed <= 0:
        return list(must_include)
    cards = {card.id: card for card in spec.devices if card.type == "gpu"}
    if all(device in cards for device in (*candidates, *must_include)):
        return [*must_include, *_best(LinkScores(cards), candidates, must_include, needed)]
    return [*must_include, *_one_by_one(offer, candidates, needed, policy=policy)]


# --- whole cards ------------------------------------------------------------------------------------------------


class LinkScores:
    """Scores of the links between cards."""

    def __init__(self, cards: dict[str, DeviceInfo]) -> None:
        ids = {card.minor: card.id for card in cards.values()}
        self._of: dict[tuple[str, str], int] = {
            (card.id, ids[link.minor]): links.score(link.type, link.count)
            for card in cards.values()
            for link in card.links
            if link.minor in ids
        }

    def between(self, left: str, right: str) -> int:
        """Return the score of a pair; 0 if the driver does not report it."""
        return self._of.get((left, right), 0)

    def within(self, cards: Sequence[str]) -> int:
        """Return the score of all pairs of a set."""
        return sum(self.between(left, right) for left, right in combinations(cards, 2))

    def towards(self, card: str, cards: Sequence[str]) -> int:
        """Return the score of all pairs of one card with others."""
        return sum(self.between(card, other_card) for other_card in cards)


def _best(affinity: LinkScores, candidates: Sequence[str], fixed: Sequence[str], needed: int) -> Sequence[str]:
    if comb(len(candidates), needed) > MAX_SETS:
        # Add, one by one, the card that reaches those before it best; the first is the one that reaches the most.
        grown: list[str] = []
        for _ in range(needed):
            neighbours = [*fixed, *grown] or candidates
            remaining = [card for card in candidates if card not in grown]
            grown.append(max(remaining, key=lambda card: affinity.towards(card, neighbours)))
        return grown
    pool = [*fixed, *candidates]
    scores = {card: affinity.towards(card, pool) for card in pool}

    def worth(chosen: tuple[str, ...]) -> tuple[int, int]:
        # What a set reaches outside is lost to those that get the rest.
        return affinity.within([*fixed, *chosen]), -sum(scores[card] for card in chosen)

    # The first of equals wins: `max` keeps the order in which the units are offered.
    return max(combinations(candidates, needed), key=worth)


# --- replicas and instances -------------------------------------------------------------------------------------


def _one_by_one(offer: Offer, candidates: Sequence[str], needed: int, *, policy: Policy) -> Iterator[str]:
    remaining = list(candidates)
    in_use = Counter(visible(unit.id) for unit in offer.units)
    in_use.subtract(map(visible, candidates))
    picked: Counter[str] = Counter()
    for _ in range(needed):
        if policy == "packed":
            pick = max(remaining, key=lambda option: in_use[visible(option)])
        else:
            pick = min(remaining, key=lambda option: (in_use[visible(option)], picked[visible(option)]))
        remaining.remove(pick)
        in_use[visible(pick)] += 1
        picked[visible(pick)] += 1
        yield pick
