"""Pods that are moved for others, with controllers that create them again, under virtual time."""

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from berth_api import names
from berth_client.errors import ApiError
from berth_operator.binding.evictions import defragmenter
from berth_operator.binding.evictions.defragmenter import Defragmenter
from berth_operator.state.cache import leaving_pods
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.watches import sinks
from tests.component.world import World, refusal
from tests.objects.builders import Raw, charge, owner, pod, waiting, whole

pytestmark = pytest.mark.looptime

T = TypeVar("T")
CARD, TWO, FOUR = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "4"}
YES, NO = {names.MOVABLE: "true"}, {names.MOVABLE: "false"}
AFTER = 30.0


class City(World):
    """A world whose bound pods have controllers, which create them again as soon as they are deleted."""

    def __init__(self, *, most: int = 1, after: float = AFTER, recreates: bool = True) -> None:
        self.tenants = Tenants()
        super().__init__(tenants=self.tenants)
        self.recreates = recreates
        self.created: list[str] = []
        assert self.moves is not None
        self.defragmenter = Defragmenter(
            cluster=self.cluster,
            moves=self.moves,
            preemptor=self.preemptor,
            pods=self.api,
            reporter=self.reporter,
            policies=lambda: self.policies,
            leads=lambda: self.term is not None,
            most=most,
            after=after,
            run_search=self._search,
        )
        self.searches = 0
        self.on_searched: Callable[[], None] = lambda: None

    async def _search(self, search: Callable[[], T]) -> T:
        """Run a search in the loop: virtual time would not wait for a thread."""
        found = search()
        self.searches += 1
        self.on_searched()
        return found

    def cards(self, **cards: int) -> "City":
        for name, count in cards.items():
            self.add_node(name, count, labels={"host": name})
        return self

    def settle(
        self, name: str, node: str, *minors: int, annotations: Mapping[str, str] = YES, by: str = "set", **fields: Any
    ) -> "City":
        """Bind a pod to these cards of a node."""
        owners = {"ownerReferences": [owner(by)]} if by else {}
        requests = {"nvidia.com/gpu": str(len(minors))}
        placed = pod(
            name, requests, on=node, allocated=whole(*minors), annotations=dict(annotations), metadata=owners, **fields
        )
        self.submit(placed)
        return self

    def terminate(self, name: str) -> None:
        super().terminate(name)
        gone = self.api.pods[name]
        if self.recreates and gone["metadata"].get("ownerReferences"):
            again = pod(
                f"{name}-again",
                gone["spec"]["containers"][0]["resources"]["requests"],
                metadata={"ownerReferences": gone["metadata"]["ownerReferences"]},
                annotations={each: text for each, text in gone["metadata"]["annotations"].items() if each in YES},
                created="2026-01-02T00:00:00Z",
            )
            self.created.append(again["metadata"]["name"])
            asyncio.get_running_loop().call_later(0.1, self.submit, again)

    def budget(self, allowed: int) -> None:
        raw = {
            "metadata": {"name": "b", "namespace": "ns"},
            "spec": {"selector": {}},
            "status": {"disruptionsAllowed": allowed},
        }
        sinks.disruption_budgets(self.cluster).put(raw)

    async def after(self, seconds: float) -> list[str]:
        """Run all parts for some time; return the pods that were evicted."""
        async with self.running():
            task = asyncio.create_task(self.defragmenter.run())
            await asyncio.sleep(seconds)
            failed = task.done() and task.exception()
            task.cancel()
            assert not failed, failed
        return [name for _, name in self.api.evictions]

    def notes(self, name: str, reason: str) -> list[str]:
        return self.api.events_of(name, reason)


def scattered(**fields: Any) -> City:
    """Return two nodes of two cards with a pod on each."""
    return City(**fields).cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0)


def big(requests: Mapping[str, str] = TWO, **fields: Any) -> Raw:
    return pod("big", dict(requests), **fields)


