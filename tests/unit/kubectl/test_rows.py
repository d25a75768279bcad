"""The rows of `devices`, `free` and `who`, as tables."""

from datetime import UTC, datetime
from typing import Any

import pytest

from berth_api.objects.visibility import Card, HeldPart
from berth_kubectl.commands import devices, free, who
from berth_kubectl.errors import CommandError
from berth_kubectl.printing import tables
from berth_kubectl.printing.report import Report
from tests.objects.kubectl_objects import A100, card, fleet_node, holder, mig_card, part

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
GI = 2**30
LINKED = {"GPU-1": "NVLink"}


def cells(report: Report, *titles: str) -> list[tuple[str, ...]]:
    """Return some columns of a report."""
    places = [[column.title for column in report.columns].index(title) for title in titles]
    return [tuple(row[place] for place in places) for row in report.rows]


# --- devices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "state", "health"),
    [
        ({}, "Ready", "Healthy"),
        ({"schedulable": False}, "Cordoned", "Healthy"),
        ({"ready": False, "reporting": False, "blocked": "silent since noon"}, "Silent", "Blocked"),
        ({"ready": False, "blocked": "the driver is not loaded"}, "NotReady", "Blocked"),
        ({"blocked": "pod a/b may hold any"}, "Ready", "Blocked"),
    ],
)
def test_no_node_vanishes(fields: dict[str, Any], state: str, health: str) -> None:
    report = devices.report([fleet_node("n", card(blocked=fields.get("blocked", "")), **fields)])
    assert cells(report, "STATE", "HEALTH", "MESSAGE") == [(state, health, fields.get("blocked", ""))]


def test_a_fault_of_one_type_blocks_no_other() -> None:
    why = "1 pod(s) may hold any gpu"
    nic = card(0, type="rdma", model="", total={"rdma": 100}, free={"rdma": 100})
    fleet = [fleet_node("n", card(blocked=why, free={}), nic, blocked=why)]
    assert cells(devices.report(fleet), "TYPE", "HEALTH", "MESSAGE") == [
        ("gpu", "Blocked", why),
        ("rdma", "Healthy", ""),
    ]
    assert cells(free.report(fleet), "TYPE", "FREE", "NOTE") == [("gpu", "0", "1 blocked"), ("rdma", "1", "-")]


def test_a_card_that_is_not_given_by_name_is_withheld() -> None:
    withheld = card(healthy=False, barred="listed by gpu.nvidia.com for ResourceClaims")
    report = devices.report([fleet_node("n", withheld)])
    assert cells(report, "HEALTH", "MESSAGE") == [("Withheld", withheld["barred"])]


def test_a_card_that_pods_use_and_do_not_hold_says_so() -> None:
    report = devices.report([fleet_node("n", card(unheld=1))])
    assert cells(report, "HEALTH", "MESSAGE") == [("Healthy", "1 pod(s) use it and do not hold it")]


def test_a_node_without_devices_has_a_row() -> None:
    report = devices.report([fleet_node("n", ready=False, reporting=False, blocked="no agent")])
    assert cells(report, "NODE", "STATE", "MODEL", "MESSAGE") == [("n", "Silent", "-", "no agent")]


def test_a_card_shows_its_model_without_spaces_its_faults_links_and_instances() -> None:
    first = card(0, healthy=False, message="Xid 79", links={"GPU-1": "NVLink"})
    report = devices.report([fleet_node("n", first, mig_card(1, free=1))])
    assert cells(report, "MODEL", "HEALTH", "LINKS", "MESSAGE")[0] == (
        "NVIDIA-A100-SXM4-80GB",
        "Unhealthy",
        "1:NVLink",
        "Xid 79",
    )
    assert cells(report, "FREE", "USERS")[1] == ("1g.10gb:1/2", "1")


def test_one_node_is_chosen_by_its_name() -> None:
    fleet = [fleet_node("a", card()), fleet_node("b", card())]
    assert [row["metadata"]["name"] for row in devices.of_node(fleet, "b")] == ["b"]
    with pytest.raises(CommandError, match='"c" has no Device'):
        devices.of_node(fleet, "c")


# --- free -------------------------------------------------------------------------------------------------------
MADE_FIRST = "for claims, if no other instances are made there first"


def opened(profiles: dict[str, int], **fields: Any) -> Card:
    """Return a card that is open for these MIG instances."""
    return card(healthy=False, free={}, barred="listed by a driver", migOnDemand=profiles, **fields)


MADE = {"profile": "1g.10gb", "minor": 0, "free": False, "placement": {"start": 0, "size": 1, "of": 8}}


