"""Reservations of the extender between filter and bind, and how long they last, under virtual time."""

import asyncio
import copy
from typing import Any

import pytest

from berth_api.values import selectors
from berth_client.errors import Unreachable
from berth_operator.apis.extender.evictions import MAX_ERRORS
from berth_operator.apis.extender.reservations import MAX_SECONDS, PERIOD, UNSEEN_SECONDS
from berth_operator.binding.binder import BACKOFF
from berth_operator.core.decision.budgets import Budget
from tests.component.extender.extender_stage import WHOLE, Raw, Stage, asking
from tests.component.world import LATENCY, LostError, World, refusal
from tests.objects.builders import NVIDIA, node, pod, whole

pytestmark = pytest.mark.looptime

IN_FLIGHT = "the Binding of this pod is in flight; try again later"


def staged(*nodes: str, cards: int = 1, **options: Any) -> Stage:
    world = World()
    for name in nodes or ("a", "b"):
        world.add_node(name, cards)
    return Stage(world, **options)


# --- from filter to bind --------------------------------------------------------------------------------------------


async def test_two_pods_are_never_offered_the_same_card() -> None:
    stage = staged("a", "b")
    pods = [stage.create(asking(f"p{number}")) for number in range(3)]
    answers = [stage.filter(each) for each in pods]
    assert [list(each.names) for each in answers] == [["a"], ["b"], []]
    assert set(answers[2].failed) == {"a", "b"}
    async with stage.world.running() as api:
        assert await stage.bind(pods[0], "a") == ""
        assert await stage.bind(pods[1], "b") == ""
        assert api.bound() == {"p0": "a", "p1": "b"}


async def test_pods_of_berth_scheduler_do_not_get_what_is_reserved() -> None:
    stage = staged("a")
    stage.filter(first := stage.create(asking()))
    stage.world.submit(pod("ours", {NVIDIA: "1"}))
    async with stage.world.running() as api:
        await asyncio.sleep(1)
        assert api.bound() == {}
        stage.delete(first)
        await asyncio.sleep(1)
        assert api.bound() == {"ours": "a"}


async def test_what_berth_scheduler_assumed_is_not_offered() -> None:
    stage = staged("a")
    stage.world.submit(pod("ours", {NVIDIA: "1"}))
    async with stage.world.running():
        await asyncio.sleep(LATENCY / 2)
        assert not stage.filter(asking()).names


async def test_cpu_that_berth_scheduler_assumed_is_not_offered_before_kube_scheduler_sees_it() -> None:
    stage = staged("a")
    stage.world.submit(pod("ours", {"cpu": "60"}))
    async with stage.world.running() as api:
        await asyncio.sleep(LATENCY / 2)
        assert api.bound() == {}
        result = stage.filter(asking(requests={**WHOLE, "cpu": "8"}))
        assert result.failed == {"a": "Insufficient cpu"}
        assert stage.filter(asking("q", {**WHOLE, "cpu": "4"})).names == ["a"]


async def test_victims_for_cpu_are_kept_as_well() -> None:
    stage = staged("a")
    stage.world.submit(pod("big", {"cpu": "60"}, on="a"))
    raw = asking(requests={**WHOLE, "cpu": "8"}, priority=5)
    assert stage.filter(raw).failed == {"a": "Insufficient cpu"}
    assert stage.preempt(raw, {"a": ["uid-big"]}) == {"a": (["uid-big"], 0)}


async def test_a_newer_filter_replaces_the_reservation_and_the_former_node_comes_last() -> None:
    stage = staged("a", "b", "c")
    raw = stage.create(asking())
    chosen = [stage.filter(raw).names[0] for _ in range(6)]
    assert sorted(chosen[:3]) == ["a", "b", "c"], "each node is tried before one is tried again"
    assert sorted(chosen[3:]) == ["a", "b", "c"]
    assert stage.reserved() == {"p": chosen[-1]}
    assert stage.world.users() == 1


