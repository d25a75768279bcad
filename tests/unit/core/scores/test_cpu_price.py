"""The price of cpu, computed manually."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.scores import cpu_price, fragmentation
from berth_operator.core.scores.cpu_price import Usage
from tests.objects.builders import NVIDIA, add, asks, cards, charge, fleet, grant, inventory, node_info

CARD = {"cpu": 8_000, NVIDIA: 1}
"""A card goes with 8 processors, so that a hundredth of a card goes with 80 thousandths of a cpu."""


def cluster(*taken: tuple[str, int, int]) -> Fleet:
    """Return nodes a and b with 8 cards and 64 cpus, and one without cards.

    `taken`: on which node a pod runs, its cards and its thousandths of a cpu.
    """
    made = fleet({})
    for name in ("a", "b"):
        add(made, node_info(name, cpu=64_000), inventory(*cards(8)))
    add(made, node_info("without cards", cpu=64_000))
    made.pod_mix.see(asks(CARD))
    for number, (node, count, cpu) in enumerate(taken):
        grants = [grant(minor, core=100, ratio=100) for minor in range(count)]
        made.charge(charge(str(number), *grants, node=node, resources=(("cpu", cpu),)))
    return made


def cost(on: Fleet, cpu: int) -> dict[str, float]:
    costs = cpu_price.cost(on, cpu)
    return {name: 0.0 if costs is None else float(costs[row]) for name, row in on.rows.items()}


@pytest.mark.parametrize(
    ("taken", "cpu", "expected"),
    [
        pytest.param([], 8_000, (0, 0), id="nothing runs"),
        pytest.param([("a", 8, 64_000)], 8_000, (0, 0), id="half of the cards and of the cpu"),
        pytest.param([("a", 8, 40_000)], 8_000, (0, 0), id="cpu is plentiful"),
        # 8 of 16 cards and 60 of 128 processors are free: 10 * (0.5 / 0.469 - 1) = 0.667, at most 0.5.
        pytest.param([("a", 4, 16_000), ("b", 4, 52_000)], 4_000, (275, 50), id="the most at which cpu is priced"),
        # 63 of 128: 10 * (0.5 / 0.492 - 1) = 0.159. Node a would keep 44 processors: 550 hundredths.
        pytest.param([("a", 4, 16_000), ("b", 4, 49_000)], 4_000, (87, 22), id="a little short"),
        pytest.param([("a", 4, 4_000), ("b", 4, 70_000)], 4_000, (350, 0), id="no cpu is left"),
        # Node a would keep 28 processors, 350 hundredths, whether one card or none is free next to them.
        pytest.param([("a", 7, 34_000), ("b", 4, 64_000)], 2_000, (175, 0), id="more cpu is left than one card uses"),
        # Half of that, because only pods without cards can use it.
        pytest.param([("a", 8, 34_000), ("b", 4, 64_000)], 2_000, (88, 0), id="no card is free next to the cpu"),
        pytest.param([("a", 4, 8_000), ("b", 0, 64_000)], 8_000, (0, 0), id="only a quarter of the cards is used"),
        pytest.param([("a", 8, 64_000), ("without cards", 0, 64_000)], 0, (0, 0), id="nodes without cards are full"),
    ],
)
def test_cpu_of_nodes_with_cards_costs_where_less_of_it_is_left(
    taken: list[tuple[str, int, int]], cpu: int, expected: tuple[int, int]
) -> None:
    assert cost(cluster(*taken), cpu) == {"a": expected[0], "b": expected[1], "without cards": 0}


def test_cards_and_cpu_count_only_if_the_card_is_healthy_and_the_node_exists_and_is_not_cordoned() -> None:
    pods = [("a", 4, 16_000), ("b", 4, 49_000)]
    made = cluster(*pods)
    for name in ("gone", "broken", "cordoned"):
        node = node_info(name, cpu=64_000, cordoned=name == "cordoned")
        add(made, node, inventory(*(replace(card, healthy=name != "broken") for card in cards(8))))
    # 16 of 24 cards and 127 of 192 processors are free: 10 * (0.667 / 0.661 - 1) = 0.079, times 550 hundredths.
    assert cost(made, 4_000)["a"] == 43
    made.remove_node("gone")
    assert cost(made, 4_000) == {**cost(cluster(*pods), 4_000), "gone": 0, "broken": 0, "cordoned": 0}
    made.put_node(node_info("cordoned", cpu=64_000))
    assert cost(made, 4_000)["a"] == 43


def test_the_price_ends_with_the_pods_and_does_not_depend_on_the_order_in_which_they_came() -> None:
    pods = [("a", 4, 16_000), ("b", 4, 52_000), ("a", 0, 10_000)]
    made = cluster(*pods)
    assert cost(made, 4_000) != cost(cluster(*pods[:2]), 4_000)
    assert list(cost(made, 4_000).values()) == list(cost(cluster(*reversed(pods)), 4_000).values())
    for uid in list(made.charges):
        made.release(uid)
    assert set(cost(made, 4_000).values()) == {0}


def test_pods_without_cards_prefer_nodes_without_cards_where_cpu_is_short() -> None:
    made = cluster(("a", 4, 16_000), ("b", 4, 52_000))
    waste = fragmentation.waste(made, asks({"cpu": 4_000}))
    assert waste[made.rows["without cards"]] < min(waste[made.rows["a"]], waste[made.rows["b"]])


def test_of_nodes_whose_cards_are_all_taken_a_pod_without_cards_gets_the_one_where_it_leaves_least_cpu() -> None:
    made = cluster(("a", 8, 44_000), ("b", 8, 54_000))
    add(made, node_info("c", cpu=64_000), inventory(*cards(8)))
    made.charge(charge("c", grant(core=100, ratio=100), node="c", resources=(("cpu", 50_000),)))
    made.remove_node("without cards")
    waste = fragmentation.waste(made, asks({"cpu": 1_000}))
    assert waste[made.rows["b"]] < waste[made.rows["a"]]
    # Cpu next to free cards is left to pods with cards.
    assert waste[made.rows["b"]] < waste[made.rows["c"]]


def with_one_large_node(count: int, cpu: int, *, used: int) -> Fleet:
    """Return a node, and ten nodes with a card and 8 processors; `used`: on how many of these a pod runs."""
    made = fleet({})
    made.pod_mix.see(asks(CARD))
    add(made, node_info("large", cpu=cpu), inventory(*cards(count)))
    for number in range(10):
        add(made, node_info(f"{number}", cpu=8_000), inventory(*cards(1)))
        if number < used:
            made.charge(charge(f"{number}", grant(core=100, ratio=100), node=f"{number}", resources=(("cpu", 7_000),)))
    return made


def test_a_single_pod_can_make_cpu_short() -> None:
    made = with_one_large_node(1, 900_000, used=5)
    assert cpu_price.cost(made, 0) is None
    made.charge(charge("large", node="large", resources=(("cpu", 890_000),)))
    assert cpu_price.cost(made, 0) is not None  # 6 of 11 cards and 55 of 980 processors are free


def test_a_single_pod_that_ends_can_make_cpu_short() -> None:
    made = with_one_large_node(16, 8_000, used=10)
    made.charge(charge("large", *(grant(minor, core=100, ratio=100) for minor in range(16)), node="large"))
    assert cpu_price.cost(made, 0) is None
    made.release("uid-large")
    assert cpu_price.cost(made, 0) is not None  # 16 of 26 cards and 18 of 88 processors are free


STEPS = st.tuples(
    st.sampled_from(("charge", "charge", "charge", "nominate", "release", "withdraw", *range(8))),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.booleans(),
)


def act(made: Fleet, what: str | int, node: int, number: int, cpus: int) -> Fleet:
    """Apply one event to a node; return the Fleet or its copy."""
    name = f"node-{node}"
    # Several pods may use more of a card and of a node's cpu than there is.
    grants = [grant(minor, core=60, ratio=30 + 30 * (cpus % 3)) for minor in range(number)]
    pod = charge(f"{name}-{number}", *grants, node=name, resources=(("cpu", 1000 * cpus),))
    match what:
        case "charge":
            made.charge(pod)
        case "nominate":
            made.nominate(pod)
        case "release":
            made.release(pod.uid)
        case "withdraw":
            made.withdraw(pod.uid)
        case 0:
            more = {f"example.com/new-{cpus}": 1}
            made.put_node(node_info(name, cpu=2000 * (cpus + 1), more=more, cordoned=number == 3))
        case 1:
            made.remove_node(name)
        case 2:
            made.put_device(name, inventory(*(replace(card, healthy=card.minor != cpus) for card in cards(number + 1))))
        case 3:
            made.remove_device(name)
        case 4:
            return made.copy()
        case 5:
            made.set_model_aliases({f"alias-{number}": ()})
        case 6:
            for other in range(12 * number):
                add(made, node_info(f"other-{other}", cpu=4_000), inventory(*cards(2)))
        case 7:
            for _ in range(20 * number):
                made.charge(pod)
                made.release(pod.uid)
    return made


@given(st.lists(STEPS, max_size=40))
def test_costs_and_sums_equal_a_new_computation_whatever_happened(
    steps: list[tuple[str | int, int, int, int, bool]],
) -> None:
    made = fleet({})
    for number in range(4):
        add(made, node_info(f"node-{number}", cpu=6_000), inventory(*cards(3)))
    made.pod_mix.see(asks({"cpu": 1_500, NVIDIA: 1}))
    for what, node, number, cpus, is_read in [("charge", 0, 1, 1, True), *steps, ("charge", 0, 1, 1, True)]:
        made = act(made, what, node, number, cpus)
        if is_read:
            assert cost(made, 100) == cost(made.copy(), 100)
            fresh, usage = Usage(made), made.column_cache.of_nodes(cpu_price.__name__, partial(Usage, made))
            usage.update(made)
            assert (usage.all_free_cards, usage.all_free_cpu) == (fresh.all_free_cards, fresh.all_free_cpu)
            assert usage.free_cards.tolist() == fresh.free_cards.tolist()
            assert usage.free_cpu.tolist() == fresh.free_cpu.tolist()
