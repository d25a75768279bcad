"""Preemption on a real control plane, with victims no worse than kube-scheduler's.

`BERTH_EVICTIONS` sets the number of scenarios that both decide, and `BERTH_SEED` their seed.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api import names
from berth_operator.core.values.charge import Charge
from devcluster import Arena, Cluster
from tests.differential import evictions
from tests.differential.evictions import ABOVE, PRIORITIES, UNPLAYED
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.programs import versions

Raw = dict[str, Any]

CARD: Final = {"nvidia.com/gpu": "1"}
CLIQUE: Final = "nvidia.com/gpu.clique"
SCENARIOS: Final = int(os.environ.get("BERTH_EVICTIONS", "16"))
CORES: Final = 30
SEED: Final = int(os.environ.get("BERTH_SEED", "1"))


@pytest.fixture(scope="module")
def classes(module_world: World) -> Iterator[World]:
    """Return the module's world, with PriorityClasses."""
    evictions.make_classes(module_world.arena, (*PRIORITIES, ABOVE))
    yield module_world
    evictions.remove_classes(module_world.arena)


@pytest.fixture
def scenario(classes: World, shared: World) -> "Scenario":
    assert classes is shared
    return Scenario(shared)


class Scenario:
    """Pods of many priorities in one arena."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._uids: set[str] = set()

    def pod(self, name: str, priority: int, requests: Raw | None = None, **options: Any) -> Raw:
        """Create a pod, of the arena's scheduler by default."""
        chosen = evictions.class_name(self.world.arena, priority)
        made = self.world.pod(name, requests or CARD, priorityClassName=chosen, **options)
        self._uids.add(made["metadata"]["uid"])
        return made

    def place(self, name: str, priority: int, requests: Raw | None = None, **options: Any) -> Raw:
        """Create a pod that must be bound."""
        self.pod(name, priority, requests, **options)
        return self.world.bound(name)

    def budget(self, app: str, allowed: int, of: int) -> None:
        """Create a PodDisruptionBudget for pods that all exist, and wait until it has counted them."""
        path = f"/apis/policy/v1/namespaces/{self.world.arena.namespace}/poddisruptionbudgets"
        spec = {"selector": {"matchLabels": {"app": app}}, "minAvailable": of - allowed}
        self.world.api.post(path, {"metadata": {"name": app}, "spec": spec})
        self.world.wait(
            lambda: (
                self.world.api.get(f"{path}/{app}").get("status", {}).get("disruptionsAllowed") == allowed
                and self.world.api.get(f"{path}/{app}")["status"].get("currentHealthy") == of
            ),
            what=f"the budget of {app} to be counted",
        )

    def gone(self, name: str) -> bool:
        """Return whether a pod is deleted, or about to be."""
        metadata = {each["metadata"]["name"]: each["metadata"] for each in self.world.arena.list("pods")}
        return name not in metadata or "deletionTimestamp" in metadata[name]

    def preempted(self) -> list[str]:
        """Return the pods of this arena whose Events report that they were preempted."""
        victims = [each["involvedObject"] for each in self.world.arena.list("events") if each["reason"] == "Preempted"]
        return sorted(each["name"] for each in victims if each["uid"] in self._uids)


def test_the_cheapest_pod_leaves_and_its_card_is_taken(scenario: Scenario) -> None:
    scenario.world.nodes(gpus=3)
    scenario.place("dear", 10)
    cheap = scenario.place("cheap", 0)
    scenario.place("middle", 5)

    scenario.pod("above", ABOVE)

    bound = scenario.world.bound("above", deadline=words.PROMPT)
    assert words.minors(bound) == words.minors(cheap)
    assert scenario.gone("cheap")
    assert not scenario.gone("dear")
    assert not scenario.gone("middle")
    scenario.world.wait(lambda: scenario.preempted() == ["cheap"], what="the Event")


def test_a_budget_is_respected_while_another_pod_will_do(scenario: Scenario) -> None:
    scenario.world.nodes(gpus=2)
    scenario.place("protected", 0, labels={"app": "protected"})
    scenario.budget("protected", 0, of=1)
    scenario.place("dearer", 10)

    scenario.pod("above", ABOVE)

    scenario.world.bound("above", deadline=words.PROMPT)
    assert scenario.gone("dearer")
    assert not scenario.gone("protected")


@pytest.mark.parametrize("held", [(10, 0), (None, 0)], ids=["both taken", "one free"])
def test_a_member_of_a_gang_makes_way_for_one_with_fewer_nodes(scenario: Scenario, held: Sequence[int | None]) -> None:
    first, second = _one_card_each(scenario, [{"only": "yes"}, {}], held)
    gang = _gang(first)
    scenario.pod("m0", ABOVE, annotations=gang)
    scenario.pod("m1", ABOVE, annotations=gang, nodeSelector={"only": "yes"})

    assert scenario.world.bound("m0")["spec"]["nodeName"] == second
    assert scenario.world.bound("m1")["spec"]["nodeName"] == first


