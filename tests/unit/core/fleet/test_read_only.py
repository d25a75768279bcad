"""Arrays that the Fleet returns to filters, scores and plug-ins are read-only."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from berth_api.request.model import ModelConstraint
from berth_api.values.selectors import LabelSelector
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import Filter
from berth_operator.core.fleet.arrays.column_cache import ALL, only, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Identity, Peers, PodSelection
from berth_operator.core.values.request import Taint
from tests.objects.builders import NVIDIA, add, asks, cards, charge, grant, inventory, node_info

TAINT = Taint(key="dedicated", value="gpu", effect="NoSchedule")
TESLA = ModelConstraint(globs=("tesla*",))
ALL_LABELS = LabelSelector()
IMAGE = "app:1"
PEERS = PodSelection(peers=(Peers(namespaces=("default",), selector=ALL_LABELS),))


def fleet() -> Fleet:
    made = Fleet()
    info = node_info("node", labels={"zone": "a"}, taints=(TAINT,), features=("Swap",), images={IMAGE: 1})
    add(made, info, inventory(*cards(2)))
    made.charge(charge("pod", grant(0), node="node", identity=Identity(namespace="default", controller="of")))
    return made


def arrays(of: object) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    return ((name, each) for name, each in vars(of).items() if isinstance(each, np.ndarray))


@pytest.mark.parametrize("made", [fleet(), fleet().copy(), fleet().excerpt(np.array([0, 0]))])
def test_no_column_can_be_written(made: Fleet) -> None:
    columns = [*arrays(made), *(pair for of in made.cards.values() for pair in arrays(of))]
    assert len(columns) > 60
    for name, column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0
        assert not column.flags.writeable, name


def test_columns_show_what_the_fleet_writes_also_after_it_has_grown() -> None:
    made = fleet()
    row, present, used = made.rows["node"], made.present, made.cards["gpu"].used
    assert (bool(present[row]), int(made.cards["gpu"].users[row, 0])) == (True, 1)
    made.release("uid-pod")
    assert not used[:, row].any()
    for number in range(40):
        add(made, node_info(f"more-{number}", more={f"example.com/r{number}": 1}))
    add(made, node_info("large"), inventory(*cards(9)))
    made.charge(charge("pod", grant(8), node="large", resources=(("cpu", 7), ("example.com/new", 1))))
    row = made.rows["large"]
    assert (len(made.present), bool(made.present[row]), int(made.requested[0, row])) == (64, True, 7)
    assert int(made.cards["gpu"].users[row].sum()) == 1


def test_a_copy_is_written_without_the_original() -> None:
    made = fleet()
    copied, row = made.copy(), made.rows["node"]
    copied.release("uid-pod")
    copied.remove_node("node")
    assert (bool(made.present[row]), int(made.cards["gpu"].users[row].sum())) == (True, 1)
    assert (bool(copied.present[row]), int(copied.cards["gpu"].users[row].sum())) == (False, 0)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda made: made.total("cpu"), id="allocatable"),
        pytest.param(lambda made: made.taints()[TAINT], id="taint"),
        pytest.param(lambda made: made.declaring("Swap"), id="declared feature"),
        pytest.param(lambda made: made.images.found(IMAGE)[1], id="image"),
        pytest.param(lambda made: made.labels.column("zone").numbers, id="label"),
        pytest.param(lambda made: made.accepted_models(TESLA), id="models"),
        pytest.param(lambda made: made.accepting((TESLA,)), id="model constraints"),
        pytest.param(lambda made: made.intern_table.selected(ALL_LABELS), id="labels of cards"),
        pytest.param(lambda made: made.intern_table.offering(ALL_LABELS), id="virtual functions"),
        pytest.param(lambda made: made.affinity_index.count(PEERS), id="pods of a selector"),
        pytest.param(lambda made: made.affinity_index.replicas.count("of"), id="replicas"),
        pytest.param(lambda made: made.pod_mix.typical.demand, id="typical demand"),
        pytest.param(lambda made: made.pod_mix.typical.enough, id="typical cpu"),
        pytest.param(lambda made: pick(made.present, ALL), id="all rows"),
        pytest.param(lambda made: pick(made.present, only(0)), id="one row"),
    ],
)
def test_no_answer_that_is_the_fleets_own_can_be_written(read: Callable[[Fleet], Any]) -> None:
    answer = read(fleet())
    with pytest.raises(ValueError, match="read-only"):
        answer[...] = 0


@pytest.mark.parametrize("each", Policy().filters, ids=lambda each: each.NAME)
def test_a_filters_mask_is_new_or_read_only(each: Filter) -> None:
    made, request = fleet(), asks({NVIDIA: 1, "cpu": 1})
    mask = each.passes(made, request)
    if np.shares_memory(mask, made.present):
        assert not mask.flags.writeable
    assert made.present[made.rows["node"]]
