"""The AdmissionCheck: which workloads get promised places, which wait, and for which places are gathered."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.request.model import ModelConstraint
from berth_operator.apis.visibility.sources import QueueRows
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.pod_admission import PriorityClass
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.quota_workload import CheckSettings, CheckState, PodSet
from berth_operator.state.objects.pod_admission import of_pod
from tests.objects.builders import GPU, INSTANCES, NVIDIA, asks, device, entry, node, waiting
from tests.unit.binding.workloads.kueue import PENDING, POLICY, READY, REJECTED, RETRY, SECOND, Kueue, pods


def test_places_are_promised_and_handed_over() -> None:
    kueue = Kueue({"a": 2, "b": 2})
    kueue.ask("train", pods(3))
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


@pytest.mark.parametrize("gather", [0, 600])
def test_a_workload_does_not_wait_for_a_pod_that_was_deleted_long_ago_and_stays(gather: int) -> None:
    kueue = Kueue({"a": 2, "b": 2}, of=CheckSettings(gather=gather))
    kueue.hold("x", 0, 1, metadata={"deletionTimestamp": "1970-01-01T00:10:00Z"})
    kueue.now += 1000
    assert kueue.cluster.leaving_pods.expire()
    kueue.ask("train", pods(4))
    assert kueue.state("train") is RETRY


def test_a_workload_without_places_returns_its_quota_for_longer_each_time() -> None:
    kueue = Kueue({"a": 2, "b": 1})
    kueue.hold("x", 0, 1)
    kueue.settings = CheckSettings(gather=0)
    kueue.submit("train", pods(2))
    pauses = []
    for _ in range(8):
        kueue.turn()
        assert kueue.state("train") is RETRY
        pauses.append(kueue.last["train"].requeue_after)
        kueue.requeue("train")
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    assert kueue.last["train"].message.startswith("0/2 nodes are available: ")
    assert not kueue.places("train")


def test_it_waits_with_its_quota_for_pods_that_end_soon() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0))
    kueue.hold("x", 0, 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    kueue.submit("train", pods(1))
    kueue.ask("large", pods(3))
    assert (kueue.state("train"), kueue.state("large")) == (PENDING, RETRY)
    assert kueue.of("train").message.endswith("Places may be free within 60 s.")
    kueue.cluster.remove_bound("uid-x")
    kueue.turn()
    assert kueue.state("train") is READY


def test_it_does_not_wait_for_them_for_ever() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(gather=0, pending=10))
    kueue.hold("x", 0, 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    kueue.ask("train", pods(1))
    kueue.turn(9)
    assert kueue.state("train") is PENDING
    kueue.turn(2)
    assert kueue.state("train") is RETRY


# --- elastic jobs, and other checks ---------------------------------------------------------------------------


def grown(**fields: Any) -> dict[str, Any]:
    """Return the fields of the second slice of an elastic job."""
    return {"slice_name": "train-1", "grows": True, **fields}


def test_a_job_that_grows_gets_places_for_its_new_pods_alone() -> None:
    kueue = Kueue({"a": 3})
    kueue.ask("train-1", pods(1), slice_name="train-1")
    kueue.come("train-1", 0)
    kueue.schedule()
    kueue.change("train-1", finished=True)
    kueue.ask("train-2", pods(3), **grown())
    assert kueue.state("train-2") is READY
    assert kueue.places("train-2") == {"a": 2}
    # They name the first slice, as the Job's template does.
    for number in (1, 2):
        kueue.come("train-1", number)
    assert len(kueue.schedule()) == 2
    assert not len(kueue.cluster.promises)


@pytest.mark.parametrize("end", ["nothing ends", "something ends", "lost"])
def test_a_job_that_cannot_grow_keeps_its_quota_as_its_pods_run(end: str) -> None:
    kueue = Kueue({"a": 3}, of=CheckSettings(pending=10))
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if end == "something ends" else {}
    kueue.hold("other", 1, metadata=metadata)
    kueue.hold("train", 0, annotations={names.WORKLOAD: "train-1", names.POD_SET: "main"})
    kueue.ask("train-2", pods(2 if end == "lost" else 3), **grown())
    if end == "lost":
        assert kueue.state("train-2") is READY
        kueue.cluster.node_cache.put_device(device("a", entry(0), entry(1), entry(2, health=False), generation=2))
    for _ in range(20):
        kueue.turn(SECOND)
    assert kueue.state("train-2") is PENDING
    assert not kueue.places("train-2")
    kueue.cluster.node_cache.put_device(device("a", *(entry(minor) for minor in range(3)), generation=3))
    kueue.cluster.remove_bound("uid-other")
    for _ in range(70):
        kueue.turn(SECOND)
    assert kueue.state("train-2") is READY


def test_a_workload_is_decided_after_the_checks_of_others() -> None:
    """They may create its nodes."""
    kueue = Kueue({"a": 1})
    kueue.ask("train", pods(2), waits_for_others=True)
    assert kueue.state("train") is PENDING
    kueue.cluster.node_cache.put_node(node("b"))
    kueue.cluster.node_cache.put_device(device("b", entry(0)))
    kueue.change("train", waits_for_others=False)
    kueue.turn()
    assert kueue.state("train") is READY


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
            kueue.cluster.node_cache.put_device(device("a", entry(0), entry(1, health=False), generation=2))
        case "no Device":
            kueue.cluster.node_cache.put_node(node("a"))
        case "cordoned":
            kueue.cluster.node_cache.put_node(node("a", unschedulable=True))
        case "tainted":
            kueue.cluster.node_cache.put_node(node("a", taints=[{"key": "x", "effect": "NoSchedule"}]))
        case "silent":
            kueue.fleet.set_fresh("a", fresh=False)
    kueue.ask("train", pod_set)
    assert kueue.state("train") is (REJECTED if rejected else RETRY)
    kueue.settings = CheckSettings(gather=0, fleet_grows=True)
    kueue.ask("grows", pod_set)
    assert kueue.state("grows") is RETRY


def test_an_invalid_request_is_rejected_even_if_the_fleet_grows() -> None:
    kueue = Kueue({"a": 2}, of=CheckSettings(fleet_grows=True))
    kueue.ask("train", PodSet(name="main", pods=(waiting(error="gpu: 150 is no multiple of 100"),)))
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
    kueue.ask("train", **fields)
    assert (kueue.state("train"), kueue.of("train").message) == (state, message)
    assert not len(kueue.cluster.promises)


def test_pods_with_claims_are_decided_when_they_exist() -> None:
    kueue = Kueue({"a": 1})
    request = replace(asks({"cpu": 1000}), claims=(ClaimUse(claim="", pod="ns/pod"),))
    kueue.ask("train", PodSet(name="main", pods=(waiting(request=request),)))
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
    kueue = Kueue({f"n{number}": 4 for number in range(4)}, of=CheckSettings(gather=gather))
    for number in range(4):
        for minor in range(4):
            kueue.hold(f"old-{number}-{minor}", minor, on=f"n{number}")
    kueue.ask("large", pods(16), created="0")
    assert kueue.state("large") is (RETRY if starves else PENDING)
    if starves:
        kueue.requeue("large")
    ready = stream(kueue, "large", 40)
    assert (ready is None) is starves
    if not starves:
        assert ready == 15, "each card that became free was kept"


@pytest.mark.parametrize("large", [pods(2, 4), pods(3, 3)], ids=["whole nodes", "parts of nodes"])
def test_nodes_are_emptied_for_pods_with_many_cards(large: PodSet) -> None:
    kueue = Kueue(dict.fromkeys("abc", 4), of=CheckSettings(gather=1000))
    for number in range(12):
        kueue.hold(f"old-{number:02}", number // 3, on="abc"[number % 3])
    kueue.ask("large", large, created="0")
    assert kueue.state("large") is PENDING
    ready = stream(kueue, "large", 60)
    assert ready is not None
    left = kueue.fleet.nominees.keys() - kueue.cluster.promises.of("ns/large")
    assert not any(uid.startswith("uid-large") for uid in left), "no node is reserved for it any more"


def test_places_that_were_gathered_are_released_once_a_quota_refuses_the_pods() -> None:
    kueue = Kueue({"a": 4}, of=CheckSettings(gather=100))
    kueue.hold("x", 0)
    rules = kueue.cluster.admission_rules
    rules.put_priority_class("usual", PriorityClass())
    named = tuple(replace(pod, admission=of_pod({"priorityClassName": "usual"})) for pod in pods(4).pods)
    kueue.ask("train", PodSet(name="main", pods=named))
    assert kueue.places("train") == {"a": 3}
    rules.remove_priority_class("usual")
    kueue.turn(10)
    assert kueue.places("train") == {}


def test_gathering_ends_and_the_next_workload_has_its_turn() -> None:
    kueue = Kueue({"a": 4}, of=CheckSettings(gather=100, promise=1000))
    kueue.hold("x", 0)
    kueue.submit("first", pods(4))
    kueue.ask("second", pods(4))
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


def test_after_places_were_gathered_in_vain_such_workloads_wait_for_the_next_time() -> None:
    kueue = Kueue({"a": 4}, of=CheckSettings(gather=450))
    kueue.hold("x", 0)
    kueue.submit("first", pods(4))
    for pause in (1800, 3600):
        for _ in range(2):
            kueue.turn()
            assert kueue.places("first") == {"a": 3}
            kueue.turn(451)
            assert (kueue.state("first"), kueue.places("first")) == (RETRY, {})
            kueue.requeue("first")
        for seconds in (1, pause - 2):
            kueue.turn(seconds)
            assert (kueue.state("first"), kueue.places("first")) == (RETRY, {})
            kueue.requeue("first")
        kueue.now += 2


def test_places_that_become_free_are_not_gathered_in_vain() -> None:
    kueue = Kueue({"a": 4}, of=CheckSettings(gather=1000))
    for minor, name in enumerate("xyz"):
        kueue.hold(name, minor)
    kueue.ask("first", pods(4))
    kueue.cluster.remove_bound("uid-y")
    kueue.turn(500)
    kueue.turn(501)
    assert kueue.state("first") is RETRY
    kueue.requeue("first")
    kueue.turn()
    assert kueue.places("first") == {"a": 2}


def test_no_places_are_gathered_for_what_would_need_the_end_of_pods_of_the_same_rollout() -> None:
    kueue = Kueue({"a": 4})
    kueue.hold("old", 0, labels={"app": "llm", "pod-template-hash": "5f"})
    new = Identity(namespace="ns", labels=(("app", "llm"), ("pod-template-hash", "6c")))
    kueue.ask("new", PodSet(name="main", pods=(waiting("new", replace(asks({NVIDIA: 4}), identity=new)),)))
    assert kueue.state("new") is RETRY


def test_places_are_gathered_for_the_highest_priority() -> None:
    kueue = Kueue({"a": 4})
    kueue.hold("x", 0)
    kueue.ask("low", pods(4))
    assert kueue.places("low") == {"a": 3}
    kueue.ask("high", pods(4, priority=10))
    assert (kueue.state("low"), kueue.places("high")) == (RETRY, {"a": 3})
    kueue.cluster.remove_bound("uid-x")
    kueue.turn()
    assert kueue.state("high") is READY


def test_no_places_are_gathered_for_what_could_not_fit_in_the_empty_cluster() -> None:
    kueue = Kueue({"a": 4, "b": 4})
    kueue.hold("x", 0)
    kueue.submit("impossible", pods(3, 3))
    kueue.ask("possible", pods(8))
    assert (kueue.state("impossible"), kueue.state("possible")) == (RETRY, PENDING)
    assert not kueue.places("impossible")


# --- too many promises ----------------------------------------------------------------------------------------


def shares(count: int, priority: int = 0) -> PodSet:
    """Return pods that each request a hundredth of a card."""
    return PodSet(name="main", pods=(waiting(request=asks({GPU: 1}), priority=priority),) * count)


def wide() -> Kueue:
    """Return Kueue on 160 cards."""
    return Kueue({f"n{number:02}": 8 for number in range(20)})


def rows(kueue: Kueue) -> dict[str, str]:
    """Return the workloads in the visibility API's queue, and why they wait."""
    shown = [row.render() for row in QueueRows(kueue.cluster).rows() if row is not None]
    return {row["metadata"]["name"]: row["message"] for row in shown if row is not None}