async def test_a_former_node_is_taken_if_there_is_no_other() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    assert [list(stage.filter(raw).names) for _ in range(2)] == [["a"], ["a"]]


async def test_a_nominated_node_that_was_rejected_comes_last_too() -> None:
    stage = staged("a", "b")
    raw = stage.create(asking(status={"nominatedNodeName": "b"}))
    assert [list(stage.filter(raw).names) for _ in range(2)] == [["b"], ["a"]]


async def test_a_newer_filter_without_a_node_ends_the_reservation() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    assert not stage.filter(raw, "ghost").names
    assert stage.reserved() == {}
    assert stage.filter(asking("q")).names == ["a"]


async def test_a_deleted_pod_frees_what_was_reserved() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.delete(raw)
    assert stage.reserved() == {}
    assert stage.world.users() == 0


async def test_a_pod_that_is_being_deleted_reserves_nothing_even_if_finalizers_keep_it() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    [(source, _)] = stage.waiting.sources(["default-scheduler"]).values()
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.watch.apply("MODIFIED", source.transform(copy.deepcopy(raw)))
    assert stage.reserved() == {}


async def test_pods_that_were_bound_count_for_the_typical_workload() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    assert stage.world.fleet.pod_mix.typical.constraints == ()
    async with stage.world.running():
        assert await stage.bind(raw, "a") == ""
    assert len(stage.world.fleet.pod_mix.typical.constraints) == 1


async def test_a_pod_that_kube_scheduler_bound_itself_is_charged_as_a_foreign_pod() -> None:
    stage = staged("a", "b")
    raw = stage.create(asking())
    assert stage.filter(raw).names == ["a"]
    # Without minors, and on another node; both watches show it, in either order.
    stage.world.pods.apply("ADDED", {**copy.deepcopy(raw), "spec": {**raw["spec"], "nodeName": "b"}})
    stage.watch.apply("DELETED", raw)
    assert stage.world.fleet.charges["uid-p"].node == "b"
    assert stage.world.users() == 0
    assert stage.filter(asking("q")).names == ["a"]


async def test_a_pod_that_is_shown_as_bound_is_not_decided_again() -> None:
    stage = staged("a", "b")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.world.pods.apply("ADDED", pod("p", WHOLE, on="a", allocated=whole(0)))
    assert stage.filter(raw).error == "pod ns/p is already bound to a"
    assert stage.world.users() == 1


async def test_the_watch_may_show_a_pod_as_gone_before_it_shows_it_as_bound() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.watch.apply("DELETED", raw)
    assert stage.world.users() == 0
    stage.world.pods.apply("ADDED", pod("p", WHOLE, on="a", allocated=whole(0)))
    assert stage.world.users() == 1


async def test_a_list_that_lacks_the_pod_ends_the_reservation() -> None:
    stage = staged("a")
    stage.filter(stage.create(asking()))
    stage.watch.listing(requested_at=0.0).end("")
    assert stage.reserved() == {}


# --- bind -----------------------------------------------------------------------------------------------------------


async def test_bind_decides_again_and_refuses_what_no_longer_fits() -> None:
    stage = staged("a", "b")
    raw = stage.create(asking())
    assert stage.filter(raw).names == ["a"]
    await asyncio.sleep(600)
    stage.world.cluster.node_cache.put_node(node("a", conditions=[{"type": "Ready", "status": "False"}]))
    async with stage.world.running() as api:
        assert await stage.bind(raw, "a") == "node a no longer fits: node(s) were not ready"
        assert api.binds == []
        assert stage.reserved() == {}
        assert stage.filter(raw).names == ["b"]


async def test_bind_needs_no_reservation_so_that_a_new_leader_can_bind() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    async with stage.world.running() as api:
        assert await stage.bind(raw, "a") == ""
        assert api.bound() == {"p": "a"}


async def test_a_pod_that_no_watch_has_shown_as_bound_yet_is_not_bound_again() -> None:
    stage = staged("a", "b")
    stage.create(asking(on="a"))
    async with stage.world.running() as api:
        assert await stage.bind(asking(), "b") == "pod ns/p is already bound to a"
        assert api.binds == []


