"""Leader election in virtual time: which candidate leads when, and with which number."""

import asyncio
import contextlib
import copy
import random
from collections.abc import AsyncIterator

import pytest
import structlog

from berth_api import names
from berth_operator.clients import leader
from tests.unit.clients.leases import STARTED, LeaseClient, LeaseStore

pytestmark = pytest.mark.looptime

FIRST = int((STARTED - leader.TERM_ORIGIN).total_seconds()) + 1


def now() -> float:
    return asyncio.get_running_loop().time()


def candidate(client: LeaseClient, identity: str) -> leader.LeaderElection:
    return leader.LeaderElection(client, namespace="ns", name="berth", identity=identity, clock=now)


@contextlib.asynccontextmanager
async def running(*elections: leader.LeaderElection) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(election.run()) for election in elections]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_term_lasts_as_long_as_it_is_renewed() -> None:
    store = LeaseStore()
    client = store.client()
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(99)
        assert election.term == term
        assert client.calls == ["GET", "POST", *["PUT"] * 50]  # every two seconds, without a read


async def test_a_term_ends_ten_seconds_after_the_last_good_renewal_began() -> None:
    client = LeaseStore().client()
    client.latency = lambda: 0.5
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        assert now() == election.won_at == 1.5  # three requests; the one that took the Lease began at 1.0
        client.down = True
        await election.lost(term)
        assert now() == 11
        assert election.term is None


SLOW = [0.5, 1, 2, 4]
"""Seconds; at each of these delays kube-scheduler keeps its Lease with the same durations."""


@pytest.mark.parametrize("seconds", SLOW)
@pytest.mark.parametrize("direction", ["latency", "answer_latency"])
async def test_slow_api_server_costs_no_term(direction: str, seconds: float) -> None:
    client = LeaseStore().client()
    setattr(client, direction, lambda: seconds)
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(120)
        assert election.term == term


async def test_renewal_that_hangs_is_sent_again_while_the_term_lasts() -> None:
    client = LeaseStore().client()
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        client.latency = iter([60.0, 60.0, *[0.0] * 99]).__next__
        await asyncio.sleep(30)
        assert election.term == term


@pytest.mark.parametrize(
    ("watches", "late"), [pytest.param(True, 0.0, id="by watch"), pytest.param(False, 2.0, id="by reading")]
)
async def test_the_other_takes_over_once_the_lease_has_stood_still_for_its_duration(
    *, watches: bool, late: float
) -> None:
    store = LeaseStore()
    first, second = store.client(), store.client()
    second.watches = watches
    a, b = candidate(first, "a"), candidate(second, "b")
    async with running(a):
        await a.acquired()
        await asyncio.sleep(0.5)
        async with running(b):
            await asyncio.sleep(5)
            first.down = True
            assert await b.acquired() == FIRST + 1
            # a renewed last at 4; without a watch b reads every two seconds
            assert 4 + 15 <= now() <= 4 + 15 + late + leader.SOON
            assert a.term is None


@pytest.mark.parametrize(
    ("watches", "at"), [pytest.param(True, 4.5, id="by watch"), pytest.param(False, 6, id="by reading")]
)
async def test_a_leader_that_stops_releases_and_the_other_takes_over(*, watches: bool, at: float) -> None:
    store = LeaseStore()
    a, b = candidate(store.client(), "a"), candidate(other := store.client(), "b")
    other.watches = watches
    async with running(a) as tasks:
        term = await a.acquired()
        async with running(b):
            await asyncio.sleep(4.5)
            tasks[0].cancel()
            await asyncio.wait(tasks)
            spec = store.leases["berth"]["spec"]
            assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
            assert (a.term, spec["term"]) == (None, term)
            assert await b.acquired() == term + 1
            assert now() == at


