"""Which agents count as alive, by the renewals that the operator itself observed."""

import pytest

from berth_operator.state.cache.heartbeats import Heartbeats

GRACE = 20.0
DURATION = 40.0


def beats(*, doubted: bool = False, lease: bool = True, at: float = 0.0) -> Heartbeats:
    """Return the heartbeats just after a start: of a Device, and usually a Lease."""
    heartbeats = Heartbeats(grace=GRACE)
    heartbeats.expect("node", at, doubted=doubted)
    if lease:
        heartbeats.observe("node", "1", DURATION, at)
    return heartbeats


def renewed(at: float = 0.0, *, duration: float | None = DURATION) -> Heartbeats:
    """Return the heartbeats of an agent whose renewal was seen."""
    heartbeats = beats(at=at)
    heartbeats.observe("node", "2", duration, at)
    return heartbeats


@pytest.mark.parametrize(
    ("now", "alive"),
    [
        pytest.param(100.0, True, id="at once"),
        pytest.param(140.0, True, id="after the duration"),
        pytest.param(160.0, True, id="at the end of the grace"),
        pytest.param(160.1, False, id="after the grace"),
    ],
)
def test_a_renewal_lasts_for_the_duration_and_the_grace(now: float, *, alive: bool) -> None:
    assert renewed(at=100.0).alive("node", now) is alive


def test_every_renewal_counts_again() -> None:
    heartbeats = renewed()
    for i in range(10):
        heartbeats.observe("node", f"renewed {i}", DURATION, 30.0 * i)
    assert heartbeats.alive("node", 330.0)
    assert not heartbeats.alive("node", 330.1)


def test_the_same_time_again_is_no_renewal() -> None:
    heartbeats = renewed()
    heartbeats.observe("node", "2", DURATION, 50.0)
    assert not heartbeats.alive("node", 60.1)


def test_a_time_that_goes_back_is_a_renewal_since_the_remote_clock_does_not_count() -> None:
    heartbeats = renewed()
    heartbeats.observe("node", "0", DURATION, 50.0)
    assert heartbeats.alive("node", 110.0)


def test_an_agent_recovers_by_itself() -> None:
    heartbeats = renewed()
    assert not heartbeats.alive("node", 1000.0)
    heartbeats.observe("node", "3", DURATION, 1000.0)
    assert heartbeats.alive("node", 1000.0)


@pytest.mark.parametrize(
    ("now", "alive"),
    [
        pytest.param(0.0, True, id="at once"),
        pytest.param(60.0, True, id="for one duration and the grace"),
        pytest.param(60.1, False, id="no longer"),
    ],
)
def test_after_a_restart_a_device_that_is_not_unknown_is_believed_for_one_duration(now: float, *, alive: bool) -> None:
    assert beats().alive("node", now) is alive


@pytest.mark.parametrize("now", [pytest.param(0.0, id="at once"), pytest.param(30.0, id="later")])
def test_after_a_restart_unknown_stays_unknown(now: float) -> None:
    assert not beats(doubted=True).alive("node", now)


def test_unknown_ends_with_the_first_renewal_seen() -> None:
    heartbeats = beats(doubted=True)
    heartbeats.observe("node", "2", DURATION, 5.0)
    assert heartbeats.alive("node", 5.0)


@pytest.mark.parametrize(
    ("now", "alive"),
    [
        pytest.param(20.0, True, id="within the grace"),
        pytest.param(20.1, False, id="after the grace"),
    ],
)
def test_a_missing_lease_counts_as_stale_after_the_grace(now: float, *, alive: bool) -> None:
    assert beats(lease=False).alive("node", now) is alive


def test_a_missing_lease_of_an_unknown_device_is_stale_at_once() -> None:
    assert not beats(lease=False, doubted=True).alive("node", 0.0)


def test_a_lease_without_a_time_counts_as_missing() -> None:
    heartbeats = beats(lease=False)
    heartbeats.observe("node", "", DURATION, 0.0)
    assert not heartbeats.alive("node", 20.1)


def test_a_lease_that_is_gone_takes_its_last_renewal_with_it_only_in_time() -> None:
    heartbeats = renewed()
    heartbeats.lost("node")
    assert heartbeats.alive("node", 60.0)
    assert not heartbeats.alive("node", 60.1)


