"""Preemption, from a pod that fits nowhere to its bind in the place of others, for every answer of the API server."""

import asyncio
import copy
from typing import Any

import pytest

from berth_client.errors import Unreachable
from berth_operator.binding.review import CALM
from berth_operator.state.cache import leaving_pods
from tests.component.world import EPOCH, LATENCY, World, now, refusal
from tests.objects.builders import NVIDIA, Raw, charge, device, entry, node, pod, waiting, whole
from tests.objects.builders import held as still_held

pytestmark = pytest.mark.looptime

FULL = (
    "0/1 nodes are available: "
    "1 node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio 100)."
)
GRACE = 5.0


class Crowded(World):
    """A world whose pods end when they are deleted, within their grace period."""

    def __init__(self, *, grace: float = GRACE, **of_cluster: Any) -> None:
        super().__init__(**of_cluster)
        self.grace = grace

    def hold(self, *pods: Raw) -> None:
        """Add bound pods."""
        for raw in pods:
            self.api.pods[raw["metadata"]["name"]] = raw
            self.pods.apply("ADDED", copy.deepcopy(raw))

    def deleted(self) -> list[str]:
        return [name for _, name in self.api.deletes]


def held(name: str, minor: int = 0, *, priority: int = 0, on: str = "node", **fields: object) -> Raw:
    """Return a bound pod with a card."""
    return pod(name, {NVIDIA: "1"}, on=on, allocated=whole(minor), priority=priority, **fields)


def high(name: str = "high", *, priority: int = 10, cards: int = 1, **fields: object) -> Raw:
    return pod(name, {NVIDIA: str(cards)}, priority=priority, **fields)


async def test_the_cheapest_pod_leaves_and_the_pod_takes_its_place() -> None:
    world = Crowded()
    world.add_node(cards=2)
    world.hold(held("dear", 0, priority=5), held("cheap", 1, priority=1))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.deleted() == ["cheap"]
        assert api.nominations == [("high", "node")]
        assert api.messages("high") == [
            f"{FULL} preemption: found a potential placement for pod on node node, preempting 1 victims",
            f"{FULL} preemption: not eligible due to a terminating pod on the nominated node.",
        ]
        assert "high" not in api.bound()
        await asyncio.sleep(GRACE)
    assert api.bound()["high"] == "node"
    assert "main.devices.berth.dev/visible" in api.pods["high"]["metadata"]["annotations"]
    assert api.pods["high"]["metadata"]["annotations"]["main.devices.berth.dev/visible"] == "GPU-1"
    assert world.deleted() == ["cheap"]
    assert not world.cluster.fleet.nominees
    assert not world.cluster.fleet.leaving


async def test_before_1_37_no_message_names_the_node() -> None:
    world = Crowded()
    world.cluster.fleet.set_kubernetes(36)
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert api.messages("high") == [
            f"{FULL} preemption: not eligible due to a terminating pod on the nominated node."
        ]


async def test_a_victim_gets_its_condition_before_it_is_deleted() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
    ((reported_at, _, condition),) = [each for each in api.patches if each[1] == "low"]
    ((deleted_at, _),) = api.deletes
    assert reported_at < deleted_at
    assert {key: condition[key] for key in ("type", "status", "reason", "message")} == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "berth-scheduler: preempting to accommodate a higher priority pod",
    }
    assert api.events_of("low", "Preempted") == ["Preempted by pod ns/high on node node"]


async def test_a_victim_learns_no_name_of_another_namespace() -> None:
    world = Crowded()
    async with world.running() as api:
        world.reporter.preempted(charge("low"), waiting("high", namespace="other"))
        await asyncio.sleep(1)
    assert api.events_of("low", "Preempted") == ["Preempted by a pod of another namespace on node node"]


async def test_pods_of_other_schedulers_are_victims_too() -> None:
    world = Crowded()
    world.add_node(allocatable={"cpu": "1"})
    world.hold(pod("low", {"cpu": "1"}, on="node", schedulerName="default-scheduler"))
    world.submit(pod("high", {"cpu": "1"}, priority=1))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
    assert api.bound() == {"high": "node"}


