"""Promised places: when they are searched again, when they end, which pods get them, and what the next leader keeps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from berth_api import names
from berth_client import times
from berth_operator.binding.workloads import fits_check
from berth_operator.core.decision import promise_note
from berth_operator.core.values.quota_workload import CheckSettings, CheckState, PodSet
from berth_operator.core.values.request import Membership
from tests.objects.builders import NVIDIA, T4, Raw, asks, device, entry, node, pod, waiting, whole
from tests.unit.binding.workloads.kueue import PENDING, READY, RETRY, SECOND, Kueue, answered, pods, restarted

# --- lost places ----------------------------------------------------------------------------------------------


def test_a_pod_of_higher_priority_takes_a_place_only_where_it_fits_nowhere_else() -> None:
    kueue = answered({"a": 1, "b": 1})
    [place] = kueue.places("train")
    kueue.put("low")
    kueue.put("high-1", priority=10)
    assert kueue.schedule()["high-1"] != place
    kueue.put("high-2", priority=10)
    assert kueue.schedule() == {"high-2": place}
    kueue.turn(SECOND)
    assert kueue.state("train") is RETRY
    assert kueue.last["train"].message.startswith("promised places were lost: 0/2 nodes are available")


@pytest.mark.parametrize("what", ["removed", "broken", "cordoned", "silent"])
@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize("admitted", [True, False])
def test_lost_places_are_searched_again(what: str, *, spare: bool, admitted: bool) -> None:
    kueue = answered({"a": 2, "b": 2} if spare else {"a": 2}, count=2)
    [(place, _)] = kueue.places("train").items()
    kueue.change("train", admitted=admitted)
    kueue.turn(SECOND)
    match what:
        case "removed":
            kueue.cluster.node_cache.remove_node(place)
        case "broken":
            kueue.cluster.node_cache.put_device(
                device(place, entry(0, health=False), entry(1, health=False), generation=2)
            )
        case "cordoned":
            kueue.cluster.node_cache.put_node(node(place, unschedulable=True))
        case "silent":
            kueue.fleet.set_fresh(place, fresh=False)
    kueue.turn(SECOND)
    kueue.turn(SECOND)
    if spare:
        [other] = {"a", "b"} - {place}
        assert (kueue.state("train"), kueue.places("train")) == (READY, {other: 2})
        assert kueue.of("train").message == f"places on {other} (2 pods)"
    elif admitted:
        assert kueue.state("train") is READY
        assert "promised places were lost, 0 are left" in kueue.of("train").message
    else:
        assert kueue.state("train") is RETRY


@pytest.mark.parametrize("admitted", [True, False])
@pytest.mark.parametrize(
    ("cards", "left"),
    [
        pytest.param([entry(minor, id=f"GPU-{3 - minor}") for minor in range(4)], 2, id="renumbered after a reboot"),
        pytest.param([entry(0, health=False), *map(entry, range(1, 4))], 2, id="one is broken"),
        pytest.param([entry(2), entry(3)], 2, id="two are gone"),
        pytest.param([entry(3)], 1, id="three are gone"),
    ],
)
def test_places_on_cards_that_are_others_now(cards: Sequence[Raw], left: int, *, admitted: bool) -> None:
    kueue = answered({"a": 4}, count=2)
    kueue.change("train", admitted=admitted)
    kueue.turn(SECOND)
    kueue.cluster.node_cache.put_device(device("a", *cards, generation=2))
    kueue.turn(SECOND)
    assert kueue.state("train") is (READY if left == 2 or admitted else RETRY)
    assert kueue.places("train").total() == (left if left == 2 or admitted else 0)
    assert ("promised places were lost" in kueue.of("train").message) is (left < 2)
    for number in range(2):
        kueue.come("train", number)
    assert len(kueue.schedule()) == left
    held = [grant.minor for charge in kueue.fleet.charges.values() for grant in charge.grants]
    assert len(set(held)) == len(held) == left
    assert not len(kueue.cluster.promises)


@pytest.mark.parametrize("what", ["node", "Device"])
def test_a_workload_whose_node_went_and_returned_is_promised_again(what: str) -> None:
    kueue = answered({"a": 2}, count=2)
    kueue.cluster.node_cache.remove_device("a")
    if what == "node":
        kueue.cluster.node_cache.remove_node("a")
    kueue.turn(SECOND)
    assert kueue.state("train") is RETRY
    assert kueue.of("train").message.startswith("promised places were lost: ")
    kueue.cluster.node_cache.put_node(node("a"))
    kueue.cluster.node_cache.put_device(device("a", entry(0), entry(1), generation=9))
    kueue.requeue("train")
    kueue.turn(SECOND)
    assert (kueue.state("train"), kueue.places("train")) == (READY, {"a": 2})
    for number in range(2):
        kueue.come("train", number)
    assert kueue.schedule() == {"train-0": "a", "train-1": "a"}


def test_a_node_that_goes_while_places_are_gathered_there_is_gathered_again() -> None:
    kueue = Kueue({"a": 2, "b": 2})
    kueue.hold("x", 0)
    kueue.ask("train", pods(4))
    assert kueue.places("train") == {"a": 1, "b": 2}
    kueue.cluster.node_cache.remove_device("b")
    kueue.turn(SECOND)
    assert (kueue.state("train"), kueue.places("train")) == (PENDING, {"a": 1})
    kueue.cluster.node_cache.put_device(device("b", entry(0), entry(1), generation=9))
    kueue.turn(SECOND)
    assert kueue.places("train") == {"a": 1, "b": 2}
    kueue.cluster.remove_bound("uid-x")
    kueue.turn(SECOND)
    assert kueue.state("train") is READY


@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize("admitted", [True, False])
@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        pytest.param({"cpu": "60"}, "Insufficient cpu", id="cpu"),
        pytest.param({NVIDIA: "2"}, "too few free GPUs", id="cards, from kubelet"),
    ],
)
def test_places_that_a_pod_of_another_scheduler_has_taken(
    foreign: Mapping[str, str], reason: str, *, spare: bool, admitted: bool
) -> None:
    kueue = Kueue({"a": 2, "b": 2} if spare else {"a": 2})
    request = asks({NVIDIA: 1, "cpu": 8000})
    kueue.ask("train", PodSet(name="main", pods=(waiting(request=request),) * 2))
    [taken] = kueue.places("train")
    kueue.change("train", admitted=admitted)
    kueue.turn(SECOND)
    given = whole(0, 1) if NVIDIA in foreign else None
    kueue.cluster.put_bound(pod("foreign", foreign, on=taken, allocated=given, schedulerName="default-scheduler"))
    kueue.turn(SECOND)
    if not spare:
        assert kueue.state("train") is (READY if admitted else RETRY)
        assert reason in kueue.of("train").message
        return
    [other] = {"a", "b"} - {taken}
    assert (kueue.state("train"), kueue.places("train")) == (READY, {other: 2})
    for number in range(2):
        kueue.come("train", number)
    assert set(kueue.schedule().values()) == {other}


def test_a_place_that_is_lost_is_not_searched_again_once_its_workload_has_none() -> None:
    """One review decides a workload that gathers, which takes places of another one whose places are lost, too."""
    kueue = Kueue({"x": 2, "a": 2, "b": 2, "d": 2})
    for on in "abd":
        kueue.hold(f"held-{on}", 0, on=on)
    kueue.ask("high", pods(2, cards=2, priority=10))
    kueue.ask("low", pods(2, cards=1))
    kueue.hold("other", 1, on="a")
    kueue.turn(2 * SECOND)
    assert (kueue.places("high"), kueue.places("low")) == ({"x": 1}, {"b": 1, "d": 1})
    # The decision of another workload takes the whole turn, so the review is first to decide `high`.
    kueue.tick = 2 * fits_check.MAX_TURN
    kueue.submit("first", PodSet(name="main", pods=(waiting(request=asks({"cpu": 1}), priority=20),)))
    kueue.cluster.node_cache.put_node(node("x", unschedulable=True))
    kueue.cluster.node_cache.put_node(node("d", unschedulable=True))
    kueue.cluster.node_cache.put_node(node("y"))
    kueue.cluster.node_cache.put_device(device("y", entry(0), entry(1)))
    kueue.cluster.remove_bound("uid-held-b")
    kueue.now += 2 * SECOND
    kueue.check.follow()
    assert kueue.places("high") == {"b": 1, "y": 1}
    kueue.turn()
    assert (kueue.state("high"), kueue.state("low")) == (READY, RETRY)


# --- the end of a promise -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        pytest.param(lambda kueue: kueue.cluster.workloads.remove("ns/train"), False, id="deleted"),
        pytest.param(lambda kueue: kueue.change("train", finished=True), False, id="finished"),
        pytest.param(lambda kueue: kueue.change("train", has_quota=False), False, id="without quota"),
        pytest.param(lambda kueue: kueue.change("train", since="later"), False, id="another reservation of quota"),
        pytest.param(lambda kueue: kueue.change("train", uid="other"), False, id="another workload of the name"),
        pytest.param(lambda kueue: kueue.change("train", admitted=True), True, id="admitted"),
    ],
)
def test_places_are_given_up_with_the_quota(end: Any, *, kept: bool) -> None:
    kueue = answered({"a": 1})
    kueue.put("other")
    assert not kueue.schedule()
    end(kueue)
    while kueue.check.follow():
        pass
    assert kueue.schedule() == ({} if kept else {"other": "a"})


def test_places_are_kept_for_a_time() -> None:
    kueue = answered({"a": 1}, of=CheckSettings(promise=100))
    kueue.turn(90)
    assert kueue.places("train")
    kueue.change("train", admitted=True)
    kueue.turn()
    kueue.turn(90)
    assert kueue.places("train"), "the time begins again when it is admitted"
    kueue.turn(11)
    assert not kueue.places("train")
    assert kueue.state("train") is READY


def test_a_workload_that_is_not_admitted_in_time_returns_its_quota() -> None:
    kueue = answered({"a": 1}, of=CheckSettings(promise=100))
    kueue.turn(101)
    assert kueue.state("train") is RETRY
    assert not kueue.places("train")


# --- pods -----------------------------------------------------------------------------------------------------


def test_a_forged_annotation_takes_places_of_its_own_namespace_alone() -> None:
    kueue = answered({"a": 1})
    kueue.put("thief", workload="train", metadata={"namespace": "other"})
    kueue.put("stranger", workload="unknown")
    kueue.put("of-another-set", workload="train", pod_set="workers")
    assert not kueue.schedule()
    assert kueue.places("train") == {"a": 1}
    kueue.come("train", 0)
    assert kueue.schedule() == {"train-0": "a"}


def test_a_pod_gets_the_place_of_its_topology_domain() -> None:
    kueue = Kueue({})
    for name, rack in (("a", "r1"), ("b", "r2")):
        kueue.cluster.node_cache.put_node(node(name, labels={"rack": rack}))
        kueue.cluster.node_cache.put_device(device(name, entry()))
    requests = [asks({NVIDIA: 1}, selector={"rack": rack}) for rack in ("r1", "r2")]
    kueue.ask("train", PodSet(name="main", pods=tuple(waiting(request=request) for request in requests)))
    assert kueue.places("train") == {"a": 1, "b": 1}
    kueue.come("train", 1, nodeSelector={"rack": "r2"})
    assert kueue.places("train") == {"a": 1}
    assert kueue.schedule() == {"train-1": "b"}


def test_a_pod_that_goes_away_again_gives_its_place_up() -> None:
    kueue = answered({"a": 1})
    kueue.come("train", 0)
    kueue.cluster.remove_pending("uid-train-0")
    kueue.put("other")
    assert kueue.schedule() == {"other": "a"}


def test_members_of_a_gang_have_alike_cards() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0))
    kueue.cluster.node_cache.put_node(node("b"))
    kueue.cluster.node_cache.put_device(device("b", entry(0, model=T4), entry(1, model=T4)))
    member = Membership(group="ns/g", minimum=3)
    kueue.ask("mixed", pods(3))
    assert kueue.state("mixed") is READY
    kueue.cluster.workloads.remove("ns/mixed")
    kueue.ask("alike", pods(3, gang=member))
    assert kueue.state("alike") is RETRY
    kueue.ask("two", pods(2, gang=member))
    assert kueue.state("two") is READY


# --- pods that are a gang -------------------------------------------------------------------------------------


def gang_answered(size: int, nodes: Mapping[str, int], **fields: Any) -> Kueue:
    """Return Kueue after it has admitted a workload whose pods are a gang, while the pod `other` waits."""
    kueue = Kueue(nodes)
    kueue.ask("train", pods(size, gang=Membership(group="ns/train", **{"minimum": size, **fields})))
    kueue.change("train", admitted=True)
    kueue.turn()
    kueue.put("other")
    assert not kueue.schedule()
    return kueue


def of_kueue(number: int, size: int) -> Raw:
    """Return a member of Kueue's pod group."""
    annotations = {
        "kueue.x-k8s.io/pod-group-total-count": str(size),
        names.WORKLOAD: "train",
        names.POD_SET: "main",
    }
    labels = {"kueue.x-k8s.io/pod-group-name": "train"}
    return pod(f"train-{number}", {NVIDIA: "1"}, labels=labels, annotations=annotations)


