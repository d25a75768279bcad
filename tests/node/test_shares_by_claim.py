"""Shares of a card by claim on a real kubelet: containers have their numbers, no sum of shares is above the card."""

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berth_api.names import DRA_DRIVER
from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.integration.agent.test_agent_metrics import eventually
from tests.node.dra_driver import GROUP
from tests.node.stage import GPU, Stage
from tests.node.test_own_driver import (
    CARDS,
    assert_has_its_card,
    by_claim,
    claim_of,
    classes,
    devices,
    files,
    give_by,
    own_pools,
    slices,
    submit_by_claim,
)

SHARE: Final = {"memory": "30Gi", "cores": "30"}
"""Two fit on a card of 80 GiB."""
NUMBERS: Final = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": str(30 << 30),
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=30720M",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
}
TEMPLATE: Final = "share"
REFUSED: Final = "FailedPrepareDynamicResources"


@pytest.fixture
def port() -> int:
    """Return the port of the agent's metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path, port: int) -> Iterator[Stage]:
    """Return the node with Berth, whose agent is a driver, and whose operator has its pools."""
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0, "metrics_port": port}
    with Stage(node, arena, tmp_path, gpus=CARDS, **options) as made, classes(arena):
        _make_template(arena)
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            made.remove(*made.names())
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_pods_with_shares_of_a_card_have_their_numbers(stage: Stage, port: int) -> None:
    give_by(stage, "shares")
    stage.wait(lambda: len(devices(slices(stage))) == len(CARDS), what="the cards in slices")
    stage.wait(lambda: stage.node.allocatable(GPU) == 0, what="no card for kubelet's device API")
    for scheduler in (DEFAULT_SCHEDULER, stage.arena.scheduler_name):
        pods = [by_claim(stage, name, scheduler, template=TEMPLATE) for name in ("first", "second")]
        shared, other = (assert_has_its_card(stage, pod) for pod in pods)
        assert shared == other
        for pod in pods:
            environment = stage.node.container(pod).environment
            assert {name: environment.get(name) for name in NUMBERS} == NUMBERS
        # A claim without amounts gets a whole card, and no limits.
        whole = by_claim(stage, "whole", scheduler)
        assert assert_has_its_card(stage, whole) != shared
        assert not NUMBERS.keys() & stage.node.container(whole).environment.keys()
        assert len(files(stage)) == 3
        of_shares = {"first/main": 0.37, "second/main": 0.37}
        eventually(stage.arena, port, of_shares, "berth_gpu_pod_info", share="core 30, memory 30Gi")
        eventually(stage.arena, port, {"whole/main": 1.0}, "berth_gpu_pod_info", share="whole")
        if scheduler == DEFAULT_SCHEDULER:
            stage.remove("first", "second", "whole")

    # A share that the scheduler should not have given.
    third = _forged(stage, stage.arena.get("resourceclaims", claim_of(pods[0])))
    [refused] = stage.wait(lambda: stage.events(REFUSED), what="the refusal", deadline=90)
    assert refused["involvedObject"]["name"] == third
    assert "have 92160Mi of memory together; the card has 81920Mi" in refused["message"]
    assert stage.phases() == {"first": "Running", "second": "Running", "whole": "Running", third: "Pending"}
    stage.remove(*stage.names())
    assert files(stage) == []


def _make_template(arena: Arena) -> None:
    exactly = {"deviceClassName": f"{arena.id}.{DRA_DRIVER}", "capacity": {"requests": SHARE}}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    template = {"metadata": {"name": TEMPLATE}, "spec": {"spec": claim}}
    arena.cluster.api.post(f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates", template)


def _forged(stage: Stage, like: Manifest) -> str:
    """Bind a pod whose claim has the same amounts of the same card as another claim; return its name."""
    api, namespace, name = stage.arena.cluster.api, stage.arena.namespace, "forged"
    claims = f"{GROUP}/namespaces/{namespace}/resourceclaims"
    api.post(claims, {"metadata": {"name": name}, "spec": like["spec"]})
    submit_by_claim(stage, name, "elsewhere", claim=name)
    allocation = like["status"]["allocation"]
    results = [{**result, "shareID": str(uuid.uuid4())} for result in allocation["devices"]["results"]]
    user = {"resource": "pods", "name": name, "uid": stage.read(name)["metadata"]["uid"]}
    status = {"allocation": {**allocation, "devices": {"results": results}}, "reservedFor": [user]}
    api.merge(f"{claims}/{name}/status", {"status": status})
    target = {"kind": "Node", "name": stage.node.name}
    api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", {"metadata": {"name": name}, "target": target})
    return name
