"""A cleanup removes from a Node what Berth wrote and nothing of others, and keeps what its pods need there."""

from typing import Any

import pytest

from berth_api import names
from berth_api.names import MANAGED
from berth_operator.commands.cleanup import nodes
from berth_operator.commands.cleanup.nodes import Pod

Raw = dict[str, Any]

GPU, RATIO, MEMORY, OTHER, PLUGIN = (
    "kubernetes.io/gpu",
    "kubernetes.io/gpu-memory-ratio",
    "kubernetes.io/gpu-memory",
    "koordinator.sh/gpu",
    "example.com/npu",
)
MODEL = "model.berth.dev/NVIDIA-A100"
VENDOR = "node.koordinator.sh/gpu-vendor"
SUMS = {GPU: "800", RATIO: "800", OTHER: "800"}


def claim(manager: str, *, labels: tuple[str, ...] = (), sums: tuple[str, ...] = (), annotations: Any = ()) -> Raw:
    """Return an entry of managedFields, as the API server writes it."""

    def fields(keys: Any) -> Raw:
        return {".": {}, **{f"f:{key}": {} for key in keys}}

    metadata = {"f:labels": fields(labels), "f:annotations": fields(annotations)}
    status = {"f:capacity": fields(sums), "f:allocatable": fields(sums)}
    return {"manager": manager, "fieldsV1": {"f:metadata": metadata, "f:status": status}}


def node(*claims: Raw, labels: Raw | None = None, sums: Raw | None = None, **metadata: Any) -> Raw:
    own = {"name": "a", "resourceVersion": "7", "labels": labels or {}, "managedFields": list(claims), **metadata}
    sums = {"cpu": "8", **(sums or {})}
    return {"metadata": own, "status": {"capacity": sums, "allocatable": dict(sums)}}


def pod(
    name: str, requests: dict[str, str], *, on: str | None = "a", phase: str = "Running", epoch: bool = True
) -> Raw:
    annotations = {"berth.dev/epoch": "3"} if epoch else {}
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "annotations": annotations}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    return {"metadata": metadata, "spec": {"nodeName": on, "containers": containers}, "status": {"phase": phase}}


def live(*raw: Raw) -> list[Pod]:
    return [read for pod in raw if (read := nodes.read_pod(pod)) is not None]


def gone(*names: str) -> Raw:
    return dict.fromkeys(names)


LABELS = {MANAGED: "true", MODEL: "8", VENDOR: "nvidia", "nvidia.com/gpu.count": "8", "zone": "z"}


def test_everything_goes_without_pods() -> None:
    raw = node(
        claim("kubelet", labels=("zone",), sums=("cpu",)),
        claim("berth-operator", labels=(MANAGED, MODEL, VENDOR), sums=tuple(SUMS)),
        claim("berth-agent-labels", labels=("nvidia.com/gpu.count",)),
        claim("berth-agent", annotations=("berth.dev/old",)),
        labels=LABELS,
        sums=SUMS,
        annotations={"berth.dev/old": "1", "theirs": "2"},
    )
    plan = nodes.plan(nodes.read_node(raw), [])
    assert plan.status == {"status": {"capacity": gone(*SUMS), "allocatable": gone(*SUMS)}}
    labels = gone(MANAGED, MODEL, VENDOR, "nvidia.com/gpu.count")
    assert plan.metadata == {"metadata": {"labels": labels, "annotations": gone("berth.dev/old")}}
    assert (plan.kept, plan.pods, plan.version, plan.is_done) == ({}, (), "7", False)


@pytest.mark.parametrize("key", [names.PREEMPTING, *names.AGENT_NOT_READY])
def test_a_taint_of_berth_goes_and_others_stay(key: str) -> None:
    other, ours = {"key": "other", "effect": "NoSchedule"}, {"key": key, "effect": "NoSchedule"}
    raw = {**node(claim("kubelet")), "spec": {"taints": [ours, other]}}
    plan = nodes.plan(nodes.read_node(raw), [])
    assert plan.metadata == {"spec": {"taints": [other]}}
    assert nodes.plan(nodes.read_node({**raw, "spec": {"taints": [other]}}), []).is_done


@pytest.mark.parametrize(
    ("claims", "removed"),
    [
        pytest.param([claim("koordlet", labels=(VENDOR,), sums=(OTHER,))], set(), id="another manager"),
        pytest.param(
            [claim("berth-operator", labels=(VENDOR,), sums=(OTHER,)), claim("gfd", labels=(VENDOR,), sums=(OTHER,))],
            set(),
            id="shared with another manager",
        ),
        pytest.param([claim("berth-operator", labels=(VENDOR,), sums=(OTHER,))], {VENDOR, OTHER}, id="Berth alone"),
        pytest.param([], set(), id="no manager, and no label of Berth"),
        pytest.param([{"manager": "berth-operator"}], set(), id="an entry without fields"),
    ],
)
def test_a_key_goes_only_if_berth_alone_claims_it(claims: list[Raw], removed: set[str]) -> None:
    raw = node(*claims, labels={VENDOR: "nvidia"}, sums={OTHER: "800"})
    read = nodes.read_node(raw)
    assert set(read.labels) | set(read.capacity) | set(read.allocatable) == removed