@pytest.mark.parametrize("first", [-5, None], ids=["taken", "free"])
def test_a_gang_leaves_a_clique_that_is_too_small(scenario: Scenario, first: int | None) -> None:
    _, *of_y = _one_card_each(scenario, [{CLIQUE: clique} for clique in "xyy"], (first, 10, 10))
    near = {"topologyKey": CLIQUE, "labelSelector": {"matchLabels": {"app": "gang"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    for name in ("m0", "m1"):
        scenario.pod(name, ABOVE, annotations=_gang(of_y[0]), labels={"app": "gang"}, affinity=affinity)

    nodes = {scenario.world.bound(name)["spec"]["nodeName"] for name in ("m0", "m1")}
    assert nodes == set(of_y)
    assert first is None or not scenario.gone("low0")


def _gang(node: str) -> dict[str, str]:
    """Return the annotations of a gang of two with a name of its own: lost places of other tests would count for it."""
    return {names.POD_GROUP: f"gang-of-{node}", names.POD_GROUP_MIN_MEMBER: "2"}


def _one_card_each(scenario: Scenario, labels: Sequence[dict[str, str]], held: Sequence[int | None]) -> list[str]:
    """Create nodes with a card and these labels, and pods with these priorities on them; return the nodes."""
    nodes = [scenario.world.nodes(labels=of_node, gpus=1)[0] for of_node in labels]
    for number, (node, priority) in enumerate(zip(nodes, held, strict=True)):
        if priority is not None:
            scenario.place(f"low{number}", priority, nodeSelector={"kubernetes.io/hostname": node})
    return nodes


def test_victims_have_their_grace_period_and_are_chosen_once(scenario: Scenario) -> None:
    world = scenario.world
    [node] = world.arena.nodes(annotations=UNPLAYED)
    world.device(node, [words.gpu(0), words.gpu(1)])
    world.wait_ready(node, "True")
    for name, priority in (("low", 0), ("dearer", 5)):
        scenario.place(name, priority, terminationGracePeriodSeconds=300)

    scenario.pod("above", ABOVE)

    world.waits("above", r" preemption: not eligible due to a terminating pod on the nominated node\.$")
    world.wait(lambda: scenario.gone("low"), what="the victim to be deleted")
    low = world.arena.get("pods", "low")
    assert low["metadata"]["deletionGracePeriodSeconds"] == 300
    disrupted = words.condition(low, "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", "PreemptionByScheduler")
    assert world.wait(lambda: _nominated(world.arena, "above"), what="the nomination") == node
    # Created and deleted pods wake pending pods; no other victim is chosen, and the kept capacity stays kept.
    scenario.pod("middle", 10, {"nvidia.com/gpu": "2"})
    world.waits("middle")
    for name in ("passing-1", "passing-2"):
        scenario.place(name, 0, {"cpu": "1"})
        world.remove(name)
    scenario.pod("late", 0)
    world.waits("late")
    world.wait(scenario.preempted, what="the Event")
    assert scenario.preempted() == ["low"]
    assert not scenario.gone("dearer")

    world.remove("low")

    assert world.bound("above", deadline=words.PROMPT)["spec"]["nodeName"] == node
    assert scenario.preempted() == ["low"]
    assert {"middle", "late"}.isdisjoint(world.bound_names())


@pytest.mark.parametrize("scheduler", [None, "default-scheduler"], ids=["Berth", "kube-scheduler"])
def test_pods_whose_place_is_given_to_others_evict_again_at_once(scenario: Scenario, scheduler: str | None) -> None:
    world, low = scenario.world, [f"low-{number}" for number in range(4)]
    [node] = world.arena.nodes(annotations=UNPLAYED, capacity={"cpu": "4"})
    world.device(node, [words.gpu(number) for number in range(4)])
    world.wait_ready(node, "True")
    requests = {"cpu": "1"} if scheduler else CARD
    for name in low:
        scenario.place(name, 0, requests, scheduler_name=scheduler, terminationGracePeriodSeconds=300)
    for kind, priority in (("middle", 10), ("above", ABOVE)):
        pair = [f"{kind}-{number}" for number in range(2)]
        for name in pair:
            scenario.pod(name, priority, requests, scheduler_name=scheduler)
        world.wait(lambda: all(_nominated(world.arena, name) for name in pair), what="the nominations")  # noqa: B023 - it is called at once
    if not scheduler:
        # kube-scheduler waits until a victim has ended.
        world.wait(lambda: all(map(scenario.gone, low)), deadline=words.PROMPT, what="the others to be deleted")

    def all_run() -> bool:
        for each in world.arena.list("pods"):
            if "deletionTimestamp" in each["metadata"]:
                world.remove(each["metadata"]["name"])
        return world.bound_names() >= {f"{kind}-{number}" for kind in ("middle", "above") for number in range(2)}

    world.wait(all_run, deadline=words.PROMPT, what="all to be bound")
    lease = world.arena.get("leaderleases", world.arena.lease_name)
    lost = lease.get("status", {}).get("lostPlaces", ())
    assert not [place for place in lost if "/middle-" in place["preemptor"]]


def test_the_place_goes_to_the_preemptor_and_not_to_kube_schedulers_replacements(scenario: Scenario) -> None:
    """kube-scheduler binds the pods that replace victims as soon as these have left, unless the node is tainted."""
    world, arena = scenario.world, scenario.world.arena
    [node] = arena.nodes(capacity={"cpu": str(CORES)})
    low = arena.pod(
        requests={"cpu": "1"}, scheduler_name="default-scheduler", priorityClassName=evictions.class_name(arena, -5)
    )
    template = {"metadata": {"labels": {"app": "low"}}, "spec": low["spec"]}
    spec = {"replicas": CORES, "selector": {"matchLabels": {"app": "low"}}, "template": template}
    arena.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "low"}, "spec": spec})
    world.wait(lambda: len(world.bound_names()) == CORES, what="the node to be full")

    scenario.pod("above", ABOVE, {"cpu": str(CORES)})

    world.bound("above")
    # Two sets of victims at most, if kube-scheduler has seen that a victim left before it saw the taint.
    world.wait(lambda: len(_evicted(arena)) >= CORES, what="the Events of the victims")
    assert len(_evicted(arena)) <= 2 * CORES
    world.wait(lambda: not arena.get("nodes", node)["spec"].get("taints"), what="the taint to be removed")
    world.wait(lambda: arena.get("pods", "above")["status"]["phase"] == "Running", what="the pod to run")
    assert {each["spec"].get("nodeName") for each in arena.list("pods", labelSelector="app=low")} == {None}
    # Before the pods are deleted, which it would create again.
    arena.delete("replicasets", "low")


