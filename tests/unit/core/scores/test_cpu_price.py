"""The price of cpu, computed manually."""

import pytest

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import cpu_price, fragmentation
from tests.builders import NVIDIA, add, asks, cards, charge, fleet, grant, inventory, node_info


def cluster(cpu: int, *pods: dict[str, int], others: int = 0) -> Fleet:
    """Return two nodes with 8 cards and this much cpu each, and one without cards that has `others`."""
    made = fleet({})
    for name in ("a", "b"):
        add(made, node_info(name, cpu=cpu), inventory(*cards(8)))
    if others:
        add(made, node_info("without cards", cpu=others))
    for pod in pods:
        made.pod_mix.see(asks(pod))
    return made


CARD = {"cpu": 8_000, NVIDIA: 1}
"""A card goes with 8 processors, so that 16 cards need 128."""


@pytest.mark.parametrize(
    ("cpu", "pods", "others", "expected"),
    [
        pytest.param(80_000, [CARD], 0, 0.0, id="plentiful: 128 of 160"),
        pytest.param(64_000, [CARD], 0, 0.07, id="just enough: 128 of 128"),
        pytest.param(60_000, [CARD], 0, 2 * (128 / 120 - 0.965), id="scarce: 128 of 120"),
        pytest.param(32_000, [CARD], 0, cpu_price.MAX, id="very scarce: 128 of 64"),
        pytest.param(0, [CARD], 0, cpu_price.MAX, id="no cpu at all"),
        pytest.param(80_000, [{"cpu": 2_600}, CARD], 0, 0.19, id="scarce due to pods without cards: 170 of 160"),
        pytest.param(80_000, [{"cpu": 2_600}, CARD], 42_000, 0.0, id="nodes without cards take these pods"),
        pytest.param(64_000, [CARD], 500_000, 0.07, id="nodes without cards do not help pods with cards"),
        pytest.param(32_000, [], 0, 0.0, id="no pod was seen"),
        pytest.param(32_000, [{"cpu": 8_000}], 0, 0.0, id="no pod with cards was seen"),
    ],
)
def test_cpu_has_a_price_where_it_will_run_out_before_the_cards(
    cpu: int, pods: list[dict[str, int]], others: int, expected: float
) -> None:
    # A hundredth of a card goes with 80 thousandths of a cpu.
    assert 80 * cpu_price.price(cluster(cpu, *pods, others=others)) == pytest.approx(expected, abs=0.001)


def test_the_price_follows_what_is_free() -> None:
    # 8 processors more than the cards need: 128 of 136.
    made = cluster(68_000, CARD)
    assert cpu_price.price(made) == 0.0
    # 12 cards are taken with their cpu, and a pod without cards has 12 processors: 32 of 28.
    for minor in range(6):
        for node in ("a", "b"):
            taken = grant(minor, core=100, ratio=100)
            made.charge(charge(f"{node}{minor}", taken, node=node, resources=(("cpu", 8_000),)))
    made.charge(charge("without cards", node="a", resources=(("cpu", 12_000),)))
    assert 80 * cpu_price.price(made) == pytest.approx(cpu_price.MAX)
    made.release("uid-without cards")
    # 32 of 40.
    assert cpu_price.price(made) == 0.0


@pytest.mark.parametrize(
    ("cpu", "pod", "expected"),
    [
        # Node b has 16 processors more. They go with two cards: 200 hundredths, at a price of 0.3.
        pytest.param(48_000, CARD, 60, id="scarce, a pod with a card"),
        pytest.param(48_000, {"cpu": 8_000}, 60, id="scarce, a pod without cards"),
        pytest.param(80_000, CARD, 0, id="plentiful, a pod with a card"),
        # It would leave node a 100 hundredths short of cpu, and takes what node b has left over.
        pytest.param(80_000, {"cpu": 8_000}, -200, id="plentiful, a pod without cards"),
    ],
)
def test_where_cpu_is_scarce_pods_go_where_least_of_it_is_left(cpu: int, pod: dict[str, int], expected: int) -> None:
    made = cluster(cpu, CARD)
    made.charge(charge("first", node="a", resources=(("cpu", 16_000),)))
    waste = fragmentation.waste(made, asks(pod))
    assert round(waste[made.rows["b"]] - waste[made.rows["a"]]) == expected
