"""The faults of a run, as data: a pure function of the seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault."""

    kind: str
    seed: int
    """Of what the fault itself chooses."""


def schedule(*, seed: int, count: int, weights: Mapping[str, int]) -> list[Strike]:
    """Return faults in a random order: each kind once if there are enough, the others by their weights.

    Kinds of weight 0 are not drawn again, unless there is no other.
    """
    chance = random.Random(f"schedule {seed}")
    kinds = sorted(weights)
    once = chance.sample(kinds, min(count, len(kinds)))
    drawn = [weights[kind] for kind in kinds] if any(weights.values()) else None
    others = chance.choices(kinds, drawn, k=count - len(once))
    chosen = [*once, *others]
    chance.shuffle(chosen)
    return [Strike(kind=kind, seed=chance.randrange(2**32)) for kind in chosen]