def _evicted(arena: Arena) -> set[str]:
    """Return the UIDs of the pods whose Events report that they were preempted."""
    return {each["involvedObject"]["uid"] for each in arena.list("events") if each["reason"] == "Preempted"}


def test_a_new_leader_keeps_the_place(arena: Arena, world: World) -> None:
    evictions.make_classes(arena, (0, ABOVE))
    try:
        scenario = Scenario(world)
        first = world.operator()
        [node] = arena.nodes(annotations=UNPLAYED)
        world.device(node, [words.gpu(0)])
        world.wait_ready(node, "True")
        scenario.place("low", 0, terminationGracePeriodSeconds=300)
        scenario.pod("above", ABOVE)
        world.wait(lambda: _nominated(arena, "above"), what="the nomination")
        world.wait(lambda: scenario.preempted() == ["low"], what="the victim to be deleted, with an Event")
        first.kill()
        world.free_lease()
        scenario.pod("late", 0)

        world.operator()
        world.waits("late")
        world.remove("low")

        world.bound("above", deadline=words.PROMPT)
        assert "late" not in world.bound_names()
        assert scenario.preempted() == ["low"]
    finally:
        evictions.remove_classes(arena)


def _nominated(arena: Arena, name: str) -> str:
    return str(arena.get("pods", name)["status"].get("nominatedNodeName", ""))


# --- compared with kube-scheduler -------------------------------------------------------------------------------------


@pytest.fixture
def anchored(request: pytest.FixtureRequest, version: str, tmp_path: Path) -> Iterator[Arena]:
    """Return an arena of a cluster with kube-scheduler of a version; only our own version has a shared one."""
    if version == versions.OWN:
        yield request.getfixturevalue("arena")
        return
    with Cluster(replaced=versions.replaced(version, "kube-apiserver", "kube-scheduler")) as cluster:
        own = Arena(cluster=cluster, folder=tmp_path)
        own.open()
        yield own


def test_the_victims_are_those_of_kube_scheduler_or_fewer(anchored: Arena) -> None:
    arena = anchored
    evictions.make_classes(arena, (*PRIORITIES, ABOVE))
    try:
        scenarios = [evictions.draft(arena, number, SEED) for number in range(SCENARIOS)]
        evictions.make(arena, scenarios)
        state = evictions.state(arena)
        ours = {each.id: evictions.ours(state, each) for each in scenarios}
        expected = {name: len(choice.victims) if choice else 0 for name, choice in ours.items()}
        theirs = evictions.theirs(arena, scenarios, expected)
    finally:
        evictions.remove_classes(arena)
    by_name = {each.pod.partition("/")[2]: each for each in state.fleet.charges.values()}
    same = 0
    for name, choice in ours.items():
        node, victims = theirs[name]
        assert (choice is None) == (not node), name
        if choice is None:
            continue
        mine = {each.pod.partition("/")[2] for each in choice.victims}
        same += (choice.nominee.node, mine) == (node, victims)
        difference = f"{name}: ours {choice.nominee.node} {sorted(mine)}, theirs {node} {sorted(victims)}"
        assert _weight(choice.victims) <= _weight([by_name[each] for each in victims]), difference
    # Where they differ, ours are fewer or the nodes are equal; in most scenarios there is one best answer.
    assert same >= SCENARIOS // 2


def _weight(victims: Sequence[Charge]) -> tuple[int, int]:
    """Return the key by which kube-scheduler compares victims, without budgets and ages."""
    return max(each.priority for each in victims), sum(each.priority + 2**31 for each in victims)
