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
from tests.builders import (
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

    name: str
    nodes: Sequence[Node]
    request: PodRequest
    reasons: Mapping[str, Sequence[str]]
    """Node -> all reasons."""
    near: Sequence[Lacks] = ()
    fits_when_empty: int = 0
    new_node_helps: bool | None = None
    """By default whether it fits any empty node."""


def wanted(globs: str) -> ModelConstraint:
    return ModelConstraint(globs=(globs.lower(),))


WHOLE, TWO = asks({NVIDIA: 1}), asks({NVIDIA: 2})
MIG_1G = asks({PROFILE: 1})
GPU_0 = ("gpu", 0, dict[str, int]())
DIVIDED = divided(0, "1g.10gb", "1g.10gb")

CASES = (
    Case("whole cards in use", [Node(used=used(0, 1))], WHOLE, {"a": [busy(1)]}, [("a", {}, [GPU_0])], 1),
    Case("one of two in use", [Node(used=used(0))], TWO, {"a": [busy(2)]}, [("a", {}, [GPU_0])], 1),
    Case("two of two in use", [Node(used=used(0, 1))], TWO, {"a": [busy(2)]}, [("a", {}, [GPU_0, ("gpu", 1, {})])], 1),
    Case("more than any node has", [Node(), Node("b")], asks({NVIDIA: 8}), {"a": [unfit(8, 2)], "b": [unfit(8, 2)]}),
    Case(
        "a share",
        [Node(cards=cards(1), used=used(0, core=60, ratio=60))],
        asks({CORE: 50, RATIO: 50}),
        {"a": ["node(s) have too few free GPUs (1 requested with gpu-core 50 and gpu-memory-ratio 50)"]},
        [("a", {}, [("gpu", 0, {"gpu-core": 10, "gpu-memory-ratio": 10, "gpu-memory": 8519804518})])],
        1,
    ),
    Case(
        "the card of which least is missing",
        [
            Node(
                cards=cards(3),
                used=[*used(0, core=90, ratio=9), *used(1, core=60, ratio=6), *used(2, core=80, ratio=8)],
            )
        ],
        asks({CORE: 70, RATIO: 7}),
        {"a": ["node(s) have too few free GPUs (1 requested with gpu-core 70 and gpu-memory-ratio 7)"]},
        [("a", {}, [("gpu", 1, {"gpu-core": 30})])],
        1,
    ),
    Case(
        "shares of two cards",
        [Node(used=[*used(0, core=60, ratio=60), *used(1, core=10, ratio=10)])],
        asks({CORE: 100, RATIO: 100, SHARED: 2}),
        {"a": ["node(s) have too few free GPUs (2 requested with gpu-core 50 and gpu-memory-ratio 50)"]},
        [("a", {}, [("gpu", 0, {"gpu-core": 10, "gpu-memory-ratio": 10, "gpu-memory": 8519804518})])],
        1,
    ),
    Case(
        "memory of a card",
        [Node(cards=cards(1), used=used(0, memory=70 * GI, ratio=88))],
        asks({MEMORY: 20 * GI}),
        {"a": ["node(s) have too few free GPUs (1 requested with gpu-memory 20Gi)"]},
        [("a", {}, [("gpu", 0, {"gpu-memory": 11438718976, "gpu-memory-ratio": 13})])],
        1,
    ),
    Case(
        "more memory than a card has",
        [Node()],
        asks({MEMORY: 200 * GI}),
        {"a": ["node(s) have GPUs with too little memory (at most 83201216Ki of 200Gi)"]},
    ),
    Case("no Device", [Node(cards=None)], WHOLE, {"a": ["node(s) have no Device"]}),
    Case(
        "a silent agent",
        [Node(fresh=False)],
        WHOLE,
        {"a": ["node(s) have a Device that is not ready (agent never heard)"]},
        [],
        1,
    ),
    Case("a failed card", [Node(cards=[card(healthy=False)])], WHOLE, {"a": [unfit(1)]}),
    Case("a failed card of two", [Node(cards=[card(healthy=False), card(1)])], TWO, {"a": [unfit(2, 1)]}),
    Case(
        "a failed card, and one in use",
        [Node(cards=[card(healthy=False), card(1)], used=used(1))],
        WHOLE,
        {"a": [busy(1)]},
        [("a", {}, [("gpu", 1, {})])],
        1,
    ),
    Case("cordoned", [Node(info={"cordoned": True})], WHOLE, {"a": ["node(s) were unschedulable"]}, [], 1),
    Case("not ready", [Node(info={"ready": False})], WHOLE, {"a": ["node(s) were not ready"]}, [], 1),
    Case("unreachable", [Node(info={"unreachable": True})], WHOLE, {"a": ["node(s) were not ready"]}, [], 1),
    Case("tainted", [Node(info={"taints": [TAINTED]})], WHOLE, {"a": [TAINTS]}),
    Case("tainted and in use", [Node(info={"taints": [TAINTED]}, used=used(0, 1))], WHOLE, {"a": [TAINTS, busy(1)]}),
    Case(
        "node selector", [Node(info={"labels": {"z": "b"}})], asks({NVIDIA: 1}, selector={"z": "a"}), {"a": [SELECTED]}
    ),
    Case(
        "node selector, and in use",
        [Node(info={"labels": {"z": "b"}}, used=used(0, 1))],
        asks({NVIDIA: 1}, selector={"z": "a"}),
        {"a": [SELECTED, busy(1)]},
    ),
    Case(
        "node affinity",
        [Node(info={"labels": {"z": "b"}})],
        asks({NVIDIA: 1}, affinity=[NodeTerm(labels=(label("z", "In", "a"),))]),
        {"a": [SELECTED]},
    ),
    Case(
        "another model",
        [Node()],
        asks({NVIDIA: 1}, model=wanted(T4)),
        {
            "a": [
                "node(s) have too few healthy GPUs of model tesla t4 (1 requested; models: NVIDIA A100-SXM4-80GB)",
            ]
        },
    ),
    Case(
        "the model, but in use",
        [Node(), Node("b", cards(1, model=T4, memory=T4_BYTES), used=used(0))],
        asks({NVIDIA: 1}, model=wanted(T4)),
        {
            "a": [
                T4_AMONG_BOTH,
            ],
            "b": [busy(1)],
        },
        [("b", {}, [GPU_0])],
        1,
    ),
    Case("another vendor", [Node()], asks({"amd.com/gpu": 1}), {"a": ["node(s) have no amd devices"]}),
    Case(
        "cpu",
        [Node(resources={"cpu": 60_000})],
        asks({"cpu": 8000, NVIDIA: 1}),
        {"a": [CPU]},
        [("a", {"cpu": 4000}, [])],
        1,
    ),
    Case(
        "cpu, and a card",
        [Node(used=used(0, 1), resources={"cpu": 60_000})],
        asks({"cpu": 8000, NVIDIA: 1}),
        {"a": [busy(1), CPU]},
        [("a", {"cpu": 4000}, [GPU_0])],
        1,
    ),
    Case("more cpu than a node has", [Node()], asks({"cpu": 80_000}), {"a": [CPU]}),
    Case(
        "memory",
        [Node(resources={"memory": 500 * GI})],
        asks({"memory": 20 * GI}),
        {"a": [MAIN_MEMORY]},
        [("a", {"memory": 8 * GI}, [])],
        1,
    ),
    Case(
        "cpu and memory",
        [Node(resources={"memory": 500 * GI, "cpu": 64_000})],
        asks({"memory": 20 * GI, "cpu": 1}),
        {"a": [CPU, MAIN_MEMORY]},
        [("a", {"cpu": 1, "memory": 8 * GI}, [])],
        1,
    ),
    Case(
        "pods",
        [Node(info={"pods": 1}, resources={"pods": 1})],
        asks({"cpu": 1}),
        {"a": ["Too many pods"]},
        [("a", {"pods": 1}, [])],
        1,
    ),
    Case(
        "another resource",
        [Node(info={"more": {X: 1}}, resources={X: 1})],
        asks({X: 1}),
        {"a": [f"Insufficient {X}"]},
        [("a", {X: 1}, [])],
        1,
    ),
    Case("a resource that no node has", [Node()], asks({X: 1}), {"a": [f"Insufficient {X}"]}),
    Case(
        "sums that the Node does not show yet",
        [Node(info={"offered": {}, "sums": {}})],
        WHOLE,
        {"a": ["Insufficient nvidia.com/gpu"]},
    ),
    Case(
        "a host port",
        [Node(ports=[80])],
        asks({"cpu": 1}, ports=[listens(80)]),
        {"a": ["node(s) didn't have free ports for the requested pod ports"]},
        [],
        1,
    ),
    Case(
        "features of kubelet",
        [Node()],
        asks({"cpu": 1}, features=["F"]),
        {"a": ["node(s) didn't match Pod's required features"]},
    ),
    Case(
        "an unsupported field",
        [Node()],
        asks({"cpu": 1}, unsupported=["spec.x"]),
        {"a": ["pod uses spec.x, which Berth does not support"]},
    ),
    Case(
        "variables that were not injected",
        [Node()],
        asks({NVIDIA: 1}, uninjected=["main"]),
        {
            "a": [
                NOT_INJECTED,
            ]
        },
    ),
    Case(
        "no NIC",
        [Node()],
        asks({RDMA: 100, NVIDIA: 1}),
        {"a": ["node(s) have too few healthy RDMA devices (1 requested)"]},
    ),
    Case(
        "a NIC in use",
        [Node(cards=[card(), other_card("rdma")], used=[nic()])],
        asks({RDMA: 100, NVIDIA: 1}),
        {"a": ["node(s) have too few free RDMA devices (1 requested with rdma 100)"]},
        [("a", {}, [("rdma", 0, {})])],
        1,
    ),
    Case(
        "a NIC and a card in use",
        [Node(cards=[card(), other_card("rdma")], used=[nic(), *used(0)])],
        asks({RDMA: 100, NVIDIA: 1}),
        {"a": [busy(1)]},
        [("a", {}, [("rdma", 0, {}), GPU_0])],
        1,
    ),
    Case(
        "a failed NIC",
        [Node(cards=[card(), other_card("rdma", healthy=False)])],
        asks({RDMA: 100, NVIDIA: 1}),
        {"a": ["node(s) have too few healthy RDMA devices (1 requested)"]},
    ),
    Case(
        "time slices of a card in use as a whole",
        [Node(cards=[sliced(0, 2)], used=used(0))],
        WHOLE,
        {"a": ["node(s) have too few free nvidia.com/gpu (at most 0 of 1)"]},
        [("a", {}, [GPU_0])],
        1,
    ),
    Case("no MIG instance", [Node()], MIG_1G, {"a": [f"node(s) have no {PROFILE}"]}),
    Case(
        "MIG instances in use",
        [Node(cards=[DIVIDED], used=[instance(0, 0), instance(0, 1)])],
        MIG_1G,
        {"a": [f"node(s) have too few free {PROFILE} (at most 0 of 1)"]},
        [("a", {}, [("gpu", 0, {PROFILE: 1})])],
        1,
    ),
    Case(
        "one MIG instance of two in use",
        [Node(cards=[DIVIDED], used=[instance(0, 0)])],
        asks({PROFILE: 2}),
        {"a": [f"node(s) have too few free {PROFILE} (at most 1 of 2)"]},
        [("a", {}, [("gpu", 0, {PROFILE: 1})])],
        1,
    ),
    Case(
        "MIG instances of two cards in use",
        [
            Node(
                cards=[DIVIDED, divided(1, "1g.10gb", "1g.10gb")],
                used=[instance(0, 0), instance(0, 1), instance(1, 0), instance(1, 1)],
            )
        ],
        asks({PROFILE: 3}),
        {"a": [f"node(s) have too few free {PROFILE} (at most 0 of 3)"]},
        [("a", {}, [("gpu", 0, {PROFILE: 2}), ("gpu", 1, {PROFILE: 1})])],
        1,
    ),
    Case(
        "the fewest missing cards come first",
        [
            Node("a", cards(4), used=used(0, 1, 2, 3)),
            Node("b", cards(4), used=used(0, 1, 2)),
            Node("c", cards(4), used=used(0, 1)),
        ],
        asks({NVIDIA: 3}),
        {"a": [busy(3)], "b": [busy(3)], "c": [busy(3)]},
        [
            ("c", {}, [GPU_0]),
            ("b", {}, [GPU_0, ("gpu", 1, {})]),
            ("a", {}, [GPU_0, ("gpu", 1, {}), ("gpu", 2, {})]),
        ],
        3,
    ),
    Case(
        "then the least of the scarcest resource",
        [Node("a", resources={"cpu": 63_000}), Node("b", resources={"cpu": 60_000})],
        asks({"cpu": 8000, NVIDIA: 1}),
        {"a": [CPU], "b": [CPU]},
        [("b", {"cpu": 4000}, []), ("a", {"cpu": 7000}, [])],
        2,
    ),
    Case(
        "then the name",
        [Node("b", cards(1), used=used(0)), Node("a", cards(1), used=used(0))],
        WHOLE,
        {"a": [busy(1)], "b": [busy(1)]},
        [("a", {}, [GPU_0]), ("b", {}, [GPU_0])],
        2,
    ),
    Case(
        "at most five are near",
        [Node(f"n{number}", cards(1), used=used(0)) for number in range(6)],
        WHOLE,
        {f"n{number}": [busy(1)] for number in range(6)},
        [(f"n{number}", {}, [GPU_0]) for number in range(5)],
        6,
    ),
    Case(
        "each node for another reason",
        [
            Node("a", info={"taints": [TAINTED]}),
            Node("b", None),
            Node("c", fresh=False),
            Node("d", info={"cordoned": True}),
            Node("e", used=used(0, 1)),
            Node("f", info={"ready": False}),
        ],
        WHOLE,
        {
            "a": [TAINTS],
            "b": ["node(s) have no Device"],
            "c": ["node(s) have a Device that is not ready (agent never heard)"],
            "d": ["node(s) were unschedulable"],
            "e": [busy(1)],
            "f": ["node(s) were not ready"],
        },
        [("e", {}, [GPU_0])],
        4,
    ),
    Case(
        "everything at once",
        [Node(info={"taints": [TAINTED], "cordoned": True}, used=used(0, 1), resources={"cpu": 64_000})],
        asks({"cpu": 1, NVIDIA: 1}, selector={"z": "a"}),
        {"a": ["node(s) were unschedulable", TAINTS, SELECTED, busy(1), CPU]},
    ),
    Case("no node", [], WHOLE, {}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_constructed_case_is_explained(case: Case) -> None:
    made = built(case.nodes)
    explanation = explain(made, waiting(request=case.request), POLICY)
    assert isinstance(explanation.result, Failure)
    assert _reasons(explanation) == {node: sorted(reasons) for node, reasons in case.reasons.items()}
    assert _near(explanation) == list(case.near)
    assert explanation.fits_when_empty == case.fits_when_empty
    helps = case.fits_when_empty > 0 if case.new_node_helps is None else case.new_node_helps
    assert another_node_helps(made, waiting(request=case.request)) == helps
    counts = Counter(reason for group in explanation.groups for reason in group["counted"] for _ in group["nodes"])
    if explanation.result.condition == "Unschedulable":
        assert counts == dict(explanation.result.reasons)


def another_node_helps(made: Fleet, pod: PendingPod) -> bool:
    """Return whether another node like one that is there takes the pod."""
    found = [*filter(None, remedies.of_pod(WhatIfs(made.copy(), pod, POLICY, Budgets()), pod, POLICY))]
    return any(each.is_another and each.ends for each in found)


def _reasons(explanation: Explanation) -> dict[str, list[str]]:
    return {node: sorted(group["reasons"]) for group in explanation.groups for node in group["nodes"]}


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