@pytest.mark.parametrize("controller", ["", "Kueue pod group"])
def test_members_that_come_one_by_one_take_their_places_when_all_are_there(controller: str) -> None:
    kueue = gang_answered(4, {"a": 2, "b": 2}, controller=controller)
    promised = kueue.places("train")
    for number in range(4):
        assert kueue.places("train") == promised
        if controller:
            kueue.cluster.put_pending(of_kueue(number, 4))
        else:
            kueue.come("train", number, gang=4)
        placed = kueue.schedule()
        assert "other" not in placed
    assert Counter(placed.values()) == promised
    assert not len(kueue.cluster.promises)


def test_a_member_that_is_created_again_before_the_gang_is_complete_takes_the_place_then() -> None:
    kueue = gang_answered(2, {"a": 2})
    kueue.come("train", 0, gang=2)
    kueue.cluster.remove_pending("uid-train-0")
    assert not kueue.schedule()
    assert kueue.places("train") == {"a": 2}
    kueue.come("train", 1, gang=2)
    kueue.come("train", 2, gang=2)
    assert kueue.schedule() == {"train-1": "a", "train-2": "a"}


def test_members_take_their_places_although_a_pod_leaves_the_node_at_the_same_time() -> None:
    kueue = Kueue({"a": 3})
    kueue.hold("x", 0)
    kueue.ask("train", pods(2, gang=Membership(group="ns/train", minimum=2)))
    kueue.put("other")
    assert not kueue.schedule()
    for number in range(2):
        kueue.come("train", number, gang=2)
    kueue.cluster.remove_bound("uid-x")
    assert kueue.schedule() == {"train-0": "a", "train-1": "a", "other": "a"}
    assert not len(kueue.cluster.promises)
    assert not kueue.fleet.nominees


