"""The AdmissionCheck: which workloads get their places promised, and what becomes of the places."""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.request.model import ModelConstraint
from berth_client import times
from berth_operator.binding.workloads import fits_check
from berth_operator.binding.workloads.fits_check import FitsCheck
from berth_operator.core.decision import promise_note
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.quota_workload import CheckAnswer, CheckSettings, CheckState, PodSet, QuotaWorkload
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.cache.cluster import Cluster
from tests.builders import GPU, INSTANCES, NVIDIA, T4, asks, device, entry, node, pod, waiting, whole

READY, PENDING, RETRY, REJECTED = CheckState.READY, CheckState.PENDING, CheckState.RETRY, CheckState.REJECTED
POLICY = Policy()
SETTINGS = CheckSettings()
SECOND = 1.0


class Kueue:
    """A fleet, the check, and what Kueue does with the check's answers; time is virtual."""

    def __init__(self, nodes: Mapping[str, int], *, of: CheckSettings = SETTINGS) -> None:
        self.now, self.settings = 1000.0, of
        self.cluster = Cluster(grace=1e9, clock=lambda: self.now, wall=lambda: self.now)
        for name, cards in nodes.items():
            self.cluster.put_node(node(name))
            self.cluster.put_device(device(name, *(entry(minor) for minor in range(cards))))
        self.answers: list[CheckAnswer] = []
        self.last: dict[str, CheckAnswer] = {}
        self.check = self.lead()
        self.numbers = itertools.count()

    def lead(self) -> FitsCheck:
        return FitsCheck(
            cluster=self.cluster, policy=lambda _: POLICY, settings=lambda: self.settings, answer=self.answers.append
        )

    @property
    def fleet(self) -> Fleet:
        return self.cluster.fleet

    def submit(self, name: str, *pod_sets: PodSet, **fields: Any) -> None:
        """Reserve quota for a workload."""
        workload = QuotaWorkload(
            key=f"ns/{name}",
            uid=f"uid-{name}",
            check="fits",
            has_quota=True,
            **{"pod_sets": pod_sets, "created": f"{next(self.numbers):06}", "since": f"{self.now}", **fields},
        )
        self.cluster.put_workload(workload)

    def of(self, name: str) -> QuotaWorkload:
        return self.cluster.workloads.by_key[f"ns/{name}"]

    def change(self, name: str, **fields: Any) -> None:
        self.cluster.put_workload(replace(self.of(name), **fields))

    def turn(self, seconds: float = 0.0) -> None:
        """Advance the clock, decide, and show the answers."""
        self.now += seconds
        while self.check.follow():
            pass
        for answer in self.drained():
            known = self.cluster.workloads.by_key.get(answer.workload.key)
            if known is not None and known.uid == answer.workload.uid:
                self.cluster.put_workload(replace(known, state=answer.state, message=answer.message))
        while self.check.follow():
            pass

    def drained(self) -> list[CheckAnswer]:
        shown = self.answers[:]
        self.answers.clear()
        self.last.update({each.workload.name: each for each in shown})
        return shown

    def state(self, name: str) -> CheckState:
        return self.of(name).state

    def requeue(self, name: str) -> None:
        """Take the quota of a workload, and reserve it again, as Kueue does after Retry."""
        retried = self.of(name).retries + 1
        self.change(name, has_quota=False, state=PENDING, retries=retried)
        self.turn()
        self.change(name, has_quota=True, since=f"{self.now}-{retried}")

    def places(self, name: str) -> Counter[str]:
        """Return how many places of a workload are promised on each node."""
        return Counter(each.node for each in self.cluster.promises.places(f"ns/{name}"))

    def come(self, name: str, number: int, **fields: Any) -> None:
        """Create a pod of a workload, which has been admitted."""
        self.put(f"{name}-{number}", workload=name, **fields)

    def put(self, name: str, *, workload: str = "", pod_set: str = "main", cards: int = 1, **fields: Any) -> None:
        annotations = {names.WORKLOAD: workload, names.POD_SET: pod_set} if workload else {}
        self.cluster.put_pending(pod(name, {NVIDIA: str(cards)}, annotations=annotations, **fields))

    def hold(self, name: str, *minors: int, on: str = "a", **fields: Any) -> None:
        self.cluster.put_bound(pod(name, {NVIDIA: str(len(minors))}, on=on, allocated=whole(*minors), **fields))

    def schedule(self) -> dict[str, str]:
        """Decide all pods as the scheduler does; return the nodes of those that were placed."""
        placed = {}
        while (unit := self.cluster.queue.pop(self.now)) is not None:
            assert not isinstance(unit, Gang)
            outcome = self.cluster.promises.decide(unit.priority, functools.partial(decide, self.fleet, unit, POLICY))
            if isinstance(outcome, Failure):
                self.cluster.queue.park(unit, outcome)
                continue
            self.cluster.placements.assume(outcome)
            self.cluster.queue.remove(unit.uid)
            placed[unit.name] = outcome.node
        return placed


