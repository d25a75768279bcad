"""What-ifs give the right answers and leave the Fleet unchanged."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.names import DRA_DRIVER
from berth_api.values.selectors import LabelSelector, Requirement
from berth_operator.core.claims.objects.extended import ExtendedRequest
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.what_if import WhatIf
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.values.affinity import Affinity, Identity, Peers, PodSelection, Term
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import Attachable, Disk, Mounts, PodVolumes, Use
from tests.objects.builders import (
    A100_BYTES,
    GPU,
    NVIDIA,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    grant,
    instance,
    inventory,
    listens,
    node_info,
    other_card,
    replica,
    sliced,
    waiting,
    with_functions,
)
from tests.objects.volumes import LOCAL, bound, volume

NODES = ("a", "b", "c")
X = Peers(selector=LabelSelector(requirements=(Requirement(key="x", operator="Exists"),)), namespaces=("ns",))
AFFINITY_TO_X, ANTI_AFFINITY_TO_X = (
    Affinity(required_affinity=(Term(key="zone", peers=X),)),
    Affinity(required_anti_affinity=(Term(key="zone", peers=X),)),
)
DISK = Disk(kind="gce", id="d")


def plain(value: Any) -> Any:
    """Return all that can be reached from a value as plain values, so that two moments can be compared."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif type(value) is object:
        return None  # says which copy may change a value
    elif type(value).__module__.startswith("berth_operator") and not callable(value) and not isinstance(value, dict):
        value = vars(value)
    if isinstance(value, dict):
        return sorted(((repr(key), plain(each)) for key, each in value.items()), key=lambda each: each[0])
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value


def made() -> Fleet:
    """Return a fleet with devices, partitions and constraints of every kind."""
    fleet = Fleet()
    fleet.volumes.put_class(LOCAL)
    fleet.volumes.put_volume(volume("v", attachable=Attachable(driver="csi.example", handle="v"), csi=True))
    fleet.volumes.put_claim(bound("claim", "v"))
    fleet.affinity_index.put_namespace("ns", {"team": "x"})
    for name in NODES:
        labels = {"zone": name, "kubernetes.io/hostname": name}
        info = node_info(name, labels=labels, cpu=4000, images={"image": 5}, features=("F",))
        nic = other_card("rdma", functions=(((), ((0, "x"), (1, "y"))),))
        add(fleet, info, inventory(*cards(2), divided(2, "1g.10gb", "1g.10gb"), sliced(3, 4), nic))
        fleet.volumes.put_drivers(name, {"csi.example": 2})
    fleet.affinity_index.count(PodSelection(peers=(X,)))
    fleet.affinity_index.replicas.count("set")
    return fleet