def test_since_when_an_agent_is_silent_is_known_though_its_lease_is_gone() -> None:
    heartbeats = beats(lease=False)
    assert heartbeats.last_renewal("node") == ""
    heartbeats.observe("node", "5", DURATION, 5.0)
    heartbeats.lost("node")
    assert heartbeats.last_renewal("node") == "5"


def test_a_lease_that_is_gone_before_a_renewal_leaves_the_grace() -> None:
    heartbeats = beats()
    heartbeats.lost("node")
    assert heartbeats.alive("node", 20.0)
    assert not heartbeats.alive("node", 20.1)


@pytest.mark.parametrize("time", [pytest.param("1", id="with its old time"), pytest.param("9", id="with a new one")])
def test_a_lease_made_again_is_a_renewal(time: str) -> None:
    heartbeats = beats(doubted=True)
    heartbeats.lost("node")
    heartbeats.observe("node", time, DURATION, 7.0)
    assert heartbeats.alive("node", 7.0)


@pytest.mark.parametrize(
    ("duration", "last"),
    [
        pytest.param(None, 60.0, id="none is forty seconds"),
        pytest.param(0, 60.0, id="zero is none"),
        pytest.param(1, 21.0, id="one second"),
        pytest.param(-5, 21.0, id="negative is one second"),
        pytest.param(3600, 3620.0, id="an hour"),
        pytest.param(10**9, 3620.0, id="thirty years are an hour"),
    ],
)
def test_an_absurd_duration_is_brought_within_reason(duration: float | None, last: float) -> None:
    heartbeats = renewed(duration=duration)
    assert heartbeats.alive("node", last)
    assert not heartbeats.alive("node", last + 0.1)


def test_a_changed_duration_counts_from_the_last_renewal() -> None:
    heartbeats = renewed()
    heartbeats.observe("node", "2", 100.0, 10.0)
    assert heartbeats.alive("node", 120.0)
    assert not heartbeats.alive("node", 120.1)


def test_an_unknown_node_is_not_alive() -> None:
    assert not Heartbeats(grace=GRACE).alive("node", 0.0)


def test_a_lease_without_a_device_is_silent() -> None:
    heartbeats = Heartbeats(grace=GRACE)
    heartbeats.observe("node", "1", DURATION, 0.0)
    heartbeats.observe("node", "2", DURATION, 1.0)
    assert not heartbeats.alive("node", 1.0)
    assert list(heartbeats.silent(1.0)) == ["node"]


def test_an_agent_is_silent_exactly_while_it_is_not_alive() -> None:
    heartbeats = beats()
    heartbeats.observe("node", "1", DURATION, 0.0)
    heartbeats.observe("node", "2", DURATION, 1.0)
    last = 1.0 + DURATION + GRACE
    assert heartbeats.alive("node", last)
    assert not list(heartbeats.silent(last))
    assert not heartbeats.alive("node", last + 0.1)
    assert list(heartbeats.silent(last + 0.1)) == ["node"]


def test_a_node_without_its_device_is_silent() -> None:
    heartbeats = beats()
    assert not list(heartbeats.silent(0.0))
    heartbeats.dismiss("node")
    assert list(heartbeats.silent(0.0)) == ["node"]
    assert not heartbeats.alive("node", 0.0)


def test_a_renewal_seen_before_the_device_counts() -> None:
    heartbeats = Heartbeats(grace=GRACE)
    heartbeats.observe("node", "1", DURATION, 0.0)
    heartbeats.observe("node", "2", DURATION, 50.0)
    heartbeats.expect("node", 55.0, doubted=True)
    assert heartbeats.alive("node", 110.0)


def test_a_device_that_is_created_again_is_trusted_again() -> None:
    heartbeats = beats()
    heartbeats.dismiss("node")
    heartbeats.expect("node", 500.0, doubted=False)
    assert heartbeats.alive("node", 560.0)


def test_a_device_seen_again_is_not_believed_longer() -> None:
    heartbeats = beats()
    heartbeats.expect("node", 50.0, doubted=False)
    assert not heartbeats.alive("node", 60.1)


@pytest.mark.parametrize("act", [pytest.param("dismiss", id="device"), pytest.param("lost", id="lease")])
def test_what_was_never_there_may_go(act: str) -> None:
    heartbeats = Heartbeats(grace=GRACE)
    getattr(heartbeats, act)("node")
    assert not heartbeats.alive("node", 0.0)
