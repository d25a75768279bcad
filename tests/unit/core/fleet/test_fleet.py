"""The Fleet keeps charges, whatever happens to nodes and cards, and releases them exactly."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.allocation import FUNCTIONS
from berth_api.allocation.partitions import NVSWITCH
from berth_api.request.model import ModelAliases, ModelConstraint
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import devices
from berth_operator.core.fleet.fleet import SPARE_RESOURCES, Fleet
from berth_operator.core.fleet.nodes.cards import Cards
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Taint
from tests.objects.builders import (
    A100_BYTES,
    GI,
    NVIDIA,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    grant,
    instance,
    inventory,
    label,
    node_info,
    other_card,
    replica,
    sliced,
    with_functions,
)


def slot(of: Fleet, node: str, minor: int, kind: str = "gpu") -> tuple[int, int]:
    row = of.rows[node]
    return row, int(np.flatnonzero(of.cards[kind].minor[row] == minor)[0])


def free(of: Fleet, node: str, minor: int, kind: str = "gpu") -> dict[str, int]:
    """Return what is left of a card, by resource."""
    row, at = slot(of, node, minor, kind)
    columns = of.cards[kind]
    return {name: int(columns.free[i, row, at]) for name, i in columns.index.items() if columns.total[i, row, at]}


WORDS = ("unknown", "taken")


def state(of: Fleet) -> dict[Any, Any]:
    """Return all counts by name, so that they can be compared independently of rows and slots."""
    totals: dict[Any, Any] = {}
    for name, row in of.rows.items():
        totals[name] = {resource: int(of.requested[i, row]) for resource, i in of.resources.items()}
        for kind, columns in of.cards.items():
            totals[name, kind, "unknown"] = int(columns.unknown[row])
            totals[name, kind, "taken"] = columns.taken.get(row, ())
            for at in columns.slots(row):
                key = (name, kind, int(columns.minor[row, at]))
                used = {each: columns.used[i, row, at].item() for each, i in columns.index.items()}
                totals[key] = (columns.users[row, at].item(), +Counter(used))
    return totals


def arrays(of: Fleet) -> list[Any]:
    """Return every array of amounts."""
    arrays_: list[Any] = [of.requested, of.allocatable]
    for columns in of.cards.values():
        arrays_ += [columns.used, columns.users, columns.unknown, columns.total, columns.present, columns.minor]
        arrays_ += [columns.numa, columns.pcie, columns.labels, columns.functions, columns.wiring]
        arrays_ += [np.array(sorted(columns.taken.items()), object)]
    return [each.copy() for each in arrays_]


# --- growing ----------------------------------------------------------------------------------------------------


def rich(name: str) -> Fleet:
    """Return a fleet of one node with devices of all kinds, parts of which pods hold, and nothing as in a new fleet."""
    made = Fleet()
    node = node_info(name, labels={"zone": "a"}, taints=[Taint(key="a")], cordoned=True, ready=False, more={"x": 9})
    place: Any = {"numa": 1, "pcie": "s", "labels": (("x", "y"),)}
    nic = other_card("rdma", functions=(((), ((0, "a"), (1, "b"))),), **place)
    listed = (card(0, links=((1, 5),), **place), card(1), divided(2, "1g.10gb"), sliced(3, 4), nic)
    tables: Any = {"partitions": NVSWITCH, "partitions_only": True, "mig_single": True, "one_replica": True}
    tables["kubelet_chooses"] = True
    add(made, node, inventory(*listed, **tables))
    made.withhold(name, (1,))
    held = (grant(0, ratio=10), instance(2, 0), replica(3, 1), with_functions(0, "b"), grant(7, ratio=10))
    made.charge(charge("pod", *held, node=name, resources=(("cpu", 7),), unknown=("gpu",)))
    return made


def columns_of(of: Fleet, node: str) -> dict[str, Any]:
    """Return the node's values in all columns."""
    row = of.rows[node]
    owners: dict[str, Fleet | Cards] = {"fleet": of, **of.cards}
    return {
        f"{kind} {name}": column[row] if len(column) == len(of.names) else column[:, row]
        for kind, owner in owners.items()
        for name, column in vars(owner._own).items()
    }