@pytest.mark.parametrize(
    ("fleet", "rows"),
    [
        pytest.param(
            [fleet_node("a", card(0), card(1)), fleet_node("b", card(0))],
            [("whole", "3", "3", "2", "a", "-")],
            id="the largest request is what one node has",
        ),
        pytest.param(
            [fleet_node("a", card(0), card(1, used=100)), fleet_node("b", card(0))],
            [("whole", "3", "2", "1", "a", "cannot be used together: each of the 2 free ones is on another node")],
            id="free cards on different nodes",
        ),
        pytest.param(
            [fleet_node("a", card(0, used=40), card(1, used=50))],
            [
                ("share", "-", "1.1", "0.6", "a", "cannot be used together: no card has more than 0.6 free"),
                ("whole", "2", "0", "0", "-", "-"),
            ],
            id="shares that do not add up",
        ),
        pytest.param(
            [fleet_node("a", mig_card(0, free=1)), fleet_node("b", mig_card(0, free=2))],
            [("1g.10gb", "4", "3", "2", "b", "-")],
            id="MIG instances",
        ),
        pytest.param(
            [
                fleet_node("a", card(), schedulable=False),
                fleet_node("b", card(free={}), ready=False, reporting=False, blocked="silent"),
                fleet_node("c", card(healthy=False, free={})),
                fleet_node("d", card(free={}, blocked="pod x/y may hold any")),
            ],
            [
                (
                    *("whole", "4", "0", "0", "-"),
                    "1 blocked; 1 on cordoned nodes; 1 on nodes whose agent is silent; 1 unhealthy",
                )
            ],
            id="what cannot be allocated",
        ),
        pytest.param(
            [fleet_node("a", card(0), taints=["team=ml:NoSchedule"]), fleet_node("b", card(0), card(1))],
            [("whole", "3", "3", "2", "b", "1 of the free ones only for pods that tolerate team=ml:NoSchedule")],
            id="cards of a node with a taint",
        ),
        pytest.param(
            [fleet_node("node-10", card(0)), fleet_node("node-2", card(0))],
            [("whole", "2", "2", "1", "node-2", "cannot be used together: each of the 2 free ones is on another node")],
            id="names with numbers",
        ),
        pytest.param(
            [fleet_node("a", card(healthy=False, free={}, barred="listed by a driver", mig=[MADE]))],
            [("whole", "1", "0", "0", "-", "1 not given by name")],
            id="a card with an instance that was made for a claim",
        ),
        pytest.param(
            [
                fleet_node("a", opened({"1g.10gb": 7, "3g.40gb": 2}), opened({"1g.10gb": 3}, mig=[MADE], users=1)),
                fleet_node("b", opened({"1g.10gb": 7}), mig_card(0, free=1), taints=["a=b:NoSchedule"]),
                fleet_node("c", opened({"1g.10gb": 7}), schedulable=False),
            ],
            [
                ("1g.10gb", "2", "1", "1", "b", "all of the free ones only for pods that tolerate a=b:NoSchedule"),
                (
                    *("1g.10gb-on-demand", "-", "17", "10", "a"),
                    f"{MADE_FIRST}; 7 of the free ones only for pods that tolerate a=b:NoSchedule; 7 on cordoned nodes",
                ),
                ("3g.40gb-on-demand", "-", "2", "2", "a", MADE_FIRST),
                ("whole", "4", "0", "0", "-", "3 not given by name"),
            ],
            id="instances that can be made",
        ),
        pytest.param(
            [fleet_node("a", card(0, links={"GPU-7": "NVLink"}), card(3, links={"GPU-7": "NVLink"}))],
            [("whole", "2", "2", "2", "a", "no two free ones of a node have NVLinks between them")],
            id="free cards whose NVLinks lead to others",
        ),
        pytest.param(
            [fleet_node("a", card(0, links={"GPU-3": "NVLink"}), card(3, links={"GPU-0": "NVLink"}))],
            [("whole", "2", "2", "2", "a", "-")],
            id="free cards that are linked",
        ),
    ],
)
def test_free_counts_by_kind_and_says_what_the_numbers_hide(fleet: Any, rows: list[tuple[str, ...]]) -> None:
    assert cells(free.report(fleet), "KIND", "TOTAL", "FREE", "LARGEST", "NODE", "NOTE") == rows


def test_nodes_and_what_is_free_of_cards_are_shown_in_a_narrow_table() -> None:
    report = devices.report([fleet_node("node-3.rack-2.example", card(0), card(1, used=60))])
    assert [row[7] for row in report.rows] == ["core=100,memory=80Gi", "core=40,memory=32Gi"]
    assert max(map(len, tables.lines(report.columns, report.rows))) <= 120


def test_free_lists_other_types_after_gpus_and_filters_by_model() -> None:
    nic = card(0, type="rdma", model="ConnectX-7", total={"rdma": 100}, free={"rdma": 100})
    fleet = [fleet_node("a", nic, card(0))]
    assert cells(free.report(fleet), "TYPE", "FREE") == [("gpu", "1"), ("rdma", "1")]
    assert cells(free.report(fleet, model="a100"), "MODEL") == [("NVIDIA-A100-SXM4-80GB",)]


def test_free_as_json_has_every_node() -> None:
    [item] = free.report([fleet_node("a", card(0), card(1)), fleet_node("b", card(0))]).items
    assert (item["model"], item["nodes"], item["largest"]) == (A100, {"a": 2, "b": 1}, {"amount": 2, "node": "a"})


