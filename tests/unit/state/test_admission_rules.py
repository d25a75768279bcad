"""Which namespaces the keepers of places look at again after quotas, LimitRanges and PriorityClasses have changed."""

from collections.abc import Callable

import pytest

from berth_operator.core.values.pod_admission import LimitRange, PriorityClass, Quota
from berth_operator.state.cache.admission_rules import MAX_CHANGED, AdmissionRules, ChangedNamespaces

RANGE = LimitRange(name="r", defaults={}, default_requests={}, least={}, most={"cpu": 1}, ratios={})


def quota(hard: int = 2, **used: int) -> Quota:
    return Quota(name="q", hard={"pods": hard}, used=used)


def rules() -> AdmissionRules:
    """Return rules with a quota whose use is known and a class, after which nothing has changed."""
    made = AdmissionRules()
    made.put_quota("ns", quota(pods=1))
    made.put_priority_class("high", PriorityClass(value=1))
    for changed in (made.tightened, made.tightened_for_workloads, made.loosened):
        changed.take()
    return made


@pytest.mark.parametrize(
    ("change", "is_tighter", "is_looser"),
    [
        (lambda made: made.put_quota("ns", quota(pods=2)), False, False),
        (lambda made: made.put_quota("ns", quota(pods=0)), False, True),
        (lambda made: made.put_quota("ns", quota(1, pods=1)), True, False),
        (lambda made: made.put_quota("ns", quota(3, pods=1)), False, True),
        (lambda made: made.put_quota("ns", quota(pods=1, cpu=1)), True, True),
        (lambda made: made.remove_quota("ns", "q"), False, True),
        (lambda made: made.put_limit_range("ns", "r", (RANGE,)), True, True),
        (lambda made: made.remove_limit_range("ns", "r"), False, True),
        (lambda made: made.remove_priority_class("high"), True, False),
        (lambda made: made.remove_priority_class("unknown"), False, False),
    ],
)
def test_a_change_concerns_the_keepers_of_places(
    change: Callable[[AdmissionRules], None], *, is_tighter: bool, is_looser: bool
) -> None:
    made = rules()
    change(made)
    assert ("ns" in made.tightened, "ns" in made.tightened_for_workloads) == (is_tighter, is_tighter)
    assert ("ns" in made.loosened) == is_looser


def test_the_namespaces_are_bounded_and_then_all_of_them() -> None:
    changed = ChangedNamespaces()
    for number in range(MAX_CHANGED):
        changed.add(f"ns{number}")
    assert "other" not in changed
    changed.add("one more")
    taken = changed.take()
    assert "other" in taken
    assert taken
    assert "other" not in changed
    assert not changed