def test_all_that_is_known_of_a_node_survives_growing() -> None:
    made = rich("first")
    before = {name: np.array(values) for name, values in columns_of(made, "first").items()}
    for i in range(40):
        add(made, node_info(f"node-{i}", more={f"example.com/{i}": 1}), inventory(*cards(12)))
    after = columns_of(made, "first")
    for name, values in before.items():
        np.testing.assert_array_equal(after[name][tuple(map(slice, values.shape))], values, name)
    row = made.rows["first"]
    assert np.flatnonzero(made.labels.meeting(label("zone", "In", "a"))).tolist() == [row]
    assert np.flatnonzero(made.taints()[Taint(key="a")]).tolist() == [row]
    assert made.cards["gpu"].taken == {row: ("GPU-3::1", "MIG-2-0")}


OF_CARDS_THAT_ARE_THERE, MEASURED = ("kind", "model", "instance_memory"), "gpu measured"
"""Columns that nothing reads for a slot without a card, and the one with values that are no numbers."""
PLAIN = inventory(*cards(2), other_card("rdma"))


def replaced(made: Fleet) -> None:
    made.remove_node("node")
    made.remove_device("node")
    add(made, node_info("new"))


@pytest.mark.parametrize(
    ("act", "node", "devices"),
    [
        pytest.param(replaced, "new", None, id="another node in its row"),
        pytest.param(lambda made: made.remove_device("node"), "node", None, id="no Device"),
        pytest.param(lambda made: made.put_device("node", PLAIN), "node", PLAIN, id="plain cards"),
    ],
)
def test_what_is_gone_leaves_no_residue(act: Callable[[Fleet], None], node: str, devices: Any) -> None:
    # The columns of a row that has only ever had this are as long as the node has them: another node is rich.
    made, expected = rich("node"), rich("rich")
    row = made.rows["node"]
    made.release("uid-pod")
    made.put_node(node_info("node"))
    act(made)
    add(expected, node_info(node), devices)
    expected.set_fresh(node, fresh=bool(made.fresh[row]))
    found = columns_of(made, node)
    for name, values in columns_of(expected, node).items():
        assert name.endswith(OF_CARDS_THAT_ARE_THERE) or np.array_equal(found[name], values, equal_nan=name == MEASURED)
    assert made.rows == {node: row}
    assert (made.names[row], made.labels[row], made.taints()) == (node, {}, {})
    assert not made.labels.meeting(label("zone", "In", "a")).any()
    assert not any(columns.taken or columns.instances for columns in made.cards.values())


def test_minors_need_not_be_in_order_or_close() -> None:
    made = fleet({"node": (card(70, memory=GI), card(3, memory=2 * GI), card(9, memory=4 * GI))})
    row = made.rows["node"]
    columns = made.cards["gpu"]
    assert [int(columns.minor[row, at]) for at in columns.slots(row)] == [3, 9, 70]
    assert free(made, "node", 9)["gpu-memory"] == 4 * GI


def test_a_resource_that_a_node_offers_later_counts_what_placed_pods_request_of_it() -> None:
    made, name = fleet(), "example.com/disk"
    made.charge(charge("pod", resources=(("cpu", 1), (name, 2))))
    made.charge(charge("ended", resources=((name, 1),)))
    made.release("uid-ended")
    row, before = made.rows["node"], made.placed_pods.current(made)
    assert name not in made.resources
    assert made.left(name)[row] == 0
    made.put_node(node_info("node", more={"example.com/nic": 4, name: 5}))
    assert {each: int(made.left(each)[row]) for each in (name, "example.com/nic")} == {name: 3, "example.com/nic": 4}
    assert len(made.placed_pods.current(made).amounts) == len(before.amounts) + 2
    made.release("uid-pod")
    assert made.left(name)[row] == 5


def test_what_a_node_no_longer_offers_is_gone() -> None:
    made = Fleet()
    made.put_node(node_info("node", more={"example.com/nic": 4}))
    made.put_node(node_info("node"))
    assert made.allocatable[made.resources["example.com/nic"], made.rows["node"]] == 0


