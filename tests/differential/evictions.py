"""Preemption scenarios: crowded nodes, a pod of higher priority, and the victims of kube-scheduler and Berth.

No kubelet runs for the nodes, so pods that kube-scheduler deletes stay visible. A label pins each scenario's pod to the
scenario's own nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from berth_api.values import keys
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.decision.victims import Preemption
from berth_operator.core.values.charge import Charge
from berth_operator.state.cache.cluster import Cluster as State
from berth_operator.state.objects import nodes, pods
from berth_operator.state.objects.budgets import budget
from devcluster import Arena, waiting

Raw = dict[str, Any]

SCENARIO: Final = "example.com/scenario"
UNPLAYED: Final = {"kwok.x-k8s.io/node": "none"}
PRIORITIES: Final = (-5, 0, 5, 10)
ABOVE: Final = 100
PORT: Final = 8080


@dataclass(slots=True, kw_only=True)
class Scenario:
    """Nodes with their pods, budgets, and the pod to be placed."""

    id: str
    nodes: dict[str, str] = field(default_factory=dict)
    """Name -> cores."""
    pods: list[Raw] = field(default_factory=list)
    budgets: list[Raw] = field(default_factory=list)
    above: Raw = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A node and its victims."""

    node: str
    victims: tuple[Charge, ...]
    violations: int


def draft(arena: Arena, number: int, seed: int) -> Scenario:
    """Return a scenario in which each node is full to the last core."""
    dice, name = Random(f"{seed}-{number}"), f"s{number}"
    made = Scenario(id=name)
    for node in ("a", "b", "c"):
        held = [_held(arena, f"{name}-{node}{i}", f"{arena.id}-{name}-{node}", dice) for i in range(dice.randint(2, 4))]
        made.pods += held
        made.nodes[f"{arena.id}-{name}-{node}"] = str(sum(map(_cores, held)))
    for number_, label in enumerate(dice.sample(["x", "y"], dice.randint(0, 2))):
        # The disruption controller counts the ready pods less those that must stay.
        spec = {"selector": {"matchLabels": {SCENARIO: name, "app": label}}, "minAvailable": dice.choice([0, 2, 99])}
        made.budgets.append({"metadata": {"name": f"{name}-{number_}", "namespace": arena.namespace}, "spec": spec})
    made.above = _above(arena, name, dice)
    return made


def _held(arena: Arena, name: str, node: str, dice: Random) -> Raw:
    minute, day = dice.randrange(60), dice.randrange(1, 28)
    port = {"ports": [{"containerPort": PORT, "hostPort": PORT}]} if dice.random() < 0.2 else {}
    labels = {SCENARIO: name.partition("-")[0], "app": dice.choice("xyz")}
    pod = _pod(arena, name, str(dice.choice([1, 1, 2])), dice.choice(PRIORITIES), labels, **port)
    pod["spec"] |= {"nodeName": node, "terminationGracePeriodSeconds": 3600}
    ready = {"type": "Ready", "status": "True"}
    started = f"2026-01-{day:02}T00:{minute:02}:00Z"
    return {**pod, "status": {"phase": "Running", "startTime": started, "conditions": [ready]}}