async def test_a_leader_releases_what_a_renewal_wrote_whose_answer_was_lost() -> None:
    store = LeaseStore()
    client = store.client()
    a, b = candidate(client, "a"), candidate(store.client(), "b")
    async with running(a) as tasks, running(b):
        term = await a.acquired()
        client.deaf = True
        await a.lost(term)
        client.deaf = False
        ended_at = now()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert store.leases["berth"]["spec"]["holderIdentity"] == ""
        assert await b.acquired() == term + 1
        assert now() == ended_at


async def test_others_know_where_the_leader_serves_and_when_it_was_heard_last() -> None:
    store = LeaseStore()
    first, second = (candidate(store.client(), name) for name in "ab")
    first.address, second.address = "10.0.0.1:9445", "10.0.0.2:9445"
    assert (second.leader, second.renewed) == (None, "")
    async with running(first):
        await first.acquired()
        async with running(second):
            await asyncio.sleep(4)
            assert second.leader == "10.0.0.1:9445"
            assert second.renewed == store.leases["berth"]["spec"]["renewTime"]
    assert store.leases["berth"]["spec"]["holderIdentity"] == ""
    third = candidate(store.client(), "c")
    third.address = "10.0.0.3:9445"
    async with running(third):
        await third.acquired()
        assert store.leases["berth"]["metadata"]["annotations"] == {names.VISIBILITY_ADDRESS: "10.0.0.3:9445"}
    # Without a leader there is no address any more.
    assert store.leases["berth"]["metadata"]["annotations"] == {}


async def test_without_a_holder_there_is_no_leader() -> None:
    store = LeaseStore()
    store.add({"term": 7, "holderIdentity": "gone", "leaseDurationSeconds": 15, "renewTime": "then"})
    election = candidate(store.client(), "b")
    async with running(election):
        await asyncio.sleep(1)
        assert (election.leader, election.renewed) == ("", "then")
        await election.acquired()
        assert election.leader is None


async def test_a_leader_does_not_release_what_another_has_taken() -> None:
    store = LeaseStore()
    client = store.client()
    a, b = candidate(client, "a"), candidate(store.client(), "b")
    async with running(a) as tasks, running(b):
        await a.acquired()
        client.down = True
        term = await b.acquired()
        client.down = False
        tasks[0].cancel()
        await asyncio.wait(tasks)
        spec = store.leases["berth"]["spec"]
        assert (spec["holderIdentity"], spec["term"]) == ("b", term)


@pytest.mark.parametrize("drained", [True, False])
async def test_a_leader_that_ends_drained_records_it_for_the_next(*, drained: bool) -> None:
    store = LeaseStore()
    a, b = candidate(store.client(), "a"), candidate(store.client(), "b")
    async with running(a):
        await a.acquired()
        a.drained = drained
    async with running(b):
        await b.acquired()
        assert b.follows_drained is drained


def record(text: str) -> dict[str, object]:
    """Return a record that differs from others by a text."""
    return {"version": 1, "lostPlaces": [{"preemptor": text}]}


def left(election: leader.LeaderElection, text: str) -> None:
    """Make a leader write this record with each renewal of its term."""
    election.record = lambda term: record(text) if term == election.term or election.term is None else None


async def test_the_record_is_written_with_renewals_and_stays_until_the_next_leader_has_one() -> None:
    store = LeaseStore()
    client = store.client()
    a, b, c = candidate(client, "a"), candidate(store.client(), "b"), candidate(store.client(), "c")
    async with running(a):
        await a.acquired()
        assert a.inherited["spec"]["term"] == 0, "there was no leader"
        left(a, "first")
        await asyncio.sleep(2.5 * a.retry_period)
        assert store.leases["berth"]["status"] == record("first")
        assert client.calls == ["GET", "POST", *["PUT"] * 3], "no request of its own"
        left(a, "last")
    assert store.leases["berth"]["status"] == record("last"), "the release writes it, too"
    async with running(b):
        await b.acquired()
        assert b.inherited["status"] == record("last")
    async with running(c):
        await c.acquired()
        assert c.inherited["status"] == record("last"), "it had not restored it yet"


