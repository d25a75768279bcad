"""Lost places: after how many a preemptor backs off, for how long, and what is remembered."""

import pytest

from berth_api.objects.leader_lease import MAX_LOST_PLACES, LeaderLeaseStatus
from berth_operator.core.decision.lost_places import (
    FIRST,
    LONGEST,
    MAX_PREEMPTORS,
    OF_GANG,
    OF_POD,
    REMEMBERED,
    LostPlaces,
    preemptor_of,
)
from berth_operator.core.values.owner import Owner
from tests.objects.builders import waiting

NOW = 1_767_225_600.0
OTHER = ("default-scheduler",)


def lost(times: int, *, nodes: tuple[str, ...] = ("n",), limit: int = OF_POD, at: float = NOW) -> LostPlaces:
    places = LostPlaces()
    for _ in range(times):
        places.lose("p", nodes, OTHER, at, limit)
    return places


@pytest.mark.parametrize(
    ("times", "minutes"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 30), (8, 30), (500, 30)]
)
def test_the_back_off_on_a_node_doubles_from_one_to_thirty_minutes(times: int, minutes: int) -> None:
    places, until = lost(times, limit=1000), NOW + 60.0 * minutes
    assert bool(places.backoff("p", until - 1)) == (minutes > 0)
    assert not places.backoff("p", until)
    assert not places.backoff("another", NOW)


@pytest.mark.parametrize(("times", "limit", "everywhere"), [(3, OF_POD, False), (4, OF_POD, True), (2, OF_GANG, True)])
def test_places_on_many_nodes_count_together(times: int, limit: int, everywhere: bool) -> None:
    places = LostPlaces()
    for number in range(times):
        places.lose("p", [f"n{number}"], OTHER, NOW, limit)
    assert places.backoff("p", NOW).everywhere is everywhere


def test_the_note_names_what_was_lost_where_and_for_how_long() -> None:
    assert lost(2).backoff("p", NOW).note == (
        "freed capacity was taken twice by pods of default-scheduler; no pods are preempted on n before "
        "2026-01-01T00:01:00Z."
    )
    unknown = LostPlaces()
    for _ in range(3):
        unknown.lose("p", ["n"], (), NOW, OF_POD)
    assert unknown.backoff("p", NOW).note.startswith("freed capacity was lost 3 times; ")


def test_who_runs_has_lost_nothing_there_nor_on_all_nodes_together() -> None:
    places = lost(3)
    places.lose("p", ["m"], OTHER, NOW, OF_POD)
    places.win("p", ["n"])
    assert not places.backoff("p", NOW)
    places.lose("p", ["m"], OTHER, NOW, OF_POD)
    assert places.backoff("p", NOW).nodes == {"m"}


def test_who_loses_on_many_nodes_and_runs_on_others_backs_off_as_well() -> None:
    places = LostPlaces()
    for number in range(100):
        places.lose("p", [f"n{number}"], OTHER, NOW + number, OF_POD)
        places.win("p", ["elsewhere"])
    places.lose("p", ["n100"], OTHER, NOW + 100, OF_POD)
    assert places.backoff("p", NOW + 100).everywhere


def test_what_was_lost_long_ago_does_not_count() -> None:
    places = lost(2)
    places.expire(NOW + FIRST + REMEMBERED - 1)
    assert places.has_lost("p")
    places.expire(NOW + FIRST + REMEMBERED)
    assert not places.has_lost("p")


def test_the_next_leader_reads_the_same_and_no_time_far_ahead() -> None:
    places = lost(2)
    places.lose("q", ["n"], OTHER, NOW, OF_POD)
    restored = LostPlaces()
    restored.restore(places.record(), NOW)
    assert restored.record() == places.record()
    early = LostPlaces()
    early.restore(places.record(), NOW - 10_000)
    assert not early.backoff("p", NOW - 10_000 + LONGEST)


def test_the_memory_has_a_bound_and_so_has_the_record() -> None:
    places, longest = LostPlaces(), f"{'p' * 310}-{{}}".format
    for preemptor in range(2 * MAX_PREEMPTORS):
        for node in range(10):
            places.lose(longest(preemptor), [f"{node}{'n' * 252}"], ["ß" * 1000, "t" * 1000], NOW + preemptor, OF_POD)
    assert len(places) <= MAX_PREEMPTORS + 1
    now = NOW + 2 * MAX_PREEMPTORS
    assert places.backoff(longest(2 * MAX_PREEMPTORS - 1), now), "the last ones are remembered"
    assert places.backoff("one that was forgotten", now).everywhere
    assert len(places.record()) <= MAX_LOST_PLACES
    assert LeaderLeaseStatus.model_validate({"version": 1, "lostPlaces": places.record()})


def test_a_pod_that_is_created_again_is_the_same_preemptor() -> None:
    owner = Owner(kind="ReplicaSet", name="web", uid="u")
    first, second = (preemptor_of(waiting(name, uid=name, owner=owner)) for name in ("web-1", "web-2"))
    assert first == second == "u/ns/ReplicaSet/web"
    assert preemptor_of(waiting("web", uid="1")) == preemptor_of(waiting("web", uid="2"))


def test_what_is_gone_is_forgotten() -> None:
    places, controller, pod, gang = LostPlaces(), "u/ns/ReplicaSet/web", "ns/web", "PodGroup ns/g"
    for preemptor in (controller, pod, gang, "u/other/ReplicaSet/ns", "other/ns"):
        places.lose(preemptor, ["n", "m"], OTHER, NOW, OF_POD)
    places.keep_nodes("m".__eq__)
    assert {place.node for place in places.record()} == {"", "m"}
    places.forget_namespace("ns")
    assert {place.preemptor for place in places.record()} == {"u/other/ReplicaSet/ns", "other/ns"}