@pytest.mark.parametrize(
    ("fields", "explanation"),
    [
        pytest.param(
            {"preemptionPolicy": "Never"}, " preemption: not eligible due to preemptionPolicy=Never.", id="Never"
        ),
        pytest.param(
            {"cards": 2},
            " preemption: 0/1 nodes are available: 1 node(s) have too few healthy GPUs "
            "(2 requested, at most 1 on a node).",
            id="no use",
        ),
        pytest.param(
            {"priority": 0},
            f"{FULL} preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            id="no pod below",
        ),
    ],
)
async def test_no_pod_is_evicted_in_vain(fields: Raw, explanation: str) -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high(**fields))
    async with world.running() as api:
        await asyncio.sleep(20)
    assert world.deleted() == []
    assert api.nominations == []
    (message,) = api.messages("high")
    assert message.endswith(explanation)


async def test_while_victims_leave_no_more_are_chosen() -> None:
    world = Crowded(grace=60)
    world.add_node(cards=4)
    world.hold(*(held(f"low-{minor}", minor, priority=minor) for minor in range(3)))
    world.hold(held("equal", 3, priority=10))
    world.submit(high(cards=2), high("other", cards=4))
    async with world.running() as api:
        await asyncio.sleep(1)
        first = world.deleted()
        for _ in range(3):
            # Each of these wakes all pods that wait for a card.
            world.hold(pod("passing", on="node"))
            world.delete("passing")
            await asyncio.sleep(1)
        assert world.deleted() == first
        assert sorted(first) == ["low-0", "low-1"]
        await asyncio.sleep(60)
    assert world.deleted() == first
    assert api.bound()["high"] == "node"
    assert [each for each in api.nominations if each[0] == "high"] == [("high", "node")]


async def test_no_more_pods_are_chosen_while_a_card_is_held_after_its_pod_is_gone() -> None:
    world = Crowded()
    world.add_node(cards=4)
    cards = [entry(minor) for minor in range(4)]
    world.hold(*(held(f"low-{minor}", minor, priority=minor) for minor in range(4)))
    uses = [still_held(f"low-{minor}", f"GPU-{minor}") for minor in range(4)]
    world.cluster.node_cache.put_device(device("node", *cards, status={"bootID": "boot-1", "held": uses}))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 20)
        assert world.deleted() == ["low-0"]
        assert "high" not in api.bound()
        world.cluster.node_cache.put_device(device("node", *cards, status={"bootID": "boot-1", "held": uses[1:]}))
        await asyncio.sleep(1)
    assert api.bound()["high"] == "node"
    assert world.deleted() == ["low-0"]


async def test_equal_pods_choose_one_after_the_other() -> None:
    world = Crowded()
    world.add_node(cards=3)
    world.hold(*(held(f"low-{minor}", minor) for minor in range(3)))
    world.submit(*(high(f"high-{i}") for i in range(5)))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
    assert sorted(world.deleted()) == ["low-0", "low-1", "low-2"]
    assert len([name for name in api.bound() if name.startswith("high")]) == 3
    assert len(api.nominations) == 3


async def test_a_pod_below_does_not_take_what_was_freed() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high(), high("middle", priority=5), high("equal"))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
    assert set(api.bound()) & {"high", "middle", "equal"} <= {"high", "equal"}
    assert len(set(api.bound()) & {"high", "equal"}) == 1
    assert world.deleted() == ["low"]


async def test_a_pod_above_takes_the_node_and_the_nominee_looks_for_another() -> None:
    world = Crowded(grace=20)
    world.add_node("a")
    world.add_node("b")
    world.hold(held("low", on="a", priority=1), held("dearer", on="b", priority=2))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert api.nominations == [("high", "a")]
        world.submit(high("higher", priority=20))
        await asyncio.sleep(1)
        # Evicting a pod that already ends costs nothing, so the pod with the higher priority takes the card.
        assert set(api.nominations[1:]) == {("higher", "a"), ("high", "b")}
        assert world.deleted() == ["low", "dearer"]
        await asyncio.sleep(25)
    assert api.bound() == {"high": "b", "higher": "a"}
    assert world.deleted() == ["low", "dearer"]