# --- charging ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "filled"),
    [
        pytest.param({"ratio": 50}, {"gpu-memory": A100_BYTES // 2, "gpu-memory-ratio": 50}, id="memory from ratio"),
        pytest.param(
            {"ratio": 33}, {"gpu-memory": 33 * A100_BYTES // 100, "gpu-memory-ratio": 33}, id="memory rounded down"
        ),
        pytest.param({"memory": 8 * GI}, {"gpu-memory": 8 * GI, "gpu-memory-ratio": 10}, id="ratio from memory"),
        pytest.param({"memory": 1}, {"gpu-memory": 1, "gpu-memory-ratio": 0}, id="less than a hundredth"),
        pytest.param(
            {"memory": A100_BYTES}, {"gpu-memory": A100_BYTES, "gpu-memory-ratio": 100}, id="all of the memory"
        ),
        pytest.param({"memory": 5, "ratio": 7}, {"gpu-memory": 5, "gpu-memory-ratio": 7}, id="both are left alone"),
        pytest.param({"core": 7}, {"gpu-core": 7}, id="neither is invented"),
    ],
)
def test_a_grant_is_filled_in_by_its_cards_memory(given_: dict[str, Any], filled: Mapping[str, int]) -> None:
    made = fleet()
    made.charge(charge("pod", grant(0, **given_)))
    assert dict(made.charges["uid-pod"].grants[0].amounts) == filled


@pytest.mark.parametrize("ratio", [pytest.param(ratio, id=str(ratio)) for ratio in range(1, 101)])
def test_ratio_to_bytes_never_gives_more_than_the_card_for_a_hundred_hundredths(ratio: int) -> None:
    made = fleet()
    made.charge(charge("first", grant(0, ratio=ratio)))
    made.charge(charge("second", grant(0, ratio=100 - ratio)))
    left = free(made, "node", 0)
    assert left["gpu-memory-ratio"] == 0
    assert 0 <= left["gpu-memory"] <= 1


def test_what_may_be_held_is_counted_by_type() -> None:
    made = fleet()
    made.charge(charge("pod", unknown=("gpu", "rdma")))
    row = made.rows["node"]
    assert {kind: int(columns.unknown[row]) for kind, columns in made.cards.items()} == {"gpu": 1, "rdma": 1, "fpga": 0}
    made.release("uid-pod")
    assert not any(columns.unknown.any() for columns in made.cards.values())


NAMES = st.sampled_from(["a", "b", "c"])
GRANTS = st.one_of(
    st.builds(
        lambda kind, minor, ratio: grant(minor, kind, **({"ratio": ratio} if kind == "gpu" else {kind: ratio})),
        st.sampled_from(["gpu", "rdma", "fpga"]),
        st.integers(0, 9),
        st.integers(1, 100),
    ),
    st.builds(instance, st.integers(0, 3), st.integers(0, 3), st.sampled_from(["1g.10gb", "2g.20gb", "1g.10gb+me"])),
    st.builds(replica, st.integers(0, 3), st.integers(0, 3)),
    st.builds(with_functions, st.integers(0, 3), st.sampled_from(["a", "b", ""]), st.sampled_from(["a", "c"])),
)
CHARGES = st.builds(
    lambda uid, node, found, unknown, cpu: Charge(
        uid=uid,
        pod=f"ns/{uid}",
        node=node,
        resources=(("cpu", cpu), ("example.com/x", 1)),
        grants=tuple(found),
        unknown=tuple(unknown),
    ),
    st.sampled_from("abcdef"),
    NAMES,
    st.lists(GRANTS, max_size=4, unique_by=lambda each: (each.type, each.minor, each.id)),
    st.lists(st.sampled_from(["gpu", "rdma"]), unique=True),
    st.integers(0, 10**6),
)


@settings(max_examples=50)
@given(st.lists(CHARGES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_charging_is_exactly_reversible_for_every_array_in_any_order(charges: list[Charge], random: Any) -> None:
    made = fleet({name: cards(2) for name in "abc"})
    for each in charges:  # once before, so that columns and slots are as wide as they get
        made.charge(each)
    for each in charges:
        made.release(each.uid)
    before = arrays(made)
    for each in charges:
        made.charge(each)
    uids = sorted({each.uid for each in charges})
    random.shuffle(uids)
    for uid in uids:
        made.release(uid)
    assert not made.charges
    assert all(np.array_equal(a, b) for a, b in zip(before, arrays(made), strict=True))
    assert not any(columns.used.any() or columns.users.any() for columns in made.cards.values())
    assert not made.requested.any()


EVENTS = st.lists(
    st.one_of(
        CHARGES.map(lambda each: ("charge", each)),
        st.sampled_from("abcdef").map(lambda uid: ("release", uid)),
        st.tuples(
            st.sampled_from(["put_node", "remove_node", "put_device", "divide", "shrink", "remove_device"]), NAMES
        ),
    ),
    max_size=30,
)


@settings(max_examples=50)
@given(EVENTS)
def test_whatever_happens_only_live_pods_are_charged(events: list[tuple[str, Any]]) -> None:
    made = Fleet()
    acts: dict[str, Callable[[Any], object]] = {
        "charge": made.charge,
        "release": made.release,
        "put_node": lambda name: made.put_node(node_info(name)),
        "remove_node": made.remove_node,
        "put_device": lambda name: made.put_device(name, inventory(*cards(3), other_card("rdma"))),
        "divide": lambda name: made.put_device(name, inventory(divided(0, "1g.10gb", "2g.20gb"), sliced(1, 4))),
        "shrink": lambda name: made.put_device(name, inventory(card(1))),
        "remove_device": made.remove_device,
    }
    for kind, what in events:
        acts[kind](what)
    users, used = Counter[tuple[str, str, int]](), dict[tuple[str, str, int], Counter[str]]()
    for each in made.charges.values():
        for part in each.grants:
            key = (each.node, part.type, part.minor)
            users[key] += 1
            used.setdefault(key, Counter()).update({**dict(part.amounts), FUNCTIONS: len(part.functions)})
    counted = {key: value for key, value in state(made).items() if isinstance(key, tuple) and key[2] not in WORDS}
    assert {key: held for key, held in counted.items() if held[0]} == {key: (users[key], used[key]) for key in users}
    handles = Counter(name for each in made.charges.values() for part in each.grants for name in part.handles)
    assert handles == Counter(name for kind in made.cards.values() for row in kind.taken.values() for name in row)
    for uid in list(made.charges):
        made.release(uid)
    assert not made.requested.any()
    assert not any(columns.taken for columns in made.cards.values())
    assert not any(columns.used.any() or columns.unknown.any() for columns in made.cards.values())


RESOURCES = ("example.com/x", "example.com/y", "example.com/z")
OFFERS = st.builds(
    lambda name, offered: node_info(name, more=dict.fromkeys(offered, 5)),
    NAMES,
    st.lists(st.sampled_from(RESOURCES), unique=True),
)
DEVICES = st.sampled_from(
    [
        inventory(*cards(3), other_card("rdma")),
        inventory(divided(0, "1g.10gb", "2g.20gb"), sliced(1, 4)),
        inventory(card(1, memory=4 * GI)),
    ]
)
LIMITS = {"ns": {"gpu": 1600}}


def sums(of: Fleet) -> dict[Any, Any]:
    """Return everything that is added up from charges and nominations."""
    columns = (of.nonzero_requested, of.mps_pods, of.other_gpu_pods)
    totals: dict[Any, Any] = {key: value for key, value in state(of).items() if isinstance(key, tuple)}
    for name, row in of.rows.items():
        totals[name] = {resource: int(of.left(resource)[row]) for resource in ("cpu", "memory", "pods", *RESOURCES)}
        totals[name, "columns"] = [column[..., row].tolist() for column in columns]
    return {**totals, "of the namespace": +Counter(of.namespaces.held("ns"))}


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["charge", "nominate"]), CHARGES),
            st.tuples(st.sampled_from(["release", "withdraw"]), st.sampled_from("abcdef")),
            st.tuples(st.just("put_node"), OFFERS),
            st.tuples(st.sampled_from(["remove_node", "remove_device"]), NAMES),
            st.tuples(st.just("put_device"), NAMES, DEVICES),
        ),
        max_size=40,
    )
)
def test_all_sums_are_those_of_a_new_fleet_with_the_same_nodes_and_pods(events: list[tuple[Any, ...]]) -> None:
    """All columns of resources are used here, so each new resource drops those that no node offers any more."""
    made, existing = Fleet(), dict[tuple[str, str], tuple[Any, ...]]()
    made.set_namespace_limits(LIMITS)
    for name, *given_ in events:
        getattr(made, name)(*given_)
        verb, _, what = name.partition("_")
        if verb == "put":
            existing[what, getattr(given_[0], "name", given_[0])] = (name, *given_)
        elif verb == "remove":
            existing.pop((what, given_[0]), None)
    rebuilt = Fleet()
    rebuilt.set_namespace_limits(LIMITS)
    for name, *given_ in existing.values():
        getattr(rebuilt, name)(*given_)
    for each in made.charges.values():
        rebuilt.charge(each)
    for each in made.nominees.values():
        rebuilt.nominate(each)
    assert sums(made) == sums(rebuilt)