async def test_bind_on_another_node_than_the_reserved_one_moves_the_reservation() -> None:
    stage = staged("a", "b")
    raw = stage.create(asking())
    assert stage.filter(raw).names == ["a"]
    async with stage.world.running() as api:
        assert await stage.bind(raw, "b") == ""
        assert api.bound() == {"p": "b"}
        assert stage.world.users() == 1


async def test_a_binding_without_an_answer_is_an_error_in_time_and_is_sent_until_answered() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.world.api.always["bind p"] = Unreachable("no route")
    async with stage.world.running() as api:
        began = asyncio.get_running_loop().time()
        assert await stage.bind(raw, "a") == (
            "the API server has not answered within 4 s; the Binding of ns/p may still succeed"
        )
        assert asyncio.get_running_loop().time() - began == pytest.approx(4)
        assert stage.filter(raw).error == IN_FLIGHT
        assert await stage.bind(raw, "a") == IN_FLIGHT
        stage.watch.apply("DELETED", raw)
        assert stage.world.users() == 1, "the card stays charged, because the Binding may still succeed"
        del api.always["bind p"]
        await asyncio.sleep(2 * BACKOFF.longest)
        assert api.bound() == {"p": "a"}
        assert stage.filter(raw).error == "pod ns/p is already bound to a"


async def test_a_lost_answer_of_a_binding_is_success() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.world.api.faults["bind p"] = [LostError("the answer got lost")]
    async with stage.world.running() as api:
        assert await stage.bind(raw, "a") == ""
        assert len(api.binds) == 2


async def test_a_refused_binding_is_an_error_and_frees_the_card() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.world.api.faults["bind p"] = [refusal(422, "berth-fence: this term is over")]
    async with stage.world.running() as api:
        assert await stage.bind(raw, "a") == "berth-fence: this term is over"
        assert stage.reserved() == {}
        assert api.patches == [], "kube-scheduler reports about its pods itself"
        assert stage.filter(raw).names == ["a"]
        assert await stage.bind(raw, "a") == ""


async def test_a_pod_that_was_deleted_before_its_bind_is_an_error_and_frees_the_card() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    del stage.world.api.pods["p"]
    async with stage.world.running():
        assert await stage.bind(raw, "a") == "pods p not found"
        assert stage.reserved() == {}


async def test_after_the_term_nothing_is_bound() -> None:
    stage = staged("a")
    raw = stage.create(asking())
    stage.filter(raw)
    stage.world.term = None
    assert await stage.bind(raw, "a") == "this replica no longer leads"
    assert stage.world.api.binds == []


async def test_a_replaced_pod_of_the_same_name_is_not_bound() -> None:
    stage = staged("a")
    stage.filter(stage.create(asking()))
    stage.create(asking(uid="new"))
    async with stage.world.running():
        assert await stage.bind(asking(uid="gone"), "a") == "pod ns/p has UID new, not gone"


# --- limits ---------------------------------------------------------------------------------------------------------


async def test_reservations_of_pods_that_no_watch_shows_end() -> None:
    stage = staged("a", "b")
    task = asyncio.create_task(stage.extender.reservations.run())
    stage.filter(asking("unseen"))
    stage.filter(stage.create(asking("seen")))
    await asyncio.sleep(UNSEEN_SECONDS + PERIOD + 1)
    assert list(stage.reserved()) == ["seen"]
    await asyncio.sleep(MAX_SECONDS)
    assert stage.reserved() == {}
    task.cancel()


async def test_reservations_are_limited() -> None:
    stage = staged("a", "b", reservations=1)
    assert stage.filter(asking("p")).names == ["a"]
    assert stage.filter(asking("q")).error.startswith("Berth holds 1 reservations of pods that are not bound")
    assert stage.filter(asking("p")).names == ["b"], "a pod that has a reservation may get another"


# --- several nodes --------------------------------------------------------------------------------------------------