def _above(arena: Arena, name: str, dice: Random) -> Raw:
    kind = dice.choice(["plain", "plain", "plain", "port", "apart"])
    port = {"ports": [{"containerPort": PORT, "hostPort": PORT}]} if kind == "port" else {}
    pod = _pod(arena, f"{name}-above", str(dice.choice([1, 2, 2, 3])), ABOVE, {SCENARIO: name}, **port)
    pod["spec"] |= {"schedulerName": "default-scheduler", "nodeSelector": {SCENARIO: f"{arena.id}-{name}"}}
    if kind == "apart":
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
        pod["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return pod


def _pod(arena: Arena, name: str, cores: str, priority: int, labels: dict[str, str], **container: Any) -> Raw:
    pod = arena.pod(name, requests={"cpu": cores}, labels=labels, priorityClassName=class_name(arena, priority))
    pod["spec"]["containers"][0] |= container
    return pod


def _cores(pod: Raw) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


# --- priority classes -----------------------------------------------------------------------------------------------


def class_name(arena: Arena, priority: int, *, never: bool = False) -> str:
    """Return the name of this arena's PriorityClass of a priority, or of the one that never preempts."""
    return f"{arena.id}-{'minus-' if priority < 0 else ''}{abs(priority)}{'-never' if never else ''}"


def make_classes(arena: Arena, priorities: Iterable[int]) -> None:
    """Create the PriorityClasses; they are cluster-wide, so each arena has its own."""
    for priority in priorities:
        metadata = {"name": class_name(arena, priority), "labels": arena.labels}
        arena.cluster.api.post(CLASSES, {"metadata": metadata, "value": priority})
        never = {**metadata, "name": f"{metadata['name']}-never"}
        arena.cluster.api.post(CLASSES, {"metadata": never, "value": priority, "preemptionPolicy": "Never"})


def remove_classes(arena: Arena) -> None:
    """Delete the PriorityClasses."""
    arena.cluster.api.delete(CLASSES, labelSelector=arena.selector)


CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS: Final = "/apis/policy/v1/poddisruptionbudgets"


# --- asking ---------------------------------------------------------------------------------------------------------


def make(arena: Arena, scenarios: Sequence[Scenario]) -> None:
    """Create all but the pods to be placed, and wait until the budgets are counted."""
    api = arena.cluster.api
    for scenario in scenarios:
        for node, cores in scenario.nodes.items():
            labels = {**arena.labels, SCENARIO: f"{arena.id}-{scenario.id}"}
            arena.cluster.create_nodes([node], labels=labels, annotations=UNPLAYED, capacity={"cpu": cores})
        arena.create([{key: each[key] for key in each if key != "status"} for each in scenario.pods])
        for pod in scenario.pods:
            arena.merge("pods", pod["metadata"]["name"], {"status": pod["status"]}, subresource="status")
        for each in scenario.budgets:
            api.post(f"/apis/policy/v1/namespaces/{arena.namespace}/poddisruptionbudgets", each)
    waiting.until(lambda: _counted(arena, scenarios), deadline=60, what="the budgets to be counted")


def _counted(arena: Arena, scenarios: Sequence[Scenario]) -> bool:
    shown = {keys.of(each): each for each in _budgets(arena)}
    return all(_is_counted(shown[keys.of(each)], scenario) for scenario in scenarios for each in scenario.budgets)


def _is_counted(shown: Raw, scenario: Scenario) -> bool:
    wanted = shown["spec"]["selector"]["matchLabels"]
    pods_ = [each for each in scenario.pods if wanted.items() <= each["metadata"]["labels"].items()]
    status = shown.get("status", {})
    allowed = max(0, len(pods_) - shown["spec"]["minAvailable"])
    return bool(status.get("observedGeneration")) and status.get("disruptionsAllowed") == allowed


def _budgets(arena: Arena) -> list[Raw]:
    budgets: list[Raw] = arena.cluster.api.get(BUDGETS)["items"]
    return [each for each in budgets if each["metadata"]["namespace"] == arena.namespace]


def state(arena: Arena) -> State:
    """Return the state that the reflectors would build from the API server."""
    built = State(grace=1.0)
    for each in arena.list("nodes", labelSelector=SCENARIO):
        built.node_cache.put_node(nodes.transform(each))
    for each in arena.list("pods", labelSelector=SCENARIO):
        if each["spec"].get("nodeName"):
            built.put_bound(pods.transform(each))
    for each in _budgets(arena):
        built.budgets.put(keys.of(each), budget(each))
    return built


def ours(of: State, scenario: Scenario) -> Preemption | None:
    """Return Berth's choice."""
    above = {**scenario.above, "metadata": {**scenario.above["metadata"], "uid": f"above-{scenario.id}"}}
    above["spec"] = {**above["spec"], "priority": ABOVE}
    return preempt(of.fleet, pods.pending(above), Policy(), of.budgets)


def theirs(arena: Arena, scenarios: Sequence[Scenario], expected: dict[str, int]) -> dict[str, tuple[str, set[str]]]:
    """Run kube-scheduler's preemption; return by scenario its node and its victims' names, none if it found none.

    It deletes one victim after the other, so this waits until there are as many as expected, or settled ones.
    """
    arena.create([scenario.above for scenario in scenarios])
    by_scenario: dict[str, tuple[str, set[str]]] = {}

    def all_done() -> bool:
        listed = arena.list("pods", labelSelector=SCENARIO)
        by_scenario.update({each.id: _theirs(listed, each) for each in scenarios})
        return all(_is_done(listed, each, by_scenario[each.id], expected[each.id]) for each in scenarios)

    waiting.until(all_done, deadline=60, what=f"kube-scheduler to decide {len(scenarios)} pods")
    return by_scenario


def _theirs(listed: Sequence[Raw], scenario: Scenario) -> tuple[str, set[str]]:
    names = {each["metadata"]["name"] for each in scenario.pods}
    gone = {each["metadata"]["name"] for each in listed if "deletionTimestamp" in each["metadata"]} & names
    above = next(each for each in listed if each["metadata"]["name"] == scenario.above["metadata"]["name"])
    return above.get("status", {}).get("nominatedNodeName", ""), gone


def _is_done(listed: Sequence[Raw], scenario: Scenario, choice: tuple[str, set[str]], expected: int) -> bool:
    node, victims = choice
    above = next(each for each in listed if each["metadata"]["name"] == scenario.above["metadata"]["name"])
    if not node:
        conditions = above.get("status", {}).get("conditions", [])
        return any("preemption: 0/" in each.get("message", "") for each in conditions)
    return len(victims) >= expected
