"""The summary of a node: the fields of Koordinator's debug API row by row, and Berth's own."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_operator.core.advice.summary import nodes, summary
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import LINKS, NVLINK
from berth_operator.core.values.charge import Charge
from tests.builders import (
    A100,
    GI,
    add,
    card,
    charge,
    fleet,
    grant,
    instance,
    inventory,
    node_info,
    other_card,
    with_functions,
)

CORE, MEMORY, RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio"


def gpu(core: int, memory: str, ratio: int) -> dict[str, str]:
    return {CORE: str(core), MEMORY: memory, RATIO: str(ratio)}


WHOLE, NONE = gpu(100, "80Gi", 100), gpu(0, "0", 0)


def made(*charges: Charge) -> Fleet:
    """Return a node with a healthy card, a failed one and a NIC."""
    of = fleet({"n": (card(0, memory=80 * GI), card(1, memory=80 * GI, healthy=False), other_card("rdma", 3))})
    for each in charges:
        of.charge(each)
    return of


def summary_of(of: Fleet, node: str = "n") -> dict[str, Any]:
    node_summary = summary(of, node)
    assert node_summary is not None
    return node_summary


HALF = charge("half", grant(0, core=50, ratio=50), node="n")
QUARTER = charge("quarter", grant(0, core=25, ratio=25, memory=20 * GI), grant(3, "rdma", rdma=10), node="n")
ON_FAILED = charge("unlucky", grant(1, core=100, ratio=100), node="n")
ON_GONE = charge("lost", grant(7, core=100, ratio=100, memory=80 * GI), node="n")


@pytest.mark.parametrize(
    ("charges", "expected"),
    [
        pytest.param(
            (),
            {
                "deviceTotal": {**WHOLE, "kubernetes.io/rdma": "100"},
                "deviceFree": {**WHOLE, "kubernetes.io/rdma": "100"},
                "deviceUsed": {**NONE, "kubernetes.io/rdma": "0"},
                "deviceTotalDetail": {"gpu": {"0": WHOLE, "1": {}}, "rdma": {"3": {"kubernetes.io/rdma": "100"}}},
                "deviceFreeDetail": {"gpu": {"0": WHOLE, "1": {}}, "rdma": {"3": {"kubernetes.io/rdma": "100"}}},
                "deviceUsedDetail": {"gpu": {"0": NONE, "1": {}}, "rdma": {"3": {"kubernetes.io/rdma": "0"}}},
                "allocateSet": {},
                "unaccounted": {},
                "ready": True,
            },
            id="nothing is held",
        ),
        pytest.param(
            (HALF, QUARTER),
            {
                "deviceFree": {**gpu(25, "20Gi", 25), "kubernetes.io/rdma": "90"},
                "deviceUsed": {**gpu(75, "60Gi", 75), "kubernetes.io/rdma": "10"},
                "deviceFreeDetail": {
                    "gpu": {"0": gpu(25, "20Gi", 25), "1": {}},
                    "rdma": {"3": {"kubernetes.io/rdma": "90"}},
                },
                "allocateSet": {
                    "gpu": {"ns/half": {"0": gpu(50, "40Gi", 50)}, "ns/quarter": {"0": gpu(25, "20Gi", 25)}},
                    "rdma": {"ns/quarter": {"3": {"kubernetes.io/rdma": "10"}}},
                },
            },
            id="two share a card, what they left out is filled in",
        ),
        pytest.param(
            (ON_FAILED,),
            {
                "deviceTotal": {**WHOLE, "kubernetes.io/rdma": "100"},
                "deviceFree": {**WHOLE, "kubernetes.io/rdma": "100"},
                "deviceUsed": {**WHOLE, "kubernetes.io/rdma": "0"},
                "deviceTotalDetail": {"gpu": {"0": WHOLE, "1": {}}, "rdma": {"3": {"kubernetes.io/rdma": "100"}}},
                "deviceUsedDetail": {"gpu": {"0": NONE, "1": WHOLE}, "rdma": {"3": {"kubernetes.io/rdma": "0"}}},
            },
            id="a failed card offers nothing and is held",
        ),
        pytest.param(
            (ON_GONE,),
            {
                "deviceTotalDetail": {
                    "gpu": {"0": WHOLE, "1": {}, "-1": {}},
                    "rdma": {"3": {"kubernetes.io/rdma": "100"}},
                },
                "allocateSet": {"gpu": {"ns/lost": {"-1": WHOLE}}},
                "devices": {
                    "gpu": {
                        "0": {"id": "GPU-0", "model": A100, "health": True, "topology": {}},
                        "1": {"id": "GPU-1", "model": A100, "health": False, "topology": {}},
                        "-1": {"id": "GPU-7", "model": "", "health": False},
                    },
                    "rdma": {"3": {"id": "rdma-3", "model": "", "health": True, "topology": {}}},
                },
            },
            id="a card that is gone is held",
        ),
        pytest.param(
            (HALF, charge("other", grant(0, core=80, ratio=80), node="n")),
            {
                "deviceFree": {**gpu(0, "0", 0), "kubernetes.io/rdma": "100"},
                "deviceUsed": {**gpu(130, "104Gi", 130), "kubernetes.io/rdma": "0"},
            },
            id="nothing is less than free",
        ),
        pytest.param(
            (charge("any", node="n", unknown=("gpu", "rdma")),),
            {"allocateSet": {}, "unaccounted": {"gpu": ["ns/any"], "rdma": ["ns/any"]}},
            id="a pod that may hold any",
        ),
    ],
)
def test_a_node_is_summed_up(charges: tuple[Charge, ...], expected: Mapping[str, Any]) -> None:
    fields = summary_of(made(*charges))
    assert {name: fields[name] for name in expected} == expected


def test_where_cards_are_and_how_they_are_linked_is_reported() -> None:
    first = card(0, numa=1, pcie="0000:3b", links=((1, 4 * NVLINK), (2, LINKS["System"])))
    of = fleet({"n": (first, card(1, numa=0, links=((0, 4 * NVLINK),)), card(2))})
    cards = summary_of(of)["devices"]["gpu"]
    assert {minor: each["topology"] for minor, each in cards.items()} == {
        "0": {"nodeID": 1, "pcieID": "0000:3b", "links": {"1": "NVLink x4", "2": "System"}},
        "1": {"nodeID": 0, "links": {"0": "NVLink x4"}},
        "2": {},
    }


SLICE = "nvidia.com/mig-1g.10gb"


def test_a_card_in_mig_mode_offers_its_instances_alone() -> None:
    instances = tuple((f"MIG-0-{number}", SLICE) for number in range(7))
    of = fleet({"n": (card(0, healthy=False, more={SLICE: 7}, instances=instances),)})
    of.charge(charge("two", instance(0, 0), instance(0, 1), node="n"))
    fields = summary_of(of)
    assert (fields["deviceTotal"], fields["deviceFree"]) == ({SLICE: "7"}, {SLICE: "5"})
    assert fields["deviceUsed"] == {SLICE: "2"}
    assert fields["allocateSet"] == {"gpu": {"ns/two": {"0": {SLICE: "2"}}}}
    assert fields["devices"]["gpu"]["0"]["health"] is True


def test_virtual_functions_are_no_resource() -> None:
    of = fleet({"n": (other_card("rdma", 0),)})
    of.charge(charge("pod", with_functions(0, "0000:01:00.1"), node="n"))
    assert summary_of(of)["deviceUsed"] == {"kubernetes.io/rdma": "1"}


@pytest.mark.parametrize("missing", ["agent", "node", "device"])
def test_a_node_is_ready_while_its_devices_may_be_handed_out(missing: str) -> None:
    of = made(HALF)
    if missing == "agent":
        of.set_fresh("n", fresh=False)
    elif missing == "node":
        of.remove_node("n")
    else:
        of.remove_device("n")
    assert summary_of(of)["ready"] is False
    # The allocations are known nevertheless.
    assert summary_of(of)["allocateSet"]["gpu"].keys() == {"ns/half"}


def test_nodes_without_devices_have_no_summary() -> None:
    of = made(charge("elsewhere", grant(0, core=100), node="left"), charge("plain", node="bare"))
    add(of, node_info("bare"))
    add(of, node_info("empty"), inventory())
    assert sorted(nodes(of)) == ["empty", "left", "n"]
    assert (summary(of, "bare"), summary(of, "unheard-of")) == (None, None)
    assert summary_of(of, "empty")["deviceTotal"] == {}
    of.release("uid-elsewhere")
    assert summary(of, "left") is None