async def test_further_nodes_yield_to_a_pod_that_would_wait() -> None:
    stage = staged("a", "b", nodes=2)
    raw, other = stage.create(asking()), stage.create(asking("q"))
    assert stage.filter(raw).names == ["a", "b"]
    assert stage.reserved() == {"p": "a"}
    assert stage.filter(other).names == ["b"]
    assert stage.reserved() == {"p": "a", "q": "b"}
    assert stage.world.fleet.nominees == {}
    async with stage.world.running() as api:
        assert (await stage.bind(raw, "b")).startswith("node b no longer fits: ")
        assert stage.filter(raw).names == ["a"]
        assert await stage.bind(raw, "a") == ""
        assert await stage.bind(other, "b") == ""
        assert api.bound() == {"p": "a", "q": "b"}


async def test_further_nodes_are_avoided_while_there_are_others() -> None:
    stage = staged("a", "b", "c", nodes=2)
    assert stage.filter(stage.create(asking())).names == ["a", "b"]
    assert stage.filter(stage.create(asking("q"))).names == ["c"]


async def test_further_nodes_yield_to_pods_of_berth_scheduler() -> None:
    stage = staged("a", "b", nodes=2)
    raw = stage.create(asking())
    assert stage.filter(raw).names == ["a", "b"]
    stage.world.submit(pod("ours", {NVIDIA: "1"}), pod("more", {NVIDIA: "1"}))
    async with stage.world.running() as api:
        await asyncio.sleep(1)
        assert api.bound() == {"ours": "b"}
        assert await stage.bind(raw, "a") == ""


async def test_further_nodes_are_free_once_the_pod_is_bound_or_deleted() -> None:
    stage = staged("a", "b", nodes=2)
    raw = stage.create(asking())
    stage.filter(raw)
    async with stage.world.running():
        assert await stage.bind(raw, "a") == ""
    assert not stage.world.cluster.spares
    assert stage.world.fleet.nominees == {}
    stage.filter(other := stage.create(asking("q")))
    stage.delete(other)
    assert stage.world.fleet.nominees == {}


async def test_a_further_node_can_be_bound() -> None:
    stage = staged("a", "b", nodes=2)
    raw = stage.create(asking())
    stage.filter(raw)
    async with stage.world.running() as api:
        assert await stage.bind(raw, "b") == ""
        assert api.bound() == {"p": "b"}
        assert stage.world.users() == 1


# --- preemption -----------------------------------------------------------------------------------------------------


def budget(*, allowed: int) -> Budget:
    """Return a budget for the pods with label app=db."""
    return Budget(namespace="ns", selector=selectors.read({"matchLabels": {"app": "db"}}), allowed=allowed)


def low(name: str, *minors: int, on: str = "a", priority: int = 0, **fields: Any) -> Raw:
    return pod(name, {NVIDIA: len(minors)}, on=on, allocated=whole(*minors), priority=priority, **fields)


async def test_victims_are_kept_if_the_pod_fits_without_them_and_others_are_added_if_not() -> None:
    stage = staged("a", "b", cards=2)
    stage.world.submit(low("a0", 0), low("a1", 1, priority=1), low("b0", 0, on="b"), low("b1", 1, on="b", priority=9))
    one, two = asking(requests={NVIDIA: 1}, priority=5), asking(requests={NVIDIA: 2}, priority=5)
    proposed = {"a": ["uid-a1"], "b": ["uid-b0"]}
    assert stage.preempt(one, proposed) == {"a": (["uid-a1"], 0), "b": (["uid-b0"], 0)}
    # b1 has a higher priority, so that two cards can only become free on a.
    assert stage.preempt(two, proposed) == {"a": (["uid-a1", "uid-a0"], 0)}


async def test_only_as_many_further_victims_as_needed_and_the_least_important() -> None:
    stage = staged("a", cards=4)
    stage.world.submit(*(low(f"p{minor}", minor, priority=minor) for minor in range(4)))
    raw = asking(requests={NVIDIA: 2}, priority=5)
    assert stage.preempt(raw, {"a": ["uid-p3"]}) == {"a": (["uid-p3", "uid-p0"], 0)}


