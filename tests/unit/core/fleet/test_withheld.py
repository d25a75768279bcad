"""GPUs that kubelet cannot allocate now, because pods have shares of them that kubelet does not know."""

import pytest

from berth_api.names import CARDS_KEY
from berth_operator.core import filters
from berth_operator.core.advice.waits import Wait, Waits
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import (
    A100_BYTES,
    GPU,
    NVIDIA,
    RDMA,
    add,
    asks,
    cards,
    charge,
    divided,
    fleet,
    grant,
    hints,
    inventory,
    node_info,
    other_card,
    sliced,
    waiting,
)

SLICE, MIG_1G = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
WITHHELD = "node(s) have too few GPUs that are offered to kubelet now"


def node(*card_infos: CardInfo, withheld: tuple[int, ...] = (), mig_single: bool = False) -> Fleet:
    made = fleet({"node": card_infos}, mig_single=mig_single)
    made.withhold("node", withheld)
    return made


def given(made: Fleet, wanted: PodRequest) -> list[int]:
    outcome = decide(made, waiting("p", wanted), Policy())
    return [each.minor for each in outcome.grants] if isinstance(outcome, Placement) else []


@pytest.mark.parametrize(
    ("made", "wanted", "expected"),
    [
        pytest.param(node(*cards(3), withheld=(0, 1)), {NVIDIA: 1}, [2], id="a whole card of kubelet's"),
        pytest.param(node(*cards(3), withheld=(0,)), {NVIDIA: 2}, [1, 2], id="two"),
        pytest.param(node(*cards(3), withheld=(0, 1)), {NVIDIA: 2}, [], id="too few"),
        pytest.param(node(*cards(2), withheld=(0, 1)), {GPU: 50}, [0], id="a share"),
        pytest.param(node(*cards(2), withheld=(0, 1)), {GPU: 200}, [0, 1], id="whole cards that are not kubelet's"),
        pytest.param(node(sliced(0, 2), sliced(1, 2), withheld=(0,)), {SLICE: 2}, [1, 1], id="replicas"),
        pytest.param(node(sliced(0, 2), sliced(1, 2), withheld=(0,)), {NVIDIA: 1}, [1], id="replicas as slots"),
        pytest.param(node(sliced(0, 2), withheld=(0,)), {GPU: 50}, [0], id="a share of a sliced card"),
        pytest.param(
            node(divided(0, "1g.10gb"), divided(1, "1g.10gb"), withheld=(0,)), {MIG_1G: 1}, [1], id="an instance"
        ),
        pytest.param(
            node(divided(0, "1g.10gb"), divided(1, "1g.10gb"), withheld=(0,), mig_single=True),
            {NVIDIA: 1},
            [1],
            id="an instance as a slot",
        ),
        pytest.param(node(*cards(2), withheld=(7,)), {NVIDIA: 1}, [0], id="a card that is not there"),
    ],
)
def test_what_kubelet_gives_out_is_what_it_can_give(made: Fleet, wanted: dict[str, int], expected: list[int]) -> None:
    assert given(made, asks(wanted)) == expected


def test_devices_of_other_types_are_not_meant() -> None:
    made = node(*cards(1), other_card("rdma"), withheld=(0,))
    assert given(made, asks({RDMA: 100})) == [0]


def why(made: Fleet, wanted: PodRequest) -> str:
    outcome = decide(made, waiting("p", wanted), Policy())
    assert isinstance(outcome, Failure)
    return outcome.message


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        pytest.param(node(*cards(2), withheld=(0, 1)), {NVIDIA: 1}, id="cards"),
        pytest.param(node(sliced(0, 2), withheld=(0,)), {SLICE: 1}, id="replicas"),
        pytest.param(node(divided(0, "1g.10gb"), withheld=(0,)), {MIG_1G: 1}, id="instances"),
    ],
)
def test_the_reason_says_so(made: Fleet, wanted: dict[str, int]) -> None:
    assert why(made, asks(wanted)) == f"0/1 nodes are available: 1 {WITHHELD}."


@pytest.mark.parametrize("mode", ["claims", "shares"])
@pytest.mark.parametrize("wanted", [{NVIDIA: 1}, {SLICE: 1}, {MIG_1G: 1}], ids=["card", "replica", "instance"])
def test_a_node_that_gives_by_claims_is_not_said_to_offer_its_cards_soon(wanted: dict[str, int], mode: str) -> None:
    of_unit = {NVIDIA: cards(1), SLICE: (sliced(0, 2),), MIG_1G: (divided(0, "1g.10gb"),)}
    made = Fleet()
    add(made, node_info("node", labels={CARDS_KEY: mode}), inventory(*of_unit[next(iter(wanted))]))
    made.withhold("node", (0,))
    expected = (
        "0/1 nodes are available: 1 node(s) give their GPUs by claims alone (label berth.dev/cards: request a "
        "DeviceClass, or set berth.dev/cards=both)."
    )
    assert why(made, asks(wanted)) == expected
    # What-ifs agree.
    waits = Waits(made.copy(), Policy(), Budgets())
    wait = Wait(pod=waiting("p", asks(wanted)))
    explanation = waits.why(wait).explanation
    assert isinstance(explanation.result, Failure)
    assert (explanation.result.message, explanation.fits_when_empty) == (expected, 0)
    assert not any(remedy.ends and remedy.is_another for remedy in waits.remedies(wait, waits.why(wait)) if remedy)


def test_cards_that_are_held_are_reported_as_held() -> None:
    made = node(*cards(1), withheld=(0,))
    made.charge(charge("half", grant(0, core=50, ratio=50, memory=A100_BYTES // 2)))
    assert "node(s) have too few free GPUs" in why(made, asks({NVIDIA: 1}))


def test_a_withheld_card_is_the_reason_and_not_the_exclusive_policy() -> None:
    made = node(*cards(1), withheld=(0,))
    wanted = asks({NVIDIA: 1}, annotations=hints(gpu={"exclusivePolicy": "DeviceLevel"}))
    assert WITHHELD in why(made, wanted)


def test_kept_columns_follow() -> None:
    made, wanted = node(*cards(2)), asks({NVIDIA: 2})
    row = made.rows["node"]
    seen = []
    for minors in ((), (1,), (0, 1), ()):
        made.withhold("node", minors)
        seen.append(filters.has_capacity(filters.ORDER, made, wanted, row))
    assert seen == [True, False, False, True]


# --- what-ifs ---------------------------------------------------------------------------------------------------


def test_pods_with_shares_are_evicted_for_one_of_kubelets_all_the_same() -> None:
    """Once the pods are gone, the agent offers the card again."""
    made = node(*cards(1), withheld=(0,))
    made.charge(charge("half", grant(0, core=50, ratio=50, memory=A100_BYTES // 2), priority=1))
    preemption = preempt(made, waiting("p", {NVIDIA: 1}, priority=5), Policy(), Budgets())
    assert preemption is not None
    assert [each.pod for each in preemption.victims] == ["ns/half"]


def test_no_pod_is_evicted_where_the_card_recovers_anyway() -> None:
    made = node(*cards(2), withheld=(0,))
    made.charge(charge("other", grant(1, core=100, ratio=100, memory=A100_BYTES), priority=1))
    preemption = preempt(made, waiting("p", {NVIDIA: 1}, priority=5), Policy(), Budgets())
    assert preemption is not None
    assert preemption.victims == ()


def test_a_simulation_does_not_wait_for_an_agent() -> None:
    made = node(*cards(1), withheld=(0,))
    assert isinstance(decide(made.copy(), waiting("p", {NVIDIA: 1}), Policy()), Placement)