async def test_the_taking_of_a_lease_leaves_the_record_alone() -> None:
    store = LeaseStore()
    store.add({"term": 7})
    store.leases["berth"]["status"] = record("of another")
    election = candidate(store.client(), "a")
    asked: list[int] = []
    election.record = asked.append
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(2 * election.retry_period)
    assert set(asked) == {term}
    assert store.leases["berth"]["status"] == record("of another")


async def test_a_record_that_would_be_refused_costs_no_term_and_replaces_none() -> None:
    def refused(_: int) -> None:
        raise ValueError("too many")

    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        term = await election.acquired()
        left(election, "good")
        await asyncio.sleep(2 * election.retry_period)
        election.record = refused
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(20)
        assert election.term == term
    assert store.leases["berth"]["status"] == record("good")
    assert "record for the next leader not written" in {each["event"] for each in logs}


@pytest.mark.parametrize("keeps", [pytest.param(True, id="definition"), pytest.param(False, id="definition before")])
async def test_the_annotation_of_the_version_before_goes_once_the_status_is_stored(*, keeps: bool) -> None:
    store = LeaseStore(keeps_status=keeps)
    store.add({"term": 7})
    store.leases["berth"]["metadata"]["annotations"] = {names.LOST_PLACES: "{}"}
    election = candidate(store.client(), "a")
    async with running(election):
        await election.acquired()
        assert election.inherited["metadata"]["annotations"] == {names.LOST_PLACES: "{}"}
        left(election, "new")
        await asyncio.sleep(3 * election.retry_period)
        assert (names.LOST_PLACES in store.leases["berth"]["metadata"]["annotations"]) is not keeps


async def test_a_term_that_lapsed_during_a_renewal_comes_back_under_a_new_number() -> None:
    client = LeaseStore().client()
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        client.answer_latency = lambda: 8.5  # the renewal at 2 is answered half a second after the end of the term
        await election.lost(term)
        assert now() == 10
        await asyncio.sleep(0.6)
        assert election.term is None
        client.answer_latency = lambda: 0.0
        assert await election.acquired() == term + 1


async def test_a_lost_answer_to_the_taking_write_costs_a_number_and_nothing_else() -> None:
    store = LeaseStore()
    store.add({"term": 7})
    client = store.client()
    election = candidate(client, "a")
    client.answer_latency = iter([0.0, 60.0, *[0.0] * 9]).__next__  # the PUT arrives, its answer is lost
    async with running(election):
        term = await election.acquired()
    assert store.numbers == [7, FIRST, FIRST + 1]
    assert term == FIRST + 1


async def test_a_leader_whose_lease_was_deleted_goes_on_under_a_new_number() -> None:
    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(5)
        store.delete("berth")
        await election.lost(term)
        assert now() <= 6
        assert await election.acquired() > term


async def test_a_new_lease_starts_above_every_number_of_the_deleted_one() -> None:
    store = LeaseStore()
    client = store.client()
    paused = candidate(client, "a")
    async with running(paused):
        await paused.acquired()
    async with running(paused):
        term = await paused.acquired()
        assert term == FIRST + 1
        await asyncio.sleep(1)
        client.resumed.clear()
        await asyncio.sleep(10)
        store.delete("berth")
        successor = candidate(store.client(), "b")  # knows nothing of earlier terms
        async with running(successor):
            assert await successor.acquired() > term
            assert paused.term is None
            client.resumed.set()


async def test_a_candidate_that_saw_the_holder_of_a_deleted_lease_waits_for_its_expiry() -> None:
    store = LeaseStore()
    client = store.client()
    a, b = candidate(client, "a"), candidate(store.client(), "b")
    async with running(a, b):
        term = await a.acquired()
        await asyncio.sleep(5)
        client.down = True
        store.delete("berth")
        assert await b.acquired() > term
        assert now() >= 4 + 15
        assert a.term is None


