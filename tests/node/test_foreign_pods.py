"""Pods of another scheduler share a node with Berth's pods, and neither takes what the other has."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.differential import evictions
from tests.differential.evictions import ABOVE
from tests.integration.operator.world import ALLOCATED
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import Process, a100

CARDS = 8
HALVES = ("one", "two", "three")


def replica_set(stage: Stage, count: int) -> Manifest:
    """Return a ReplicaSet of pods with a card each, for the default scheduler."""
    labels = {"app": "foreign-pod"}
    pod = stage.pod("foreign-pod", {GPU: "1"}, scheduler_name="default-scheduler", nodeSelector=stage.arena.labels)
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "foreign-pods", "namespace": stage.arena.namespace},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


def test_a_shared_card_is_never_allocated_to_a_foreign_pod(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(CARDS)]) as stage:
        stage.wait(lambda: node.allocatable(GPU) == CARDS, what="all cards on offer")
        stage.submit({SHARE: "50"}, "half")
        stage.hold("half")
        stage.wait(lambda: node.allocatable(GPU) == CARDS - 1, what="the shared card to be withheld")

        with kept(stage, replica_set(stage, CARDS)):
            check_phases_and_cards(stage)


def test_what_a_foreign_pod_claims_does_not_override_kubelet(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    """It says a hundredth of either card, whichever kubelet gives it: then the rest of that card would look free."""
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:
        stage.wait(lambda: node.allocatable(GPU) == 2, what="both cards on offer")
        little = {"kubernetes.io/gpu-core": "1"}
        claims = {"gpu": [{"minor": minor, "resources": little} for minor in range(2)]}
        fields = {"annotations": {ALLOCATED: json.dumps(claims)}, "nodeSelector": arena.labels}
        stage.submit({GPU: "1"}, "foreign-pod", scheduler_name="default-scheduler", **fields)
        stage.wait(lambda: stage.phases()["foreign-pod"] == "Running", what="the foreign pod to run")
        [own] = {unit for key, units in stage.held().items() if key[0] == "foreign-pod" for unit in units}

        stage.submit({SHARE: "50"}, "one", "two", "three")
        stage.wait(lambda: any(map(stage.waits, HALVES)), what="the third half to find no card")
        placed = [name for name in HALVES if not stage.waits(name)]
        stage.hold(*placed)
        assert len(placed) == 2
        [other] = {entry["id"] for name in placed for entry in stage.entries(name)}
        assert other != own
        check_who_uses_cards_of_others(stage, placed, own=own, other=other)


def check_who_uses_cards_of_others(stage: Stage, placed: list[str], *, own: str, other: str) -> None:
    """Let each pod use its card, and a foreign pod and one without any request the other one, too; these are named."""
    stage.submit({}, "without", scheduler_name="default-scheduler", nodeSelector=stage.arena.labels)
    # Before, its processes may be runc's own, which end.
    stage.wait(lambda: stage.is_running("without"), what="the pod without a request to run")
    names = [*placed, "foreign-pod", "without"]
    pids = {name: stage.wait(lambda name=name: pid_of(stage, name), what=f"a process of {name}") for name in names}
    users = {own: ["foreign-pod"], other: names}
    for gpu in stage.machine.gpus:
        gpu.processes = [Process(pid=pids[name], used=9 * 2**30) for name in users[gpu.uuid]]
    stage.machine.write()
    expected = [("foreign-pod", other), ("without", other)]
    stage.wait(lambda: unheld(stage) == expected, what="the uses of a card by pods that do not hold it")
    stage.wait(lambda: len(stage.events("CardNotHeld")) == len(expected), what="their Events")


def unheld(stage: Stage) -> list[tuple[str, str]]:
    return [(use["pod"], use["id"]) for use in stage.device()["status"].get("unheld", ())]


def pid_of(stage: Stage, name: str) -> int:
    """Return the id of a process of a pod on this machine; 0 if there is none."""
    uid = stage.read(name)["metadata"]["uid"]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if uid in (folder / "cgroup").read_text().replace("_", "-"):
                return int(folder.name)
    return 0


def test_a_victims_card_goes_to_the_preemptor_and_not_to_its_replacement(
    arena: Arena, node: RealNode, tmp_path: Path
) -> None:
    """kube-scheduler would bind the replacement at once, and kubelet then refuse one of the two pods."""
    evictions.make_classes(arena, [ABOVE])
    with Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(4)]) as stage:
        stage.wait(lambda: node.allocatable(GPU) == 4, what="all cards on offer")
        with kept(stage, replica_set(stage, 4)):
            stage.wait(lambda: [*foreign_pods(stage).values()] == ["Running"] * 4, what="the foreign pods to run")
            stage.submit({GPU: "1"}, "high", priorityClassName=evictions.class_name(arena, ABOVE))
            stage.hold("high")
            stage.wait(lambda: not arena.get("nodes", node.name)["spec"].get("taints"), what="the taint to be removed")
            stage.wait(lambda: len(stage.events("SuccessfulCreate")) == 4 + 1, what="an Event for each created pod")
            assert sorted(foreign_pods(stage).values()) == ["Pending", *["Running"] * 3]
    evictions.remove_classes(arena)


@contextlib.contextmanager
def kept(stage: Stage, controller: Manifest) -> Iterator[None]:
    """Create a ReplicaSet, and end it before its pods are deleted: else it makes others."""
    stage.arena.create([controller])
    yield
    stage.arena.delete("replicasets", controller["metadata"]["name"])
    stage.wait(lambda: not foreign_pods(stage), what="the end of its pods")


def check_phases_and_cards(stage: Stage) -> None:
    """See that seven foreign pods run, and that ours keep the card that they share."""
    stage.wait(lambda: sorted(foreign_pods(stage).values()) == ["Pending", *["Running"] * (CARDS - 1)], what="seven")
    [shared] = stage.entries("half")
    held = {unit for key, units in stage.held().items() if key[0] in foreign_pods(stage) for unit in units}
    assert len(held) == CARDS - 1
    assert shared["id"] not in held

    # Ours finds the other half of its card, and then nothing.
    stage.submit({SHARE: "50"}, "other-half")
    stage.hold("half", "other-half")
    assert stage.cards("other-half") == [shared["minor"]]
    stage.submit({SHARE: "50"}, "late-half")
    stage.submit({GPU: "1"}, "late")
    stage.wait(lambda: stage.waits("late-half") and stage.waits("late"), what="those without a card to say so")
    # No pod was refused and created again.
    assert len(foreign_pods(stage)) == CARDS
    assert len(stage.events("SuccessfulCreate")) == CARDS
    assert set(stage.phases().values()) == {"Running", "Pending"}


def foreign_pods(stage: Stage) -> dict[str, str]:
    return {name: phase for name, phase in stage.phases().items() if name.startswith("foreign-pods-")}