async def test_a_pod_is_moved_for_one_that_fits_nowhere() -> None:
    city = scattered()
    city.submit(big())
    assert await city.after(AFTER + 10) == ["x"]
    assert city.api.bound() == {"y": "b", "x-again": "b", "big": "a"}
    assert city.notes("big", "MakingRoom") == ["Node a is reserved, and 1 pod(s) are moved: ns/x"]
    [note] = city.notes("x", "Moved")
    assert note.startswith("Evicted from node a to make room for pod ns/big; it allowed this by berth.dev/movable")
    # The nomination is written before the eviction, so that the next leader finds it.
    assert city.api.nominations[0] == ("big", "a")


async def test_a_terminating_pod_that_does_not_end_takes_its_place_until_it_ends() -> None:
    city = City().cards(a=2, b=2, c=2).settle("stuck", "a", 0).settle("x", "b", 0).settle("y", "c", 0)
    stuck = copy.deepcopy(city.api.pods["stuck"])
    stuck["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    city.change(stuck)
    city.submit(big())
    assert await city.after(leaving_pods.LONGEST - 10) == []
    assert (await city.after(defragmenter.AGAIN + AFTER))[0] in ("x", "y")
    assert city.api.bound()["big"] in ("b", "c")


async def test_no_pod_is_evicted_before_the_nomination_is_written() -> None:
    city = scattered()
    # The first write is the condition, before the reservation.
    city.api.faults["condition big"] = [None, refusal(500), refusal(500)]  # type: ignore[list-item]
    city.submit(big())
    await city.after(AFTER + 20)
    [(evicted_at, _)] = city.api.evictions
    assert evicted_at > AFTER + 1
    assert city.api.bound()["big"] == "a"


async def test_no_pod_is_evicted_if_the_nomination_cannot_be_written() -> None:
    city = scattered()
    asyncio.get_running_loop().call_later(AFTER / 2, city.api.always.update, {"condition big": refusal(500)})
    city.submit(big())
    assert await city.after(AFTER + defragmenter.WRITTEN_SECONDS + 5) == []
    assert city.notes("big", "MovesDropped") == ["Node a is no longer reserved: the reservation could not be written"]


async def test_no_pod_is_moved_before_the_pod_has_waited() -> None:
    city = scattered()
    city.submit(big())
    assert await city.after(AFTER - 1) == []


async def test_only_on_request() -> None:
    city = scattered(after=0)
    city.submit(big())
    assert await city.after(10 * AFTER) == []
    requested = big(status={"nominatedNodeName": "b"})
    city.change(requested)
    assert await city.after(10) == ["y"]
    assert city.api.bound()["big"] == "b"


@pytest.mark.parametrize("after", [0.0, AFTER])
async def test_a_request_for_a_node_where_no_room_can_be_made_is_withdrawn(after: float) -> None:
    city = City(after=after).cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0, annotations=NO)
    city.submit(big())
    city.change(big(status={"nominatedNodeName": "b"}))
    await city.after(5)
    assert city.api.nominations == [("big", None)]


@pytest.mark.parametrize(
    ("annotations", "by", "namespace", "moved"),
    [
        pytest.param({}, "set", {}, False, id="no owner allowed it"),
        pytest.param({}, "set", YES, True, id="the namespace allows it"),
        pytest.param(NO, "set", YES, False, id="the pod does not allow what its namespace allows"),
        pytest.param(YES, "set", NO, True, id="the pod allows what its namespace does not"),
        pytest.param(YES, "", YES, False, id="without a controller"),
    ],
)
async def test_consent(annotations: Raw, by: str, namespace: Raw, *, moved: bool) -> None:
    city = City().cards(a=2, b=2).settle("x", "a", 0, annotations=annotations, by=by)
    city.settle("y", "b", 0, annotations=NO)
    city.cluster.put_namespace("ns", {}, namespace)
    city.submit(big())
    assert await city.after(AFTER + 10) == (["x"] if moved else [])


async def test_a_pod_that_is_too_young_stays() -> None:
    city = City().cards(a=2, b=2)
    city.tenants = city.cluster.tenants = Tenants(min_age=1e12)
    city.settle("x", "a", 0).settle("y", "b", 0)
    city.submit(big())
    assert await city.after(AFTER + 10) == []


