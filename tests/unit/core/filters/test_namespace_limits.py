"""No namespace ever holds more GPUs than the configuration's `namespaceLimits` allows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import allocation
from berth_api.resources import quantity
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.filters import namespace_limits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue import waking
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from tests.objects.builders import (
    A100_BYTES,
    CORE,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    SHARED,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    gang,
    grant,
    inventory,
    node_info,
    place,
    sliced,
    waiting,
)

LIMITS = {"a": {"gpu": 300, "gpu-memory": 200 * GI}, "b": {"gpu": 150}, "c": {"gpu-memory": 90 * GI}}
INSTANCES = {"mig-1g.10gb": (25, 10), "mig-3g.40gb": (50, 40)}
"""Hundredths and GiB: 1g.10gb is a quarter of an A100 with 40 GB, 3g.40gb half of one with 80."""
SPELLINGS = (
    *({GPU: 50}, {GPU: 200}, {NVIDIA: 1}, {NVIDIA: 2}, {MEMORY: 5 * GI}, {MEMORY: 40 * GI}, {RATIO: 30}),
    *({CORE: 60, RATIO: 10}, {CORE: 10, MEMORY: 12 * GI}, {SHARED: 2, RATIO: 100}, {SHARED: 2, MEMORY: 20 * GI}),
    *({"nvidia.com/gpu.shared": count} for count in (1, 3)),
    *({"nvidia.com/mig-1g.10gb": 2}, {"nvidia.com/mig-3g.40gb": 1}),
)
POLICY = Policy()


def pod(name: str, amounts: dict[str, int], namespace: str = "a", **fields: Any) -> PendingPod:
    request = replace(asks(amounts), identity=Identity(namespace=namespace))
    return waiting(name, request, namespace=namespace, **fields)


def world() -> Fleet:
    """Return nodes with large and small, whole and sliced cards, and cards in MIG mode, mixed and single."""
    made = fleet({"large": cards(4), "small": cards(4, memory=T4_BYTES, model=T4), "sliced": (sliced(0, 7), card(1))})
    add(made, node_info("mig"), inventory(divided(0, "1g.10gb", "1g.10gb", "3g.40gb"), divided(1, "3g.40gb")))
    add(made, node_info("single"), inventory(divided(0, "1g.10gb", "1g.10gb", "1g.10gb"), mig_single=True))
    made.set_namespace_limits(LIMITS)
    return made


def held(charges: Iterable[Charge]) -> dict[str, Counter[str]]:
    """Count what the annotations of placed pods give each namespace, by other code than the filter's."""
    by_namespace: dict[str, Counter[str]] = {}
    for each in charges:
        total = by_namespace.setdefault(each.pod.split("/")[0], Counter())
        for entry in orjson.loads(allocation.render(each.grants)).get("gpu", []):
            resources = {name.split("/")[1]: amount for name, amount in entry["resources"].items()}
            [profile] = [name for name in resources if name.startswith("mig-")] or [""]
            if profile:
                hundredths, memory = INSTANCES[profile]
                total["gpu"] += hundredths
                total["gpu-memory"] += memory * GI
            else:
                memory = quantity.parse(resources["gpu-memory"])
                of_memory = ceil(Fraction(100 * memory, T4_BYTES if each.node == "small" else A100_BYTES))
                of_ratio = max(int(resources["gpu-memory-ratio"]), int(resources.get("gpu-core", 0)))
                total["gpu"] += max(of_memory, of_ratio)
                total["gpu-memory"] += memory
    return by_namespace


def check(of: Fleet) -> None:
    for namespace, total in held(of.charges.values()).items():
        for name, limit in LIMITS.get(namespace, {}).items():
            assert total[name] <= limit, (namespace, total)
    counted = held([*of.charges.values(), *of.nominees.values()])
    for namespace in LIMITS:
        assert {name: of.namespaces.held(namespace)[name] for name in ("gpu", "gpu-memory")} == {
            name: counted.get(namespace, Counter())[name] for name in ("gpu", "gpu-memory")
        }