def test_members_take_no_places_that_another_decision_leaves_out() -> None:
    kueue = gang_answered(2, {"a": 2})
    for number in range(2):
        kueue.come("train", number, gang=2)
    gang = kueue.cluster.pending["uid-train-0"].gang
    assert gang is not None
    with kueue.cluster.promises.without_lower(10):
        kueue.cluster.gangs.gather(gang)
    assert kueue.places("train") == {"a": 2}
    kueue.cluster.gangs.gather(gang)
    assert kueue.schedule() == {"train-0": "a", "train-1": "a"}
    assert not kueue.fleet.nominees


def test_the_places_of_a_gang_that_never_becomes_complete_are_kept_for_a_time() -> None:
    kueue = gang_answered(2, {"a": 2})
    kueue.come("train", 0, gang=2)
    kueue.turn(kueue.settings.promise - 1)
    assert kueue.places("train") == {"a": 2}
    kueue.turn(2)
    assert not kueue.places("train")
    assert kueue.schedule() == {"other": "a"}


def test_a_member_that_its_controller_does_not_count_any_more_takes_its_place_alone() -> None:
    kueue = gang_answered(2, {"a": 2}, controller="Kueue pod group")
    kueue.cluster.put_pending(of_kueue(0, 2))
    kueue.cluster.put_namespace("ns", {}, {names.CONTROLLER_GANGS: "false"})
    assert kueue.schedule() == {"train-0": "a"}
    assert kueue.places("train") == {"a": 1}