async def test_no_pod_of_higher_priority_is_moved() -> None:
    city = City().cards(a=2, b=2).settle("x", "a", 0, priority=5).settle("y", "b", 0, priority=5)
    city.submit(big(priority=4))
    assert await city.after(AFTER + 10) == []


async def test_an_owner_who_refuses_during_the_search_is_respected() -> None:
    city = scattered()

    def refuse() -> None:
        if city.searches == 1:
            city.settle("x", "a", 0, annotations=NO)

    city.on_searched = refuse
    city.submit(big())
    assert await city.after(AFTER + 10) == ["y"]


async def test_no_pod_is_moved_for_members_of_gangs() -> None:
    city = scattered()
    gang = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "1"}
    city.submit(big(annotations=gang, status={"nominatedNodeName": "a"}))
    assert await city.after(AFTER + 10) == []


async def test_members_of_gangs_stay() -> None:
    gang = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "1"}
    city = City().cards(a=2, b=2)
    city.settle("x", "a", 0, annotations=YES | gang).settle("y", "b", 0, annotations=YES | gang)
    city.submit(big())
    assert await city.after(AFTER + 10) == []


async def test_budgets_are_kept() -> None:
    city = scattered()
    city.budget(0)
    city.submit(big())
    assert await city.after(AFTER + 10) == []


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_pods_are_moved_in_waves(most: int) -> None:
    city = City(most=most).cards(a=4, b=4, c=4)
    for number in range(3):
        city.settle(f"x{number}", "a", number)
    city.settle("y", "b", 0, 1, annotations=NO).settle("z", "c", 0, 1, annotations=NO)
    city.submit(big(FOUR))
    assert len(await city.after(AFTER + 30)) == 3
    assert max(Counter(at for at, _ in city.api.evictions).values()) == most
    assert city.api.bound()["big"] == "a"
    assert {city.api.bound()[f"x{number}-again"] for number in range(3)} <= {"b", "c"}


async def test_nothing_more_is_moved_once_the_pod_fits() -> None:
    city = City().cards(a=3, b=3).settle("x", "a", 0).settle("y", "a", 1).settle("z", "b", 0, 1, annotations=NO)
    city.cards(c=2)
    city.submit(big({"nvidia.com/gpu": "3"}))
    city.grace = 5

    def end() -> None:
        for name in ("x", "y"):
            if not leaves(city, name):
                city.end(name)

    asyncio.get_running_loop().call_later(AFTER + 4, end)
    assert len(await city.after(AFTER + 30)) == 1
    assert city.api.bound()["big"] == "a"


def leaves(city: City, name: str) -> bool:
    return "deletionTimestamp" in city.api.pods.get(name, {"metadata": {"deletionTimestamp": ""}})["metadata"]


async def test_what_is_no_longer_possible_is_dropped_with_its_reason() -> None:
    city = City().cards(a=3, b=3).settle("x", "a", 0).settle("y", "a", 1).settle("z", "b", 0, annotations=NO)
    city.grace = 5
    city.submit(big({"nvidia.com/gpu": "3"}))

    def refuse() -> None:
        for name in ("x", "y"):
            if not leaves(city, name):
                city.settle(name, "a", 0 if name == "x" else 1, annotations=NO)

    asyncio.get_running_loop().call_later(AFTER + 4, refuse)
    [first] = await city.after(AFTER + 30)
    [why] = city.notes("big", "MovesDropped")
    assert why.startswith("Node a is no longer reserved: no pods that may be moved make enough room on node a now: 0/2")
    assert city.api.nominations == [("big", "a"), ("big", None)]
    assert {"x", "y"} - {first} <= city.api.bound().keys()


