"""Decisions for pods of kube-scheduler: reasons per node, scores, and victims in addition to those proposed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api.request.model import ModelConstraint
from berth_operator.core.decision import cycle, extender
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import more_victims
from berth_operator.core.decision.victims import released
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod, PodRequest
from tests.objects.builders import add, card, cards, charge, fleet, gpus, grant, inventory, node_info, waiting

Amounts = tuple[tuple[str, int], ...]
POLICY = extender.policy_of(Policy())


def asks(count: int = 1, *, core: int = 100, model: str = "", resources: Amounts = ()) -> PendingPod:
    devices = PodRequest().devices
    parts = (gpus(count, core=core, ratio=core),)
    request = PodRequest(
        devices=type(devices)(parts=parts), model=ModelConstraint(exact=model), resources=(*resources, ("pods", 1))
    )
    return waiting("asking", request, priority=10)


def small() -> Fleet:
    built = fleet({"free": cards(2), "full": cards(1), "other": (card(0, model="X"),), "none": ()})
    built.charge(charge("held", grant(0, core=100, ratio=100), node="full"))
    return built


def reasons_of(built: Fleet, pod: PendingPod, *names: str) -> tuple[dict[str, str], dict[str, str]]:
    rows = extender.rows_of(built, names)
    given_reasons = extender.reasons(built, pod, POLICY, names, rows, others="fits")
    return dict(given_reasons.failed), dict(given_reasons.unresolvable)


def test_each_node_has_its_own_reason() -> None:
    model = "A100-SXM4-80GB"
    built = small()
    built.put_node(node_info("bare"))
    failed, unresolvable = reasons_of(built, asks(), "free", "full", "other", "none", "bare", "ghost")
    assert failed == {
        "free": "fits",
        "other": "fits",
        "full": "node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio 100)",
    }
    assert unresolvable == {
        "none": "node(s) have too few healthy GPUs (1 requested)",
        "bare": "node(s) have no Device",
        "ghost": extender.UNKNOWN,
    }
    _, unresolvable = reasons_of(built, asks(model=model), "full", "other")
    assert unresolvable.keys() == {"full", "other"}, "no eviction gives a node another model"


def test_all_insufficient_resources_of_a_node_are_named() -> None:
    built = fleet({})
    amounts = {"a": (1, 1), "b": (9, 1), "c": (1, 9), "d": (1, 1), "e": (9, 9)}
    for name, (cpu, memory) in amounts.items():
        add(built, node_info(name, cpu=cpu, memory=memory), inventory(*cards(1)))
    pod = asks(resources=(("cpu", 5), ("memory", 5)))
    failed, unresolvable = reasons_of(built, pod, *amounts)
    assert failed == {"e": "fits"}
    both = "Insufficient cpu, Insufficient memory"
    assert unresolvable == {"a": both, "b": "Insufficient memory", "c": "Insufficient cpu", "d": both}


def test_the_reasons_of_nodes_are_those_that_decisions_count() -> None:
    built, pod = small(), asks(3)
    names = ("free", "full", "other", "none")
    failed, unresolvable = reasons_of(built, pod, *names)
    counted = cycle.failure(built, pod.request, POLICY.filters_of(pod.request)).reasons
    every = list({**failed, **unresolvable}.values())
    assert {(text, every.count(text)) for text in every} == set(counted)


def test_most_filters_that_kube_scheduler_has_run_are_left_out() -> None:
    names = ["supported", "injected", "node-ready", "host-ports", "isolation", "devices", "resources"]
    assert [each.NAME for each in POLICY.filters] == names
    own = Policy(switched_off=frozenset({"injected"}), card_strategy="MostAllocated")
    assert [each.NAME for each in extender.policy_of(own).filters] == [each for each in names if each != "injected"]
    assert extender.policy_of(own).card_strategy == "MostAllocated"


def test_nodes_that_were_rejected_come_last_but_are_not_excluded() -> None:
    built = fleet({"a": cards(1), "b": cards(1)})
    rows = extender.rows_of(built, ["a", "b"])
    for rejected, expected in (({}, "a"), ({"a": 1}, "b"), ({"a": 2, "b": 1}, "b"), ({"a": 1, "b": 2}, "a")):
        placement = cycle.place(built, asks(), POLICY, extender.bias_of(built, rows, rejected))
        assert placement is not None
        assert placement.node == expected


def test_nodes_outside_of_the_request_are_never_chosen() -> None:
    built = fleet({"a": cards(1), "b": cards(1)})
    assert cycle.place(built, asks(), POLICY, extender.bias_of(built, extender.rows_of(built, []))) is None
    bias = extender.bias_of(built, extender.rows_of(built, ["b", "ghost"]), {"a": 1, "ghost": 1})
    placement = cycle.place(built, asks(), POLICY, bias)
    assert placement is not None
    assert placement.node == "b"


# --- victims --------------------------------------------------------------------------------------------------------

held = st.tuples(st.integers(0, 3), st.sampled_from([50, 100]), st.integers(0, 12))
"""(minor, hundredths of its card, priority)."""


@settings(max_examples=60)
@given(st.lists(held, max_size=6), st.sets(st.integers(0, 5)), st.integers(1, 4))
def test_further_victims_suffice_and_each_is_needed(
    holders: list[tuple[int, int, int]], proposed: set[int], count: int
) -> None:
    built, used = fleet({"node": cards(4)}), dict.fromkeys(range(4), 0)
    for number, (minor, core, priority) in enumerate(holders):
        if used[minor] + core <= 100:
            used[minor] += core
            built.charge(charge(f"p{number}", grant(minor, core=core, ratio=core), priority=priority))
    uids = {each.uid for each in built.charges.values() if int(each.uid[-1]) in proposed and each.priority < 10}
    pod, lower = asks(count), {each.uid for each in built.charges.values() if each.priority < 10}
    answer = more_victims(built, pod, POLICY, Budgets(), {"node": sorted(uids)})
    assert fits_without(built, pod, lower) == ("node" in answer)
    if answer:
        more = {each.uid for each in answer["node"]}
        assert more <= lower - uids
        assert fits_without(built, pod, uids | more)
        assert not any(fits_without(built, pod, uids | (more - {spared})) for spared in more)


def fits_without(built: Fleet, pod: PendingPod, uids: set[str]) -> bool:
    """Return whether a pod fits once these pods have left, by removing them one by one."""
    with released(built, [built.charges[uid] for uid in uids]):
        return bool(np.any(cycle.feasible(built, pod.request, POLICY.filters_of(pod.request))))
