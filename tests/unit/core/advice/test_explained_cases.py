"""Constructed cases: what rejects each node, which nodes are near, what these lack, and whether waiting can help."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from berth_api.allocation import Grant
from berth_api.request.model import ModelConstraint
from berth_operator.core.advice import remedies
from berth_operator.core.advice.assumptions import WhatIfs
from berth_operator.core.advice.explanation import Explanation, PreemptionAnswer, explain
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import NEVER
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import NodeTerm, PendingPod, PodRequest, Taint
from tests.objects.builders import (
    CORE,
    GI,
    MEMORY,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    grant,
    instance,
    inventory,
    label,
    listens,
    node_info,
    other_card,
    sliced,
    waiting,
)

POLICY = Policy()
TAINTED = Taint(key="x", value="", effect="NoSchedule")
X = "example.com/x"
PROFILE = "nvidia.com/mig-1g.10gb"

Lacks = tuple[str, dict[str, int], list[tuple[str, int, dict[str, int]]]]
"""A near node, the amounts that it lacks, and (type, minor, amounts) of the cards that it lacks."""


def busy(count: int) -> str:
    return f"node(s) have too few free GPUs ({count} requested with gpu-core 100 and gpu-memory-ratio 100)"


def unfit(count: int, most: int = 0) -> str:
    return f"node(s) have too few healthy GPUs ({count} requested{f', at most {most} on a node' if count > 1 else ''})"


TAINTS, SELECTED = "node(s) had untolerated taint(s)", "node(s) didn't match Pod's node affinity/selector"
NOT_INJECTED = (
    "NotInjected: NVIDIA_VISIBLE_DEVICES of container main is not Berth's"
    " (apply manifests/base/injection.yaml or the webhook, then create the pod again)"
)
T4_AMONG_BOTH = (
    "node(s) have too few healthy GPUs of model tesla t4 (1 requested; models: NVIDIA A100-SXM4-80GB, Tesla T4)"
)
CPU, MAIN_MEMORY = "Insufficient cpu", "Insufficient memory"


@dataclass(frozen=True)
class Node:
    """A node, what pods use of it, and their priority."""

    name: str = "a"
    cards: Sequence[CardInfo] | None = cards(2)
    info: Mapping[str, Any] | None = None
    used: Sequence[Grant] = ()
    resources: Mapping[str, int] | None = None
    ports: Sequence[int] = ()
    fresh: bool = True
    priority: int = 0


def used(*minors: int, **amounts: int) -> list[Grant]:
    return [grant(minor, "gpu", **(amounts or {"core": 100, "ratio": 100})) for minor in minors]


def nic(minor: int = 0) -> Grant:
    return grant(minor, "rdma", rdma=100)


def built(nodes: Sequence[Node]) -> Fleet:
    made = Fleet()
    for node in nodes:
        devices = None if node.cards is None else inventory(*node.cards)
        add(made, node_info(node.name, **(node.info or {})), devices, fresh=node.fresh)
        holder: dict[str, Any] = {"node": node.name, "priority": node.priority}
        resources = tuple((node.resources or {}).items())
        ports = tuple(map(listens, node.ports))
        for number, each in enumerate(node.used):
            made.charge(charge(f"{node.name}-{number}", each, **holder))
        made.charge(charge(f"{node.name}-rest", resources=resources, ports=ports, **holder))
    return made


@dataclass(frozen=True)
class Case:
    """What a pod requests of which nodes, and its explanation."""

    nodes: Sequence[Node]
    request: PodRequest
    reasons: Mapping[str, Sequence[str]] | Sequence[str]
    """Node -> all reasons; only the reasons for the node `a`."""
    near: Sequence[Lacks] = ()
    fits_when_empty: int = 0

    @property
    def by_node(self) -> Mapping[str, Sequence[str]]:
        return self.reasons if isinstance(self.reasons, Mapping) else {"a": self.reasons}


def lacks(*cards: tuple[str, int, dict[str, int]], node: str = "a", **amounts: int) -> list[Lacks]:
    return [(node, amounts, list(cards))]


def share(core: int, ratio: int, count: int = 1) -> str:
    return f"node(s) have too few free GPUs ({count} requested with gpu-core {core} and gpu-memory-ratio {ratio})"


WHOLE, TWO, EIGHT = asks({NVIDIA: 1}), asks({NVIDIA: 2}), asks({NVIDIA: 8})
OF_T4, IN_ZONE = asks({NVIDIA: 1}, model=ModelConstraint(globs=(T4.lower(),))), asks({NVIDIA: 1}, selector={"z": "a"})
BY_AFFINITY = asks({NVIDIA: 1}, affinity=[NodeTerm(labels=(label("z", "In", "a"),))])
CPU_AND_CARD, NIC_AND_CARD, MIG_1G = asks({"cpu": 8000, NVIDIA: 1}), asks({RDMA: 100, NVIDIA: 1}), asks({PROFILE: 1})
GPU_0, GPU_1, GPU_2 = (("gpu", minor, dict[str, int]()) for minor in range(3))
NIC_0 = ("rdma", 0, dict[str, int]())
TENTH = ("gpu", 0, {"gpu-core": 10, "gpu-memory-ratio": 10, "gpu-memory": 8519804518})
FULL, OTHER_ZONE = Node(used=used(0, 1)), {"labels": {"z": "b"}}
DIVIDED = divided(0, "1g.10gb", "1g.10gb")
BOTH = [DIVIDED, divided(1, "1g.10gb", "1g.10gb")]
ALL_INSTANCES = [instance(minor, number) for minor in range(2) for number in range(2)]
UNEVEN = [*used(0, core=90, ratio=9), *used(1, core=60, ratio=6), *used(2, core=80, ratio=8)]
SHARED_NODE = Node(used=[*used(0, core=60, ratio=60), *used(1, core=10, ratio=10)])
T4_IN_USE = Node("b", cards(1, model=T4, memory=T4_BYTES), used=used(0))
NO_DEVICE, SILENT = "node(s) have no Device", "node(s) have a Device that is not ready (agent never heard)"
CORDONED, NOT_READY = "node(s) were unschedulable", "node(s) were not ready"
NO_T4 = "node(s) have too few healthy GPUs of model tesla t4 (1 requested; models: NVIDIA A100-SXM4-80GB)"
NO_NIC = "node(s) have too few healthy RDMA devices (1 requested)"
NIC_IN_USE = "node(s) have too few free RDMA devices (1 requested with rdma 100)"
TAINTED_NODE: Mapping[str, Any] = {"taints": [TAINTED]}
A_NIC = [card(), other_card("rdma")]

CASES = {
    "whole cards in use": Case([FULL], WHOLE, [busy(1)], lacks(GPU_0), 1),
    "one of two in use": Case([Node(used=used(0))], TWO, [busy(2)], lacks(GPU_0), 1),
    "two of two in use": Case([FULL], TWO, [busy(2)], lacks(GPU_0, GPU_1), 1),
    "more than any node has": Case([Node(), Node("b")], EIGHT, {"a": [unfit(8, 2)], "b": [unfit(8, 2)]}),
    "a share": Case(
        [Node(cards=cards(1), used=used(0, core=60, ratio=60))],
        asks({CORE: 50, RATIO: 50}),
        [share(50, 50)],
        lacks(TENTH),
        1,
    ),
    "the card of which least is missing": Case(
        [Node(cards=cards(3), used=UNEVEN)],
        asks({CORE: 70, RATIO: 7}),
        [share(70, 7)],
        lacks(("gpu", 1, {"gpu-core": 30})),
        1,
    ),
    "shares of two cards": Case(
        [SHARED_NODE], asks({CORE: 100, RATIO: 100, SHARED: 2}), [share(50, 50, 2)], lacks(TENTH), 1
    ),
    "memory of a card": Case(
        [Node(cards=cards(1), used=used(0, memory=70 * GI, ratio=88))],
        asks({MEMORY: 20 * GI}),
        ["node(s) have too few free GPUs (1 requested with gpu-memory 20Gi)"],
        lacks(("gpu", 0, {"gpu-memory": 11438718976, "gpu-memory-ratio": 13})),
        1,
    ),
    "more memory than a card has": Case(
        [Node()],
        asks({MEMORY: 200 * GI}),
        ["node(s) have GPUs with too little memory (at most 83201216Ki of 200Gi)"],
    ),
    "no Device": Case([Node(cards=None)], WHOLE, [NO_DEVICE]),
    "a silent agent": Case([Node(fresh=False)], WHOLE, [SILENT], [], 1),
    "a silent agent, and in use": Case([Node(fresh=False, used=used(0, 1))], WHOLE, [SILENT], [], 1),
    "a failed card": Case([Node(cards=[card(healthy=False)])], WHOLE, [unfit(1)]),
    "a failed card of two": Case([Node(cards=[card(healthy=False), card(1)])], TWO, [unfit(2, 1)]),
    "a failed card, and one in use": Case(
        [Node(cards=[card(healthy=False), card(1)], used=used(1))], WHOLE, [busy(1)], lacks(GPU_1), 1
    ),
    "cordoned": Case([Node(info={"cordoned": True})], WHOLE, [CORDONED], [], 1),
    "not ready": Case([Node(info={"ready": False})], WHOLE, [NOT_READY], [], 1),
    "unreachable": Case([Node(info={"unreachable": True})], WHOLE, [NOT_READY], [], 1),
    "tainted": Case([Node(info=TAINTED_NODE)], WHOLE, [TAINTS]),
    "tainted and in use": Case([Node(info=TAINTED_NODE, used=used(0, 1))], WHOLE, [TAINTS, busy(1)]),
    "node selector": Case([Node(info=OTHER_ZONE)], IN_ZONE, [SELECTED]),
    "node selector, and in use": Case([Node(info=OTHER_ZONE, used=used(0, 1))], IN_ZONE, [SELECTED, busy(1)]),
    "node affinity": Case([Node(info=OTHER_ZONE)], BY_AFFINITY, [SELECTED]),
    "another model": Case([Node()], OF_T4, [NO_T4]),
    "the model, but in use": Case(
        [Node(), T4_IN_USE], OF_T4, {"a": [T4_AMONG_BOTH], "b": [busy(1)]}, lacks(GPU_0, node="b"), 1
    ),
    "another vendor": Case([Node()], asks({"amd.com/gpu": 1}), ["node(s) have no GPUs of AMD"]),
    "cpu": Case([Node(resources={"cpu": 60_000})], CPU_AND_CARD, [CPU], lacks(cpu=4000), 1),
    "cpu, and a card": Case(
        [Node(used=used(0, 1), resources={"cpu": 60_000})], CPU_AND_CARD, [busy(1), CPU], lacks(GPU_0, cpu=4000), 1
    ),
    "more cpu than a node has": Case([Node()], asks({"cpu": 80_000}), [CPU]),
    "memory": Case(
        [Node(resources={"memory": 500 * GI})], asks({"memory": 20 * GI}), [MAIN_MEMORY], lacks(memory=8 * GI), 1
    ),
    "cpu and memory": Case(
        [Node(resources={"memory": 500 * GI, "cpu": 64_000})],
        asks({"memory": 20 * GI, "cpu": 1}),
        [CPU, MAIN_MEMORY],
        lacks(cpu=1, memory=8 * GI),
        1,
    ),
    "pods": Case(
        [Node(info={"pods": 1}, resources={"pods": 1})], asks({"cpu": 1}), ["Too many pods"], lacks(pods=1), 1
    ),
    "another resource": Case(
        [Node(info={"more": {X: 1}}, resources={X: 1})], asks({X: 1}), [f"Insufficient {X}"], [("a", {X: 1}, [])], 1
    ),
    "a resource that no node has": Case([Node()], asks({X: 1}), [f"Insufficient {X}"]),
    "sums that the Node does not show yet": Case(
        [Node(info={"offered": {}, "sums": {}})], WHOLE, ["Insufficient nvidia.com/gpu"]
    ),
    "a host port": Case(
        [Node(ports=[80])],
        asks({"cpu": 1}, ports=[listens(80)]),
        ["node(s) didn't have free ports for the requested pod ports"],
        [],
        1,
    ),
    "features of kubelet": Case(
        [Node()], asks({"cpu": 1}, features=["F"]), ["node(s) didn't match Pod's required features"]
    ),
    "an unsupported field": Case(
        [Node()], asks({"cpu": 1}, unsupported=["spec.x"]), ["pod uses spec.x, which Berth does not support"]
    ),
    "variables that were not injected": Case([Node()], asks({NVIDIA: 1}, uninjected=["main"]), [NOT_INJECTED]),
    "no NIC": Case([Node()], NIC_AND_CARD, [NO_NIC]),
    "a NIC in use": Case([Node(cards=A_NIC, used=[nic()])], NIC_AND_CARD, [NIC_IN_USE], lacks(NIC_0), 1),
    "a NIC and a card in use": Case(
        [Node(cards=A_NIC, used=[nic(), *used(0)])], NIC_AND_CARD, [busy(1)], lacks(NIC_0, GPU_0), 1
    ),
    "a failed NIC": Case([Node(cards=[card(), other_card("rdma", healthy=False)])], NIC_AND_CARD, [NO_NIC]),
    "time slices of a card in use as a whole": Case(
        [Node(cards=[sliced(0, 2)], used=used(0))],
        WHOLE,
        ["node(s) have too few free nvidia.com/gpu (at most 0 of 1)"],
        lacks(GPU_0),
        1,
    ),
    "no MIG instance": Case([Node()], MIG_1G, [f"node(s) have no {PROFILE}"]),
    "MIG instances in use": Case(
        [Node(cards=[DIVIDED], used=ALL_INSTANCES[:2])],
        MIG_1G,
        [f"node(s) have too few free {PROFILE} (at most 0 of 1)"],
        lacks(("gpu", 0, {PROFILE: 1})),
        1,
    ),
    "one MIG instance of two in use": Case(
        [Node(cards=[DIVIDED], used=ALL_INSTANCES[:1])],
        asks({PROFILE: 2}),
        [f"node(s) have too few free {PROFILE} (at most 1 of 2)"],
        lacks(("gpu", 0, {PROFILE: 1})),
        1,
    ),
    "MIG instances of two cards in use": Case(
        [Node(cards=BOTH, used=ALL_INSTANCES)],
        asks({PROFILE: 3}),
        [f"node(s) have too few free {PROFILE} (at most 0 of 3)"],
        lacks(("gpu", 0, {PROFILE: 2}), ("gpu", 1, {PROFILE: 1})),
        1,
    ),
    "the fewest missing cards come first": Case(
        [Node(name, cards(4), used=used(*range(count))) for name, count in (("a", 4), ("b", 3), ("c", 2))],
        asks({NVIDIA: 3}),
        {"a": [busy(3)], "b": [busy(3)], "c": [busy(3)]},
        [*lacks(GPU_0, node="c"), *lacks(GPU_0, GPU_1, node="b"), *lacks(GPU_0, GPU_1, GPU_2)],
        3,
    ),
    "then the least of the scarcest resource": Case(
        [Node("a", resources={"cpu": 63_000}), Node("b", resources={"cpu": 60_000})],
        CPU_AND_CARD,
        {"a": [CPU], "b": [CPU]},
        [*lacks(node="b", cpu=4000), *lacks(cpu=7000)],
        2,
    ),
    "then the name": Case(
        [Node(name, cards(1), used=used(0)) for name in "ba"],
        WHOLE,
        {"a": [busy(1)], "b": [busy(1)]},
        [*lacks(GPU_0), *lacks(GPU_0, node="b")],
        2,
    ),
    "at most five are near": Case(
        [Node(f"n{number}", cards(1), used=used(0)) for number in range(6)],
        WHOLE,
        {f"n{number}": [busy(1)] for number in range(6)},
        [(f"n{number}", {}, [GPU_0]) for number in range(5)],
        6,
    ),
    "each node for another reason": Case(
        [
            Node("a", info=TAINTED_NODE),
            Node("b", None),
            Node("c", fresh=False),
            Node("d", info={"cordoned": True}),
            Node("e", used=used(0, 1)),
            Node("f", info={"ready": False}),
        ],
        WHOLE,
        {"a": [TAINTS], "b": [NO_DEVICE], "c": [SILENT], "d": [CORDONED], "e": [busy(1)], "f": [NOT_READY]},
        lacks(GPU_0, node="e"),
        4,
    ),
    "everything at once": Case(
        [Node(info={**TAINTED_NODE, "cordoned": True}, used=used(0, 1), resources={"cpu": 64_000})],
        asks({"cpu": 1, NVIDIA: 1}, selector={"z": "a"}),
        [CORDONED, TAINTS, SELECTED, busy(1), CPU],
    ),
    "no node": Case([], WHOLE, {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_constructed_case_is_explained(case: Case) -> None:
    made = built(case.nodes)
    explanation = explain(made, waiting(request=case.request), POLICY)
    assert isinstance(explanation.result, Failure)
    reasons = {node: sorted(group["reasons"]) for group in explanation.groups for node in group["nodes"]}
    assert reasons == {node: sorted(expected) for node, expected in case.by_node.items()}
    assert _near(explanation) == list(case.near)
    assert explanation.fits_when_empty == case.fits_when_empty
    assert another_node_helps(made, waiting(request=case.request)) == (case.fits_when_empty > 0)
    counts = Counter(reason for group in explanation.groups for reason in group["counted"] for _ in group["nodes"])
    if explanation.result.condition == "Unschedulable":
        assert counts == dict(explanation.result.reasons)


def another_node_helps(made: Fleet, pod: PendingPod) -> bool:
    """Return whether another node like one that is there takes the pod."""
    found = [*filter(None, remedies.of_pod(WhatIfs(made.copy(), pod, POLICY, Budgets()), pod, POLICY))]
    return any(each.is_another and each.ends for each in found)


def _near(explanation: Explanation) -> list[Lacks]:
    return [
        (
            near["node"],
            near["resources"],
            [(missing["type"], missing["minor"], missing["amounts"]) for missing in near["cards"]],
        )
        for near in explanation.nearest
    ]


FIVE = {"priority": 5}
NOTHING_BEFIVE = "0/1 nodes are available: 1 No preemption victims found for incoming pod."


@pytest.mark.parametrize(
    ("fields", "below", "policy", "answer"),
    [
        (FIVE, 1, POLICY, PreemptionAnswer(node="a", victims=1)),
        (FIVE, 5, POLICY, PreemptionAnswer(message=NOTHING_BEFIVE)),
        ({**FIVE, "preempts": False}, 1, POLICY, PreemptionAnswer(message=NEVER)),
        (FIVE, 1, Policy(preemption=False), None),
    ],
)
def test_it_says_whether_evictions_help(
    fields: Mapping[str, Any], below: int, policy: Policy, answer: PreemptionAnswer | None
) -> None:
    made = built([Node(cards=cards(1), used=used(0), priority=below)])
    pod = waiting(request=WHOLE, **fields)
    assert explain(made, pod, policy, Budgets()).preemption == answer
    assert explain(made, pod, policy).preemption is None


def test_a_card_that_a_lower_priority_cannot_free_has_kube_schedulers_reason() -> None:
    made = built([Node(cards=cards(1), priority=1)])
    answer = explain(made, waiting(request=TWO, priority=5), POLICY, Budgets()).preemption
    text = "0/1 nodes are available: 1 node(s) have too few healthy GPUs (2 requested, at most 1 on a node)."
    assert answer == PreemptionAnswer(message=text)