def pods(count: int, cards: int = 1, name: str = "main", **fields: Any) -> PodSet:
    """Return a pod set."""
    return PodSet(name=name, pods=tuple(waiting(f"{name}-{n}", {NVIDIA: cards}, **fields) for n in range(count)))


def test_places_are_promised_and_handed_over() -> None:
    kueue = Kueue({"a": 2, "b": 2})
    kueue.submit("train", pods(3))
    kueue.turn()
    assert kueue.state("train") is READY
    assert sorted(kueue.places("train").values()) == [1, 2]
    assert kueue.of("train").message.startswith("places on ")
    kueue.put("other", cards=2)
    assert not kueue.schedule(), "no other pod takes a promised place"
    promised = kueue.places("train")
    for number in range(3):
        kueue.come("train", number)
    assert Counter(node for name, node in kueue.schedule().items()) == promised
    assert not len(kueue.cluster.promises)


# --- not now --------------------------------------------------------------------------------------------------


def test_a_workload_without_places_returns_its_quota_for_longer_each_time() -> None:
    kueue = Kueue({"a": 2, "b": 1})
    kueue.hold("x", 0, 1)
    kueue.settings = CheckSettings(gather=0)
    kueue.submit("train", pods(2))
    pauses = []
    for _ in range(7):
        kueue.turn()
        assert kueue.state("train") is RETRY
        pauses.append(kueue.last["train"].requeue_after)
        kueue.requeue("train")
    assert pauses == [30, 60, 120, 240, 480, 600, 600]
    assert kueue.last["train"].message.startswith("0/2 nodes are available: ")
    assert not kueue.places("train")


def test_it_waits_with_its_quota_for_pods_that_end_soon() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0))
    kueue.hold("x", 0, 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    kueue.submit("train", pods(1))
    kueue.submit("large", pods(3))
    kueue.turn()
    assert (kueue.state("train"), kueue.state("large")) == (PENDING, RETRY)
    assert kueue.of("train").message.endswith("Places may be free within 60 s.")
    kueue.cluster.remove_bound("uid-x")
    kueue.turn()
    assert kueue.state("train") is READY


def test_it_does_not_wait_for_them_for_ever() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0, pending=10))
    kueue.hold("x", 0, 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    kueue.submit("train", pods(1))
    kueue.turn()
    kueue.turn(9)
    assert kueue.state("train") is PENDING
    kueue.turn(2)
    assert kueue.state("train") is RETRY


def test_an_answer_that_was_not_written_is_given_again() -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    while kueue.check.follow():
        pass
    kueue.answers.clear()
    kueue.change("train", priority=0, queue="other")
    kueue.turn()
    assert kueue.state("train") is READY


# --- never ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_set", "nodes", "change", "rejected"),
    [
        pytest.param(pods(1, 3), {"a": 2, "b": 2}, None, True, id="more cards than any node"),
        pytest.param(pods(2, 2), {"a": 2, "b": 1}, None, False, id="too many pods is no reason"),
        pytest.param(pods(1, 3), {}, None, False, id="no nodes"),
        pytest.param(pods(1, 3), {}, "no Device", False, id="no devices yet"),
        pytest.param(pods(1, 2), {"a": 2}, "broken", False, id="a broken card may be mended"),
        pytest.param(pods(1, 2), {"a": 2}, "cordoned", False, id="cordoned"),
        pytest.param(pods(1, 2), {"a": 2}, "tainted", False, id="tainted"),
        pytest.param(pods(1, 2), {"a": 2}, "silent", False, id="the agent is silent"),
        pytest.param(
            PodSet(name="main", pods=(waiting(request=asks({NVIDIA: 1}, selector={"pool": "x"})),)),
            {"a": 2},
            None,
            False,
            id="labels may change, and other flavors may have them",
        ),
        pytest.param(
            PodSet(name="main", pods=(waiting(request=asks({"cpu": 65_000})),)), {"a": 2}, None, True, id="cpu"
        ),
        pytest.param(
            PodSet(name="main", pods=(waiting(request=asks({NVIDIA: 1}, model=ModelConstraint(globs=("*H100*",)))),)),
            {"a": 2},
            None,
            True,
            id="no card of the model",
        ),
        pytest.param(
            PodSet(name="main", pods=(waiting(request=asks({INSTANCES[0]: 1})),)),
            {"a": 2},
            None,
            False,
            id="cards may be cut in another way",
        ),
    ],
)
def test_only_what_no_node_could_ever_take_is_rejected(
    pod_set: PodSet, nodes: Mapping[str, int], change: str | None, *, rejected: bool
) -> None:
    kueue = Kueue(nodes, of=CheckSettings(gather=0))
    match change:
        case "broken":
            kueue.cluster.put_device(device("a", entry(0), entry(1, health=False), generation=2))
        case "no Device":
            kueue.cluster.put_node(node("a"))
        case "cordoned":
            kueue.cluster.put_node(node("a", unschedulable=True))
        case "tainted":
            kueue.cluster.put_node(node("a", taints=[{"key": "x", "effect": "NoSchedule"}]))
        case "silent":
            kueue.fleet.set_fresh("a", fresh=False)
    kueue.submit("train", pod_set)
    kueue.turn()
    assert kueue.state("train") is (REJECTED if rejected else RETRY)
    kueue.settings = CheckSettings(gather=0, fleet_grows=True)
    kueue.submit("grows", pod_set)
    kueue.turn()
    assert kueue.state("grows") is RETRY