def test_names_that_only_berth_has_go_without_an_owner() -> None:
    """As after another client emptied managedFields: of the sums, those on a Node with Berth's label."""
    raw = node(labels={MANAGED: "true", MODEL: "8", VENDOR: "nvidia"}, sums={**SUMS, PLUGIN: "3"})
    read = nodes.read_node(raw)
    assert sorted(read.labels) == [MANAGED, MODEL]
    assert read.capacity == read.allocatable == SUMS


def test_a_node_that_berth_never_wrote_to_is_left_alone() -> None:
    raw = node(claim("kubelet", labels=("zone",), sums=("cpu", GPU)), labels={"zone": "z"}, sums={GPU: "5"})
    plan = nodes.plan(nodes.read_node(raw), live(pod("p", {GPU: "5"}, epoch=False)))
    assert (plan.is_done, plan.kept) == (True, {})


OURS = claim("berth-operator", sums=(*SUMS, MEMORY))


@pytest.mark.parametrize(
    ("pods", "kept"),
    [
        pytest.param([pod("p", {GPU: "50"})], {GPU: "50"}, id="one"),
        pytest.param([pod("p", {GPU: "50"}), pod("q", {GPU: "30", RATIO: "10"})], {GPU: "80", RATIO: "10"}, id="two"),
        pytest.param([pod("p", {MEMORY: "16Gi"}), pod("q", {MEMORY: "1"})], {MEMORY: "17179869185"}, id="bytes"),
        pytest.param([pod("p", {GPU: "50"}, phase="Pending")], {GPU: "50"}, id="bound, and not started"),
        pytest.param([pod("p", {GPU: "50"}, phase="Succeeded")], {}, id="succeeded"),
        pytest.param([pod("p", {GPU: "50"}, phase="Failed")], {}, id="failed"),
        pytest.param([pod("p", {GPU: "50"}, on=None)], {}, id="not bound"),
        pytest.param([pod("p", {OTHER: "50", "nvidia.com/gpu": "1", "cpu": "1"})], {}, id="names kubelet may miss"),
        pytest.param([pod("p", {GPU: "50"}, epoch=False)], {GPU: "50"}, id="of another scheduler"),
    ],
)
def test_a_node_keeps_what_its_live_pods_request(pods: list[Raw], kept: dict[str, str]) -> None:
    raw = node(OURS, sums={**SUMS, MEMORY: "640Gi"})
    plan = nodes.plan(nodes.read_node(raw), live(*pods))
    removed = gone(*({*SUMS, MEMORY} - kept.keys()))
    assert plan.status == {"status": {"capacity": {**removed, **kept}, "allocatable": {**removed, **kept}}}
    assert plan.kept == kept
    assert [str(pod) for pod in plan.pods] == [f"ns/{pod['metadata']['name']}" for pod in pods if kept]


def test_nothing_is_written_twice() -> None:
    raw = node(claim("berth-operator", sums=(MEMORY,)), sums={MEMORY: "2048Mi"})
    assert nodes.plan(nodes.read_node(raw), live(pod("p", {MEMORY: "2Gi"}))).is_done


def test_a_pod_that_was_bound_while_the_sums_went_gets_its_capacity_back() -> None:
    plan = nodes.plan(nodes.read_node(node()), live(pod("late", {GPU: "50", PLUGIN: "1"})))
    assert plan.status == {"status": {"capacity": {GPU: "50"}, "allocatable": {GPU: "50"}}}


def test_init_containers_count_as_kubelet_counts_them() -> None:
    raw = pod("p", {GPU: "50"})
    raw["spec"]["initContainers"] = [{"name": "first", "resources": {"requests": {GPU: "80"}}}]
    assert nodes.plan(nodes.read_node(node(OURS, sums=SUMS)), live(raw)).kept == {GPU: "80"}


def test_pods_are_grouped_by_node() -> None:
    pods = live(pod("p", {GPU: "1"}), pod("q", {GPU: "1"}, on="b"), pod("r", {GPU: "1"}))
    assert {name: [pod.name for pod in those] for name, those in nodes.by_node(pods).items()} == {
        "a": ["p", "r"],
        "b": ["q"],
    }
