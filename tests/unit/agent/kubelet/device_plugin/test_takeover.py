"""When the agent notices that kubelet calls another device plugin."""

import pytest

from berth_agent.kubelet.allocations import Allocation
from berth_agent.kubelet.device_plugin.takeover import (
    LATE_SECONDS,
    MAX_REGISTRATIONS,
    UNWRITTEN_SECONDS,
    WINDOW,
    ResourceState,
    TakeoverDetector,
)


def given(pod: str, *ids: str, container: str = "main") -> Allocation:
    return Allocation(pod=pod, container=container, ids=frozenset(ids), cdi_devices=())


def observe(detector: TakeoverDetector, allocations: list[Allocation], now: float, *, is_registered: bool) -> None:
    detector.compare_answers(ResourceState(allocations, frozenset()), now, is_registered=is_registered)


BEFORE = given("before", "GPU-0")
OWN = given("own", "GPU-1", "GPU-2")
OTHER = given("other", "GPU-3")


@pytest.fixture
def detector() -> TakeoverDetector:
    """Return a detector of a registered resource, of which a container had a unit before."""
    detector = TakeoverDetector()
    observe(detector, [BEFORE], 0, is_registered=False)
    detector.registered(0)
    return detector


def test_units_that_the_agent_gave_are_no_sign(detector: TakeoverDetector) -> None:
    observe(detector, [BEFORE], 1, is_registered=True)
    detector.answered(["GPU-2", "GPU-1"], 2)
    observe(detector, [BEFORE], 3, is_registered=True)
    observe(detector, [BEFORE, OWN], 4, is_registered=True)
    # Kubelet drops entries of pods that have ended, and keeps the others.
    observe(detector, [OWN], 5, is_registered=True)
    observe(detector, [], 6, is_registered=True)
    assert not detector.is_taken
    assert not detector.given_by_other


def test_units_that_another_plugin_gave_are_the_sign_until_the_next_registration(detector: TakeoverDetector) -> None:
    observe(detector, [BEFORE, OTHER], 1, is_registered=True)
    assert detector.is_taken
    assert detector.given_by_other == {"GPU-3"}
    detector.registered(2)
    observe(detector, [BEFORE, OTHER], 3, is_registered=True)
    assert not detector.is_taken
    assert detector.given_by_other == {"GPU-3"}
    observe(detector, [BEFORE], 4, is_registered=True)
    assert not detector.given_by_other


def test_the_same_units_given_again_are_a_sign(detector: TakeoverDetector) -> None:
    detector.answered(["GPU-1", "GPU-2"], 1)
    observe(detector, [OWN], 2, is_registered=True)
    observe(detector, [given("later", "GPU-1", "GPU-2")], 3, is_registered=True)
    assert detector.is_taken


def test_an_init_container_and_the_container_that_has_its_units_next_are_two_calls(detector: TakeoverDetector) -> None:
    entries = [given("own", "GPU-1", container="init"), given("own", "GPU-1")]
    for _ in entries:
        detector.answered(["GPU-1"], 1)
    observe(detector, entries, 2, is_registered=True)
    assert not detector.is_taken


def test_an_answer_that_came_to_nothing_is_forgotten(detector: TakeoverDetector) -> None:
    detector.answered(["GPU-3"], 1)
    observe(detector, [], UNWRITTEN_SECONDS + 1, is_registered=True)
    observe(detector, [OTHER], UNWRITTEN_SECONDS + 2, is_registered=True)
    assert detector.is_taken


def test_what_a_new_kubelet_has_before_the_registration_is_no_sign(detector: TakeoverDetector) -> None:
    observe(detector, [BEFORE, OTHER], 1, is_registered=False)
    detector.registered(2)
    observe(detector, [BEFORE, OTHER], 3, is_registered=True)
    assert not detector.is_taken


def test_a_checkpoint_that_is_read_late_is_no_sign() -> None:
    detector = TakeoverDetector()
    detector.registered(0)
    observe(detector, [BEFORE, OTHER], 1, is_registered=True)
    assert not detector.is_taken


def test_it_is_registered_against_another_plugin_a_few_times_an_hour(detector: TakeoverDetector) -> None:
    entries = []
    for number in range(MAX_REGISTRATIONS):
        entries.append(given(f"other-{number}", "GPU-3"))
        observe(detector, entries, number, is_registered=True)
        assert detector.is_taken
        assert detector.may_register(number)
        detector.registered(number)
    entries.append(given("last", "GPU-3"))
    observe(detector, entries, 10, is_registered=True)
    assert not detector.may_register(WINDOW - 1)
    assert detector.may_register(WINDOW)
    # A new kubelet knows no plugin, so the agent registers in any case.
    detector.registered(20)
    assert not detector.is_taken


def test_units_that_the_agent_does_not_offer_are_a_sign_if_they_stay(detector: TakeoverDetector) -> None:
    offered = frozenset({"GPU-0", "GPU-1"})
    more, fewer = ResourceState([], offered | {"GPU-2"}), ResourceState([], frozenset({"GPU-0"}))
    detector.compare_offer(more, offered, 0)
    detector.compare_offer(more, offered, LATE_SECONDS - 1)
    # Kubelet has processed the agent's last list now.
    detector.compare_offer(fewer, offered, LATE_SECONDS)
    detector.compare_offer(more, offered, LATE_SECONDS + 1)
    detector.compare_offer(more, offered, 2 * LATE_SECONDS)
    assert not detector.is_taken
    detector.compare_offer(more, offered, 2 * LATE_SECONDS + 1)
    assert detector.is_taken
    detector.registered(2 * LATE_SECONDS + 1)
    detector.compare_offer(more, offered, 2 * LATE_SECONDS + 2)
    assert not detector.is_taken
    # A kubelet that was only late is no sign any more once it has processed the list.
    detector.compare_offer(more, offered, 4 * LATE_SECONDS)
    assert detector.is_taken
    detector.compare_offer(fewer, offered, 4 * LATE_SECONDS + 1)
    assert not detector.is_taken
