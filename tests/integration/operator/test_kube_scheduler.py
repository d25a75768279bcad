"""kube-scheduler as shipped with the extender: models, shares, preemption, and what happens without the extender.

One operator and one kube-scheduler serve all tests of the module, and the policies of the component `extender` are in
force. A forwarder stands in for the extender's Service.
"""

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api.admission import injection
from demo.audit import audit
from devcluster import Arena, Cluster
from tests.differential import evictions
from tests.integration.operator import world as words
from tests.integration.operator.world import World, free_ports
from tests.programs import kube_scheduler, policies
from tests.programs.kube_scheduler import Forwarder
from tests.programs.processes import QUICK_TERMS, Process

GPU: Final = "koordinator.sh/gpu"
MEMORY: Final = "koordinator.sh/gpu-memory"
NVIDIA: Final = "nvidia.com/gpu"
MODEL: Final = "nvidia-gpu-scheduler/gpu.model"
GLOBS: Final = "berth.dev/gpu-model"
PODS: Final = 300
PRIORITIES: Final = {"low": 0, "middle": 50, "high": 100}
PATIENCE: Final = 120.0
SAMPLE: Final = 100
"""The number of feasible nodes that kube-scheduler looks for at least."""
FLEETS: Final = {"a100": 20, "h100": 10, "t4": 20}
"""Profile -> number of nodes, of 8 cards each."""

Raw = dict[str, Any]


@dataclass(kw_only=True)
class Stage:
    """A world with kube-schedulers and the extender of its operators."""

    world: World
    folder: Path
    forwarder: Forwarder
    leader: Process | None = None

    @property
    def arena(self) -> Arena:
        return self.world.arena

    @property
    def shipped(self) -> str:
        """The scheduler name of the shipped configuration."""
        return f"{self.arena.id}-shipped"

    @property
    def ignorable(self) -> str:
        """The scheduler name of the configuration with `ignorable: true`."""
        return f"{self.arena.id}-ignorable"

    def operator(self, **flags: Any) -> Process:
        """Start an operator with the extender and `wait` until it leads."""
        [port] = free_ports(1)
        served = kube_scheduler.flags(self.arena, self.folder, port, self.shipped, self.ignorable)
        return self.world.operator(**{**served, **QUICK_TERMS, "require_injection": True, **flags})

    def apply_policies(self) -> list[Raw]:
        """Apply the policies of the component for pods of the shipped configuration, and return them."""
        built = policies.about_pods(policies.built(self.folder, "extender"))
        applied = self.arena.apply(policies.confined(built, self.arena, self.shipped))
        probe = self.pod("probe", {"kubernetes.io/gpu": "50"})
        self.world.wait(lambda: is_prepared(self.arena.admitted_or_none(probe)), what="the policies to be in force")
        return applied

    def lead(self) -> None:
        """Start the operator that leads."""
        self.leader = self.operator()

    def kill_leader(self) -> None:
        """Kill the leader, and let another replica lead at once."""
        assert self.leader is not None
        self.leader.kill()
        self.world.free_lease()

    @contextlib.contextmanager
    def kube_scheduler(self, name: str, change: Callable[[Raw], None] = lambda _: None) -> Iterator[Process]:
        """Start kube-scheduler under a name, with a change of the shipped configuration."""
        kubeconfig = self.arena.cluster.kubeconfig
        config = kube_scheduler.shipped(kubeconfig, name, self.forwarder.url, self.folder)
        change(config)
        process = kube_scheduler.start(config, self.folder, name)
        yield process
        if process.exit_code is None:
            process.kill()

    def pod(self, name: str, requests: Raw, *, scheduler: str = "", **options: Any) -> Raw:
        """Return a pod of a kube-scheduler, by default of the shipped one; the policies do not know the others."""
        options |= {"scheduler_name": scheduler or self.shipped, "nodeSelector": self.arena.labels}
        pod = self.arena.pod(name, requests=requests, limits=requests, **options)
        return injection.injected(pod) if scheduler else pod

    def create(self, *pods: Raw) -> None:
        self.arena.create(pods)

    def wait_bound(self, count: int) -> None:
        """Wait until this many pods are bound."""
        bound = self.world.bound_names
        self.world.wait(lambda: len(bound()) >= count, deadline=PATIENCE, what=f"{count} pods to be bound")

    def audit(self) -> None:
        """Check, with code of its own, that no card has two pods and that all minors are recorded."""
        pods = [each for each in self.arena.list("pods") if asks(each)]
        nodes = self.arena.list("nodes", labelSelector=self.arena.selector)
        devices = [each for each in self.arena.list("devices") if each["metadata"]["name"].startswith(self.arena.id)]
        faults = audit(pods=pods, nodes=nodes, devices=devices, scheduler=self.shipped)
        assert not faults, "\n".join(map(str, faults))
        assert [each["metadata"]["name"] for each in pods if is_bound(each) and not minors(each)] == []