# --- a new leader ---------------------------------------------------------------------------------------------


def test_a_new_leader_keeps_promises_before_any_pod_is_decided() -> None:
    kueue = answered({"a": 1, "b": 1, "c": 1}, count=2)
    promised = kueue.places("train")
    kueue.come("train", 0)
    placed = kueue.schedule()["train-0"]
    new = restarted(kueue)
    assert new.places("train") == promised - Counter([placed])


def test_a_new_leader_hands_places_to_pods_that_wait_already() -> None:
    kueue = answered({"a": 1, "b": 1})
    new = Kueue({"a": 1, "b": 1})
    new.come("train", 0)
    new.put("other-1")
    new.put("other-2")
    new.cluster.workloads.put(kueue.of("train"))
    new.check.restore(kueue.check.record())
    assert not new.places("train")
    [place] = kueue.places("train")
    assert new.schedule()["train-0"] == place


@pytest.mark.parametrize("come", [1, 2])
def test_a_new_leader_hands_places_to_the_members_of_a_gang_when_all_are_there(come: int) -> None:
    kueue = gang_answered(2, {"a": 2})
    for number in range(come):
        kueue.come("train", number, gang=2)
    new = restarted(kueue)
    if come == 1:
        assert not new.schedule()
        assert new.places("train") == {"a": 2}
        new.come("train", 1, gang=2)
    assert new.schedule() == {"train-0": "a", "train-1": "a"}


