"""The share of the loop's time that decisions about ResourceClaims get while other pods wait."""

import pytest

from berth_operator.binding.claim_share import MAX_SAVED, SHARE, ClaimShare


@pytest.mark.parametrize("decision", [0.0005, 0.003, 0.02])
def test_decisions_about_claims_get_a_tenth_of_the_time(decision: float) -> None:
    now, taken = 0.0, 0.0
    share = ClaimShare(lambda: now)
    while now < 60:
        if share.is_left():
            share.spend(decision)
            taken += decision
            now += decision
        now += 0.001  # another pod
    assert taken == pytest.approx(60 / SHARE, abs=MAX_SAVED + decision + 0.1)