def test_a_resource_that_comes_back_counts_what_nominated_pods_request_of_it() -> None:
    made, name = Fleet(), "example.com/nic"
    made.put_node(node_info(more={name: 4}))
    made.nominate(charge("pod", resources=((name, 4),)))
    made.put_node(node_info())
    made.put_node(node_info("other", more={"example.com/disk": 1}))
    assert name not in made.resources
    made.put_node(node_info(more={name: 4}))
    assert made.left(name)[made.rows["node"]] == 0
    made.withdraw("uid-pod")
    assert made.left(name)[made.rows["node"]] == 4


# --- Devices that come and go -----------------------------------------------------------------------------------


def test_a_vanished_card_is_forgotten_with_its_last_pod() -> None:
    made = fleet({"node": cards(2)})
    made.charge(charge("pod", grant(1, ratio=60)))
    made.put_device("node", inventory(card(0)))
    made.release("uid-pod")
    assert len(list(made.cards["gpu"].slots(made.rows["node"]))) == 1


def test_a_vanished_cards_slot_is_used_again() -> None:
    made = fleet({"node": cards(2)})
    width = made.cards["gpu"].minor.shape[1]
    for minor in range(2, 40):
        made.put_device("node", inventory(card(minor), card(minor + 1)))
    assert made.cards["gpu"].minor.shape[1] == width