async def test_what_moved_pods_left_is_kept_until_the_last_has_left() -> None:
    city = City().cards(a=3, b=4).settle("x", "a", 0).settle("y", "a", 1).settle("z", "b", 0, 1, annotations=NO)
    city.grace = 5
    city.submit(big({"nvidia.com/gpu": "3"}))
    small = pod("small", CARD, nodeSelector={"host": "a"}, created="2026-01-03T00:00:00Z")
    asyncio.get_running_loop().call_later(AFTER + 3, city.submit, small)
    requested: list[str] = []
    assert city.moves is not None
    asyncio.get_running_loop().call_later(
        AFTER + 4, lambda: requested.extend(city.moves.requested if city.moves else ())
    )
    await city.after(AFTER + 30)
    assert requested == [], "what is kept is what was advised"
    assert city.api.bound()["big"] == "a"
    assert "small" not in city.api.bound()
    assert any("defragmentation: node a is reserved; " in each for each in city.api.messages("big"))


async def test_the_next_leader_continues_where_the_last_one_died() -> None:
    # One of two pods is gone; the pod has a nominated node, and what is free there is not given away.
    city = City(after=0).cards(a=3, b=4).settle("y", "a", 1).settle("z", "b", 0, 1, annotations=NO)
    city.submit(big({"nvidia.com/gpu": "3"}, status={"nominatedNodeName": "a"}))
    city.submit(pod("x-again", CARD, metadata={"ownerReferences": [owner("set")]}, priority=0))
    city.submit(pod("small", CARD, nodeSelector={"host": "a"}, created="2025-12-31T00:00:00Z"))
    assert await city.after(30) == ["y"]
    assert city.api.bound()["big"] == "a"
    assert "small" not in city.api.bound()


async def test_the_next_leader_keeps_what_terminating_pods_will_leave() -> None:
    # The last pod to move terminates, and has the priority of the pod for which it was evicted.
    city = City(after=0).cards(a=3, b=4).settle("y", "a", 1).settle("z", "b", 0, 1, annotations=NO)
    city.grace = 20
    city.recreates = False
    city.terminate("y")
    city.submit(big({"nvidia.com/gpu": "3"}, status={"nominatedNodeName": "a"}))
    city.submit(pod("small", CARD, nodeSelector={"host": "a"}, created="2025-12-31T00:00:00Z"))
    assert await city.after(60) == []
    assert city.api.bound()["big"] == "a"
    assert city.searches == 1
    assert "small" not in city.api.bound()
    assert city.api.nominations == []


BUDGET = refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        pytest.param(BUDGET, "a PodDisruptionBudget does not allow an eviction now", id="budget"),
        pytest.param(refusal(403, 'pods "x"'), "the API server refused an eviction with status 403", id="forbidden"),
        pytest.param(refusal(409, "x"), "the API server refused an eviction with status 409", id="conflict"),
        pytest.param(refusal(500, "x"), "the API server refused an eviction with status 500", id="broken"),
    ],
)
async def test_refused_evictions_are_retried_with_a_limit(error: ApiError, why: str) -> None:
    city = City().cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0, annotations=NO)
    city.api.always["evict x"] = error
    city.submit(big())
    await city.after(AFTER + 3 * defragmenter.REFUSED_SECONDS + 3 * sum(defragmenter.PAUSES) + 10)
    assert city.notes("big", "MovesDropped") == [f"Node a is no longer reserved: {why}"]
    assert city.api.nominations[-1] == ("big", None)
    assert city.api.bound() == {"x": "a", "y": "b"}
    assert city.cluster.fleet.leaving == set()


async def test_an_eviction_that_a_budget_allows_later_is_carried_out() -> None:
    city = City().cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0, annotations=NO)
    city.api.faults["evict x"] = [BUDGET, BUDGET]
    city.submit(big())
    assert await city.after(AFTER + 40) == ["x", "x", "x"]
    assert city.api.bound()["big"] == "a"