async def test_numbers_grow_past_a_deleted_lease_that_was_far_ahead() -> None:
    store = LeaseStore()
    ahead = 2 * FIRST
    store.add({"term": ahead})
    election = candidate(store.client(), "a")
    async with running(election):
        assert await election.acquired() == ahead + 1
        store.delete("berth")
        await election.lost(ahead + 1)
        assert await election.acquired() == ahead + 2


async def test_a_candidate_stopped_while_taking_the_lease_leaves_its_number_alone() -> None:
    store = LeaseStore()
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "term": 2 * FIRST}
    store.add(spec)
    client = store.client()
    client.latency = iter([0.0, 1.0, 0.0]).__next__
    async with running(candidate(client, "a")):
        await asyncio.sleep(0.5)  # between its read and the answer to its write
    assert client.calls == ["GET", "PUT", "PUT"]
    assert store.numbers == [2 * FIRST]


@pytest.mark.parametrize("year", [1970, 2099])
async def test_what_time_the_holder_believes_it_is_does_not_matter(year: int) -> None:
    store = LeaseStore()
    spec = {
        "holderIdentity": "x",
        "leaseDurationSeconds": 20,
        "term": 3,
        "renewTime": f"{year}-01-01T00:00:00.000000Z",
    }
    store.add(spec)
    election = candidate(store.client(), "a")
    async with running(election):
        assert await election.acquired() == FIRST
        assert now() == 20


async def test_durations_that_cannot_be_safe_are_refused() -> None:
    with pytest.raises(ValueError, match="lease_duration"):
        leader.LeaderElection(LeaseStore().client(), namespace="n", name="l", identity="a", lease_duration=10)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_fails_there_is_one_leader_and_numbers_only_grow(seed: int) -> None:
    """Six minutes of outages, lost answers, slow requests, pauses and one touched Lease."""
    rng = random.Random(seed)
    store = LeaseStore()
    clients = [store.client() for _ in range(3)]
    elections = [candidate(client, str(number)) for number, client in enumerate(clients)]
    terms: list[int] = []
    async with running(*elections):
        for _ in range(1500):
            if rng.random() < 0.05:
                disturb(rng, rng.choice(clients))
            if rng.random() < 0.005:
                store.touch("berth")
            await asyncio.sleep(0.25)
            leading = [election.term for election in elections if election.term is not None]
            assert len(leading) <= 1
            if leading and terms[-1:] != leading:
                terms += leading
        for client in clients:
            client.resumed.set()
    assert terms == sorted(set(terms))
    assert store.numbers == sorted(set(store.numbers))
    assert len(terms) > 1


def disturb(rng: random.Random, client: LeaseClient) -> None:
    client.down = rng.random() < 0.2
    client.deaf = rng.random() < 0.2
    slow = rng.random() < 0.3
    client.latency = (lambda: rng.uniform(0, 3)) if slow else (lambda: 0.0)
    if rng.random() < 0.2:
        client.resumed.clear()
    else:
        client.resumed.set()


@pytest.mark.parametrize("seconds", [3, 30])
async def test_leader_whose_kind_was_deleted_leads_again_once_it_is_back(seconds: float) -> None:
    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(5)
        store.served = False
        store.delete("berth")
        await asyncio.sleep(seconds)
        assert (election.term == term) is (seconds < election.renew_deadline)
        store.served = True
        await asyncio.sleep(2 * election.retry_period)
        assert await election.acquired() > term


async def test_candidate_says_what_to_install_where_the_kind_is_missing() -> None:
    store = LeaseStore(served=False)
    election = candidate(store.client(), "a")
    with structlog.testing.capture_logs() as logs:
        async with running(election):
            await asyncio.sleep(1)
    error = next(each["error"] for each in logs if each["event"] == "election turn failed")
    assert error == "the API server serves no leaderleases.berth.dev: apply crds/"


