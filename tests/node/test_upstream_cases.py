"""Cases of Kubernetes' own e2e tests of drivers, with Berth's driver on a real node; docs/upstream-dra.md lists all."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.boxes import START_SECONDS, box, running
from tests.node.dra_driver import GROUP
from tests.node.stage import Stage
from tests.node.test_own_driver import classes, files, give_by, slices
from tests.nvml.fixture import a100
from tests.programs.processes import Process

CARDS: Final = [a100(index) for index in range(3)]
DEADLINE: Final = START_SECONDS + 90
"""Seconds for a pod to start: kubelet asks again only after 60 to 90 s."""
ADMIN: Final = "resource.kubernetes.io/admin-access"
"""The label of namespaces whose claims may request access to devices of other claims."""


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return a node that gives its cards by claim, by kube-scheduler."""
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    with Stage(node, arena, tmp_path, gpus=CARDS, **options) as made, classes(arena):
        give_by(made, "claims")
        made.wait(lambda: len(slices(made)) == len(CARDS), what="the cards in slices")
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            for name in made.names():
                made.remove(name)
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_containers_get_the_devices_of_their_requests(stage: Stage) -> None:
    device_class = f"{stage.arena.id}.gpu.berth.dev"
    # The second of the alternatives is the first that a node has.
    alternatives = [
        {"name": "none", "deviceClassName": device_class, "count": len(CARDS) + 1},
        {"name": "one", "deviceClassName": device_class},
    ]
    two = claim(stage, "two", {"name": "a", "firstAvailable": alternatives}, exactly(device_class, "b"))
    pod = with_claims(stage, "split", [two])
    [main] = pod["spec"]["containers"]
    pod["spec"]["containers"] = [
        {**main, "name": name, "resources": {"claims": claims}}
        for name, claims in {
            "main": [{"name": "two", "request": "a"}],
            "other": [{"name": "two", "request": "b"}],
            "both": [{"name": "two"}],
            "without": [],
        }.items()
    ]
    stage.arena.create([pod])
    pod = running(stage.arena, "split", deadline=DEADLINE)
    has = {name: cards(stage, pod, name) for name in ("main", "other", "both", "without")}
    first, second = by_request(stage, "two")["a/one"], by_request(stage, "two")["b"]
    assert has == {"main": {first}, "other": {second}, "both": {first, second}, "without": set()}

    # A claim that is prepared, and a new one.
    new = claim(stage, "new", exactly(device_class, "a"))
    stage.arena.create([with_claims(stage, "mixed", [two, new])])
    mixed = running(stage.arena, "mixed", deadline=DEADLINE)
    assert cards(stage, mixed, "main") == {first, second, by_request(stage, "new")["a"]} == set(range(len(CARDS)))

    # A monitor has access to a card that another claim holds.
    labels = {"metadata": {"labels": {ADMIN: "true"}}}
    stage.arena.cluster.api.merge(f"/api/v1/namespaces/{stage.arena.namespace}", labels)
    everything = {"deviceClassName": device_class, "allocationMode": "All", "adminAccess": True}
    monitor = claim(stage, "monitor", {"name": "all", "exactly": everything})
    stage.arena.create([with_claims(stage, "monitor", [monitor])])
    assert cards(stage, running(stage.arena, "monitor", deadline=DEADLINE), "main") == set(range(len(CARDS)))
    stage.remove("monitor", "mixed", "split")
    assert files(stage) == []


def test_claims_are_prepared_and_released_with_their_pods(stage: Stage) -> None:
    device_class = f"{stage.arena.id}.gpu.berth.dev"
    unused = with_claims(stage, "unused", [claim(stage, "one", exactly(device_class, "a"))])
    unused["spec"]["containers"][0].pop("resources")
    stage.arena.create([unused])
    pod = running(stage.arena, "unused", deadline=DEADLINE)
    assert (cards(stage, pod, "main"), len(files(stage))) == (set(), 1)

    # What is deleted by force is released as soon as its containers have ended.
    stage.arena.delete("pods", "unused", grace_seconds=0)
    stage.wait(lambda: files(stage) == [], what="the claim of the deleted pod to be released")


def test_a_failed_upgrade_leaves_the_agent_that_serves(stage: Stage) -> None:
    device_class = f"{stage.arena.id}.gpu.berth.dev"
    old, before = stage.agent, slices(stage)
    stage.start_agent()
    failed: Process = stage.agent
    failed.logged("another agent serves this node")
    failed.kill()
    stage.agent = old
    stage.arena.create([with_claims(stage, "pod", [claim(stage, "one", exactly(device_class, "a"))])])
    pod = running(stage.arena, "pod", deadline=DEADLINE)
    assert cards(stage, pod, "main") == set(by_request(stage, "one").values())
    assert slices(stage) == before


def exactly(device_class: str, name: str) -> Manifest:
    """Return a request for one device of a class."""
    return {"name": name, "exactly": {"deviceClassName": device_class}}


def claim(stage: Stage, name: str, *requests: Mapping[str, Any]) -> str:
    """Create a claim and return its name."""
    path = f"{GROUP}/namespaces/{stage.arena.namespace}/resourceclaims"
    stage.arena.cluster.api.post(path, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    return name


def with_claims(stage: Stage, name: str, claims: Sequence[str]) -> Manifest:
    """Return a pod whose container uses claims."""
    pod = box(stage.arena, name, scheduler_name=DEFAULT_SCHEDULER)
    pod["spec"]["resourceClaims"] = [{"name": claim_name, "resourceClaimName": claim_name} for claim_name in claims]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim_name} for claim_name in claims]}
    return pod


def by_request(stage: Stage, name: str) -> dict[str, int]:
    """Return the minors of the cards of a claim by request."""
    minors = {card.uuid.lower(): card.minor for card in CARDS}
    results = stage.arena.get("resourceclaims", name)["status"]["allocation"]["devices"]["results"]
    return {result["request"]: minors[result["device"]] for result in results}


def cards(stage: Stage, pod: Manifest, container: str) -> set[int]:
    """Return the minors of the cards whose device nodes a container has."""
    nodes = stage.node.container(pod, container).devices
    return {int(name.removeprefix("nvidia")) for name in nodes if name.removeprefix("nvidia").isdigit()}
