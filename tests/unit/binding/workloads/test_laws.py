"""Laws of promised places, by random events."""

import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from berth_operator.binding.workloads.fits_check import MAX_TURN
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.values.quota_workload import CheckSettings, PodSet
from berth_operator.core.values.request import Membership
from tests.objects.builders import NVIDIA, waiting
from tests.unit.binding.workloads.kueue import POLICY, READY, RETRY, SECOND, Kueue, cards_of, pods, restarted

FLEETS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 4), min_size=1)
SETS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=2)


def of_shape(shape: Sequence[tuple[int, int]], gang: Membership | None = None) -> tuple[PodSet, ...]:
    return tuple(pods(count, cards, f"set-{number}", gang=gang) for number, (count, cards) in enumerate(shape))


@given(FLEETS, st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 3)), max_size=4), st.integers(1, 4))
@settings(max_examples=40)
def test_a_pod_that_fits_by_decide_is_ready_and_no_other(
    nodes: dict[str, int], held: list[tuple[str, int]], cards: int
) -> None:
    kueue = Kueue(nodes, of=CheckSettings(gather=0))
    for number, (name, count) in enumerate(held):
        if name in nodes:
            kueue.hold(f"held-{number}", *range(count), on=name)
    outcome = decide(kueue.fleet, waiting("alone", {NVIDIA: cards}), POLICY)
    kueue.ask("train", pods(1, cards))
    assert (kueue.state("train") is READY) == isinstance(outcome, Placement)
    if isinstance(outcome, Placement):
        assert kueue.places("train") == {outcome.node: 1}


class Law:
    """Random events, after each of which no card is given twice."""

    def __init__(self, nodes: dict[str, int], tick: float) -> None:
        self.kueue = Kueue(nodes)
        self.kueue.tick = tick
        self.nodes = nodes
        self.number = itertools.count()
        self.members: dict[str, int] = {}
        """Workload whose pods are a gang -> how many of them exist."""

    def act(self, action: str, shape: Sequence[tuple[int, int]], pick: int) -> None:
        kueue, known = self.kueue, sorted(self.kueue.cluster.workloads.by_key)
        name = known[pick % len(known)].partition("/")[2] if known else ""
        match action:
            case "submit":
                new = f"w{next(self.number)}"
                gang = Membership(group=f"ns/{new}", minimum=sum(count for count, _ in shape)) if pick % 3 else None
                kueue.submit(new, *of_shape(shape, gang), priority=pick % 2)
            case "other pod":
                kueue.put(f"p{next(self.number)}", cards=shape[0][1])
            case "come" if name and kueue.state(name) is READY:
                self.come(name)
            case "end":
                bound = sorted(kueue.fleet.charges)
                if bound:
                    kueue.cluster.remove_bound(bound[pick % len(bound)])
            case "requeue" if name and kueue.state(name) is RETRY:
                kueue.requeue(name)
            case "delete" if name:
                kueue.cluster.workloads.remove(f"ns/{name}")
                self.members.pop(name, None)
            case "leader":
                self.lead_again()
        self.kueue.turn(SECOND)
        self.kueue.schedule()
        self.check()

    def come(self, name: str) -> None:
        """Create the pods of a ready workload: each is placed at once, where its place was promised.

        The members of a gang come one by one, and are placed when all are there.
        """
        kueue = self.kueue
        kueue.change(name, admitted=True)
        all_pods = [each for pod_set in kueue.of(name).pod_sets for each in pod_set.pods]
        promised, is_gang = kueue.places(name), all_pods[0].gang is not None
        assert promised.total() == len(all_pods)
        first = self.members.get(name, 0) if is_gang else 0
        last = self.members[name] = first + 1 if is_gang else len(all_pods)
        for number, each in enumerate(all_pods[first:last], first):
            pod_set = each.name.rpartition("-")[0]
            size = len(all_pods) if is_gang else 0
            kueue.put(f"{name}-{number}", workload=name, pod_set=pod_set, cards=cards_of(each), gang=size)
        placed = {pod: node for pod, node in kueue.schedule().items() if pod.startswith(f"{name}-")}
        if last < len(all_pods):
            assert not placed
            assert kueue.places(name) == promised
            return
        assert Counter(placed.values()) == promised
        kueue.cluster.workloads.remove(f"ns/{name}")
        del self.members[name]

    def lead_again(self) -> None:
        """Begin another term: what was promised is on the same nodes."""
        before = {key: self.kueue.places(key.partition("/")[2]) for key in self.kueue.cluster.workloads.by_key}
        ready = {key for key, each in self.kueue.cluster.workloads.by_key.items() if each.state is READY}
        self.kueue = restarted(self.kueue)
        for key in ready:
            assert self.kueue.places(key.partition("/")[2]) == before[key], key

    def check(self) -> None:
        promises = [place for _, _, place in self.kueue.cluster.promises.all()]
        charges = [*self.kueue.fleet.charges.values(), *promises]
        held = Counter((charge.node, grant.minor) for charge in charges for grant in charge.grants)
        assert max(held.values(), default=0) <= 1, "a card is given twice"
        assert len(self.kueue.cluster.promises) == sum(1 for _ in self.kueue.cluster.promises.all())
        for workload in self.kueue.cluster.workloads.by_key.values():
            if workload.state is READY:
                assert self.kueue.places(workload.name).total() == sum(
                    len(pod_set.pods) for pod_set in workload.pod_sets
                )


ACTIONS = ("submit", "submit", "other pod", "come", "come", "end", "end", "requeue", "delete", "leader")


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1),
    st.sampled_from([0.0, 2 * MAX_TURN]),
    st.lists(st.tuples(st.sampled_from(ACTIONS), SETS, st.integers(0, 1000)), min_size=15, max_size=30),
)
@settings(max_examples=50, deadline=None)
def test_no_card_is_given_twice_and_a_promise_is_kept(
    nodes: dict[str, int], tick: float, actions: list[tuple[str, list[tuple[int, int]], int]]
) -> None:
    law = Law(nodes, tick)
    for action in actions:
        law.act(*action)