def test_a_pod_known_before_its_device_is_filled_in_when_that_comes() -> None:
    made = Fleet()
    made.put_node(node_info("node"))
    made.charge(charge("pod", grant(0, ratio=50)))
    made.put_device("node", inventory(card()))
    assert free(made, "node", 0)["gpu-memory"] == A100_BYTES - A100_BYTES // 2
    made.release("uid-pod")
    assert free(made, "node", 0)["gpu-memory"] == A100_BYTES


def test_what_was_filled_in_stays_when_the_card_changes_its_size() -> None:
    made = fleet()
    made.charge(charge("pod", grant(0, ratio=50)))
    made.put_device("node", inventory(card(0, memory=T4_BYTES)))
    assert dict(made.charges["uid-pod"].grants[0].amounts)["gpu-memory"] == A100_BYTES // 2


# --- rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(["node", "device", "pod"], id="node first"),
        pytest.param(["pod", "device", "node"], id="pod first"),
        pytest.param(["device", "node", "pod"], id="device first"),
    ],
)
def test_a_row_lives_until_node_device_and_pods_are_gone(order: list[str]) -> None:
    made = fleet()
    made.charge(charge("pod", grant(0, ratio=50)))
    remove: dict[str, Callable[[], object]] = {
        "node": lambda: made.remove_node("node"),
        "device": lambda: made.remove_device("node"),
        "pod": lambda: made.release("uid-pod"),
    }
    for what in order[:2]:
        remove[what]()
        assert "node" in made.rows
    remove[order[2]]()
    assert "node" not in made.rows


def test_a_device_without_a_node_is_not_present() -> None:
    made = Fleet()
    made.put_device("node", inventory(card()))
    assert not made.present.any()