def test_an_invalid_request_is_rejected_even_if_the_fleet_grows() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(fleet_grows=True))
    kueue.submit("train", PodSet(name="main", pods=(waiting(error="gpu: 150 is no multiple of 100"),)))
    kueue.turn()
    assert kueue.state("train") is REJECTED
    assert kueue.of("train").message == "invalid request: gpu: 150 is no multiple of 100"


@pytest.mark.parametrize(
    ("fields", "state", "message"),
    [
        ({"pod_sets": (pods(9, scheduler="default-scheduler"),)}, READY, "its pods are not scheduled by Berth"),
        ({"pod_sets": (), "problem": "ResourceFlavor a100 not found"}, RETRY, "ResourceFlavor a100 not found"),
    ],
)
def test_what_cannot_be_decided(fields: Mapping[str, Any], state: CheckState, message: str) -> None:
    kueue = Kueue({"a": 1})
    kueue.cluster.gangs.set_schedulers({names.SCHEDULER})
    kueue.submit("train", **fields)
    kueue.turn()
    assert (kueue.state("train"), kueue.of("train").message) == (state, message)
    assert not len(kueue.cluster.promises)


def test_pods_with_claims_are_decided_when_they_exist() -> None:
    kueue = Kueue({"a": 1})
    request = replace(asks({"cpu": 1000}), claims=(ClaimUse(claim="", pod="ns/pod"),))
    kueue.submit("train", PodSet(name="main", pods=(waiting(request=request),)))
    kueue.turn()
    assert kueue.state("train") is READY
    assert kueue.of("train").message.startswith("no places are promised: its pods use ResourceClaims")


# --- gathering ------------------------------------------------------------------------------------------------


def stream(kueue: Kueue, large: str, turns: int) -> int | None:
    """End a running pod each second while small workloads come; return after how many the large one is ready."""
    running = [(name, number) for name in sorted(kueue.fleet.charges) for number in [0]]
    for number in range(turns):
        if running:
            kueue.cluster.remove_bound(running.pop(0)[0])
        small = f"small-{number:03}"
        kueue.submit(small, pods(1))
        kueue.turn(SECOND)
        if kueue.state(small) is READY:
            kueue.change(small, admitted=True)
            kueue.come(small, 0)
            kueue.schedule()
            running.append((f"uid-{small}-0", 0))
        if kueue.state(large) is READY:
            return number
        if kueue.state(large) is RETRY:
            kueue.requeue(large)
    return None


