"""Comparison of two charges of one pod."""

from dataclasses import replace

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.verdict import Change


def is_same(known: Charge, charge: Charge) -> bool:
    """Return whether two charges take the same; fields that the Fleet or the decision filled in are ignored."""
    if known == charge:
        return True
    if replace(known, grants=()) != replace(charge, grants=(), volumes=known.volumes, claims=known.claims):
        return False
    # The annotation and the decision list the types in different orders.
    before, after = _by_card(known), _by_card(charge)
    return len(before) == len(after) and all(
        old[:-1] == new[:-1] and new[-1].items() <= old[-1].items() for old, new in zip(before, after, strict=True)
    )


def change(known: Charge, charge: Charge) -> Change:
    """Return the changes to wake other pods for when a pod's charge changes."""
    relabelled = replace(known, identity=charge.identity, terminating=charge.terminating)
    return Change.POD_LABELS if is_same(relabelled, charge) else Change.POD_LABELS | Change.CAPACITY_FREED


def _by_card(charge: Charge) -> list[tuple[str, int, tuple[str, ...], dict[str, int]]]:
    grants = sorted(charge.grants, key=lambda grant: (grant.type, grant.minor, grant.handles))
    return [(grant.type, grant.minor, grant.handles, dict(grant.amounts)) for grant in grants]