async def test_the_model_matters_and_not_only_the_number() -> None:
    stage = staged("a", cards=1)
    stage.world.submit(low("held", 0))
    raw = asking(priority=5, annotations={"nvidia-gpu-scheduler/gpu.model": "H100"})
    assert stage.preempt(raw, {"a": ["uid-held"]}) == {}


async def test_violations_of_budgets_are_counted() -> None:
    stage = staged("a", cards=3)
    stage.world.submit(*(low(f"p{minor}", minor, labels={"app": "db"}) for minor in range(3)))
    stage.world.cluster.budgets.put("ns/db", budget(allowed=1))
    raw = asking(requests={NVIDIA: 3}, priority=5)
    assert stage.preempt(raw, {"a": ["uid-p0"]}) == {"a": (["uid-p0", "uid-p1", "uid-p2"], 2)}


async def test_unprotected_pods_are_preferred_as_further_victims() -> None:
    stage = staged("a", cards=3)
    stage.world.submit(low("p0", 0, labels={"app": "db"}), low("p1", 1, priority=2), low("p2", 2, priority=3))
    stage.world.cluster.budgets.put("ns/db", budget(allowed=0))
    raw = asking(requests={NVIDIA: 2}, priority=5)
    assert stage.preempt(raw, {"a": ["uid-p1"]}) == {"a": (["uid-p1", "uid-p2"], 0)}


async def test_a_reservation_is_no_victim_unless_kube_scheduler_names_it() -> None:
    stage = staged("a", cards=2)
    stage.world.submit(low("placed", 0))
    reserved = stage.create(asking("reserved", {NVIDIA: 1}))
    assert stage.filter(reserved).names == ["a"]
    raw = asking(requests={NVIDIA: 2}, priority=5)
    assert stage.preempt(raw, {"a": ["uid-placed"]}) == {}
    assert stage.preempt(raw, {"a": ["uid-placed", "uid-reserved"]}) == {"a": (["uid-placed", "uid-reserved"], 0)}


async def test_what_victims_free_is_kept_for_the_nominated_pod() -> None:
    stage = staged("a")
    stage.world.submit(victim := low("victim", 0))
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.world.change(victim)
    raw = stage.create(asking(priority=5, status={"nominatedNodeName": "a"}))
    assert not stage.filter(raw).names
    stage.world.submit(pod("ours", {NVIDIA: "1"}))
    async with stage.world.running() as api:
        stage.world.delete("victim")
        await asyncio.sleep(1)
        assert api.bound() == {}
        assert stage.filter(raw).names == ["a"]
        assert await stage.bind(raw, "a") == ""


@pytest.mark.parametrize("is_leaving", [False, True])
@pytest.mark.parametrize("is_nominated", [False, True])
async def test_no_more_pods_are_evicted_while_our_watch_does_not_show_yet_that_the_victim_is_gone(
    *, is_leaving: bool, is_nominated: bool
) -> None:
    """kube-scheduler tries a pod again in the milliseconds after its last victim is gone."""
    stage = staged("a", "b")
    stage.world.submit(victim := low("victim", 0))
    stage.world.submit(low("other", 0, on="b"))
    raw = stage.create(asking(priority=5))
    assert not stage.filter(raw).error
    assert stage.preempt(raw, {"a": ["uid-victim"]}) == {"a": (["uid-victim"], 0)}
    if is_nominated:
        raw["status"] = {"nominatedNodeName": "a"}
    if is_leaving:
        victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        stage.world.change(victim)
    assert stage.filter(raw).error == "node a still has pods that were evicted for this pod"
    stage.world.delete("victim")
    assert stage.filter(raw).names == ["a"]