@pytest.mark.parametrize(("gather", "starves"), [pytest.param(300, False, id="on"), pytest.param(0, True, id="off")])
def test_a_stream_of_small_workloads_does_not_starve_a_large_one(gather: int, *, starves: bool) -> None:
    kueue = Kueue({f"n{number}": 8 for number in range(8)}, of=CheckSettings(gather=gather))
    for number in range(8):
        for minor in range(8):
            kueue.hold(f"old-{number}-{minor}", minor, on=f"n{number}")
    kueue.submit("large", pods(64), created="0")
    kueue.turn()
    assert kueue.state("large") is (RETRY if starves else PENDING)
    if starves:
        kueue.requeue("large")
    ready = stream(kueue, "large", 130)
    assert (ready is None) is starves
    if not starves:
        assert ready == 63, "each card that became free was kept"


@pytest.mark.parametrize("large", [pods(2, 4), pods(3, 3)], ids=["whole nodes", "parts of nodes"])
def test_nodes_are_emptied_for_pods_with_many_cards(large: PodSet) -> None:
    kueue = Kueue(dict.fromkeys("abc", 4), of=CheckSettings(gather=1000))
    for number in range(12):
        kueue.hold(f"old-{number:02}", number // 3, on="abc"[number % 3])
    kueue.submit("large", large, created="0")
    kueue.turn()
    assert kueue.state("large") is PENDING
    ready = stream(kueue, "large", 60)
    assert ready is not None
    left = kueue.fleet.nominees.keys() - kueue.cluster.promises.of("ns/large")
    assert not any(uid.startswith("uid-large") for uid in left), "no node is reserved for it any more"


def test_gathering_ends_and_the_next_workload_has_its_turn() -> None:
    kueue = Kueue({"a": 4}, of=CheckSettings(gather=100, promise=1000))
    kueue.hold("x", 0)
    kueue.submit("first", pods(4))
    kueue.submit("second", pods(4))
    kueue.turn()
    assert (kueue.state("first"), kueue.state("second")) == (PENDING, RETRY)
    assert kueue.places("first") == {"a": 3}
    assert kueue.of("first").message.endswith("Places are gathered: 3 of 4 pod(s) have one.")
    kueue.requeue("second")
    kueue.turn(50)
    assert kueue.state("second") is RETRY
    kueue.requeue("second")
    kueue.turn(51)
    assert kueue.state("first") is RETRY
    kueue.turn()
    assert kueue.places("second") == {"a": 3} or kueue.state("second") is RETRY
    kueue.requeue("second")
    kueue.turn()
    assert kueue.places("second") == {"a": 3}
    kueue.requeue("first")
    kueue.turn()
    assert kueue.state("first") is RETRY, "another workload gathers"


def test_places_are_gathered_for_the_highest_priority() -> None:
    kueue = Kueue({"a": 4})
    kueue.hold("x", 0)
    kueue.submit("low", pods(4))
    kueue.turn()
    assert kueue.places("low") == {"a": 3}
    kueue.submit("high", pods(4, priority=10))
    kueue.turn()
    assert (kueue.state("low"), kueue.places("high")) == (RETRY, {"a": 3})
    kueue.cluster.remove_bound("uid-x")
    kueue.turn()
    assert kueue.state("high") is READY


def test_no_places_are_gathered_for_what_could_not_fit_in_the_empty_cluster() -> None:
    kueue = Kueue({"a": 4, "b": 4})
    kueue.hold("x", 0)
    kueue.submit("impossible", pods(3, 3))
    kueue.submit("possible", pods(8))
    kueue.turn()
    assert (kueue.state("impossible"), kueue.state("possible")) == (RETRY, PENDING)
    assert not kueue.places("impossible")


# --- lost places ----------------------------------------------------------------------------------------------


def test_a_pod_of_higher_priority_takes_a_place_only_where_it_fits_nowhere_else() -> None:
    kueue = Kueue({"a": 1, "b": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
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
    kueue = Kueue({"a": 2, "b": 2} if spare else {"a": 2})
    kueue.submit("train", pods(2))
    kueue.turn()
    [(place, _)] = kueue.places("train").items()
    kueue.change("train", admitted=admitted)
    kueue.turn(SECOND)
    match what:
        case "removed":
            kueue.cluster.remove_node(place)
        case "broken":
            kueue.cluster.put_device(device(place, entry(0, health=False), entry(1, health=False), generation=2))
        case "cordoned":
            kueue.cluster.put_node(node(place, unschedulable=True))
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


# --- the end of a promise -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        pytest.param(lambda kueue: kueue.cluster.remove_workload("ns/train"), False, id="deleted"),
        pytest.param(lambda kueue: kueue.change("train", finished=True), False, id="finished"),
        pytest.param(lambda kueue: kueue.change("train", has_quota=False), False, id="without quota"),
        pytest.param(lambda kueue: kueue.change("train", since="later"), False, id="another reservation of quota"),
        pytest.param(lambda kueue: kueue.change("train", uid="other"), False, id="another workload of the name"),
        pytest.param(lambda kueue: kueue.change("train", admitted=True), True, id="admitted"),
    ],
)
def test_places_are_given_up_with_the_quota(end: Any, *, kept: bool) -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
    kueue.put("other")
    assert not kueue.schedule()
    end(kueue)
    while kueue.check.follow():
        pass
    assert kueue.schedule() == ({} if kept else {"other": "a"})


def test_places_are_kept_for_a_time() -> None:
    kueue = Kueue({"a": 1}, of=CheckSettings(promise=100))
    kueue.submit("train", pods(1))
    kueue.turn()
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
    kueue = Kueue({"a": 1}, of=CheckSettings(promise=100))
    kueue.submit("train", pods(1))
    kueue.turn()
    kueue.turn(101)
    assert kueue.state("train") is RETRY
    assert not kueue.places("train")


# --- pods -----------------------------------------------------------------------------------------------------


def test_a_forged_annotation_takes_places_of_its_own_namespace_alone() -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
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
        kueue.cluster.put_node(node(name, labels={"rack": rack}))
        kueue.cluster.put_device(device(name, entry()))
    requests = [asks({NVIDIA: 1}, selector={"rack": rack}) for rack in ("r1", "r2")]
    kueue.submit("train", PodSet(name="main", pods=tuple(waiting(request=each) for each in requests)))
    kueue.turn()
    assert kueue.places("train") == {"a": 1, "b": 1}
    kueue.come("train", 1, nodeSelector={"rack": "r2"})
    assert kueue.places("train") == {"a": 1}
    assert kueue.schedule() == {"train-1": "b"}


def test_a_pod_that_goes_away_again_gives_its_place_up() -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
    kueue.come("train", 0)
    kueue.cluster.remove_pending("uid-train-0")
    kueue.put("other")
    assert kueue.schedule() == {"other": "a"}


def test_members_of_a_gang_have_alike_cards() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0))
    kueue.cluster.put_node(node("b"))
    kueue.cluster.put_device(device("b", entry(0, model=T4), entry(1, model=T4)))
    member = Membership(group="ns/g", minimum=3)
    kueue.submit("mixed", pods(3))
    kueue.turn()
    assert kueue.state("mixed") is READY
    kueue.cluster.remove_workload("ns/mixed")
    kueue.submit("alike", pods(3, gang=member))
    kueue.turn()
    assert kueue.state("alike") is RETRY
    kueue.submit("two", pods(2, gang=member))
    kueue.turn()
    assert kueue.state("two") is READY


