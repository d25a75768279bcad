"""Static pods, which kubelet runs from files, next to the pods of Berth."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.gate import Gate
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import a100


@pytest.fixture
def manifests(node: RealNode) -> Iterator[Path]:
    """Configure kubelet to run the pods of a folder for the duration of a test."""
    file, folder = node.folder / "kubelet.yaml", node.folder / "static"
    before = file.read_text()
    folder.mkdir(exist_ok=True)
    configuration = {**yaml.safe_load(before), "staticPodPath": str(folder), "fileCheckFrequency": "1s"}
    file.write_text(yaml.safe_dump(configuration))
    node.restart_daemon("kubelet")
    yield folder
    for manifest in folder.iterdir():
        manifest.unlink()
    file.write_text(before)


def test_a_static_pod_gets_a_card_that_no_pod_has(
    node: RealNode, arena: Arena, manifests: Path, tmp_path: Path
) -> None:
    mirror = f"static-{node.name}"
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:

        def held() -> list[str]:
            return [unit for (pod, *_), units in stage.held().items() if pod == mirror for unit in units]

        stage.submit({SHARE: "50"}, "share")
        stage.hold("share")
        [shared] = stage.entries("share")
        static = stage.pod("static", {GPU: "1"}, scheduler_name="default-scheduler", nodeSelector={})
        (manifests / "static.yaml").write_text(yaml.safe_dump(static))
        stage.wait(lambda: mirror in stage.names() and stage.is_running(mirror), what="the mirror pod to run")
        [card] = held()
        assert card != shared["id"]
        stage.submit({SHARE: "50"}, "half")
        stage.hold("half")
        assert [entry["id"] for entry in stage.entries("half")] == [shared["id"]]
        stage.submit({GPU: "1"}, "whole")
        stage.wait(lambda: stage.waits("whole"), what="a pod to wait for the card of the static pod")
        node.restart_daemon("kubelet")
        stage.wait(lambda: held() == [card], what="what the static pod holds after kubelet's restart")
        (manifests / "static.yaml").unlink()
        stage.hold("whole")
        assert [entry["id"] for entry in stage.entries("whole")] == [card]


def test_a_static_pod_that_is_refused_is_reported_on_the_node(
    node: RealNode, arena: Arena, manifests: Path, tmp_path: Path
) -> None:
    """It has no object. Here its card was given to another pod right before kubelet requested it."""
    with (
        Gate(kubelet=node.device_plugins) as gate,
        Stage(node, arena, tmp_path, gpus=[a100(0)], kubelet_socket=gate.socket) as stage,
    ):

        def give_away() -> None:
            stage.submit({SHARE: "50"}, "share")
            stage.wait(lambda: stage.read("share")["spec"].get("nodeName"), what="the share to be bound")

        gate.next_allocate(give_away)
        static = stage.pod("static", {GPU: "1"}, scheduler_name="default-scheduler", nodeSelector={})
        (manifests / "static.yaml").write_text(yaml.safe_dump(static))
        [event] = stage.wait(lambda: refusals(arena, node.name), what="the Event on the Node")
        advice = "If a static pod requested it, it starts when its file has changed"
        assert event["message"].startswith(f"kubelet was refused {GPU}. {advice}: ")
        stage.hold("share")
        assert f"static-{node.name}" not in stage.names()


def test_a_forged_mirror_pod_that_a_finalizer_keeps_has_no_card(node: RealNode, arena: Arena, tmp_path: Path) -> None:
    """Kubelet deletes it, because there is no static pod, and never runs it. It may be any card's until then."""
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:
        mirror = {"kubernetes.io/config.mirror": "forged", "kubernetes.io/config.hash": "forged"}
        forged = stage.pod("forged", {GPU: "1"}, scheduler_name="default-scheduler", nodeSelector={})
        forged["metadata"] |= {"annotations": mirror, "finalizers": ["example.com/stays"]}
        forged["spec"]["nodeName"] = node.name
        arena.create([forged])
        try:
            stage.wait(lambda: "deletionTimestamp" in stage.read("forged")["metadata"], what="kubelet to delete it")
            stage.submit({GPU: "1"}, "one", "two")
            stage.wait(lambda: stage.waits("one") and stage.waits("two"), what="pods to wait for the forged pod")
            stage.hold("one", "two")
            assert stage.device()["status"]["stopped"] == [stage.read("forged")["metadata"]["uid"]]
        finally:
            arena.merge("pods", "forged", {"metadata": {"finalizers": None}})


def refusals(arena: Arena, name: str) -> list[Manifest]:
    """Return the Events of refused devices that `kubectl describe node` shows."""
    about = {"kind": "Node", "name": name, "namespace": "", "uid": name}
    fields = {"reason": "DevicesRefused", **{f"involvedObject.{field}": value for field, value in about.items()}}
    selector = ",".join(f"{field}={value}" for field, value in fields.items())
    listed: list[Manifest] = arena.cluster.api.get("/api/v1/events", fieldSelector=selector)["items"]
    return listed