async def test_a_nominee_stays_where_it_waits() -> None:
    world = Crowded(grace=20)
    world.add_node("a")
    world.add_node("b")
    world.hold(held("dearer", on="a", priority=2), held("low", on="b", priority=1))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        # Another client deletes the other node's pod, and the nominee wakes.
        world.terminate("dearer")
        world.cluster.node_cache.put_node(node("b", labels={"new": ""}))
        await asyncio.sleep(1)
        assert api.nominations == [("high", "b")]
    assert world.deleted() == ["low"]


async def test_a_thousand_pods_that_could_preempt_nothing_cost_one_what_if() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(*(high(f"high-{i}", cards=2) for i in range(1000)))
    async with world.running():
        await asyncio.sleep(1)
    # The decision, the search for victims and the dry run that explains why there are none.
    assert world.fleet.looks <= 10


async def test_a_node_that_is_cordoned_meanwhile_is_given_up() -> None:
    world = Crowded(grace=20)
    world.add_node("a")
    world.add_node("b")
    world.hold(held("low", on="a", priority=1), held("dearer", on="b", priority=2))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.cluster.node_cache.put_node(node("a", unschedulable=True))
        await asyncio.sleep(1)
        assert world.deleted() == ["low", "dearer"]
        assert api.nominations == [("high", "a"), ("high", "b")]
        await asyncio.sleep(25)
    assert api.bound() == {"high": "b"}


async def test_a_nominee_that_no_longer_fits_is_reported() -> None:
    world = Crowded(grace=20)
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.cluster.node_cache.remove_node("node")
        await asyncio.sleep(1)
    assert api.nominations == [("high", "node"), ("high", None)]
    assert not world.cluster.fleet.nominees


async def test_what_was_kept_for_a_pod_that_is_deleted_is_free() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(high("middle", priority=5))
        await asyncio.sleep(GRACE - 1.5)
        world.delete("high")
        await asyncio.sleep(2)
    assert api.bound() == {"middle": "node"}


async def test_a_pod_whose_bind_is_under_way_is_no_victim_until_it_is_done() -> None:
    world = Crowded()
    world.add_node()
    world.api.faults["bind low"] = [Unreachable("no answer")] * 5
    world.submit(high("low", priority=0))
    async with world.running() as api:
        await asyncio.sleep(0.2)
        world.submit(high())
        await asyncio.sleep(0.2)
        assert "low" not in api.bound()
        assert world.deleted() == []
        await asyncio.sleep(10)
    assert world.deleted() == ["low"]
    assert api.bound() == {"high": "node"}


async def test_a_pod_that_could_preempt_nothing_preempts_after_a_pod_above_it_was_deleted() -> None:
    world = Crowded()
    world.add_node(cards=3)
    world.hold(held("low", 0), held("other", 1, priority=20), held("above", 2, priority=20))
    world.submit(high(cards=2), high("never", cards=2, preemptionPolicy="Never"))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.deleted() == []
        looks = world.fleet.looks
        world.hold(pod("passing", on="node"))
        world.delete("passing")
        await asyncio.sleep(CALM / 2)  # then the reasons are reviewed, whatever the change
        # Evicting a pod with a lower priority would not help.
        assert world.fleet.looks == looks
        world.delete("above")
        await asyncio.sleep(1)
        assert world.deleted() == ["low"]
        await asyncio.sleep(GRACE)
    assert api.bound()["high"] == "node"


# --- answers of the API server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["condition low", "delete low"])
@pytest.mark.parametrize(
    "fault", [pytest.param(Unreachable("no answer"), id="no answer"), pytest.param(refusal(503), id="server error")]
)
async def test_an_eviction_without_an_answer_is_sent_again(call: str, fault: Exception) -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    world.api.faults[call] = [fault, fault]
    async with world.running() as api:
        await asyncio.sleep(GRACE + 5)
    assert world.deleted() == ["low"]
    assert api.bound() == {"high": "node"}
    assert api.nominations == [("high", "node")]


BY_POLICY = "pods low is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: no"
BY_WEBHOOK = 'admission webhook "keep.example.com" denied the request: no'