# --- bounds ---------------------------------------------------------------------------------------------------


def test_the_number_of_promised_places_is_bounded() -> None:
    kueue = Kueue({f"n{number}": 8 for number in range(20)})
    size = fits_check.MAX_PLACES // 2
    share = waiting(request=asks({GPU: 1}))
    for name in ("first", "second", "third"):
        kueue.submit(name, PodSet(name="main", pods=(share,) * size))
    kueue.turn()
    assert [kueue.state(name) for name in ("first", "second", "third")] == [READY, READY, PENDING]
    assert len(kueue.cluster.promises) == fits_check.MAX_PLACES
    kueue.cluster.remove_workload("ns/first")
    kueue.turn(15)
    assert kueue.state("third") is READY


def test_a_workload_above_the_bound_keeps_as_many_places_as_there_may_be() -> None:
    kueue = Kueue({f"n{number}": 8 for number in range(20)})
    share = waiting(request=asks({GPU: 1}))
    kueue.submit("huge", PodSet(name="main", pods=(share,) * (fits_check.MAX_PLACES + 100)))
    kueue.turn()
    assert (kueue.state("huge"), len(kueue.cluster.promises)) == (READY, fits_check.MAX_PLACES)


# --- laws -----------------------------------------------------------------------------------------------------

FLEETS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 4), min_size=1)
SETS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=2)