def is_prepared(pod: Raw | None) -> bool:
    """Return whether the policies have renamed what a pod requests, and injected its cards."""
    if pod is None:
        return False
    [container] = pod["spec"]["containers"]
    return "env" in container and GPU in container["resources"]["requests"]


def is_bound(pod: Raw) -> bool:
    return bool(pod["spec"].get("nodeName"))


def asks(pod: Raw) -> bool:
    return any("/" in name for name in pod["spec"]["containers"][0]["resources"].get("requests", ()))


def minors(pod: Raw) -> list[int]:
    return words.minors(pod) if words.ALLOCATED in pod["metadata"].get("annotations", {}) else []


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = kube_scheduler.certificates(tmp_path_factory.mktemp("stage"))
    arena = Arena(cluster=cluster, folder=folder)
    arena.open()
    world = World(arena=arena, folder=folder)
    evictions.make_classes(arena, tuple(PRIORITIES.values()))
    with Forwarder(arena) as forwarder:
        own = Stage(world=world, folder=folder, forwarder=forwarder)
        applied = own.apply_policies()
        world.agent()
        own.lead()
        for profile, count in FLEETS.items():
            world.nodes(count, profile=profile, gpus=8)
        with own.kube_scheduler(own.shipped) as process:
            yield own
            sys.stdout.write(f"--- {process.name}\n{process.tail()}\n{world.processes.tails()}")
        world.close()
        for document in applied:
            cluster.api.delete(cluster.api.path_of(document))
    evictions.remove_classes(arena)
    arena.close()


@pytest.fixture(autouse=True)
def _no_pods(stage: Stage) -> Iterator[None]:
    """Delete all pods after each test."""
    yield
    pods = f"/api/v1/namespaces/{stage.arena.namespace}/pods"
    stage.world.api.delete(pods, grace_seconds=0)
    stage.world.wait(lambda: not stage.arena.list("pods"), what="pods to go")


def mixed(stage: Stage, count: int) -> Iterator[tuple[Raw, str]]:
    """Yield pods of all kinds, each with the text that is in the model of its cards."""
    kinds: tuple[tuple[Raw, Raw, str], ...] = (
        ({NVIDIA: "1"}, {MODEL: "tesla t4"}, "T4"),
        ({GPU: "50"}, {GLOBS: "*A100*"}, "A100"),
        ({GPU: "100"}, {GLOBS: "*H100*"}, "H100"),
        ({MEMORY: "4Gi"}, {GLOBS: "*T4*"}, "T4"),
        ({NVIDIA: "2"}, {GLOBS: "*A100*"}, "A100"),
        ({"kubernetes.io/gpu": "25"}, {}, ""),
    )
    for number, (requests, annotations, model) in zip(range(count), itertools.cycle(kinds), strict=False):
        yield stage.pod(f"p{number}", requests, annotations=annotations), model


def test_a_burst_gets_the_right_models_and_no_card_twice(stage: Stage) -> None:
    pods = {pod["metadata"]["name"]: (pod, model) for pod, model in mixed(stage, PODS)}
    stage.create(*(pod for pod, _ in pods.values()))
    stage.wait_bound(PODS)
    stage.audit()
    models = {each["metadata"]["name"]: each["spec"]["devices"][0]["model"] for each in stage.arena.list("devices")}
    for pod in stage.arena.list("pods"):
        assert pods[pod["metadata"]["name"]][1] in models[pod["spec"]["nodeName"]]


def test_pods_of_lower_priority_with_the_needed_model_make_room(stage: Stage) -> None:
    """kube-scheduler alone would evict a pod of the lowest priority, whose cards are of another model."""
    classes = {name: evictions.class_name(stage.arena, each) for name, each in PRIORITIES.items()}
    nodes = {profile: count for profile, count in FLEETS.items() if profile != "t4"}
    for profile, count in nodes.items():
        name = "middle" if profile == "h100" else "low"
        wanted: Raw = {"annotations": {GLOBS: f"*{profile.upper()}*"}, "priorityClassName": classes[name]}
        stage.create(*(stage.pod(f"{name}{n}", {GPU: "800"}, **wanted) for n in range(count)))
    stage.wait_bound(sum(nodes.values()))
    h100: Raw = {"annotations": {GLOBS: "*H100*"}}
    stage.create(stage.pod("high", {GPU: "100"}, priorityClassName=classes["high"], **h100))
    node = stage.world.bound("high", deadline=PATIENCE)["spec"]["nodeName"]
    assert "H100" in stage.arena.get("devices", node)["spec"]["devices"][0]["model"]
    left = [each["metadata"]["name"] for each in stage.arena.list("pods")]
    assert sorted(name.rstrip("0123456789") for name in left) == ["high", *["low"] * 20, *["middle"] * 9]
    stage.audit()


