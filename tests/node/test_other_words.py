"""Manifests of other systems on a real node: which cards each of their containers sees, and how much of each card."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode, image
from tests import manifests_of_others as manifests
from tests.manifests_of_others import checks
from tests.node.stage import VISIBLE, Stage
from tests.nvml.fixture import a100
from tests.programs import policies

FILES: Final = tuple(
    manifests.FOLDER / f"{name}.yaml"
    for name in (
        "hami/memory",
        "hami/two-containers",
        "kai/fraction-of-two",
        "runai/memory",
        "volcano/two-cards",
        "koordinator/shared",
        "aliyun/two-cards",
        "tencent/part",
        "tencent/whole",
        "nvidia/one",
    )
)


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return the real node, under the policies for words, with as many cards as the pods need in any order."""
    with (
        policies.enforced("words.yaml", arena),
        Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(12)]) as made,
    ):
        probe = {**own(arena, FILES[0]), "metadata": {"name": "probe", "namespace": arena.namespace}}
        made.wait(lambda: is_renamed(arena, probe), what="the policies for words to be in force")
        yield made


def is_renamed(arena: Arena, probe: Manifest) -> bool:
    return names.ORIGINAL_RESOURCES in arena.admitted(probe)["metadata"].get("annotations", {})


def own(arena: Arena, file: Path) -> Manifest:
    """Return the pod of a manifest as this node can run it; what requests devices is as it was."""
    pod = manifests.pod(file)
    metadata = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
    runnable = {"image": image.NAME, "imagePullPolicy": "Never", "args": ["wait"], "command": None}
    fields = {
        "schedulerName": arena.scheduler_name,
        "nodeSelector": arena.labels,
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "Default",
        "containers": [{**container, **runnable} for container in pod["spec"]["containers"]],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": manifests.name(file).replace("/", "-"), "namespace": arena.namespace},
        "spec": {**pod["spec"], **fields},
    }


def test_containers_see_the_cards_that_their_manifests_mean(stage: Stage) -> None:
    pods = {pod["metadata"]["name"]: file for file in FILES for pod in (own(stage.arena, file),)}
    stage.arena.create([own(stage.arena, file) for file in FILES])
    for name in pods:
        stage.wait(lambda name=name: stage.is_running(name), what=f"{name} to run")
    for name, file in pods.items():
        assert_sees(stage, stage.read(name), manifests.answer(file))
    wholes = [card for name in ("tencent-whole", "nvidia-one") for card in stage.cards(name)]
    parts = {card for name in pods.keys() - {"tencent-whole", "nvidia-one"} for card in stage.cards(name)}
    assert len(set(wholes)) == len(wholes)
    assert parts.isdisjoint(wholes)


def assert_sees(stage: Stage, pod: Manifest, answer: Manifest) -> None:
    """Check the environment of each container, and the device files where kubelet gives the cards."""
    cards = checks.held_cards(pod, answer)
    minors = {entry["id"]: entry["minor"] for entry in stage.entries(pod["metadata"]["name"])}
    for name, indexes in answer["sees"].items():
        container = stage.node.container(pod, name)
        seen = [cards[index] for index in indexes]
        assert container.environment[VISIBLE].split(",") == seen, pod["metadata"]["name"]
        if answer["gets"].endswith("nvidia.com/gpu"):
            files = {device for device in container.devices if device.removeprefix("nvidia").isdigit()}
            assert files == {f"nvidia{minors[card]}" for card in seen}