@pytest.mark.parametrize(
    ("call", "status", "message", "by"),
    [
        pytest.param("condition low", 403, "denied", "", id="patch"),
        pytest.param("delete low", 422, BY_POLICY, " (validatingadmissionpolicy/keep)", id="policy"),
        pytest.param("delete low", 404, BY_WEBHOOK, " (webhook/keep.example.com)", id="webhook"),
    ],
)
async def test_a_pod_whose_deletion_is_refused_is_no_victim_for_a_while(
    call: str, status: int, message: str, by: str
) -> None:
    world = Crowded()
    world.add_node()
    world.add_node("other")
    world.hold(held("low"), held("lower", on="other", priority=5))
    world.submit(high())
    world.api.always[call] = refusal(status, message)
    async with world.running() as api:
        await asyncio.sleep(GRACE + 10)
        assert api.bound()["high"] == "other", "another victim was found"
        assert world.deleted() == ["lower"]
        world.submit(high("next"))
        await asyncio.sleep(10)
        *_, why = api.messages("next")
        assert why.endswith(f"the API server refuses to delete 1 pod(s) of lower priority{by}.")
        assert "terminating" not in why
        assert not world.cluster.fleet.leaving
        if call == "delete low":
            assert not api.messages("low"), "it has no condition DisruptionTarget"
        del world.api.always[call]
        await asyncio.sleep(60)
    assert api.bound() == {"high": "other", "next": "node"}


async def test_a_pod_whose_victim_cannot_be_evicted_chooses_again_after_its_back_off() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    call = "delete low"
    world.api.always[call] = refusal(409, "denied")
    async with world.running() as api:
        await asyncio.sleep(0.5)
        assert api.nominations == [("high", "node"), ("high", None)]
        assert not world.cluster.fleet.leaving
        await asyncio.sleep(30)
        # After 1, 2, 4, 8 and then every 10 s.
        assert 5 <= api.nominations.count(("high", "node")) <= 7
        del world.api.always[call]
        await asyncio.sleep(20)
    assert api.bound() == {"high": "node"}
    assert world.deleted() == ["low"]


async def test_a_victim_that_is_gone_is_gone() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    del world.api.pods["low"]
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.cluster.fleet.leaving == {"uid-low"}
        world.pods.apply("DELETED", held("low"))
        await asyncio.sleep(1)
    assert api.bound() == {"high": "node"}
    assert api.nominations == [("high", "node")]


async def test_a_victim_whose_deletion_conflicts_with_another_deletion_is_waited_for() -> None:
    world = Crowded(grace=20)
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    world.api.always["delete low"] = refusal(409, "the object has been modified")
    async with world.running() as api:
        await asyncio.sleep(LATENCY / 2)
        world.terminate("low")
        await asyncio.sleep(10)
        assert api.deletions
        assert api.nominations == [("high", "node")]
        await asyncio.sleep(15)
    assert api.bound() == {"high": "node"}


async def test_another_pod_of_a_victims_name_is_let_alone() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.api.pods["low"] = held("low", uid="new")
    world.submit(high())
    async with world.running():
        await asyncio.sleep(1)
    assert world.deleted() == []


async def test_nothing_is_deleted_once_the_term_is_over() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    world.api.faults["condition low"] = [Unreachable("no answer")]
    async with world.running():
        await asyncio.sleep(0.5)
        world.term = None
        await asyncio.sleep(30)
    assert world.deleted() == []


# --- a new leader ---------------------------------------------------------------------------------------------------