def test_without_the_extender_only_pods_with_devices_wait(stage: Stage) -> None:
    early = [pod for pod, _ in mixed(stage, 60)]
    late = [stage.pod(f"late{number}", {GPU: "100"}) for number in range(20)]
    plain = [stage.pod(f"plain{number}", {"cpu": "10m"}) for number in range(10)]
    stage.create(*early)
    stage.wait_bound(10)
    stage.kill_leader()
    stage.create(*late)
    stage.create(*plain)
    for pod in plain:
        stage.world.bound(pod["metadata"]["name"], deadline=PATIENCE)
    assert not [each for each in stage.world.bound_names() if each.startswith("late")]
    stage.audit()
    stage.lead()
    stage.wait_bound(len(early) + len(late) + len(plain))
    stage.audit()


def test_a_fail_over_under_load_loses_no_pod(stage: Stage) -> None:
    pods = [pod for pod, _ in mixed(stage, 120)]
    standby = stage.operator(wait=False)
    standby.logged("extender served")
    stage.create(*pods)
    stage.wait_bound(20)
    stage.kill_leader()
    stage.leader = standby
    stage.wait_bound(len(pods))
    stage.audit()


def test_a_refused_bind_is_bound_without_devices_only_if_the_extender_is_ignorable(stage: Stage) -> None:
    with stage.kube_scheduler(stage.ignorable, _ignorable), refused_bindings(stage):
        stage.create(stage.pod("waits", {GPU: "100"}), stage.pod("trap", {GPU: "100"}, scheduler=stage.ignorable))
        assert not minors(stage.world.bound("trap"))
        stage.world.waits("waits", "only Berth's scheduler says which devices a pod has")
    stage.arena.delete("pods", "trap", grace_seconds=0)
    stage.world.bound("waits", deadline=PATIENCE)
    stage.audit()


def _ignorable(config: Raw) -> None:
    config["extenders"][0]["ignorable"] = True


@contextlib.contextmanager
def refused_bindings(stage: Stage) -> Iterator[None]:
    """Return a context in which the API server refuses the Bindings of the operator."""
    shipped = policies.policies("protection.yaml", stage.arena)
    applied = stage.arena.apply(each for each in shipped if each["metadata"]["name"].startswith("berth-allocations"))
    forged = stage.arena.pod(annotations={words.ALLOCATED: "{}"})
    try:
        stage.world.wait(lambda: stage.arena.refusal(forged), what="the policy to be in force")
        yield
    finally:
        for document in applied:
            stage.world.api.delete(stage.world.api.path_of(document))


def test_kube_scheduler_refuses_to_manage_resources_of_kubernetes_io(stage: Stage) -> None:
    def manage(config: Raw) -> None:
        config["extenders"][0]["managedResources"].append({"name": "kubernetes.io/gpu"})

    with stage.kube_scheduler("refused", manage) as process:
        assert process.ended() != 0
        assert "is an invalid extended resource name" in process.text()


def test_kube_scheduler_passes_on_only_a_sample_of_the_nodes_unless_it_is_told_to_score_all(stage: Stage) -> None:
    def sample(config: Raw) -> None:
        config["percentageOfNodesToScore"] = 1

    # kube-scheduler finds them feasible, and the extender does not.
    stage.arena.nodes(SAMPLE, capacity={GPU: "800"})
    nowhere: Raw = {"annotations": {GLOBS: "*V100*"}}
    count = SAMPLE + sum(FLEETS.values())
    with stage.kube_scheduler(stage.ignorable, sample):
        stage.create(stage.pod("known", {GPU: "100"}, scheduler=stage.arena.scheduler_name, **nowhere))
        stage.world.waits("known", f"^0/{count} nodes")
        stage.create(stage.pod("all", {GPU: "100"}, **nowhere))
        stage.create(stage.pod("some", {GPU: "100"}, scheduler=stage.ignorable, **nowhere))
        assert rejected(stage.world.waits("all", "have no Device")) == count
        assert rejected(stage.world.waits("some", "have no Device")) == SAMPLE


def rejected(message: str) -> int:
    """Return the number of nodes that the extender rejected, by a pod's message."""
    return sum(int(count) for count, reason in re.findall(r"(\d+) (node\(s\) have [^,]*)", message))
