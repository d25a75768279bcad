"""Known defects of Koordinator that no other test covers. docs/koordinator.md has the whole list."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.values.inventory import CardInfo
from berth_operator.state.objects import devices
from tests.objects.builders import (
    CORE,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    add,
    asks,
    card,
    cards,
    charge,
    device,
    divided,
    entry,
    fleet,
    grant,
    hints,
    inventory,
    node_info,
    waiting,
)
from tests.unit.koordinator.machines import nvswitch, trees

BOARD = nvswitch(4)


@pytest.mark.parametrize(
    ("card_infos", "fields"),
    [
        pytest.param(None, {}, id="no Device"),
        pytest.param(BOARD, {"fresh": False}, id="its agent is silent"),
        pytest.param((), {}, id="a Device without cards"),
        pytest.param((card(healthy=False),), {}, id="a card that failed"),
        pytest.param((divided(0, "1g.10gb"),), {}, id="a card in MIG mode"),
        pytest.param(BOARD, {"vendor": "amd"}, id="another vendor"),
        pytest.param(BOARD, {"unknown": True}, id="a pod whose allocation cannot be read"),
        pytest.param(BOARD, {"partitions_only": True}, id="partitions alone, and no table of them"),
    ],
)
def test_a_node_that_cannot_serve_keeps_no_pod_from_others(
    card_infos: Sequence[CardInfo] | None, fields: dict[str, Any]
) -> None:
    made, options = fleet({}), dict(fields)
    fresh, unknown = options.pop("fresh", True), options.pop("unknown", False)
    add(made, node_info("odd"), None if card_infos is None else inventory(*card_infos, **options), fresh=fresh)
    if unknown:
        made.charge(charge("lost", node="odd", unknown=("gpu",)))
    add(made, node_info("sound"), inventory(card()))
    outcome = decide(made, waiting("pod", {NVIDIA: 1}), Policy())
    assert isinstance(outcome, Placement)
    assert outcome.node == "sound"


@pytest.mark.parametrize(
    ("strategy", "held", "minor"),
    [
        pytest.param("LeastAllocated", {0: 20, 1: 60, 2: 10, 3: 70}, 2, id="spread: the emptiest"),
        pytest.param("MostAllocated", {0: 20, 1: 60, 2: 10, 3: 70}, 3, id="packed: the fullest"),
        pytest.param("MostAllocated", {0: 20, 1: 60, 2: 10, 3: 90}, 1, id="packed: the fullest that has capacity"),
        pytest.param("Fragmentation", {0: 20, 1: 60, 2: 10, 3: 70}, 3, id="least waste: the tightest"),
    ],
)
@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({GPU: 20}, id="core and memory"),
        pytest.param({RATIO: 20}, id="memory"),
        pytest.param({MEMORY: 10 * GI}, id="bytes"),
        pytest.param({CORE: 5, MEMORY: 10 * GI}, id="core and bytes"),
    ],
)
@pytest.mark.parametrize(
    "card_infos",
    [
        pytest.param(cards(4), id="places are unknown"),
        pytest.param(trees(2, 2), id="switches"),
        pytest.param(BOARD, id="NVLinks"),
    ],
)
def test_strategies_distinguish_shared_cards(
    card_infos: Sequence[CardInfo], amounts: dict[str, int], strategy: str, held: Mapping[int, int], minor: int
) -> None:
    made = fleet({"node": card_infos})
    for each, part in held.items():
        made.charge(charge(f"on-{each}", grant(each, core=part, ratio=part)))
    policy = Policy(weights=tuple(CARD_STRATEGIES[strategy].items()), card_strategy=strategy)
    outcome = decide(made, waiting("pod", amounts), policy)
    assert isinstance(outcome, Placement)
    assert [each.minor for each in outcome.grants] == [minor]


PLACES = [{"socketID": 0, "nodeID": minor, "pcieID": f"0000:{minor}7:00.0", "busID": ""} for minor in range(2)]
REPORTED = [
    entry(0, topology=PLACES[0]),
    entry(1, topology=PLACES[1]),
    entry(0, type="rdma", id="R-0", model="", resources={}, topology=PLACES[0]),
    entry(
        1,
        type="rdma",
        id="R-1",
        model="",
        resources={},
        topology=PLACES[1],
        vfGroups=[{"labels": {}, "vfs": [{"minor": 0, "busID": "0000:19:00.2"}]}],
    ),
]
"""The cards as the agent reports them, without labels."""


@pytest.mark.parametrize(
    ("kind", "hint", "minors"),
    [
        pytest.param("gpu", {"selector": {"matchLabels": {"berth.dev/pcie-switch": "0000:17:00.0"}}}, [1], id="switch"),
        pytest.param("gpu", {"selector": {"matchLabels": {"berth.dev/numa-node": "1"}}}, [1], id="NUMA node"),
        pytest.param("rdma", {"selector": {"matchLabels": {"berth.dev/numa-node": "1"}}}, [1], id="a NIC's NUMA node"),
        pytest.param("gpu", {"selector": {"matchLabels": {"berth.dev/uuid": "GPU-1"}}}, [1], id="a card"),
        pytest.param(
            "gpu",
            {
                "selector": {
                    "matchLabels": {"berth.dev/numa-node": "1"},
                    "matchExpressions": [{"key": "berth.dev/uuid", "operator": "NotIn", "values": ["GPU-0"]}],
                }
            },
            [1],
            id="any other card of a NUMA node",
        ),
        pytest.param("rdma", {"selector": {"matchLabels": {"berth.dev/uuid": "R-1"}}}, [1], id="a NIC"),
        pytest.param("rdma", {"vfSelector": {}}, [1], id="any virtual function"),
    ],
)
def test_devices_can_be_selected_as_the_agent_reports_them(kind: str, hint: dict[str, Any], minors: list[int]) -> None:
    made = fleet({})
    add(made, node_info("node"), devices.record(device("node", *REPORTED)).inventory)
    wanted = asks({f"kubernetes.io/{kind}": 100}, annotations=hints(**{kind: hint}))
    outcome = decide(made, waiting("pod", wanted), Policy())
    assert isinstance(outcome, Placement)
    assert [each.minor for each in outcome.grants] == minors