@st.composite
def charges(draw: st.DrawFn) -> Charge:
    name = draw(st.sampled_from("pqrstu"))
    shared = [grant(draw(st.integers(0, 3)), core=50, ratio=50, memory=A100_BYTES // 2)]
    number, profile = draw(st.integers(0, 3)), draw(st.sampled_from(["1g.10gb", "2g.20gb"]))
    subdevices = [instance(2, number, profile), replica(3, number), replica(3, number + 1), with_functions(0, "x")]
    return charge(
        name,
        *draw(st.sampled_from([[], shared, [*shared, *shared], subdevices, [instance(0), replica(1)]])),
        node=draw(st.sampled_from([*NODES, "gone"])),
        resources=(("cpu", draw(st.integers(0, 3)) * 500), ("pods", 1), *draw(st.sampled_from([(), (("new", 1),)]))),
        identity=Identity(
            namespace="ns",
            labels=draw(st.sampled_from([(), (("x", ""),)])),
            controller=draw(st.sampled_from(["", "set"])),
        ),
        affinity=draw(st.sampled_from([Affinity(), AFFINITY_TO_X, ANTI_AFFINITY_TO_X])),
        ports=draw(st.sampled_from([(), (listens(80),), (listens(81, "10.0.0.1"),)])),
        mounts=draw(st.sampled_from([Mounts(), Mounts(claims=(Use(claim="ns/claim"),)), Mounts(disks=(DISK,))])),
        volumes=draw(
            st.sampled_from([PodVolumes(), PodVolumes(bindings=(("ns/other", "w"),), provisions=("ns/third",))])
        ),
        unknown=draw(st.sampled_from([(), ("gpu",)])),
        priority=draw(st.integers(0, 2)),
        terminating=draw(st.booleans()),
    )


CHANGES = st.lists(st.one_of(charges(), st.sampled_from("pqrstu")), max_size=12)


def change(fleet: Fleet, what: Charge | str) -> None:
    if isinstance(what, Charge):
        fleet.charge(what)
    else:
        fleet.release(f"uid-{what}")


@settings(max_examples=25)
@given(CHANGES, CHANGES, st.sampled_from([{"cpu": 2000}, {NVIDIA: 1}, {GPU: 50}]))
def test_a_copy_decides_the_same_and_leaves_the_original_alone(
    before: list[Charge | str], after: list[Charge | str], wanted: dict[str, int]
) -> None:
    fleet = made()
    for each in before:
        change(fleet, each)
    fleet.placed_pods.current(fleet)
    copy, was = fleet.copy(), plain(fleet)
    for each in after:
        change(copy, each)
    placed_pods = copy.placed_pods.current(copy)
    assert {placed_pods.charges[each].uid for each in copy.placed_pods.numbers()} == set(copy.charges)
    copy.nominate(charge("nominee", grant(0, core=100), node="a"))
    copy.leaving.add("uid-p")
    copy.put_device("a", inventory(divided(0, "7g.80gb"), card(1, labels=(("x", "y"),), pcie="s", links=((0, 5),))))
    copy.put_device("a", inventory(*cards(2), divided(2, "1g.10gb", "1g.10gb"), sliced(3, 4)))
    copy.put_node(node_info("more", labels={"zone": "more"}, images={"other": 1}))
    assert plain(fleet) == was
    for each in after:
        change(fleet, each)
    copy.withdraw("uid-nominee")
    copy.remove_node("more")
    for affinity in (Affinity(), AFFINITY_TO_X, ANTI_AFFINITY_TO_X):
        request = replace(
            asks(wanted, ports=[listens(80)]), affinity=affinity, mounts=Mounts(claims=(Use(claim="ns/claim"),))
        )
        pod = waiting("asked", request)
        assert decide(copy, pod, Policy()) == decide(fleet, pod, Policy())


@settings(max_examples=20)
@given(CHANGES, charges())
def test_what_is_kept_for_a_nominee_is_given_back_exactly(before: list[Charge | str], nominee: Charge) -> None:
    fleet = made()
    for each in before:
        change(fleet, each)
    nominee = replace(nominee, uid="uid-nominee", node="a", grants=(grant(0, core=50, ratio=50),))
    # The first nomination may leave columns of zeros behind.
    fleet.nominate(nominee)
    nominee = fleet.nominees[nominee.uid]
    fleet.withdraw(nominee.uid)

    def now() -> Any:
        # The cache records changed rows in either case.
        return {name: plain(value) for name, value in vars(fleet).items() if name != "column_cache"}

    was = now()
    fleet.nominate(nominee)
    assert (fleet.nominees, now() != was) == ({"uid-nominee": nominee}, True)
    taken = now()
    with fleet.without([nominee]):
        assert now() == was
    assert now() == taken
    assert fleet.withdraw("uid-nominee") == nominee
    assert now() == was
    assert fleet.withdraw("uid-nominee") is None


def test_nominees_come_back_whatever_happens() -> None:
    fleet = made()
    nominee = charge("nominee", node="a")
    fleet.nominate(nominee)

    def fail() -> None:
        with fleet.without([nominee]):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert fleet.nominees == {"uid-nominee": nominee}


def test_a_row_stays_while_something_of_it_is_kept_for_a_pod() -> None:
    fleet = made()
    fleet.nominate(charge("p", node="a", resources=(("cpu", 1000),)))
    fleet.remove_node("a")
    fleet.remove_device("a")
    assert "a" in fleet.rows
    fleet.withdraw("uid-p")
    assert "a" not in fleet.rows


def test_nominees_are_no_charges() -> None:
    fleet = made()
    fleet.nominate(charge("p", node="a", priority=5))
    assert (list(fleet.on_node("a")), fleet.charges, dict(fleet.priorities)) == ([], {}, {})


@settings(max_examples=25)
@given(CHANGES, st.data())
def test_the_bench_says_what_releasing_would(before: list[Charge | str], data: st.DataObject) -> None:
    fleet = made()
    for each in before:
        change(fleet, each)
    placed = list(fleet.charges.values())
    gone = data.draw(st.lists(st.sampled_from(placed), unique=True) if placed else st.just([]))
    placed_pods = PlacedPods.of(fleet, placed)
    rows = np.arange(len(fleet.names))
    what_if = WhatIf(fleet, rows, placed_pods)
    for each in gone:
        at = np.array([placed.index(each)])
        what_if.take(placed_pods.rows[at], at)
    left = fleet.copy()
    for each in gone:
        left.release(each.uid)
    for kind, cards_left in left.cards.items():
        cards = what_if.fleet.cards[kind]
        assert cards.index == cards_left.index
        assert cards.used.tolist() == cards_left.used.tolist()
        assert cards.users.tolist() == cards_left.users.tolist()
    for wanted in ({"cpu": 2000}, {NVIDIA: 1}, {GPU: 50}):
        expected = cycle.feasible(left, asks(wanted), Policy().local)
        assert what_if.fits(asks(wanted), Policy()).tolist() == expected[rows].tolist()
    for each in gone:
        at = np.array([placed.index(each)])
        what_if.give_back(placed_pods.rows[at], at)
    expected = cycle.feasible(fleet, asks({NVIDIA: 1}), Policy().local)
    assert what_if.fits(asks({NVIDIA: 1}), Policy()).tolist() == expected.tolist()


def test_cards_may_have_got_new_resources_since_the_pods_were_read() -> None:
    fleet = made()
    fleet.charge(charge("p", grant(0, core=50), node="a"))
    placed = PlacedPods.of(fleet, list(fleet.charges.values()))
    fleet.charge(charge("q", instance(2, 7, "7g.80gb"), node="a"))
    what_if = WhatIf(fleet, np.array([fleet.rows["a"]]), placed)
    what_if.take(np.array([0]), np.array([0]))
    gpus = what_if.fleet.cards["gpu"]
    left = {name: int(gpus.used[i].sum()) for name, i in gpus.index.items()}
    assert (left["gpu-core"], left["nvidia.com/mig-7g.80gb"]) == (0, 1)


@pytest.mark.parametrize("mode", ["claims", "both"])
def test_what_ifs_about_some_rows_know_where_classes_give_the_cards(mode: str) -> None:
    fleet = Fleet()
    for name, labels in {"a": {}, "b": {"berth.dev/cards": mode}, "c": {}}.items():
        add(fleet, node_info(name, labels=labels, offered={}), inventory(card()))
    fleet.claims.set_own(OwnPools(drivers=frozenset({DRA_DRIVER})))
    fleet.set_device_classes({NVIDIA: "gpu"})
    extended = (ExtendedRequest(NVIDIA, "main", 0, 0, 1, short_lived=False),)
    request = replace(asks({NVIDIA: 1}), extended=extended)
    expected = cycle.feasible(fleet, request, Policy().local)
    for rows in ([0], [1], [1, 2], [2, 1, 1, 0]):
        what_if = WhatIf(fleet, np.array(rows), PlacedPods.of(fleet, []))
        assert what_if.fits(request, Policy()).tolist() == expected[rows].tolist()


def summary(placed: PlacedPods, numbers: Any) -> dict[str, Any]:
    """Return what the columns hold of each pod, by its UID."""
    by_uid = {}
    for number in numbers.tolist():
        parts, _ = placed.parts["gpu"].of(np.array([number]))
        gpu = placed.parts["gpu"]
        by_uid[placed.charges[number].uid] = (
            int(placed.rows[number]),
            int(placed.priority[number]),
            int(placed.started[number]),
            bool(placed.terminating[number]),
            placed.amounts[:, placed.amount_columns[number]].tolist(),
            [(int(gpu.slots[part]), gpu.amounts[:, gpu.amount_columns[part]].tolist()) for part in parts],
            bool(gpu.unknown[number]),
        )
    return by_uid


@settings(max_examples=25)
@given(st.lists(CHANGES, min_size=1, max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_the_placed_pods_are_kept_as_if_computed_again(rounds: list[list[Charge | str]], starts: list[int]) -> None:
    fleet = made()
    fleet.put_node(node_info("n-new", more={"new": 3}))
    for changes, started in zip(rounds, starts, strict=False):
        for each in changes:
            change(fleet, each)
        if fleet.charges:
            first = next(iter(fleet.charges.values()))
            fleet.refresh(replace(first, started=started, ends=started + 60))
        kept = fleet.placed_pods.current(fleet)
        rebuilt = PlacedPods.of(fleet, list(fleet.charges.values()))
        assert summary(kept, fleet.placed_pods.numbers()) == summary(rebuilt, np.arange(len(fleet.charges)))