async def test_a_new_leader_keeps_what_the_last_one_kept() -> None:
    world = Crowded()
    world.add_node()
    going = held("low", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    world.hold(going)
    # The older one is decided first, and would take the card.
    world.submit(high("older", created="2025-01-01T00:00:00Z"))
    world.submit(high("nominee", status={"nominatedNodeName": "node"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert set(world.cluster.fleet.nominees) == {"uid-nominee"}
        world.delete("low")
        await asyncio.sleep(1)
    assert api.bound() == {"nominee": "node"}
    assert world.deleted() == []
    assert api.nominations == []


async def test_a_new_leader_places_a_nominee_whose_node_is_free_by_now() -> None:
    world = Crowded()
    world.add_node()
    world.submit(high("older", created="2025-01-01T00:00:00Z"))
    world.submit(high("nominee", status={"nominatedNodeName": "node"}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.bound() == {"nominee": "node"}


async def test_a_new_leader_evicts_what_the_last_one_could_not() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("low"))
    world.submit(high(status={"nominatedNodeName": "node"}))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
    assert world.deleted() == ["low"]
    assert api.bound() == {"high": "node"}
    assert api.nominations == []


async def test_a_nomination_that_means_nothing_is_taken_back() -> None:
    world = Crowded()
    world.add_node()
    world.hold(held("equal", priority=10))
    world.submit(high(status={"nominatedNodeName": "node"}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.nominations == [("high", None)]


async def test_a_stale_watch_does_not_bring_a_nomination_back() -> None:
    world = Crowded(grace=20)
    world.add_node()
    world.hold(held("low"))
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.change(high())
        await asyncio.sleep(1)
        assert set(world.cluster.fleet.nominees) == {"uid-high"}
        assert api.nominations == [("high", "node")]


# --- pods that do not end -------------------------------------------------------------------------------------------

FOREVER = 10 * 24 * 3600.0
"""Seconds; a pod with this grace period does not end within a test."""


def ends_never(status: Raw | None = None, **of_cluster: Any) -> Crowded:
    """Return two nodes with a card each, whose pods have priorities 1 and 2 and do not end."""
    world = Crowded(grace=FOREVER, **of_cluster)
    world.add_node("a")
    world.add_node("b")
    world.hold(held("low", on="a", priority=1), held("dearer", on="b", priority=2), pod("idle", on="a"))
    if status is not None:
        world.cluster.node_cache.put_device(device("a", entry(0), status=status))
    return world


async def test_a_pod_does_not_wait_forever_for_a_victim_that_does_not_end() -> None:
    world = ends_never()
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(leaving_pods.LONGEST - 5)
        assert world.deleted() == ["low"]
        await asyncio.sleep(10)
        assert world.deleted() == ["low", "dearer"]
        assert api.nominations == [("high", "a"), ("high", "b")]
        assert {lost.node for lost in world.preemptor.progress.record()} == {"", "a"}
        # What does not end is no victim, either, and costs no more decisions.
        world.submit(high("other", priority=20))
        await asyncio.sleep(10)
        assert world.deleted() == ["low", "dearer"]
        world.delete("low")
        await asyncio.sleep(1)
        assert api.bound()["other"] == "a"


async def test_a_pod_with_a_long_grace_period_is_waited_for() -> None:
    world = ends_never(wall=lambda: EPOCH + now())
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(1)
        raw = copy.deepcopy(world.api.pods["low"])
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        world.change(raw)
        await asyncio.sleep(3600)
        assert world.deleted() == ["low"]
        await asyncio.sleep(200)
    assert world.deleted() == ["low", "dearer"]
    assert api.nominations == [("high", "a"), ("high", "b")]


STUCK: Raw = {"bootID": "boot-1", "held": [still_held("low", "GPU-0")]}


async def test_what_a_deleted_pod_holds_without_end_is_not_waited_for() -> None:
    world = ends_never(STUCK)
    async with world.running() as api:
        world.delete("low")
        await asyncio.sleep(leaving_pods.OF_LEFTOVERS / 2)
        world.submit(high())
        await asyncio.sleep(leaving_pods.OF_LEFTOVERS / 2 - 5)
        assert api.nominations == [("high", "a")]
        assert world.deleted() == []
        await asyncio.sleep(10)
        assert api.nominations == [("high", "a"), ("high", "b")]
        assert world.deleted() == ["dearer"]
        # Once it is released, it is free.
        world.cluster.node_cache.put_device(device("a", entry(0), status={"bootID": "boot-1"}))
        await asyncio.sleep(1)
    assert api.bound()["high"] == "a"
    assert not world.cluster.fleet.overdue


async def test_a_pod_that_comes_later_does_not_wait_for_what_a_deleted_pod_holds_without_end() -> None:
    world = ends_never(STUCK)
    async with world.running() as api:
        world.delete("low")
        await asyncio.sleep(leaving_pods.OF_LEFTOVERS + 5)
        world.submit(high())
        await asyncio.sleep(1)
    assert api.nominations == [("high", "b")]
    assert world.deleted() == ["dearer"]