def of_shape(shape: Sequence[tuple[int, int]]) -> tuple[PodSet, ...]:
    return tuple(pods(count, cards, f"set-{number}") for number, (count, cards) in enumerate(shape))


@given(FLEETS, st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 3)), max_size=4), st.integers(1, 4))
@settings(max_examples=60)
def test_a_pod_that_fits_by_decide_is_ready_and_no_other(
    nodes: dict[str, int], held: list[tuple[str, int]], cards: int
) -> None:
    kueue = Kueue(nodes, of=CheckSettings(gather=0))
    for number, (name, count) in enumerate(held):
        if name in nodes:
            kueue.hold(f"held-{number}", *range(count), on=name)
    outcome = decide(kueue.fleet, waiting("alone", {NVIDIA: cards}), POLICY)
    kueue.submit("train", pods(1, cards))
    kueue.turn()
    assert (kueue.state("train") is READY) == isinstance(outcome, Placement)
    if isinstance(outcome, Placement):
        assert kueue.places("train") == {outcome.node: 1}


class Law:
    """Random events, after each of which no card is given twice."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.kueue = Kueue(nodes)
        self.nodes = nodes
        self.number = itertools.count()
        self.waiting: dict[str, list[tuple[str, int]]] = {}
        """Ready workload -> (pod set, cards) of its pods that have not come."""

    def act(self, action: str, shape: Sequence[tuple[int, int]], pick: int) -> None:
        kueue, known = self.kueue, sorted(self.kueue.cluster.workloads.by_key)
        name = known[pick % len(known)].partition("/")[2] if known else ""
        match action:
            case "submit":
                new = f"w{next(self.number)}"
                kueue.submit(new, *of_shape(shape), priority=pick % 2)
            case "other pod":
                kueue.put(f"p{next(self.number)}", cards=shape[0][1])
            case "come" if name and kueue.state(name) is READY:
                self.come(name)
            case "end":
                bound = sorted(kueue.fleet.charges)
                if bound:
                    kueue.cluster.remove_bound(bound[pick % len(bound)])
            case "requeue" if name and kueue.state(name) is RETRY:
                kueue.requeue(name)
            case "delete" if name:
                kueue.cluster.remove_workload(f"ns/{name}")
                self.waiting.pop(name, None)
            case "leader":
                self.lead_again()
        kueue.turn(SECOND)
        kueue.schedule()
        self.check()

    def come(self, name: str) -> None:
        """Create all pods of a ready workload: each is placed at once, where its place was promised."""
        kueue = self.kueue
        kueue.change(name, admitted=True)
        promised = kueue.places(name)
        for pod_set in kueue.of(name).pod_sets:
            for number, each in enumerate(pod_set.pods):
                pod_name = f"{name}-{pod_set.name}-{number}"
                kueue.put(pod_name, workload=name, pod_set=pod_set.name, cards=cards_of(each))
        placed = {pod: node for pod, node in kueue.schedule().items() if pod.startswith(f"{name}-")}
        assert Counter(placed.values()) == promised
        assert promised.total() == sum(len(each.pods) for each in kueue.of(name).pod_sets)
        kueue.cluster.remove_workload(f"ns/{name}")

    def lead_again(self) -> None:
        """Begin another term: what was promised is on the same nodes."""
        before = {key: self.kueue.places(key.partition("/")[2]) for key in self.kueue.cluster.workloads.by_key}
        ready = {key for key, each in self.kueue.cluster.workloads.by_key.items() if each.state is READY}
        self.kueue = restarted(self.kueue)
        for key in ready:
            assert self.kueue.places(key.partition("/")[2]) == before[key], key

    def check(self) -> None:
        promises = [place for _, _, place in self.kueue.cluster.promises.all()]
        charges = [*self.kueue.fleet.charges.values(), *promises]
        held = Counter((each.node, grant.minor) for each in charges for grant in each.grants)
        assert max(held.values(), default=0) <= 1, "a card is given twice"
        assert len(self.kueue.cluster.promises) == sum(1 for _ in self.kueue.cluster.promises.all())
        for each in self.kueue.cluster.workloads.by_key.values():
            if each.state is READY:
                assert self.kueue.places(each.name).total() == sum(len(pod_set.pods) for pod_set in each.pod_sets)


def cards_of(each: PendingPod) -> int:
    return sum(part.count for part in each.request.devices.parts)


def restarted(old: Kueue) -> Kueue:
    """Return another leader's state, built from the same objects."""
    new = Kueue({})
    new.now, new.settings, new.numbers = old.now, old.settings, old.numbers
    for name, record in old.cluster.node_cache.nodes.items():
        new.cluster.put_node(node(name, unschedulable=record.info.cordoned))
    for name in old.fleet.rows:
        minors = [minor for minor in old.fleet.cards["gpu"].minor[old.fleet.rows[name]].tolist() if minor >= 0]
        new.cluster.put_device(device(name, *(entry(minor) for minor in minors)))
    for charge in old.fleet.charges.values():
        of_workload = charge.workload.split("/") if charge.workload else ()
        annotations = dict(zip((names.WORKLOAD, names.POD_SET), of_workload, strict=False))
        minors = [each.minor for each in charge.grants]
        new.hold(charge.pod.partition("/")[2], *minors, on=charge.node, annotations=annotations)
    for workload in old.cluster.workloads.by_key.values():
        new.cluster.put_workload(workload)
    new.check.restore()
    for waiting_pod in old.cluster.pending.values():
        if waiting_pod.uid not in old.fleet.charges:
            new.put(waiting_pod.name, cards=cards_of(waiting_pod))
    return new


