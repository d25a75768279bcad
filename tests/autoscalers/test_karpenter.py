"""Karpenter adds exactly the nodes that Berth's pods need, none for pods that no node can take, and removes them."""

from collections import Counter
from typing import Any, Final

from tests.autoscalers.scaled import Scaled

NVIDIA: Final = "nvidia.com/gpu"
RATIO: Final = "kubernetes.io/gpu-memory-ratio"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
L4: Final = "model.berth.dev/NVIDIA-L4"
A100: Final = "model.berth.dev/NVIDIA-A100-SXM4-80GB"


def affinity(key: str) -> dict[str, Any]:
    """Return the node affinity for nodes with a label."""
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def types(scaled: Scaled) -> Counter[str]:
    """Return how many nodes of each instance type Karpenter has added."""
    return Counter(node["metadata"]["labels"]["node.kubernetes.io/instance-type"] for node in scaled.nodes())


def test_a_whole_card_adds_one_node(scaled: Scaled) -> None:
    scaled.pod("a", {NVIDIA: "1"})
    [pod] = scaled.wait_bound(1)
    assert ALLOCATED in pod["metadata"]["annotations"]
    # Unschedulable until there is a Node, then no longer, although its Device comes only seconds later.
    assert scaled.conditions["a"] == ["Unschedulable", "NodeStarting"]
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 1}
    assert len(scaled.claims_seen) == 1
    [node] = scaled.nodes()
    assert "berth.dev/agent-not-ready" not in {taint["key"] for taint in node["spec"].get("taints", ())}


def test_pods_that_come_while_a_node_starts_add_no_other(scaled: Scaled) -> None:
    scaled.pod("a", {NVIDIA: "1"})
    scaled.wait_node()
    for name in "bc":
        scaled.pod(name, {NVIDIA: "1"})
    scaled.pod("d", {"kubernetes.io/gpu": "100"})
    scaled.wait_bound(4)
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 1}
    assert len(scaled.claims_seen) == 1
    # Pods of a class that was parked before show its old reason until it is reviewed, some seconds later.
    assert {scaled.conditions[name][-1] for name in "abcd"} == {"NodeStarting"}
    assert scaled.conditions["d"] == ["NodeStarting"]


def test_shares_that_fit_together_add_one_node(scaled: Scaled) -> None:
    scaled.example("shares.yaml")
    pods = scaled.wait_bound(3)
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 1}
    assert len(scaled.claims_seen) == 1
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 1


def test_shares_that_need_two_nodes_add_two(scaled: Scaled) -> None:
    for number in range(5):
        scaled.pod(f"p{number}", {RATIO: "100"}, affinity=affinity(L4))
    scaled.wait_bound(5)
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 2}
    assert len(scaled.claims_seen) == 2


def test_a_gang_adds_exactly_the_nodes_that_it_needs_and_starts_at_once(scaled: Scaled) -> None:
    scaled.example("gang.yaml")
    pods = scaled.wait_bound(4)
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 2}
    assert len(scaled.claims_seen) == 2
    assert Counter(Counter(pod["spec"]["nodeName"] for pod in pods).values()) == {2: 2}


def test_a_model_is_chosen_by_the_label_of_its_pool(scaled: Scaled) -> None:
    scaled.pod("a", {NVIDIA: "6"}, affinity=affinity(A100))
    scaled.wait_bound(1)
    assert types(scaled) == {"p4de.24xlarge": 1}


HOPELESS: Final[dict[str, tuple[str, dict[str, str], dict[str, Any]]]] = {
    "more-cards": ("Unschedulable", {NVIDIA: "9"}, {}),
    "more-shares": ("Unschedulable", {RATIO: "900"}, {}),
    "unknown-model": ("Unschedulable", {NVIDIA: "1"}, {"affinity": affinity("model.berth.dev/NVIDIA-B200")}),
    "unknown-annotated-model": ("UnknownModel", {NVIDIA: "1"}, {"annotations": {"berth.dev/gpu-model": "*B200*"}}),
    "invalid": ("InvalidRequest", {RATIO: "150"}, {}),
    "incomplete-gang": (
        "PodGroupNotReady",
        {NVIDIA: "1"},
        {"annotations": {"berth.dev/pod-group": "g", "berth.dev/pod-group-min-member": "2"}},
    ),
}
"""Pod -> the reason of its condition, its limits and options."""


def test_pods_that_no_node_can_take_add_none(scaled: Scaled) -> None:
    for name, (_, limits, options) in HOPELESS.items():
        scaled.pod(name, limits, **options)
    for name, (reason, _, _) in HOPELESS.items():
        scaled.wait_reason(name, reason)
    scaled.settle()
    assert not scaled.claims_seen
    assert scaled.conditions == {name: [reason] for name, (reason, _, _) in HOPELESS.items()}


def test_an_empty_node_is_removed_with_its_records(scaled: Scaled) -> None:
    scaled.pod("a", {NVIDIA: "1"})
    scaled.wait_bound(1)
    [device] = scaled.devices()
    assert device == scaled.nodes()[0]["metadata"]["name"]
    scaled.set_consolidation("10s")
    scaled.settle()
    assert len(scaled.nodes()) == 1, "a node with a pod stays"
    scaled.arena.delete("pods", "a")
    scaled.wait_gone()
    scaled.set_consolidation("15m")
    # Nothing is left of the node: the next pod adds another.
    scaled.pod("b", {NVIDIA: "1"})
    scaled.wait_bound(1)
    assert scaled.devices() != [device]


def test_pods_of_a_node_that_is_removed_get_another(scaled: Scaled) -> None:
    scaled.example("shares.yaml")
    before = scaled.wait_bound(3)
    [claim] = scaled.claims()
    scaled.delete_claim(claim["metadata"]["name"])
    uids = {pod["metadata"]["uid"] for pod in before}
    after = scaled.wait_bound(3, other_than=uids)
    scaled.settle()
    assert types(scaled) == {"g6.12xlarge": 1}
    assert scaled.devices() == [pod["spec"]["nodeName"] for pod in after[:1]]
    assert scaled.holders() == {pod["metadata"]["uid"] for pod in after}