def test_a_workload_that_needs_more_places_than_are_left_is_not_passed_by_those_that_come_later() -> None:
    kueue = wide()
    for name, size in {"first": 500, "large": 900, "small": 1}.items():
        kueue.ask(name, shares(size))
        kueue.turn(SECOND)
    assert [kueue.state(name) for name in ("first", "large", "small")] == [READY, PENDING, PENDING]
    why = "at most 1,000 places are promised at once, and other workloads have them or come first."
    assert kueue.of("large").message == f"{why} 900 place(s) are needed."
    assert kueue.of("small").message == f"{why} 1 place(s) are needed."
    assert rows(kueue) == {"workload:large": why, "workload:small": why}
    kueue.ask("urgent", shares(1, priority=1))
    assert kueue.state("urgent") is READY
    kueue.cluster.workloads.remove("ns/first")
    kueue.turn()
    assert [kueue.state(name) for name in ("large", "small")] == [READY, READY]
    assert len(kueue.cluster.promises) == 902
    assert not rows(kueue)


def test_those_that_come_later_wait_no_longer_than_the_first_one() -> None:
    kueue = wide()
    for name, size in {"first": 500, "large": 900, "small": 1}.items():
        kueue.ask(name, shares(size))
    kueue.change("large", has_quota=False)
    kueue.turn()
    assert kueue.state("small") is READY