ACTIONS = ("submit", "submit", "other pod", "come", "come", "end", "end", "requeue", "delete", "leader")


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1),
    st.lists(st.tuples(st.sampled_from(ACTIONS), SETS, st.integers(0, 1000)), max_size=25),
)
@settings(max_examples=80, deadline=None)
def test_no_card_is_given_twice_and_a_promise_is_kept(
    nodes: dict[str, int], actions: list[tuple[str, list[tuple[int, int]], int]]
) -> None:
    law = Law(nodes)
    for action in actions:
        law.act(*action)


# --- a new leader ---------------------------------------------------------------------------------------------


def test_a_new_leader_keeps_promises_before_any_pod_is_decided() -> None:
    kueue = Kueue({"a": 1, "b": 1, "c": 1})
    kueue.submit("train", pods(2))
    kueue.turn()
    promised = kueue.places("train")
    kueue.come("train", 0)
    placed = kueue.schedule()["train-0"]
    new = restarted(kueue)
    assert new.places("train") == promised - Counter([placed])


def test_a_new_leader_hands_places_to_pods_that_wait_already() -> None:
    kueue = Kueue({"a": 1, "b": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
    new = Kueue({"a": 1, "b": 1})
    new.come("train", 0)
    new.put("other-1")
    new.put("other-2")
    new.cluster.put_workload(kueue.of("train"))
    new.check.restore()
    assert not new.places("train")
    [place] = kueue.places("train")
    assert new.schedule()["train-0"] == place


@pytest.mark.parametrize(("admitted", "state"), [(False, RETRY), (True, READY)])
def test_what_a_new_leader_cannot_restore(*, admitted: bool, state: CheckState) -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
    new = Kueue({"a": 1})
    new.hold("x", 0)
    new.cluster.put_workload(replace(kueue.of("train"), admitted=admitted))
    new.check.restore()
    new.turn()
    assert new.state("train") is state
    assert "promised places were lost" in new.of("train").message


def test_old_promises_are_not_restored() -> None:
    kueue = Kueue({"a": 1})
    kueue.submit("train", pods(1))
    kueue.turn()
    for seconds, kept in ((200, 1), (400, 0)):
        new = Kueue({"a": 1})
        new.now = 1_000_000.0
        at = datetime.fromtimestamp(new.now - seconds, UTC)
        new.cluster.put_workload(replace(kueue.of("train"), admitted=True, admitted_at=times.time(at)))
        new.check.restore()
        assert new.places("train").total() == kept


def test_the_places_of_many_pod_sets_and_nodes_are_recorded() -> None:
    places = {"driver": ["n1"], "worker": ["n3", "n2", "n3"]}
    text = promise_note.note(places)
    assert text == "places for driver on n1; for worker on n2, n3 (2 pods)"
    assert {name: sorted(each) for name, each in promise_note.recorded(text, places).items()} == {
        "driver": ["n1"],
        "worker": ["n2", "n3", "n3"],
    }
    many = promise_note.note({"main": [f"node-{number}.example" for number in range(5000)]})
    assert len(many) < 8192
    assert len(promise_note.recorded(many, ["main"])["main"]) == promise_note.MAX_NODES