async def test_no_more_pods_are_moved_if_one_found_no_place() -> None:
    city = City().cards(a=3, b=3).settle("x", "a", 0).settle("y", "a", 1).settle("z", "b", 0, annotations=NO)
    city.submit(big({"nvidia.com/gpu": "3"}))
    city.grace = 5
    # What was free for both is taken while the first terminates.
    taken = pod("taken", TWO, nodeSelector={"host": "b"}, priority=1)
    asyncio.get_running_loop().call_later(AFTER + 1, city.submit, taken)
    assert len(await city.after(AFTER + 30)) == 1
    assert city.notes("big", "MovesDropped") == ["Node a is no longer reserved: a pod that was moved fits nowhere now"]


async def test_a_place_that_was_made_and_lost_counts_as_with_preemption() -> None:
    city = Contested(recreates=False).cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0)
    city.submit(big())
    assert await city.after(AFTER + 5) == ["x"]
    [of_node] = [each for each in city.left().lost_places or () if each.node]
    assert (of_node.preemptor, of_node.node, of_node.count, of_node.takers) == ("ns/big", "a", 1, ("other",))


@pytest.mark.parametrize(
    ("requests", "seconds"),
    [pytest.param(FOUR, 0.2, id="by a nomination"), pytest.param(TWO, 0.7, id="without one")],
)
async def test_a_place_that_is_given_to_a_pod_of_higher_priority_does_not_count(requests: Raw, seconds: float) -> None:
    city = City().cards(a=4, b=4).settle("x", "a", 0).settle("x2", "a", 1).settle("y", "b", 0, annotations=NO)
    city.submit(big(FOUR))
    higher = pod("higher", dict(requests), priority=1000, nodeSelector={"host": "a"})
    is_submitted: list[bool] = []

    def give_away(_name: str) -> None:
        if not is_submitted:
            is_submitted.append(True)
            asyncio.get_running_loop().call_later(seconds, city.submit, higher)
            asyncio.get_running_loop().call_later(1.5, more_nodes)

    def more_nodes() -> None:
        city.cards(c=4).settle("z", "c", 0).settle("w", "b", 1, annotations=NO)

    city.api.on_deleted.append(give_away)
    await city.after(AFTER + 25)
    assert city.api.bound()["higher"] == "a"
    assert len(city.notes("big", "MovesDropped")) == 1
    assert city.api.bound()["big"] == "c", "pods are moved for it again at once"
    assert city.left().lost_places == []


class Contested(City):
    """A city in which a pod of another scheduler takes the place of each pod as soon as it has left."""

    def _leave(self, name: str) -> None:
        node = self.api.pods[name]["spec"]["nodeName"]
        super()._leave(name)
        self.settle(f"{name}+", node, 0, schedulerName="other")


async def test_a_replica_that_does_not_lead_moves_no_pod() -> None:
    city = scattered()
    city.submit(big())
    asyncio.get_running_loop().call_later(AFTER / 2, setattr, city, "term", None)
    assert await city.after(3 * AFTER) == []


async def test_a_late_event_of_a_withdrawn_nomination_is_no_request() -> None:
    city = City().cards(a=2, b=2).settle("x", "a", 0).settle("y", "b", 0, annotations=NO)
    city.api.always["evict x"] = refusal(403)
    city.submit(big())
    dropped_after = AFTER + 3 * defragmenter.REFUSED_SECONDS
    asyncio.get_running_loop().call_later(
        dropped_after + 1, lambda: city.change(big(status={"nominatedNodeName": "a"}))
    )
    await city.after(dropped_after + 10)
    assert len(city.notes("big", "MovesDropped")) == 1
    assert city.cluster.pending["uid-big"].nominated_node == ""
    assert len(city.api.evictions) == defragmenter.REFUSALS


async def test_pods_of_other_namespaces_are_not_named() -> None:
    city, other = City(), waiting("big", namespace="other")
    placed = [charge("x"), replace(charge("y"), pod="other/y")]
    city.reporter.making_room(other, "node", placed)
    city.reporter.moved(placed[0], other)
    await city.after(1)
    assert city.notes("big", "MakingRoom") == [
        "Node node is reserved, and 2 pod(s) are moved: other/y, 1 of other namespaces"
    ]
    [note] = city.notes("x", "Moved")
    assert "to make room for a pod of another namespace;" in note
