"""Columns of cards: the inventory follows the Device, and charges stay when the inventory changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from berth_api.allocation import FUNCTIONS
from berth_api.allocation.partitions import NVSWITCH
from berth_api.names import PARTITION_POLICY_LABEL
from berth_api.values.selectors import LabelSelector
from berth_operator.core.allocators import locality
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Cards
from tests.objects.builders import (
    card,
    cards,
    charge,
    divided,
    fleet,
    instance,
    inventory,
    label,
    node_info,
    other_card,
    waiting,
    with_functions,
)

MIG_1G, MIG_2G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
X_IS_Y = LabelSelector(requirements=(label("x", "In", "y"),))


def by_minor(of: Fleet, column: Any, node: str = "node", kind: str = "gpu") -> dict[int, Any]:
    """Return the value of a column for each card of a node."""
    columns, row = of.cards[kind], of.rows[node]
    return {int(columns.minor[row, slot]): column[row, slot].item() for slot in columns.slots(row)}


def amounts(of: Cards, row: int, name: str) -> tuple[int, int]:
    """Return the total and the used amounts of a resource on the cards of a row."""
    index = of.index[name]
    return int(of.total[index, row].sum()), int(of.used[index, row].sum())


# --- where cards are and what they are --------------------------------------------------------------------------


def test_each_card_has_its_place_and_labels() -> None:
    card_infos = (card(0, numa=1, pcie="s", labels=(("x", "y"),)), card(5, numa=0, pcie="t"), card(3))
    made = fleet({"node": card_infos, "other": cards(1)})
    gpus, intern_table = made.cards["gpu"], made.intern_table
    assert by_minor(made, gpus.numa) == {0: 1, 3: -1, 5: 0}
    assert {k: intern_table.switches[v] for k, v in by_minor(made, gpus.pcie).items()} == {0: "s", 3: "", 5: "t"}
    assert by_minor(made, intern_table.selected(X_IS_Y)[gpus.labels]) == {0: True, 3: False, 5: False}
    assert by_minor(made, gpus.numa, "other") == {0: -1}


def test_one_switch_has_one_number_among_all_types() -> None:
    made = fleet({"node": (card(0, pcie="s"), other_card("rdma", pcie="s"), other_card("fpga", pcie="t"))})
    numbers = [by_minor(made, made.cards[kind].pcie, kind=kind)[0] for kind in ("gpu", "rdma", "fpga")]
    assert numbers[0] == numbers[1] != numbers[2]
    assert 0 not in numbers


def test_equal_nodes_add_nothing_to_the_catalogue() -> None:
    card_infos = (card(0, pcie="s", labels=(("x", "y"),), links=((1, 5),)), card(1, links=((0, 5),)))
    made = fleet({f"node-{i}": card_infos for i in range(40)})
    intern_table = made.intern_table
    sizes = [
        len(each) for each in (intern_table.models, intern_table.switches, intern_table.labels, intern_table.wirings)
    ]
    assert sizes == [1, 2, 2, 2]
    assert len(set(made.cards["gpu"].wiring[list(made.rows.values())].tolist())) == 1


def test_a_selector_is_asked_again_when_there_are_new_labels() -> None:
    made = fleet({"node": cards(1)})
    assert made.intern_table.selected(X_IS_Y).tolist() == [False]
    made.put_device("node", inventory(card(0, labels=(("x", "y"),))))
    assert made.intern_table.selected(X_IS_Y).tolist() == [False, True]


def test_links_are_known_by_slot() -> None:
    made = fleet({"node": (card(4, links=((9, 500), (1, 10))), card(9, links=((4, 500), (7, 60))), card(1))})
    gpus, row = made.cards["gpu"], made.rows["node"]
    ways = locality.link_scores(made.intern_table.wirings[int(gpus.wiring[row])], gpus.minor.shape[1])
    at = {int(gpus.minor[row, slot]): slot for slot in gpus.slots(row)}
    scores = {(a, b): int(ways[at[a], at[b]]) for a in at for b in at if ways[at[a], at[b]]}
    # One of the two telling of a way is enough; minor 7 is not there.
    assert scores == {(4, 9): 500, (9, 4): 500, (4, 1): 10, (1, 4): 10}


def test_of_two_tellings_of_a_way_the_better_one_counts() -> None:
    for one, other in (("NVLink", "System"), ("System", "NVLink")):
        ways = locality.link_scores(((0, 0, ((1, one, 5),)), (1, 1, ((0, other, 5),))), 2)
        assert ways.tolist() == [[0, 500], [500, 0]]


def test_a_node_whose_cards_have_no_links_has_no_wiring() -> None:
    made = fleet({"node": cards(2)})
    assert not made.cards["gpu"].wiring.any()
    assert not locality.link_scores(made.intern_table.wirings[0], 4).any()


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"partitions": NVSWITCH}, ["partitions"], id="partitions"),
        pytest.param({"partitions_only": True}, ["partitions_only"], id="policy"),
        pytest.param({"mig_single": True}, ["mig_single"], id="MIG strategy single"),
        pytest.param({"kubelet_chooses": True}, ["kubelet_chooses"], id="kubelet chooses replicas"),
        pytest.param({"one_replica": True}, ["one_replica"], id="one replica for a container"),
    ],
)
def test_what_a_device_says_of_its_node(fields: Any, shown: list[str]) -> None:
    made = fleet({"node": cards(1)})
    made.put_device("node", replace(inventory(card()), **fields))
    row = made.rows["node"]

    columns = ("partitions", "partitions_only", "mig_single", "kubelet_chooses", "one_replica")

    def now() -> list[str]:
        return [name for name in columns if getattr(made, name)[row]]

    assert now() == shown
    assert made.intern_table.tables[int(made.partitions[row])] == fields.get("partitions", ())
    made.remove_device("node")
    assert now() == []


@pytest.mark.parametrize("device", [None, False, True])
@pytest.mark.parametrize("node_first", [True, False])
def test_the_policy_is_the_nodes_unless_the_device_says(*, device: bool | None, node_first: bool) -> None:
    made, policy = Fleet(), {PARTITION_POLICY_LABEL: "Honor"}
    if node_first:
        made.put_node(node_info(labels=policy))
    made.put_device("node", inventory(partitions_only=device))
    made.put_node(node_info(labels=policy))
    row = made.rows["node"]
    assert bool(made.partitions_only[row]) is (device is not False)
    made.put_node(node_info(labels={}))
    assert bool(made.partitions_only[row]) is (device is True)
    made.put_node(node_info(labels=policy))
    made.remove_node("node")
    assert bool(made.partitions_only[row]) is (device is True)


# --- parts of cards ---------------------------------------------------------------------------------------------


def test_virtual_functions_are_counted_and_held_by_address() -> None:
    made = fleet({"node": (other_card("rdma", functions=(((), ((0, "a"), (1, "b"))),)),)})
    nics, row = made.cards["rdma"], made.rows["node"]
    made.charge(charge("a", with_functions(0, "b")))
    made.charge(charge("b", with_functions(0, "a")))
    assert nics.taken[row] == ("a", "b")
    assert amounts(nics, row, FUNCTIONS)[1] == 2
    made.release("uid-b")
    assert nics.taken[row] == ("b",)
    assert made.intern_table.functions[int(nics.functions[row, 0])] == (((), ((0, "a"), (1, "b"))),)


def test_a_shared_nic_may_give_functions_as_well() -> None:
    made = fleet({"node": (other_card("rdma"),)})
    made.charge(charge("a", with_functions(0, "a")))
    assert isinstance(decide(made, waiting("pod", {"kubernetes.io/rdma": 50}), Policy()), Placement)


def test_names_that_no_card_has_any_longer_make_room_for_others() -> None:
    made = fleet({"node": (divided(0, "1g.10gb"),), "other": (divided(0, "7g.80gb"),)})
    made.charge(charge("a", instance(0, 0, "7g.80gb"), node="other"))
    for number in range(2, 100):
        made.put_device("node", inventory(divided(0, f"1g.{number}gb", f"2g.{number}gb")))
    made.put_device("other", inventory())
    made.put_device("node", inventory(divided(0, "3g.40gb")))
    gpus = made.cards["gpu"]
    profiles = {name for name in gpus.index if name.startswith("nvidia.com/mig-")}
    assert len(gpus.index) == len(gpus.total) == len(gpus.used)
    assert len(profiles) == 3
    assert amounts(gpus, made.rows["node"], "nvidia.com/mig-3g.40gb") == (1, 0)
    # What a pod still holds keeps its place.
    assert amounts(gpus, made.rows["other"], "nvidia.com/mig-7g.80gb") == (0, 1)


# --- copies -----------------------------------------------------------------------------------------------------


def test_a_copy_learns_new_resources_by_itself() -> None:
    made = fleet({"node": (divided(0, "1g.10gb"),)})
    copy = made.copy()
    copy.charge(charge("a", instance(0, 8, "2g.20gb"), with_functions(0, "a")))
    assert MIG_2G in copy.cards["gpu"].index
    assert MIG_2G not in made.cards["gpu"].index
    assert len(made.cards["gpu"].index) == len(made.cards["gpu"].total)
    made.charge(charge("b", instance(0, 9, "3g.40gb")))
    assert not made.cards["rdma"].taken
    own = [each.cards["gpu"].index.keys() - Cards("gpu", 1).index.keys() - {MIG_1G} for each in (made, copy)]
    assert own == [{"nvidia.com/mig-3g.40gb"}, {MIG_2G}]


def test_rows_of_an_excerpt_have_their_own_columns() -> None:
    rich = (card(0, numa=1, pcie="s", links=((1, 5),)), divided(1, "1g.10gb"))
    made = fleet({"a": cards(2), "b": rich})
    made.charge(charge("p", instance(1, 0), node="b"))
    at = made.rows["b"]
    excerpt = made.excerpt(np.array([at, made.rows["a"], at])).cards["gpu"]
    whole = made.cards["gpu"]
    assert excerpt.taken == {0: ("MIG-1-0",), 2: ("MIG-1-0",)}
    assert excerpt.instances == {0: whole.instances[at], 2: whole.instances[at]}
    for name in ("numa", "pcie", "labels", "functions", "minor", "users"):
        column = getattr(whole, name)
        assert np.array_equal(getattr(excerpt, name), column[[at, made.rows["a"], at]]), name
    excerpt.charge(0, instance(1, 1), 1)
    excerpt.charge(0, instance(1, 0), -1)
    assert (excerpt.taken[0], excerpt.taken[2], whole.taken[at]) == (("MIG-1-1",), ("MIG-1-0",), ("MIG-1-0",))