def requeue_all(kueue: Kueue) -> None:
    for workload in list(kueue.cluster.workloads.by_key.values()):
        if workload.state is RETRY:
            kueue.requeue(workload.name)


def test_a_stream_of_small_workloads_does_not_starve_one_that_needs_nearly_all_places() -> None:
    kueue = wide()
    kueue.ask("some", shares(150))
    kueue.ask("large", shares(900))
    for number in range(12):
        kueue.ask(f"small-{number}", shares(10))
        kueue.turn(kueue.settings.promise / 10)
        requeue_all(kueue)
    assert kueue.state("large") is READY


def test_a_workload_does_not_wait_for_promised_places_for_ever() -> None:
    kueue = wide()
    kueue.ask("urgent-0", shares(200, priority=1))
    kueue.ask("large", shares(900))
    kueue.turn(100)
    kueue.ask("urgent-1", shares(200, priority=1))
    for _ in range(8):
        assert kueue.state("large") is PENDING
        requeue_all(kueue)
        kueue.turn(100)
    assert kueue.state("large") is RETRY


@pytest.mark.parametrize("size", [999, 1001])
def test_places_for_pods_that_controllers_create_later_delay_no_workload(size: int) -> None:
    kueue = wide()
    later = decide(kueue.fleet, waiting("later", {NVIDIA: 1}, workload="LeaderWorkerSet group ns/x"), POLICY)
    assert isinstance(later, Placement)
    others = [replace(later, pod=replace(later.pod, uid=f"later-{number}")) for number in range(2)]
    kueue.cluster.promises.keep("LeaderWorkerSet group ns/x", others)
    kueue.ask("large", shares(size))
    assert kueue.state("large") is READY
    assert kueue.places("large").total() == 998