class Run:
    """Pods that come, are placed, preempt and go."""

    def __init__(self) -> None:
        self.fleet, self.number = world(), 0

    def pods(self, count: int, spelling: int, namespace: str, priority: int) -> list[PendingPod]:
        self.number += count
        names = (f"p{self.number}-{member}" for member in range(count))
        return [pod(each, SPELLINGS[spelling], namespace, priority=priority) for each in names]

    def submit(self, count: int, spelling: int, namespace: str, priority: int) -> None:
        pods = self.pods(count, spelling, namespace, priority)
        unit = gang(*pods)
        outcome = decide(self.fleet, pods[0], POLICY) if count == 1 else decide_gang(self.fleet, unit, POLICY)
        if not isinstance(outcome, Failure):
            for each in [outcome] if isinstance(outcome, Placement) else outcome:
                self.fleet.charge(each.charge)
        elif count == 1 and (single := preempt(self.fleet, pods[0], POLICY, Budgets())) is not None:
            self.evict([single.nominee], single.victims)
        elif count > 1 and (several := preempt_gang(self.fleet, unit, POLICY, Budgets())) is not None:
            self.evict(several.nominees, several.victims)

    def evict(self, nominees: Iterable[Charge], victims: Iterable[Charge]) -> None:
        for each in victims:
            self.fleet.mark_leaving(each.uid)
        for each in nominees:
            self.fleet.nominate(each)

    def leave(self, index: int) -> None:
        """End a placed pod: first those that are being evicted."""
        uids = sorted(self.fleet.leaving & self.fleet.charges.keys()) or sorted(self.fleet.charges)
        if uids:
            self.fleet.release(uid := uids[index % len(uids)])
            self.fleet.unmark_leaving(uid)

    def bind_nominees(self) -> None:
        """Decide the nominated pods again, as they are when something ends."""
        for nominee in list(self.fleet.nominees.values()):
            request = replace(asks(dict(nominee.plugin_requests)), identity=nominee.identity)
            name = nominee.pod.split("/")[1]
            again = waiting(name, request, namespace=nominee.identity.namespace, priority=nominee.priority)
            outcome = decide(self.fleet, replace(again, nominated_node=nominee.node), POLICY)
            if isinstance(outcome, Placement):
                self.fleet.charge(outcome.charge)

    def list_again(self) -> None:
        """Report the cards of a node again, as after a restart of its agent."""
        self.fleet.remove_device("small")
        self.fleet.put_device("small", inventory(*cards(4, memory=T4_BYTES, model=T4)))
        self.fleet.set_fresh("small", fresh=True)


SUBMIT = st.tuples(
    st.just("submit"),
    st.sampled_from((1, 1, 2, 3)),
    st.integers(0, len(SPELLINGS) - 1),
    st.sampled_from(("a", "b", "c", "d")),
    st.integers(0, 2),
)
STEPS = st.one_of(
    SUBMIT,
    SUBMIT,
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.sampled_from([("bind_nominees",), ("list_again",)]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=30))
def test_no_namespace_passes_its_limit(steps: list[tuple[Any, ...]]) -> None:
    run = Run()
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        check(run.fleet)


def limited(amounts: dict[str, int], **nodes: Any) -> Fleet:
    made = fleet(nodes or {"node": cards(4)})
    made.set_namespace_limits({"a": amounts})
    return made


def message(of: Fleet, wanted: PendingPod) -> str:
    outcome = decide(of, wanted, POLICY)
    assert isinstance(outcome, Failure)
    return outcome.message


def test_a_reason_says_limit_use_and_request() -> None:
    made = limited({"gpu": 200, "gpu-memory": 100 * GI})
    place(made, pod("first", {GPU: 50}))
    assert message(made, pod("pod", {GPU: 200})) == (
        "0/1 nodes are available: 1 namespace a is at its limit of gpu: 50 of 200 used, 200 requested."
    )
    outcome = decide(made, pod("pod", {MEMORY: 70 * GI}), POLICY)
    assert isinstance(outcome, Failure)
    assert "is at its limit of gpu-memory: " in outcome.message
    assert outcome.condition == "NamespaceLimit"


def test_what_fits_depends_on_the_card_that_a_node_has() -> None:
    # Half of the memory of a small card is within the limit, that of a large card is not.
    made = limited({"gpu-memory": 10 * GI}, large=cards(1), small=cards(1, memory=T4_BYTES, model=T4))
    assert place(made, pod("pod", {RATIO: 50})).node == "small"