def test_a_new_row_is_not_fresh() -> None:
    made = Fleet()
    made.put_node(node_info("node"))
    made.put_device("node", inventory(card()))
    assert not made.fresh.any()


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda made: made.set_fresh("unknown", fresh=True), id="freshness"),
        pytest.param(lambda made: made.remove_node("unknown"), id="node"),
        pytest.param(lambda made: made.remove_device("unknown"), id="device"),
        pytest.param(lambda made: made.withhold("unknown", (0,)), id="withheld cards"),
    ],
)
def test_an_unknown_node_is_left_unknown(act: Any) -> None:
    made = fleet()
    act(made)
    assert set(made.rows) == {"node"}


def test_taints_that_no_node_has_are_forgotten() -> None:
    made = fleet()
    for second in range(100):
        made.put_node(node_info("node", taints=[Taint(key="deletion-candidate", value=str(second))]))
    assert len(made.taints()) == 1


def test_labels_asked_for_once_are_kept_current() -> None:
    made = fleet({"a": (), "b": ()})
    assert not made.labels.meeting(label("zone", "In", "x")).any()
    made.put_node(node_info("b", labels={"zone": "x"}))
    assert np.flatnonzero(made.labels.meeting(label("zone", "In", "x"))).tolist() == [made.rows["b"]]
    made.put_node(node_info("b"))
    assert not made.labels.meeting(label("zone", "In", "x")).any()


def test_a_model_is_known_by_its_number() -> None:
    made = fleet({"node": (card(0), card(1, model=T4))})
    accepted = made.accepted_models(ModelConstraint(exact=T4.lower()))
    by_minor = {minor: bool(accepted[made.cards["gpu"].model[slot(made, "node", minor)]]) for minor in (0, 1)}
    assert by_minor == {0: False, 1: True}


def test_a_model_is_known_by_its_aliases_from_the_next_decision_on() -> None:
    made = fleet({"node": (card(0), card(1, model=T4))})
    wanted = asks({NVIDIA: 1}, model=ModelConstraint(exact="cheap"))
    chosen = []
    steps: list[ModelAliases] = [{}, {"cheap": ("tesla*",)}, {"cheap": ("nvidia a100*",)}, {}]
    for aliases in steps:
        made.set_model_aliases(aliases)
        fits = devices.BUILT_IN.passes(made, wanted)[made.rows["node"]]
        chosen.append([each.minor for each in Policy().choose(made, made.rows["node"], wanted)] if fits else [])
    assert chosen == [[], [1], [0], []]


def test_pods_that_name_their_node_get_no_columns_for_what_no_node_offers() -> None:
    made = fleet({"node": ()})
    offered = len(made.requested)
    for number in range(100):
        names = [f"example.com/r-{number}-{place}" for place in range(10)]
        made.charge(charge(f"pod-{number}", resources=(("cpu", 1), *((name, 2) for name in names))))
    assert len(made.requested) == len(made.resources) == offered
    assert made.total("cpu")[made.rows["node"]] - made.left("cpu")[made.rows["node"]] == 100


def test_columns_of_resources_that_no_node_offers_any_more_are_dropped() -> None:
    made = fleet({"node": ()})
    made.charge(charge("pod", resources=(("cpu", 7), ("example.com/r-3-3", 2))))
    for number in range(100):
        names = [f"example.com/r-{number}-{place}" for place in range(10)]
        made.put_node(node_info("node", more=dict.fromkeys(names, 5)))
        left = [int(made.left(name)[made.rows["node"]]) for name in names]
        assert left == [3 if name == "example.com/r-3-3" else 5 for name in names]
    assert len(made.requested) == len(made.resources) <= 2 * SPARE_RESOURCES
    assert made.total("cpu")[made.rows["node"]] - made.left("cpu")[made.rows["node"]] == 7


def test_the_resources_of_every_node_keep_their_columns() -> None:
    made = Fleet()
    for number in range(2):
        more = {f"example.com/r-{number}-{place}": 1 for place in range(SPARE_RESOURCES)}
        made.put_node(replace(node_info("node"), allocatable={**more, "memory": 0}))
    assert {"cpu", "memory", "pods"} <= made.resources.keys()
    assert made.left("cpu")[made.rows["node"]] == 0
