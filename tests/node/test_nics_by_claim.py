"""A claim gets a card and the RDMA NIC below its PCIe root on a real kubelet, and no pod has this NIC by name."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berth_api import names
from berth_api.names import DRA_DRIVER
from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.dra_driver import GROUP
from tests.node.nics import NIC, files, files_of, plug_in
from tests.node.stage import Stage
from tests.node.test_nics import NicStage, waiting
from tests.node.test_own_driver import by_claim, claim_of, devices, give_by, own_pools, slices
from tests.nvml.fixture import a100
from tests.objects.sysfs_tree import SysfsTree

ROOT: Final = "resource.kubernetes.io/pcieRoot"
NICS: Final = {
    "rdma-0000-18-00-0": files_of("mlx5_0"),
    "rdma-0000-28-00-1": files_of("mlx5_2"),
    "rdma-0000-28-00-2": files_of("mlx5_3"),
}
"""What the driver lists, the second NIC as its virtual functions, and the device files of each."""
TEMPLATE: Final = "card-and-nic"
PODS: Final = ("left", "right", "third")
CARDS: Final = [a100(index) for index in range(4)]


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Four cards, and a NIC below each of their two PCIe roots; the second NIC has two virtual functions."""
    options = {"dra": True, "nics": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    with NicStage(node, arena, tmp_path, gpus=CARDS, **options) as made, _template(arena):
        plug_in(SysfsTree(made.machine.sysfs), CARDS)
        made.wait(lambda: node.allocatable(names.RDMA_RESOURCE), what="the resource on offer")
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            made.remove(*made.names())
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_a_claim_gets_a_card_and_a_nic_below_one_root(stage: Stage) -> None:
    stage.submit({NIC: "100"}, "by-name")
    stage.wait(lambda: stage.is_running("by-name"), what="the pod by name to run")
    assert files(stage, "by-name") == files_of("mlx5_0")
    give_by(stage, "claims")
    stage.wait(lambda: nics(stage) == sorted(NICS)[1:], what="the functions of the free NIC in slices")
    held = stage.read("by-name")["metadata"]["annotations"][names.ALLOCATED]
    stage.remove("by-name")
    stage.wait(lambda: nics(stage) == sorted(NICS), what="both NICs in slices")

    assert_has_its_devices(stage, by_claim(stage, "first", DEFAULT_SCHEDULER, template=TEMPLATE))
    stage.remove("first")
    berth = stage.arena.scheduler_name
    given = {name: assert_has_its_devices(stage, by_claim(stage, name, berth, template=TEMPLATE)) for name in PODS}
    # The second root has two functions, and the first one a NIC.
    assert sorted(nic for _, nic in given.values()) == sorted(NICS)
    [holder] = [name for name, (_, nic) in given.items() if nic == min(NICS)]

    # Nothing but the agent refuses this pod.
    annotations, by_hand = {names.ALLOCATED: held}, {"nodeName": stage.node.name}
    stage.submit({names.RDMA_RESOURCE: "1"}, "by-hand", annotations=annotations, **by_hand)
    stage.wait(lambda: "is prepared for a ResourceClaim" in waiting(stage, "by-hand"), what="the pod to be refused")
    stage.remove(holder)
    stage.wait(lambda: stage.is_running("by-hand"), what="the NIC to be free")
    assert files(stage, "by-hand") == files_of("mlx5_0")
    stage.wait(lambda: nics(stage) == sorted(NICS)[1:], what="the NIC to leave the slices")


def nics(stage: Stage) -> list[str]:
    """Return the names of the NICs in slices."""
    return [name for name in devices(slices(stage)) if name.startswith("rdma-")]


def assert_has_its_devices(stage: Stage, pod: Manifest) -> tuple[str, str]:
    """Check that a pod's container has its claim's card and NIC, and no others; return their root, and the NIC."""
    results = stage.arena.get("resourceclaims", claim_of(pod))["status"]["allocation"]["devices"]["results"]
    assert {result["driver"] for result in results} == {DRA_DRIVER}
    chosen = {result["request"]: result["device"] for result in results}
    listed = {device["name"]: device["attributes"] for spec in slices(stage) for device in spec["devices"]}
    roots = {listed[device][ROOT]["string"] for device in chosen.values()}
    [root] = roots
    [card] = [card for card in CARDS if card.uuid.lower() == chosen["gpu"]]
    nodes = {device for device in stage.node.container(pod).devices if device.startswith("nvidia")}
    assert nodes == {"nvidiactl", "nvidia-uvm", f"nvidia{card.minor}"}
    assert files(stage, pod["metadata"]["name"]) == NICS[chosen["nic"]]
    return root, chosen["nic"]


@contextlib.contextmanager
def _template(arena: Arena) -> Iterator[None]:
    """Make DeviceClasses of the driver's cards and NICs, and a ResourceClaimTemplate for one of each below one root."""
    api = arena.cluster.api
    kinds = {kind: f"{kind}.{arena.id}.{DRA_DRIVER}" for kind in ("gpu", "rdma")}
    for kind, name in kinds.items():
        expression = f'device.driver == "{DRA_DRIVER}" && device.attributes["{DRA_DRIVER}"].type == "{kind}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    requests = [
        {"name": request, "exactly": {"deviceClassName": kinds[kind]}}
        for request, kind in (("gpu", "gpu"), ("nic", "rdma"))
    ]
    claim = {"devices": {"requests": requests, "constraints": [{"matchAttribute": ROOT}]}}
    template = {"metadata": {"name": TEMPLATE}, "spec": {"spec": claim}}
    api.post(f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates", template)
    try:
        yield
    finally:
        for name in kinds.values():
            api.delete(f"{GROUP}/deviceclasses/{name}")
