"""The row of a node: its offered and free amounts, why nothing is allocated there, and no pod's name."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.links import DIRECT as NVLINK
from berth_api.objects.visibility import Card
from berth_operator.core.advice.fleet_rows import fleet_row, nodes
from berth_operator.core.filters import cordon
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import Bar
from berth_operator.core.values.request import Taint
from tests.objects.builders import (
    A100,
    GI,
    add,
    card,
    charge,
    divided,
    fleet,
    grant,
    instance,
    inventory,
    node_info,
    other_card,
)

ANY_GPU = "1 pod(s) may hold any gpu: their allocation is missing or cannot be read"
FULL = {"gpu-core": 100, "gpu-memory": 80 * GI, "gpu-memory-ratio": 100}


def gpu(minor: int = 0, **fields: Any) -> Any:
    return card(minor, memory=80 * GI, **fields)


def made(*cards: Any, charges: tuple[Charge, ...] = ()) -> Fleet:
    of = fleet({"node": cards or (gpu(),)})
    for each in charges:
        of.charge(each)
    return of


def device(of: Fleet, number: int = 0, faults: Any = None) -> Card:
    return fleet_row(of, "node", faults or {})["devices"][number]


def test_a_card_that_is_not_given_by_name_says_why() -> None:
    of = made(gpu(0, healthy=False, bar=Bar(reason="listed by d", detail="listed by driver d in pool p")), gpu(1))
    assert [device(of, number).get("barred") for number in range(2)] == ["listed by d", None]


HALF = charge("half", grant(0, core=50, ratio=50, memory=40 * GI), resources=(("cpu", 4000), ("pods", 1)))


def test_a_card_shows_what_it_offers_and_what_is_free() -> None:
    of = made(gpu(0, numa=1, pcie="sw0"), charges=(HALF,))
    assert device(of) == {
        "type": "gpu",
        "minor": 0,
        "id": "GPU-0",
        "model": A100,
        "healthy": True,
        "message": "",
        "blocked": "",
        "total": FULL,
        "free": {"gpu-core": 50, "gpu-memory": 40 * GI, "gpu-memory-ratio": 50},
        "held": 50,
        "users": 1,
        "numaNode": 1,
        "pcie": "sw0",
        "mig": [],
        "links": {},
    }
    row = fleet_row(of, "node", {})
    assert row["models"] == {A100: 1}
    assert row["resources"] == {
        "cpu": {"total": 64_000, "free": 60_000},
        "memory": {"total": 512 * GI, "free": 512 * GI},
        "pods": {"total": 110, "free": 109},
    }
    assert "half" not in json.dumps(row)


def test_a_failed_card_offers_nothing_and_says_why() -> None:
    found = device(made(gpu(healthy=False)), faults={("gpu", "GPU-0"): "XidError: 79"})
    assert (found["healthy"], found["message"], found["total"], found["free"]) == (False, "XidError: 79", {}, {})


def test_a_card_in_mig_mode_shows_its_instances() -> None:
    found = device(made(divided(0, "1g.10gb", "3g.40gb"), charges=(charge("p", instance(0, 0)),)))
    assert found["healthy"] is True
    assert found["mig"] == [
        {"profile": "1g.10gb", "minor": 0, "free": False},
        {"profile": "3g.40gb", "minor": 0, "free": True},
    ]
    assert found["free"] == {"nvidia.com/mig-1g.10gb": 0, "nvidia.com/mig-3g.40gb": 1}


def test_links_name_the_other_card() -> None:
    of = made(gpu(0, links=((1, 12 * NVLINK),)), gpu(1, links=((0, 12 * NVLINK),)))
    assert [device(of, number)["links"] for number in (0, 1)] == [{"GPU-1": "NVLink x12"}, {"GPU-0": "NVLink x12"}]


ALL = (60.0 * GI, 0.25, 0.0, 0.0, 300.0, 400.0, float("nan"))


@pytest.mark.parametrize(
    ("values", "metrics"),
    [
        pytest.param(ALL, {"utilization": 0.25, "memoryUsed": 20 * GI, "power": 300.0}, id="all"),
        pytest.param((float("nan"),) * 4 + (70.0,) + (float("nan"),) * 2, {"power": 70.0}, id="power alone"),
        pytest.param(None, None, id="not measured"),
    ],
)
def test_metrics_are_shown_while_they_are_fresh(values: Any, metrics: Any) -> None:
    of = made()
    if values is not None:
        of.measure(of.rows["node"], 0, values, 10.0)
    assert device(of).get("metrics") == metrics
    of.expire_measurements(11.0)
    assert "metrics" not in device(of)


def node_is(**fields: Any) -> Callable[[Fleet], None]:
    return lambda of: of.put_node(node_info("node", **fields))


def silent(of: Fleet) -> None:
    of.set_fresh("node", fresh=False)


def without_node(of: Fleet) -> None:
    of.remove_node("node")


def unknown(of: Fleet) -> None:
    of.charge(charge("x", unknown=("gpu",)))


@pytest.mark.parametrize(
    ("change", "flags", "blocked"),
    [
        pytest.param(lambda _: None, (True, True, True), "", id="nothing"),
        pytest.param(node_is(cordoned=True), (True, False, True), "the Node is cordoned", id="cordoned"),
        pytest.param(node_is(ready=False), (False, True, True), "the Node is not ready", id="not ready"),
        pytest.param(silent, (True, True, False), "agent never heard", id="silent"),
        pytest.param(without_node, (False, False, True), "there is no Node of this name", id="no Node"),
        pytest.param(unknown, (True, True, True), ANY_GPU, id="unknown allocation"),
    ],
)
def test_a_row_says_why_nothing_is_allocated(
    change: Callable[[Fleet], None], flags: tuple[bool, ...], blocked: str
) -> None:
    of = made()
    change(of)
    row = fleet_row(of, "node", {})
    assert (row["ready"], row["schedulable"], row["reporting"]) == flags
    assert row["blocked"] == blocked


def test_a_row_lists_the_taints_that_keep_pods_without_a_toleration_away() -> None:
    of = made()
    keys = {"team": "NoSchedule", "soft": "PreferNoSchedule", names.PREEMPTING: "NoSchedule"}
    node_is(taints=(*(Taint(key=key, effect=effect) for key, effect in keys.items()), cordon.TAINT))(of)
    assert fleet_row(of, "node", {})["taints"] == ["team:NoSchedule"]


def test_a_pod_that_may_hold_any_gpu_blocks_no_nic() -> None:
    of = made(gpu(), divided(1, "1g.10gb"), other_card("rdma"))
    unknown(of)
    assert [device(of, number)["blocked"] for number in range(3)] == [ANY_GPU, ANY_GPU, ""]


@pytest.mark.parametrize("change", [silent, without_node, unknown])
def test_nothing_is_free_of_a_blocked_card(change: Callable[[Fleet], None]) -> None:
    of = made(gpu(), divided(1, "1g.10gb"))
    change(of)
    cards_ = [device(of, number) for number in range(2)]
    assert [set(each["free"].values()) for each in cards_] == [{0}, {0}]
    assert [each["free"] for each in cards_[1]["mig"]] == [False]


def test_an_instance_of_an_unknown_card_blocks_instances_alone() -> None:
    of = made(gpu(), divided(1, "1g.10gb"), charges=(charge("p", replace(instance(7, 0), parent="", minor=70000)),))
    lost = "1 MIG instance(s) are held of cards that are not known"
    assert [device(of, number)["blocked"] for number in range(2)] == ["", lost]


def test_nodes_with_a_device_have_a_row() -> None:
    of = fleet({"a": (gpu(),), "b": ()})
    add(of, node_info("without"))
    of.charge(replace(HALF, node="charged"))
    assert nodes(of) == ["a", "b"]
    add(of, node_info("nic"), inventory(other_card("rdma", 3)))
    assert fleet_row(of, "nic", {})["devices"][0]["total"] == {"rdma": 100}