def test_a_workload_that_is_not_recorded_yet_gets_places_and_one_that_has_its_pods_none() -> None:
    kueue = Kueue({"a": 3})
    kueue.submit("new", pods(1))
    kueue.ask("old", pods(2))
    new = Kueue({"a": 4})
    new.hold("old-0", 0, annotations={names.WORKLOAD: "old", names.POD_SET: "main"})
    new.come("old", 1, status={"nominatedNodeName": "a"})
    for name in ("new", "old"):
        new.cluster.workloads.put(kueue.of(name))
    new.check.restore([])
    assert (new.places("new"), new.places("old")) == ({"a": 1}, {})


def test_pods_of_an_earlier_admission_that_still_terminate_take_no_place_of_the_next() -> None:
    kueue = Kueue({"a": 2, "b": 2})
    annotations = {names.WORKLOAD: "train", names.POD_SET: "main"}
    for number in range(2):
        going = {"deletionTimestamp": "2026-01-01T00:10:00Z"}
        kueue.hold(f"train-{number}", number, annotations=annotations, metadata=going)
    kueue.ask("train", pods(2))
    assert kueue.places("train") == {"b": 2}
    assert restarted(kueue).places("train") == {"b": 2}


def test_a_new_leader_restores_recorded_places_before_it_searches_others() -> None:
    kueue = answered({"a": 1})
    kueue.change("train", admitted=True)
    for unschedulable in (True, False):
        kueue.cluster.node_cache.put_node(node("a", unschedulable=unschedulable))
        kueue.turn(SECOND)
    assert not kueue.places("train"), "it has lost its place"
    kueue.ask("other", pods(1))
    new = restarted(kueue)
    new.turn()
    assert (new.state("other"), new.places("other")) == (READY, {"a": 1})


def test_a_place_stays_on_its_node_though_another_pod_of_the_workload_is_bound_there() -> None:
    kueue = answered({"a": 2, "b": 2}, count=2)
    [(node_, _)] = kueue.places("train").items()
    kueue.come("train", 0)
    kueue.schedule()
    assert restarted(kueue).places("train") == {node_: 1}


def test_the_record_holds_the_places_of_each_pod_set_and_none_that_are_gathered() -> None:
    kueue = Kueue({"a": 2, "b": 3})
    kueue.hold("x", 0)
    kueue.ask("train", pods(1, name="driver"), pods(2, name="worker"))
    kueue.ask("more", pods(2))
    assert kueue.places("more").total() == 1, "gathered"
    [record] = kueue.check.record()
    assert record.uid == "uid-train"
    assert {pod_set.name: sum(on.pods for on in pod_set.nodes) for pod_set in record.pod_sets} == {
        "driver": 1,
        "worker": 2,
    }


@pytest.mark.parametrize(("admitted", "state"), [(False, RETRY), (True, READY)])
def test_what_a_new_leader_cannot_restore(*, admitted: bool, state: CheckState) -> None:
    kueue = answered({"a": 1})
    new = Kueue({"a": 1})
    new.hold("x", 0)
    new.cluster.workloads.put(replace(kueue.of("train"), admitted=admitted))
    new.check.restore(kueue.check.record())
    new.turn()
    assert new.state("train") is state
    assert "promised places were lost" in new.of("train").message


def test_old_promises_are_not_restored() -> None:
    kueue = answered({"a": 1})
    for seconds, kept in ((200, 1), (400, 0)):
        new = Kueue({"a": 1})
        new.now = 1_000_000.0
        at = datetime.fromtimestamp(new.now - seconds, UTC)
        new.cluster.workloads.put(replace(kueue.of("train"), admitted=True, admitted_at=times.time(at)))
        new.check.restore(kueue.check.record())
        assert new.places("train").total() == kept


@pytest.mark.parametrize("admitted_at", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"])
def test_promises_of_a_workload_whose_admission_has_no_known_time_are_not_restored(admitted_at: str) -> None:
    kueue, new = answered({"a": 1}), Kueue({"a": 1})
    new.cluster.workloads.put(replace(kueue.of("train"), admitted=True, admitted_at=admitted_at))
    new.check.restore(kueue.check.record())
    assert not new.places("train")


def test_the_sentence_about_many_pod_sets_and_nodes() -> None:
    places = {"driver": ["n1"], "worker": ["n3", "n2", "n3"]}
    text = promise_note.note(places)
    assert text == "places for driver on n1; for worker on n2, n3 (2 pods)"
    many = promise_note.note({"main": [f"node-{number}.example" for number in range(5000)]})
    assert len(many) < 8192