@pytest.mark.parametrize("strange", [None, {"kind": "Status", "metadata": {}}, {"metadata": {}, "spec": {}}, "ok"])
async def test_an_answer_that_is_no_lease_ends_no_candidate(strange: object) -> None:
    store = LeaseStore()
    store.add({"term": FIRST, "holderIdentity": "z", "leaseDurationSeconds": 15})
    proxied = store.client()
    a = candidate(proxied, "a")
    async with running(a):
        await asyncio.sleep(3)
        proxied.instead = [strange]  # of a proxy in front of the API server
        await asyncio.sleep(20)
        assert a.term is not None
        term, proxied.instead = a.term, [strange]
        await asyncio.sleep(20)
        assert proxied.instead == []
        assert a.term is not None
        assert a.term >= term


async def test_candidate_stopped_at_its_write_does_not_lead_two_terms_later() -> None:
    store = LeaseStore()
    store.add({"term": FIRST})
    stopped = store.client()
    a, b, c = candidate(stopped, "a"), candidate(store.client(), "b"), candidate(store.client(), "c")
    async with running(a):
        stopped.resumed.clear()  # between its read, which waits to be sent, and its write
        stopped.calls.clear()
        async with running(b):
            await b.acquired()
        async with running(c):
            term = await c.acquired()
            stopped.resumed.set()
            await asyncio.sleep(9)
            assert (a.term, c.term) == (None, term)
    assert store.numbers == sorted(set(store.numbers))


async def test_a_term_is_confirmed_by_the_renewal_after_its_watch_broke() -> None:
    store = LeaseStore()
    client = store.client()
    election = candidate(client, "a")
    async with running(election):
        term = await election.acquired()
        await asyncio.sleep(5)
        before = now()
        await election.confirmed(term)
        assert now() == before
        client.down = True
        store.touch("berth")  # the watch's next line, which breaks it instead
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(election.confirmed(term))
        await asyncio.sleep(3)
        assert not waiting.done()
        client.down = False
        await waiting
        assert now() - before < 8


async def test_a_leader_takes_a_term_above_those_of_the_pods() -> None:
    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        term = await election.acquired()
        assert await election.exceed(term - 1) == term
        assert await election.exceed(term + 9) == term + 10
        assert store.leases["berth"]["spec"]["term"] == term + 10


async def test_the_known_renewal_is_one_that_all_api_servers_have_seen() -> None:
    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        await election.acquired()
        first = store.leases["berth"]["spec"]["renewTime"]
        assert election.known_renewal == f"berth/{first}"
        await asyncio.sleep(20)
        known = election.known_renewal.partition("/")[2]
        assert first < known < store.leases["berth"]["spec"]["renewTime"]


async def test_what_keeps_the_holder_from_binding_is_in_the_lease_until_it_ends() -> None:
    store, problems = LeaseStore(), ["denied " * 1000]
    election = candidate(store.client(), "a")
    election.hindrance = lambda: problems[0]
    async with running(election):
        await election.acquired()
        assert store.leases["berth"]["metadata"]["annotations"][names.HINDRANCE] == problems[0][: leader.MAX_HINDRANCE]
        problems[0] = ""
        await asyncio.sleep(10)
        assert names.HINDRANCE not in store.leases["berth"]["metadata"]["annotations"]
        problems[0] = "denied"
        await asyncio.sleep(10)
    # What hindered the last holder does not hinder the next.
    assert names.HINDRANCE not in store.leases["berth"]["metadata"]["annotations"]


async def test_doubts_are_recorded_while_the_api_server_is_not_steady() -> None:
    store = LeaseStore()
    election = candidate(store.client(), "a")
    async with running(election):
        await election.acquired()
        earlier = copy.deepcopy(store.leases)
        await asyncio.sleep(10)
        store.leases = earlier
        await asyncio.sleep(20)
        assert store.leases["berth"]["metadata"]["annotations"][names.EARLIER_STATES] == "1"
        await asyncio.sleep(700)
        assert names.EARLIER_STATES not in store.leases["berth"]["metadata"]["annotations"]
