"""The summary of a node: the fields of Koordinator's debug API row by row, and Berth's own."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_api.links import DIRECT as NVLINK
from berth_api.links import SCORES as LINKS
from berth_operator.core.advice.summary import nodes, summary
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from tests.objects.builders import (
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


def rdma(amount: int) -> dict[str, str]:
    return {"kubernetes.io/rdma": str(amount)}


def by_card(first: dict[str, str], second: dict[str, str], nic: int, **more: dict[str, str]) -> dict[str, Any]:
    """Return a detail of the GPUs 0 and 1 and of the NIC; `more` are cards that the Device does not list."""
    return {"gpu": {"0": first, "1": second, **more}, "rdma": {"3": rdma(nic)}}


HALF = charge("half", grant(0, core=50, ratio=50), node="n")
QUARTER = charge("quarter", grant(0, core=25, ratio=25, memory=20 * GI), grant(3, "rdma", rdma=10), node="n")
ON_FAILED = charge("unlucky", grant(1, core=100, ratio=100), node="n")
ON_GONE = charge("lost", grant(7, core=100, ratio=100, memory=80 * GI), node="n")
MORE = charge("other", grant(0, core=80, ratio=80), node="n")
ANY = charge("any", node="n", unknown=("gpu", "rdma"))
TOTAL = {"deviceTotal": {**WHOLE, **rdma(100)}, "deviceTotalDetail": by_card(WHOLE, {}, 100)}
PLACE: Mapping[str, Any] = {"model": A100, "topology": {}}

SUMMARIES: dict[str, tuple[tuple[Charge, ...], Mapping[str, Any]]] = {
    "nothing is held": (
        (),
        {
            **TOTAL,
            "deviceFree": {**WHOLE, **rdma(100)},
            "deviceUsed": {**NONE, **rdma(0)},
            "deviceFreeDetail": by_card(WHOLE, {}, 100),
            "deviceUsedDetail": by_card(NONE, {}, 0),
            "allocateSet": {},
            "unaccounted": {},
            "ready": True,
        },
    ),
    "two share a card, what they left out is filled in": (
        (HALF, QUARTER),
        {
            "deviceFree": {**gpu(25, "20Gi", 25), **rdma(90)},
            "deviceUsed": {**gpu(75, "60Gi", 75), **rdma(10)},
            "deviceFreeDetail": by_card(gpu(25, "20Gi", 25), {}, 90),
            "allocateSet": {
                "gpu": {"ns/half": {"0": gpu(50, "40Gi", 50)}, "ns/quarter": {"0": gpu(25, "20Gi", 25)}},
                "rdma": {"ns/quarter": {"3": rdma(10)}},
            },
        },
    ),
    "a failed card offers nothing and is held": (
        (ON_FAILED,),
        {
            **TOTAL,
            "deviceFree": {**WHOLE, **rdma(100)},
            "deviceUsed": {**WHOLE, **rdma(0)},
            "deviceUsedDetail": by_card(NONE, WHOLE, 0),
        },
    ),
    "a card that is gone is held": (
        (ON_GONE,),
        {
            "deviceTotalDetail": by_card(WHOLE, {}, 100, **{"-1": {}}),
            "allocateSet": {"gpu": {"ns/lost": {"-1": WHOLE}}},
            "devices": {
                "gpu": {
                    "0": {"id": "GPU-0", "health": True, **PLACE},
                    "1": {"id": "GPU-1", "health": False, **PLACE},
                    "-1": {"id": "GPU-7", "model": "", "health": False},
                },
                "rdma": {"3": {"id": "rdma-3", "health": True, **PLACE, "model": ""}},
            },
        },
    ),
    "nothing is less than free": (
        (HALF, MORE),
        {"deviceFree": {**NONE, **rdma(100)}, "deviceUsed": {**gpu(130, "104Gi", 130), **rdma(0)}},
    ),
    "a pod that may hold any": (
        (ANY,),
        {"allocateSet": {}, "unaccounted": {"gpu": ["ns/any"], "rdma": ["ns/any"]}},
    ),
}


@pytest.mark.parametrize(("charges", "expected"), SUMMARIES.values(), ids=SUMMARIES)
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
