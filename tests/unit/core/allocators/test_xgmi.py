"""Which sets pods get of AMD's cards, by Devices as agents publish them, judged by a search of all sets."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any, Final

from berth_api import names
from berth_operator.core.advice import fleet_rows, summary
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.objects import devices
from tests.objects.builders import add, asks, charge, device, entry, grant, node_info, waiting

Raw = dict[str, Any]

AMD: Final = "amd.com/gpu"
HIVES: Final = {
    "AMD Instinct MI210": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "AMD Instinct MI300X": ((0, 1, 2, 3, 4, 5, 6, 7),),
    "AMD Radeon RX 7900 XTX": (),
}
"""Model -> the minors of each group of cards in which all are linked. Consumer cards have no links."""
PATHS: Final = {"SameNUMANode": 2, "System": 1}
XGMI: Final = 10
"""Ranks for the search. Eight XGMI links are better than any paths, and a path on one NUMA node is the better one."""


def nodes() -> Iterator[tuple[str, list[Raw], set[int]]]:
    """Yield the model, the entries of the Device and the used cards of 200 random nodes."""
    drawn = random.Random(61)
    for _ in range(200):
        model, hives = drawn.choice(list(HIVES.items()))
        count = 8 if hives else drawn.randint(1, 8)
        # Drivers number cards by their addresses, which need not follow the hives.
        minors = drawn.sample(range(count), count) if drawn.random() < 0.5 else list(range(count))
        # On half of the machines, a NUMA node has cards of both hives.
        numa = [position // 4 for position in range(8)] if drawn.random() < 0.5 else [0, 1] * 4
        entries = [
            entry(
                minors[position],
                model=model,
                health=drawn.random() < 0.95,
                topology={"nodeID": numa[position], "pcieID": f"0000:{position:02x}:00.0"},
                links=[
                    {"minor": minors[other], **link(hives, position, other, numa)}
                    for other in range(count)
                    if other != position
                ],
            )
            for position in range(count)
        ]
        yield model, entries, {minor for minor in range(count) if drawn.random() < 0.3}


def link(hives: tuple[tuple[int, ...], ...], one: int, other: int, numa: Sequence[int]) -> Raw:
    if any(one in hive and other in hive for hive in hives):
        return {"type": "XGMI", "count": 1, "peerToPeer": True}
    return {"type": "SameNUMANode" if numa[one] == numa[other] else "System"}


def node_of(entries: list[Raw], used: set[int]) -> Fleet:
    """Return a fleet of one node of AMD's cards."""
    made = Fleet()
    record = devices.record(device("node", *entries, labels={names.VENDOR_LABEL: "amd"}))
    assert record.problems == ()
    add(made, node_info("node"), record.inventory)
    for minor in used:
        made.charge(charge(f"holds-{minor}", grant(minor, core=100, ratio=100)))
    return made


def best_sets(entries: list[Raw], used: set[int], count: int, *, linked: bool) -> list[set[int]]:
    """Return the sets of usable cards with the best links, by looking at all sets."""
    ranks = {
        frozenset((card["minor"], way["minor"])): PATHS.get(way["type"], XGMI)
        for card in entries
        for way in card["links"]
    }
    usable = [card["minor"] for card in entries if card["health"] and card["minor"] not in used]
    sums = {}
    for chosen in combinations(usable, count):
        of_pairs = [ranks[frozenset(pair)] for pair in combinations(chosen, 2)]
        if not linked or all(rank == XGMI for rank in of_pairs):
            sums[chosen] = sum(of_pairs)
    return [set(chosen) for chosen, rank in sums.items() if rank == max(sums.values())]


def request(count: int, level: str = "") -> Any:
    return asks({AMD: count}, annotations={names.GPU_TOPOLOGY: level} if level else {})


def test_pods_get_linked_sets_on_200_random_nodes() -> None:
    given = {"linked": 0, "refused": 0}
    for model, entries, used in nodes():
        made = node_of(entries, used)
        for count, level in product((2, 4), ("", "xgmi")):
            outcome = decide(made, waiting("pod", request(count, level)), Policy())
            sets = best_sets(entries, used, count, linked=bool(level))
            where = f"{model}, used {used}, {level or 'any'}"
            if isinstance(outcome, Placement):
                assert {one.minor for one in outcome.grants} in sets, where
                given["linked"] += bool(level)
            else:
                assert not sets, where
                given["refused"] += bool(level)
    # Both outcomes were drawn often enough to mean something.
    assert min(given.values()) > 80


def test_links_of_another_vendor_do_not_meet_a_required_type() -> None:
    _, entries, _ = next(each for each in nodes() if "MI300X" in each[0])
    healthy = [{**card, "health": True} for card in entries]
    outcome = decide(node_of(healthy, set()), waiting("pod", request(2, "nvlink")), Policy())
    assert isinstance(outcome, Failure)
    links = f"their links are XGMI links: annotation {names.GPU_TOPOLOGY}: xgmi"
    reason = f"node(s) have too few healthy GPUs with NVLinks among all of them (at most 1 of 2; {links})"
    assert reason in outcome.message


def test_reasons_and_views_name_the_link() -> None:
    hives = HIVES["AMD Instinct MI210"]
    ways = [
        [{"minor": other, **link(hives, one, other, range(8))} for other in range(8) if other != one]
        for one in range(8)
    ]
    made = node_of([entry(minor, links=links) for minor, links in enumerate(ways)], set())
    outcome = decide(made, waiting("pod", request(8, "xgmi")), Policy())
    assert isinstance(outcome, Failure)
    assert "node(s) have too few healthy GPUs with XGMI links among all of them (at most 4 of 8)" in outcome.message

    shown = summary.summary(made, "node")
    assert shown is not None
    assert shown["devices"]["gpu"]["0"]["topology"]["links"] == {
        **dict.fromkeys("123", "XGMI x1"),
        **dict.fromkeys("4567", "System"),
    }
    row = fleet_rows.fleet_row(made, "node", {})
    assert row["devices"][7]["links"]["GPU-6"] == "XGMI x1"