async def test_no_more_pods_are_evicted_as_long_as_the_victim_is_seen_to_leave() -> None:
    """After an error, kube-scheduler withdraws its nomination."""
    stage = staged("a", "b")
    stage.world.submit(victim := low("victim", 0))
    stage.world.submit(low("other", 0, on="b"))
    raw = stage.create(asking(priority=5))
    stage.preempt(raw, {"a": ["uid-victim"], "b": ["uid-other"]})
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.world.change(victim)
    for _ in range(2 * MAX_ERRORS):
        assert stage.filter(raw).error == "node a still has pods that were evicted for this pod"
        assert [nominee.node for nominee in stage.world.fleet.nominees.values()] == ["a"]
    stage.world.delete("victim")
    assert stage.filter(raw).names == ["a"]


async def test_no_more_pods_are_evicted_while_victims_terminate_and_kube_scheduler_does_not_know_the_nomination() -> (
    None
):
    stage = staged("a", "b")
    stage.world.submit(victim := low("victim", 0))
    stage.world.submit(low("other", 0, on="b"))
    raw = stage.create(asking(priority=5))
    proposed = {"b": ["uid-other"], "a": ["uid-victim"]}
    assert stage.preempt(raw, proposed) == {"b": (["uid-other"], 0), "a": (["uid-victim"], 0)}
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.world.change(victim)
    assert not stage.filter(raw, "c").error
    assert stage.preempt(raw, proposed) == {}
    another = stage.create(asking("another", priority=5))
    assert set(stage.preempt(another, proposed)) == {"a", "b"}, "for another pod nothing was evicted"


@pytest.mark.parametrize(
    ("offered", "priority", "errors"),
    [
        pytest.param(["a", "b"], 0, MAX_ERRORS, id="the eviction has failed"),
        pytest.param(["b"], 0, 0, id="kube-scheduler sees the victim as well"),
        pytest.param(["a", "b"], 5, 0, id="a pod of the same priority has taken the node"),
    ],
)
async def test_a_pod_may_preempt_again(offered: list[str], priority: int, errors: int) -> None:
    stage = staged("a", "b")
    stage.world.submit(low("victim", 0))
    stage.world.submit(low("other", 0, on="b"))
    raw = stage.create(asking(priority=5))
    stage.preempt(raw, {"a": ["uid-victim"]})
    stage.world.delete("victim")
    stage.world.submit(low("taker", 0, priority=priority))
    raw["status"] = {"nominatedNodeName": "a"}
    answers = [stage.filter(raw, *offered) for _ in range(MAX_ERRORS + 2)]
    assert [bool(each.error) for each in answers] == [number < errors for number in range(MAX_ERRORS + 2)]
    assert set(answers[-1].failed) == set(offered)


async def test_a_pod_that_preempts_nothing_is_rejected_without_an_error() -> None:
    stage = staged("a")
    stage.world.submit(low("placed", 0))
    assert not stage.filter(stage.create(asking(priority=5, status={"nominatedNodeName": "a"}))).error


async def test_what_is_kept_for_a_nominated_pod_is_free_once_it_is_deleted() -> None:
    stage = staged("a")
    stage.world.submit(victim := low("victim", 0))
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.world.change(victim)
    raw = stage.create(asking(priority=5, status={"nominatedNodeName": "a"}))
    stage.filter(raw)
    assert list(stage.world.fleet.nominees) == ["uid-p"]
    stage.delete(raw)
    assert stage.world.fleet.nominees == {}


async def test_a_pod_of_berth_scheduler_may_displace_a_nominated_pod_of_kube_scheduler() -> None:
    stage = staged("a")
    stage.world.submit(victim := low("victim", 0))
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    stage.world.change(victim)
    stage.filter(stage.create(asking(priority=5, status={"nominatedNodeName": "a"})))
    stage.world.submit(pod("above", {NVIDIA: "1"}, priority=9))
    async with stage.world.running() as api:
        await asyncio.sleep(1)
        assert list(stage.world.fleet.nominees) == ["uid-above"]
        stage.world.delete("victim")
        await asyncio.sleep(1)
        assert api.bound() == {"above": "a"}
