"""Laws of the places that are promised to pods that a controller creates later, by random events."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_operator.binding.workloads.gang_promises import PERIOD, GangPromises
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import NVIDIA, Raw, device, entry, node, pod, whole
from tests.unit.binding.workloads.kueue import POLICY

LWS = "leaderworkerset.sigs.k8s.io/"
KEPT = 300.0
FLEETS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1)
ACTIONS = st.sampled_from(["leader", "leader", "worker", "other", "other", "restart", "restart", "wait", "end"])


class Groups:
    """Groups of LeaderWorkerSets whose workers come when their leader has a node, and other pods; time is virtual."""

    def __init__(self, nodes: dict[str, int]) -> None:
        self.nodes, self.now, self.numbers = nodes, 1000.0, itertools.count()
        self.ahead = 0.0
        """How far the wall clock is ahead, in seconds."""
        self.ended: list[str] = []
        """The pods on which the end of a promise was reported."""
        self.leaders: dict[int, float] = {}
        """Number of a group with a bound leader and missing workers -> when its promise ends."""
        self.bound: dict[str, Raw] = {}
        self.waiting: dict[str, Raw] = {}
        self.cards: dict[str, int] = {}
        self.sizes: dict[int, int] = {}
        self.lead()

    def lead(self) -> None:
        """Begin the term of a leader that knows the objects."""
        self.cluster = Cluster(grace=1e9, clock=lambda: self.now, wall=lambda: self.now + self.ahead)
        self.promises = GangPromises(cluster=self.cluster, policy=lambda _: POLICY, seconds=lambda: KEPT, reporter=self)
        for name, cards in self.nodes.items():
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, *(entry(minor) for minor in range(cards))))

    def promise_ended(self, charge: Charge, why: str) -> None:
        assert why
        self.ended.append(charge.pod)

    def restart(self) -> None:
        record = self.promises.record()
        self.lead()
        for raw in self.bound.values():
            self.cluster.put_bound(raw)
        for raw in self.waiting.values():
            self.cluster.put_pending(raw)
        self.cluster.gangs.judge()
        self.promises.restore(record)

    def member(self, group: int, index: int, cards: int) -> None:
        labels = {f"{LWS}name": "x", f"{LWS}group-index": str(group), f"{LWS}worker-index": str(index)}
        written = {f"{LWS}size": str(self.sizes[group]), f"{LWS}exclusive-topology": "rack"}
        self.put(f"{group}-{index}", cards, labels=labels, annotations=written)

    def put(self, name: str, cards: int, **fields: Any) -> None:
        self.cards[name] = cards
        self.waiting[name] = pod(name, {NVIDIA: str(cards)}, **fields)
        self.cluster.put_pending(self.waiting[name])

    def schedule(self) -> None:
        """Decide all units as the scheduler does, and bind what is placed."""
        while (unit := self.cluster.queue.pop(self.now)) is not None:
            if isinstance(unit, Gang):
                outcome = self.cluster.decide(0, lambda: decide_gang(self.cluster.fleet, unit, POLICY))
                if isinstance(outcome, Failure):
                    self.cluster.queue.park(unit, outcome)
                    continue
                own = {member.uid for member in unit.members}
                placed = [placement for placement in outcome if placement.pod.uid in own]
                self.cluster.placements.assume_all(placed)
                later = [placement for placement in outcome if placement.pod.uid not in own]
                if later:
                    assert self.promises.keep(unit, later)
            else:
                single = self.cluster.decide(0, lambda: decide(self.cluster.fleet, unit, POLICY))
                if isinstance(single, Failure):
                    self.cluster.queue.park(unit, single)
                    continue
                self.cluster.placements.assume(single)
                placed = [single]
            for placement in placed:
                self.show_bound(placement.pod.name, placement.charge)

    def show_bound(self, name: str, charge: Charge) -> None:
        raw = self.waiting.pop(name)
        metadata = raw["metadata"]
        annotations = {**(metadata.get("annotations") or {}), names.EPOCH: "1"}
        minors = whole(*(grant.minor for grant in charge.grants))
        self.bound[name] = pod(
            name,
            {NVIDIA: str(self.cards[name])},
            labels=metadata.get("labels") or {},
            annotations=annotations,
            on=charge.node,
            allocated=minors,
        )
        self.cluster.put_bound(self.bound[name])
        self.cluster.remove_pending(metadata["uid"])
        group, _, index = name.partition("-")
        if index == "0" and self.sizes[int(group)] > 1:
            self.leaders[int(group)] = self.now + KEPT

    def used(self) -> int:
        return int(self.cluster.fleet.cards["gpu"].users.max(initial=0))


@given(FLEETS, st.lists(st.tuples(ACTIONS, st.integers(1, 3), st.integers(1, 2)), min_size=4, max_size=10))
@settings(max_examples=40)
def test_workers_that_come_in_time_always_have_their_places(
    nodes: dict[str, int], events: list[tuple[str, int, int]]
) -> None:
    groups, come = Groups(nodes), dict[int, int]()
    for action, size, cards in events:
        match action:
            case "leader":
                number = next(groups.numbers)
                groups.sizes[number] = size
                groups.member(number, 0, cards)
            case "worker" if groups.leaders:
                number = min(groups.leaders)
                come[number] = come.get(number, 0) + 1
                groups.member(number, come[number], groups.cards[f"{number}-0"])
                in_time = groups.now < groups.leaders[number]
                if come[number] == groups.sizes[number] - 1:
                    del groups.leaders[number]
                groups.schedule()
                assert f"{number}-{come[number]}" in groups.bound or not in_time
            case "other":
                groups.put(f"other{next(groups.numbers)}", cards)
            case "restart":
                groups.restart()
            case "wait":
                groups.now += KEPT / 2
            case "end" if others := [name for name in groups.bound if name.startswith("other")]:
                groups.cluster.remove_bound(groups.bound.pop(others[0])["metadata"]["uid"])
        groups.schedule()
        groups.now += PERIOD
        groups.promises.follow()
        assert groups.used() <= 1, "no card is given twice"
        for number in [number for number, until in groups.leaders.items() if groups.now < until]:
            kept = groups.cluster.promises.of(f"LeaderWorkerSet group ns/x-{number}")
            assert len(kept) == groups.sizes[number] - 1 - come.get(number, 0)
    groups.now += KEPT
    groups.promises.follow()
    assert not len(groups.cluster.promises)
    assert len(groups.ended) == len(set(groups.ended)), "each end is reported once"


@pytest.mark.parametrize("restart", [True, False])
def test_places_are_kept_no_longer_though_the_clock_was_ahead_when_they_were_promised(*, restart: bool) -> None:
    groups = Groups({"a": 2})
    groups.ahead = 3600.0
    groups.sizes[0] = 2
    groups.member(0, 0, 1)
    groups.schedule()
    groups.ahead = 0.0
    if restart:
        groups.restart()
    groups.promises.follow()
    groups.now += KEPT - PERIOD
    groups.promises.follow()
    assert len(groups.cluster.promises) == 1
    groups.now += 2 * PERIOD
    groups.promises.follow()
    assert not len(groups.cluster.promises)
    assert groups.ended == ["ns/0-0"]
