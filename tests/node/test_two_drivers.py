"""A pod with a claim of Berth's driver and one of another driver on a real node, while one of the drivers is away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node import dra_driver as drivers
from tests.node.boxes import box, running
from tests.node.dra_driver import DraDriver
from tests.node.stage import Stage
from tests.node.test_own_driver import DEADLINE, classes, files, give_by, slices
from tests.nvml.fixture import a100

CARD = a100(0)


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return a node whose card is given by claim."""
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    with Stage(node, arena, tmp_path, gpus=[CARD], **options) as made, classes(arena):
        give_by(made, "claims")
        made.wait(lambda: slices(made), what="the card in a slice")
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            for name in made.names():
                made.remove(name)
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slice to go")


def test_a_pod_starts_and_ends_only_with_both_of_its_drivers(stage: Stage) -> None:
    with drivers.template(stage.arena, "other"):
        with DraDriver(stage.node, devices=1) as other:
            # Its slices stay for a while, so that the pod comes to the node.
            other.stop()
            stage.arena.create([with_both(stage, "pod")])
            stage.wait(lambda: failed_to_prepare(stage, "pod"), what="kubelet to miss the other driver")
            assert stage.read("pod")["status"]["phase"] == "Pending"
            other.start()
            pod = running(stage.arena, "pod", deadline=DEADLINE)
            container = stage.node.container(pod)
            assert f"nvidia{CARD.minor}" in container.devices
            assert container.environment["GPU_DEVICE_0"] == "gpu-0"
            assert len(files(stage)) == 1

            # Without Berth's driver, the pod runs on, and cannot end.
            stage.agent.kill()
            stage.arena.delete("pods", "pod", grace_seconds=1)
            stage.wait(lambda: ended(stage.read("pod")), what="its container to end")
            assert len(files(stage)) == 1
            stage.start_agent()
            stage.wait(lambda: "pod" not in stage.names(), what="the pod to go")
        assert files(stage) == []


def with_both(stage: Stage, name: str) -> Manifest:
    """Return a pod with a claim of each driver."""
    pod = box(stage.arena, name, scheduler_name=DEFAULT_SCHEDULER)
    claims = {"berths": "one", "others": "other"}
    pod["spec"]["resourceClaims"] = [
        {"name": claim, "resourceClaimTemplateName": template} for claim, template in claims.items()
    ]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim} for claim in claims]}
    return pod


def failed_to_prepare(stage: Stage, name: str) -> bool:
    """Return whether kubelet says that it could not prepare a pod's claims."""
    events = stage.arena.list("events", fieldSelector=f"involvedObject.name={name}")
    return any(event["reason"] == "FailedPrepareDynamicResources" for event in events)


def ended(pod: Manifest) -> bool:
    """Return whether a pod's container has ended, and the pod is still there."""
    return "terminated" in pod["status"]["containerStatuses"][0]["state"]
