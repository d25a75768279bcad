"""Node reservations: which pods get one, on which node, which pods they wait for, and the note in the condition."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from berth_operator.core.decision.messages import MAX_MESSAGE, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import HORIZON, NodeReservation, entitled, most_nodes, reserve
from berth_operator.core.decision.reservation_note import note
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.request import PendingPod, Taint
from tests.objects.builders import (
    A100_BYTES,
    GI,
    GPU,
    NVIDIA,
    RDMA,
    add,
    card,
    cards,
    charge,
    grant,
    inventory,
    node_info,
    other_card,
    waiting,
)

NOW = 1_800_000_000.0
SOON, LATER = int(NOW) + 60, int(NOW) + 600
DISTANT = int(NOW) + HORIZON + 1
BIG = waiting("big", {NVIDIA: 4, "cpu": 1000})


def holder(name: str, *minors: int, node: str = "a", **fields: Any) -> Charge:
    """Return a placed pod with whole cards."""
    held = [grant(minor, core=100, ratio=100, memory=A100_BYTES) for minor in minors]
    return charge(name, *held, node=node, **{"resources": (("cpu", 1000), ("pods", 1)), **fields})


def four_cards(*placed: Charge, nodes: Sequence[str] = ("a", "b"), **fields: Any) -> Fleet:
    """Return a fleet of nodes with four cards, and these pods on them."""
    fleet = Fleet()
    for name in nodes:
        add(fleet, node_info(name, **fields), inventory(*cards(4)))
    for each in placed:
        fleet.charge(each)
    return fleet


def reserved(fleet: Fleet, pod: PendingPod = BIG, *, node: str = "") -> NodeReservation:
    kept = reserve(fleet, pod, Policy(), NOW, node=node)
    assert kept is not None
    return kept


def names(kept: NodeReservation) -> list[str]:
    return [each.pod.removeprefix("ns/") for each in kept.awaited]


on_a, on_b = partial(holder, "a1"), partial(holder, "b1", node="b")
UNTIL_DELETED = on_b(0, 1, ends=ending.UNTIL_DELETED)
TERMINATING = on_a(0, ends=DISTANT, terminating=True)


@pytest.mark.parametrize(
    ("placed", "node", "awaited"),
    [
        pytest.param([on_a(0, 1), on_b(0)], "b", "b1", id="fewest missing cards"),
        pytest.param([on_a(0), on_b(0)], "a", "a1", id="equal: by name"),
        pytest.param([on_a(0), on_b(0, 1, 2, ends=SOON)], "b", "b1", id="a known end comes first"),
        pytest.param([on_a(0, ends=LATER), on_b(0, 1, 2, ends=SOON)], "b", "b1", id="soonest"),
        pytest.param([on_a(0), on_b(0, 1, ends=DISTANT)], "a", "a1", id="a distant end is unknown"),
        pytest.param([on_a(0), on_b(0, ends=SOON), holder("b2", 1, node="b")], "a", "a1", id="the last end counts"),
        pytest.param([on_a(0, ends=ending.UNTIL_DELETED), on_b(0, 1)], "b", "b1", id="rather pods that may complete"),
        pytest.param([on_a(0, ends=ending.NEVER), UNTIL_DELETED], "b", "b1", id="no pods of the node itself"),
        pytest.param([TERMINATING, on_b(0, ends=LATER)], "a", "a1", id="terminating"),
    ],
)
def test_the_node_that_has_room_soonest(placed: Sequence[Charge], node: str, awaited: str) -> None:
    kept = reserved(four_cards(*placed))
    assert (kept.node, names(kept)) == (node, [awaited])
    assert kept.ends == max(each.ends for each in kept.awaited)
    assert sorted(each.minor for each in kept.nominee.grants) == [0, 1, 2, 3]


def test_a_pod_that_was_deleted_long_ago_and_stays_is_not_awaited() -> None:
    fleet = four_cards(replace(TERMINATING, ends=SOON), on_b(0, ends=LATER))
    fleet.overdue.add(TERMINATING.uid)
    assert names(reserved(fleet)) == ["b1"]


JOB = Owner(kind="Job", name="j", uid="j")


@pytest.mark.parametrize(
    ("sibling", "node"),
    [
        pytest.param({}, "b", id="it may wait for the pod"),
        pytest.param({"ends": DISTANT}, "b", id="its end is too distant to be known"),
        pytest.param({"ends": LATER}, "a", id="its end is known"),
        pytest.param({"ends": LATER, "terminating": True}, "a", id="it is terminating"),
    ],
)
def test_a_pod_of_the_same_controller_is_awaited_only_if_its_end_is_known(
    sibling: Mapping[str, Any], node: str
) -> None:
    fleet = four_cards(holder("a1", 0, owner=JOB, **sibling), holder("b1", 0, 1, node="b"))
    assert reserved(fleet, replace(BIG, owner=JOB)).node == node


NO_CARD = charge("no card", node="a", resources=(("cpu", 1000), ("pods", 1)))
ONE, TWO, THREE = holder("one", 0), holder("two", 1, 2), holder("three", 3)
LAST = [holder("one", 0, ends=LATER), holder("two", 1, 2, ends=SOON), holder("three", 3, ends=LATER)]


@pytest.mark.parametrize(
    ("request_", "placed", "awaited"),
    [
        pytest.param({NVIDIA: 2}, [ONE, TWO, THREE], ["two"], id="few pods, not many"),
        pytest.param({NVIDIA: 1}, LAST, ["two"], id="the last to end stay"),
        pytest.param({NVIDIA: 2}, [ONE, holder("two", 1)], [], id="there is room"),
        pytest.param({NVIDIA: 1, "cpu": 63_500}, [NO_CARD], ["no card"], id="cpu"),
        pytest.param({NVIDIA: 4}, [ONE, NO_CARD], ["one"], id="pods without cards are not in the way"),
    ],
)
def test_only_the_pods_whose_room_is_needed(
    request_: Mapping[str, int], placed: Sequence[Charge], awaited: Sequence[str]
) -> None:
    assert names(reserved(four_cards(*placed, nodes=["a"]), waiting("big", request_))) == sorted(awaited)


@pytest.mark.parametrize(
    ("fields", "pod"),
    [
        pytest.param({"cordoned": True}, BIG, id="cordoned"),
        pytest.param({"ready": False}, BIG, id="not ready"),
        pytest.param({"taints": [Taint(key="keep-off")]}, BIG, id="tainted"),
        pytest.param({}, waiting("big", {NVIDIA: 5}), id="too many cards"),
        pytest.param({}, waiting("big", {NVIDIA: 4, "cpu": 65_000}), id="too much cpu"),
        pytest.param({"cpu": 1500}, BIG, id="a daemon needs the cpu"),
    ],
)
def test_no_node_that_could_never_take_the_pod(fields: Mapping[str, Any], pod: PendingPod) -> None:
    fleet = four_cards(holder("one", 0), nodes=["a"], **fields)
    fleet.charge(charge("daemon", node="a", resources=(("cpu", 1000), ("pods", 1)), ends=ending.NEVER))
    assert reserve(fleet, pod, Policy(), NOW) is None
    assert reserve(fleet, pod, Policy(), NOW, node="a") is None


def test_no_node_with_a_failed_card() -> None:
    fleet = four_cards(nodes=["b"])
    add(fleet, node_info("a"), inventory(*cards(3), card(3, healthy=False)))
    fleet.charge(holder("b1", 0, 1, 2, 3, node="b"))
    assert reserved(fleet).node == "b"
    assert reserved(fleet, node="a").node == "b"


def test_a_reservation_stays_on_its_node() -> None:
    fleet = four_cards(holder("a1", 0, 1, 2), holder("b1", 0, node="b"))
    assert reserved(fleet).node == "b"
    assert reserved(fleet, node="a").node == "a"
    assert reserved(fleet, node="gone").node == "b"
    fleet.put_node(node_info("a", cordoned=True))
    assert reserved(fleet, node="a").node == "b"


def test_the_room_of_other_reservations_is_not_used() -> None:
    fleet = four_cards(holder("a1", 0), holder("b1", 0, 1, node="b"))
    first = waiting("first", {NVIDIA: 4}, priority=1)
    fleet.nominate(reserved(fleet, first).nominee)
    assert next(iter(fleet.nominees.values())).node == "a"
    assert reserved(fleet).node == "b"
    assert reserved(fleet, waiting("high", {NVIDIA: 4}, priority=2)).node == "a"
    fleet.release("uid-b1")
    fleet.charge(holder("b1", 0, node="b"))
    assert reserved(fleet, waiting("high", {NVIDIA: 4}, priority=2)).node == "b"
    assert reserved(fleet, first).node == "a"


def test_a_reservation_is_not_in_its_own_way() -> None:
    fleet = four_cards(holder("one", 0), nodes=["a"])
    fleet.nominate(reserved(fleet).nominee)
    kept = reserved(fleet)
    assert names(kept) == ["one"]
    assert len(fleet.nominees) == 1


@pytest.mark.parametrize(
    ("lifetime", "ends", "open_"),
    [
        pytest.param(40, LATER, True, id="in time"),
        pytest.param(590, LATER, True, id="just in time"),
        pytest.param(591, LATER, False, id="not in time"),
        pytest.param(40, ending.UNKNOWN, False, id="unknown"),
        pytest.param(40, ending.UNTIL_DELETED, False, id="until deleted"),
        pytest.param(40, DISTANT, False, id="distant"),
        pytest.param(40, int(NOW) - 5, False, id="overdue"),
    ],
)
def test_backfill_ends_in_time(lifetime: int, ends: int, *, open_: bool) -> None:
    assert reserved(four_cards(holder("a1", 0, ends=ends), nodes=["a"])).is_open_to(lifetime, NOW) is open_


def pod(name: str, priority: int = 0, *, since: int = 0, namespace: str = "", **fields: Any) -> PendingPod:
    at = f"2026-01-01T00:00:{since:02}Z"
    return waiting(name, priority=priority, unschedulable_since=at, namespace=namespace or f"of-{name}", **fields)


IN_N: Any = {"namespace": "n"}


@pytest.mark.parametrize(
    ("pods", "chosen"),
    [
        pytest.param([pod("a", since=2), pod("b", since=1), pod("c", since=3)], "ba", id="the longest wait"),
        pytest.param([pod("a", since=1), pod("b", 5, since=2), pod("c", 9, since=3)], "cb", id="priority first"),
        pytest.param(
            [pod("a", since=1, **IN_N), pod("b", since=2, **IN_N), pod("c", since=3)], "ac", id="one of a namespace"
        ),
        pytest.param(
            [pod("a", since=1), pod("b", since=2), pod("c", since=3, reserved_node="x")],
            "ca",
            id="who has one keeps it",
        ),
        pytest.param(
            [pod("a", since=1, reserved_node="x", **IN_N), pod("b", 5, since=3, **IN_N)],
            "b",
            id="unless a higher priority waits",
        ),
    ],
)
def test_who_gets_a_reservation(pods: Sequence[PendingPod], chosen: str) -> None:
    assert [each.name for each in entitled(pods, 2)] == list(chosen)


@pytest.mark.parametrize(("nodes", "most"), [(0, 1), (1, 1), (39, 1), (40, 2), (100, 5), (600, 25)])
def test_five_percent_of_the_nodes_with_devices(nodes: int, most: int) -> None:
    fleet = four_cards(nodes=[f"n{number}" for number in range(nodes)])
    for number in range(100):
        fleet.put_node(node_info(f"without-{number}"))
    assert most_nodes(fleet) == most


CPUS = charge("cpus", node="a", resources=(("cpu", 63_500), ("pods", 1)))
X, FOUR = holder("x", 0), [holder(f"p{minor}", minor) for minor in range(4)]
IN_TIME = "3 of 4 GPUs are free, the rest is held by pod x until 2027-01-15T08:10:00Z at the latest."
CPU_TOO = "3 of 4 GPUs are free, the rest and 1500m cpu are held by pods cpus, x."


@pytest.mark.parametrize(
    ("placed", "text"),
    [
        pytest.param([X], "3 of 4 GPUs are free, the rest is held by pod x.", id="one"),
        pytest.param([X, holder("y", 1, ends=LATER)], "2 of 4 GPUs are free, the rest is held by pods x, y.", id="two"),
        pytest.param(FOUR, "0 of 4 GPUs are free, the rest is held by pods p0, p1, p2, p3.", id="many"),
        pytest.param([holder("x", 0, ends=LATER)], IN_TIME, id="known end"),
        pytest.param([], "4 of 4 GPUs are free.", id="free"),
        pytest.param([CPUS], "4 of 4 GPUs are free, 500m cpu is missing and held by pod cpus.", id="cpu"),
        pytest.param([X, CPUS], CPU_TOO, id="cpu and a card"),
    ],
)
def test_the_note(placed: Sequence[Charge], text: str) -> None:
    assert note(reserved(four_cards(*placed, nodes=["a"]))) == f"reserved on a: {text}"


@pytest.mark.parametrize(
    ("namespaces", "text"),
    [
        pytest.param(["other"], "the rest is held by 1 pod of another namespace.", id="one"),
        pytest.param(["other", "other"], "the rest is held by 2 pods of another namespace.", id="two"),
        pytest.param(["other", "third"], "the rest is held by 2 pods of other namespaces.", id="of two"),
        pytest.param(["ns", "other"], "the rest is held by pod p0 and 1 pod of another namespace.", id="own too"),
    ],
)
def test_the_note_names_no_pod_of_another_namespace(namespaces: Sequence[str], text: str) -> None:
    placed = [replace(holder(f"p{at}", at), pod=f"{each}/p{at}") for at, each in enumerate(namespaces)]
    sentence = note(reserved(four_cards(*placed, nodes=["a"])))
    assert sentence.endswith(f" GPUs are free, {text}")
    assert "third" not in sentence


def busy(**resources: int) -> Charge:
    return holder("busy", 0, resources=(*resources.items(), ("pods", 1)))


MORE = {NVIDIA: 1, "cpu": 2000}
NIC = charge("nic", grant(0, "rdma", rdma=100), node="a")
OF_TWO_TYPES = "1 of 1 GPUs and 0 of 1 RDMA devices are free, the rest is held by pod nic."


@pytest.mark.parametrize(
    ("request_", "placed", "text"),
    [
        pytest.param(
            MORE, busy(cpu=63_000), "1 of 1 GPUs are free, 1 cpu is missing and held by pod busy.", id="with a card"
        ),
        pytest.param(
            {**MORE, "memory": 300 * GI},
            busy(cpu=62_500, memory=220 * GI),
            "1 of 1 GPUs are free, 500m cpu and 8Gi memory are missing and held by pod busy.",
            id="two resources",
        ),
        pytest.param({NVIDIA: 1, RDMA: 100}, NIC, OF_TWO_TYPES, id="a device of another type"),
    ],
)
def test_the_note_names_what_is_missing(request_: Any, placed: Charge, text: str) -> None:
    made = Fleet()
    add(made, node_info("a"), inventory(*cards(6), other_card("rdma")))
    made.charge(placed)
    assert note(reserved(made, waiting("big", request_))) == f"reserved on a: {text}"


def test_the_note_does_not_count_a_card_twice() -> None:
    made = Fleet()
    add(made, node_info("a", sums={GPU: 200}), inventory(*cards(2)))
    made.charge(charge("x", grant(0, core=100, ratio=100), node="a", resources=((GPU, 100), ("pods", 1))))
    text = note(reserved(made, waiting("big", {GPU: 200})))
    assert text == "reserved on a: 1 of 2 GPUs are free, the rest is held by pod x."


def test_a_long_message_keeps_the_note() -> None:
    sentence = "reserved on a: 4 of 4 GPUs are free."
    message = with_note("x" * 2000, sentence)
    assert len(message) == MAX_MESSAGE
    assert message.endswith(f"x ... {sentence}")