# --- who --------------------------------------------------------------------------------------------------------


def test_who_shows_what_each_pod_holds() -> None:
    report = who.report(
        [holder("a", part(0), part(1)), holder("b", part(2, 50), owner={"kind": "", "name": ""})], now=NOW
    )
    assert cells(report, "NAME", "CARDS", "DEVICES", "OWNER", "AGE") == [
        ("a", "2", "gpu:0,1", "job/train", "10m"),
        ("b", "0.5", "gpu:2", "-", "10m"),
    ]
    assert report.names == ["pod/a", "pod/b"]


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("namespace", [("team", "2", "1.5"), ("other", "1", "1")]),
        ("owner", [("other", "job/train", "1", "1"), ("team", "job/train", "1", "1"), ("team", "pod/b", "1", "0.5")]),
        ("node", [("node-0", "2", "1.5"), ("node-1", "1", "1")]),
        (
            "card",
            [("node-0", "gpu", "0", "1", "1"), ("node-0", "gpu", "1", "1", "0.5"), ("node-1", "gpu", "0", "1", "1")],
        ),
    ],
)
def test_who_adds_up(by: str, rows: list[tuple[str, ...]]) -> None:
    holders = [
        holder("a", part(0)),
        holder("b", part(1, 50), owner={"kind": "", "name": ""}),
        holder("c", part(0), namespace="other", node="node-1"),
    ]
    report = who.report(holders, by=by, now=NOW)
    assert [row[: len(rows[0])] for row in report.rows] == rows


@pytest.mark.parametrize(
    ("parts", "isolation", "limited"),
    [
        ([part(0, 50)], "mps", "mps,cooperative"),
        ([part(0, 50)], "hami-core", "hami-core,cooperative"),
        ([part(0, 50)], "", "none"),
        ([part(0, amounts={"nvidia.com/mig-3g.40gb": 1})], "", "MIG,enforced"),
        ([part(0, type="rdma", amounts={"rdma": 100})], "", "none"),
    ],
)
def test_who_shows_what_holds_a_pod_to_its_part(parts: list[HeldPart], isolation: str, limited: str) -> None:
    report = who.report([holder("a", *parts, isolation=isolation)], now=NOW)
    assert cells(report, "LIMITED") == [(limited,)]


def test_who_shows_a_pod_above_its_share() -> None:
    use = {"type": "gpu", "minor": 1, "memory": 52 * GI, "limit": 40 * GI}
    report = who.report([holder("a", part(1, 50), exceeding=[use]), holder("b", part(1, 50))], now=NOW)
    assert cells(report, "EXCEEDED") == [("gpu:1=52Gi/40Gi",), ("-",)]


def test_a_node_with_mps_says_so() -> None:
    fleet = [fleet_node("a", card(), isolation="mps"), fleet_node("b", card())]
    assert cells(devices.report(fleet), "MODE") == [("mps",), ("-",)]


def test_an_instance_counts_by_its_slices_and_a_nic_not_at_all() -> None:
    instance = part(0, amounts={"nvidia.com/mig-3g.40gb": 1})
    report = who.report([holder("a", instance), holder("b", part(0, type="rdma", amounts={"rdma": 100}))], now=NOW)
    assert [row[3] for row in report.rows] == ["0.43", "0"]


def test_pods_of_one_card_hold_no_more_than_it() -> None:
    cores = part(0, amounts={"gpu-core": 100, "gpu-memory": GI, "gpu-memory-ratio": 1})
    memory = part(0, amounts={"gpu-memory": 40 * GI, "gpu-memory-ratio": 50})
    instances = {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1}
    large, small = (part(1, amounts={f"nvidia.com/mig-{name}": 1}, card=instances) for name in ("3g.40gb", "1g.10gb"))
    holders = [holder("a", cores, large), holder("b", memory, small)]
    assert cells(who.report(holders, now=NOW), "CARDS") == [("1.5",), ("0.67",)]
    assert cells(who.report(holders, by="card", now=NOW), "CARDS") == [("1",), ("0.67",)]
    assert cells(who.report(holders, by="namespace", now=NOW), "CARDS") == [("1.67",)]


# --- all --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "report",
    [
        devices.report([fleet_node("a", card(message="Xid 79, GPU has fallen off"), mig_card(1, free=1))]),
        free.report([fleet_node("a", card(0, used=30), card(1)), fleet_node("b", card(0))]),
        who.report([holder("a", part(0), part(1))], now=NOW),
        *(who.report([holder("a", part(0), part(1))], by=by, now=NOW) for by in ("namespace", "owner", "node", "card")),
    ],
)
def test_columns_can_be_cut(report: Report) -> None:
    """A script that splits at spaces finds every column but the last at its place."""
    for row in report.rows:
        assert not [text for text in row[:-1] if " " in text], row
        [line] = tables.lines(report.columns, [row], wide=True, headers=False)
        assert len(line.split(None, len(row) - 1)) == len(row)
