"""Pods get a real card from Berth through kubelet and containerd and compute on it. Pods without a card cannot."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.real_node import RealNode
from tests.gpu import machine
from tests.gpu.clients import client
from tests.gpu.look import look
from tests.node.boxes import START_SECONDS, running
from tests.node.real_card import CardStage
from tests.node.stage import GPU
from tests.node.test_own_driver import claim_of, classes, files, give_by, slices

pytestmark = pytest.mark.skipif(bool(machine.obstacle()), reason=machine.obstacle())

SOME: Final = 2048
"""MiB."""


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[CardStage]:
    with CardStage(node, arena, tmp_path) as made:
        yield made


@pytest.fixture
def sliced(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[CardStage]:
    """Each card is offered twice, so that kubelet gives it to containers of two pods."""
    config = tmp_path / "config.yaml"
    config.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: 2}}]}}}}")
    with CardStage(node, arena, tmp_path, config_file=config) as made:
        yield made


@pytest.fixture
def by_claim(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[CardStage]:
    """The node's cards are given by claims of Berth's own driver, which kube-scheduler allocates."""
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    with CardStage(node, arena, tmp_path, **options) as made, classes(arena):
        give_by(made, "claims")
        made.wait(lambda: slices(made), what="the cards in slices")
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            for name in made.names():
                made.remove(name)
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_a_pod_computes_on_the_card_that_it_was_given(stage: CardStage) -> None:
    stage.arena.create([stage.client("whole", {GPU: "1"}, mebibytes=SOME)])
    stage.hold("whole")
    seen = stage.seen("whole")
    assert seen["error"] == 0
    assert seen["allocated"] == SOME
    assert seen["cards"] == [entry["id"] for entry in stage.entries("whole")]


def test_two_pods_compute_on_one_card_and_neither_is_foreign(sliced: CardStage) -> None:
    names = ("one", "two")
    sliced.arena.create([sliced.client(name, {GPU: "1"}, mebibytes=SOME) for name in names])
    sliced.hold(*names)
    seen = [sliced.seen(name) for name in names]
    assert [each["allocated"] for each in seen] == [SOME, SOME]
    assert seen[0]["cards"] == seen[1]["cards"]
    reading = look()
    assert len(reading.processes[seen[0]["cards"][0]]) == len(names)
    assert reading.foreign == []
    assert foreign(sliced) == []


def test_two_pods_compute_on_the_card_of_their_claim(by_claim: CardStage) -> None:
    stage = by_claim
    listed = {device["name"]: device for spec in slices(stage) for device in spec["devices"]}
    names = {gpu.uuid.lower(): gpu.name for gpu in stage.machine.gpus}
    assert {name: device["attributes"]["productName"]["string"] for name, device in listed.items()} == names
    claimed(stage, "first", {"resourceClaimTemplateName": "one"})
    claim = claim_of(running(stage.arena, "first", deadline=START_SECONDS + 90))
    claimed(stage, "second", {"resourceClaimName": claim})
    seen = [stage.seen(name) for name in ("first", "second")]
    assert [(one["error"], one["allocated"]) for one in seen] == [(0, SOME), (0, SOME)]
    [result] = stage.arena.get("resourceclaims", claim)["status"]["allocation"]["devices"]["results"]
    assert [[uuid.lower() for uuid in one["cards"]] for one in seen] == [[result["device"]]] * 2
    assert (look().foreign, foreign(stage)) == ([], [])
    stage.remove("first", "second")
    assert files(stage) == []


def test_a_pod_without_a_card_cannot_compute(stage: CardStage) -> None:
    stage.arena.create([stage.client("none", {}, mebibytes=SOME)])
    error = stage.seen("none")["error"]
    assert isinstance(error, int), f"CUDA was not there to refuse: {error}"
    assert error != 0


def test_a_process_outside_pods_takes_the_card_from_the_offer(stage: CardStage) -> None:
    card = stage.machine.gpus[0]
    with client(SOME, CUDA_VISIBLE_DEVICES=card.uuid):
        stage.wait(lambda: foreign(stage) == [card.minor], what="the foreign process to be seen")
    stage.wait(lambda: foreign(stage) == [], what="its end to be seen")


def foreign(stage: CardStage) -> list[int]:
    return [use["minor"] for use in stage.device()["status"].get("foreign", ())]


def claimed(stage: CardStage, name: str, source: dict[str, str]) -> None:
    """Create a pod that computes on the card of a claim."""
    pod = stage.client(name, {}, mebibytes=SOME, schedulerName=DEFAULT_SCHEDULER)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    stage.arena.create([pod])