@pytest.mark.parametrize(
    ("amounts", "namespace"), [({}, "a"), ({"cpu": 1000}, "a"), ({"kubernetes.io/rdma": 50}, "a"), ({GPU: 50}, "other")]
)
def test_pods_without_gpus_and_other_namespaces_are_not_limited(amounts: dict[str, int], namespace: str) -> None:
    made = limited({"gpu": 0})
    assert namespace_limits.passes(made, pod("pod", amounts, namespace).request) is made.present


def test_nothing_more_is_given_while_a_pod_holds_unknown_gpus() -> None:
    made = limited({"gpu": 400}, node=cards(2), other=cards(2))
    made.charge(replace(charge("lost", node="other", unknown=("gpu",)), pod="a/lost"))
    assert "namespace a has limits, and 1 pod(s) hold unknown GPUs" in message(made, pod("pod", {GPU: 50}))
    made.release("uid-lost")
    assert isinstance(decide(made, pod("pod", {GPU: 50}), POLICY), Placement)


def test_claims_do_not_pass_in_a_namespace_with_limits() -> None:
    made = limited({"gpu": 400})
    wanted = pod("pod", {}).request
    with_claim = replace(wanted, claims=(ClaimUse(claim="a/c"),))
    assert not namespace_limits.passes(made, with_claim).any()
    [(reason, _)] = namespace_limits.reasons(made, with_claim, made.present)
    assert reason == "namespace a has limits, and what resourceClaims get is not counted before"


def test_limits_that_change_count_what_is_held() -> None:
    made = limited({})
    place(made, pod("first", {GPU: 50}))
    made.set_namespace_limits({"a": {"gpu": 60}})
    assert "50 of 60 used, 50 requested" in message(made, pod("pod", {GPU: 50}))
    made.set_namespace_limits({})
    assert isinstance(decide(made, pod("pod", {GPU: 50}), POLICY), Placement)


def test_a_gang_counts_as_a_whole() -> None:
    made = limited({"gpu": 250})
    members = [pod(f"m{number}", {GPU: 100}) for number in range(3)]
    outcome = decide_gang(made, gang(*members), POLICY)
    assert isinstance(outcome, Failure)
    assert "2 of the 3 required members fit" in outcome.message
    assert "200 of 250 used, 100 requested" in outcome.message
    assert isinstance(decide_gang(made, gang(*members[:2]), POLICY), list)


def test_a_copy_counts_for_itself() -> None:
    made = limited({"gpu": 100})
    copy = made.copy()
    place(copy, pod("pod", {GPU: 100}))
    assert made.namespaces.held("a")["gpu"] == 0


@pytest.mark.parametrize(("namespace", "wakes"), [("a", True), ("b", False)])
def test_the_end_of_a_pod_of_the_namespace_wakes(namespace: str, wakes: bool) -> None:
    made = limited({"gpu": 100}, node=cards(4), other=cards(4))
    place(made, pod("first", {GPU: 100}))
    gone = replace(charge("gone", grant(3, core=100, ratio=100), node="other"), pod=f"{namespace}/gone")
    made.charge(gone)
    waits, queue = pod("pod", {GPU: 100}), Queue[Any]()
    queue.put(waits)
    queue.pop(0.0)
    failure = decide(made, waits, POLICY)
    assert isinstance(failure, Failure)
    assert failure.wakes_on & Change.POD_DELETED
    queue.park(waits, failure)
    made.release(gone.uid)
    waking.capacity_freed(made, queue, gone)
    assert (queue.pop(0.0) == waits) is wakes


@settings(max_examples=20, deadline=None)
@given(st.integers(A100_BYTES // 200, A100_BYTES), st.integers(1, 10))
def test_equal_shares_never_hold_more_of_a_card_than_the_limit(memory: int, limit: int) -> None:
    made, number = limited({"gpu": limit}, node=cards(1)), 0
    while isinstance(outcome := decide(made, pod(f"p{number}", {MEMORY: memory}), POLICY), Placement):
        made.charge(outcome.charge)
        number += 1
        assert number * memory * 100 <= limit * A100_BYTES
