"""MIG instances on demand on a real kubelet: a claim's instance is made for its pod, and is gone after it."""

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from berth_api.names import DRA_DRIVER, PARTITIONS_KEY
from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.bench import figures
from tests.node.boxes import box, running
from tests.node.dra_driver import GROUP
from tests.node.stage import Stage
from tests.node.test_own_driver import (
    DEADLINE,
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
from tests.nvml import mig_profiles
from tests.nvml.fixture import h100, with_profiles
from tests.programs.processes import Processes

CARD: Final = with_profiles(h100(), mig_profiles.H100_80)
PROFILE: Final = "1g.10gb"
LARGE: Final = "3g.40gb"
NODES: Final = {"nvidiactl", "nvidia-uvm", f"nvidia{CARD.minor}"}
"""Those of the card. This machine lists no device nodes of instances."""
SOON: Final = 15.0
"""Seconds in which a pod runs although the process came after the agent: kubelet repeats a call after a minute."""
STARTS: Final = int(os.environ.get("BERTH_STARTS", "0"))


class PartitionStage(Stage):
    """A node with an H100 that is not in MIG mode, and with the process that makes its instances."""

    def __init__(self, node: RealNode, arena: Arena, folder: Path, makers: Processes) -> None:
        socket = folder / "partitions"
        options = {"dra": True, "dra_partitions": socket, "kubelet_folder": node.root, "resync_interval": 1.0}
        super().__init__(node, arena, folder, gpus=[CARD], **options)
        self.machine.write()
        self.start_maker = partial(makers.partitions, self.machine, state=folder / "record", socket=socket)
        self.maker = self.start_maker()


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[PartitionStage]:
    """Return such a node, with an operator."""
    makers = Processes(arena=arena, folder=tmp_path)
    with contextlib.ExitStack() as ends:
        ends.callback(makers.close)
        made = PartitionStage(node, arena, tmp_path, makers)
        ends.enter_context(made)
        ends.enter_context(classes(arena))
        for profile in (PROFILE, LARGE):
            ends.callback(arena.cluster.api.delete, make_class(arena, profile))
        make_template(arena, PROFILE, PROFILE)
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            made.remove(*made.names())
            open_cards(made, None)
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_an_instance_is_made_for_a_pod_and_destroyed_after_it(stage: Stage) -> None:
    open_cards(stage, "all")
    give_by(stage, "claims")
    stage.wait(lambda: len(devices(slices(stage))) > 1, what="what can be made in slices")
    for scheduler in (DEFAULT_SCHEDULER, stage.arena.scheduler_name):
        pods = [by_claim(stage, name, scheduler, template=PROFILE) for name in ("first", "second")]
        assert [instance.computes for instance in stage.machine.gpu_instances(0)] == [(0,), (0,)]
        assert len({_device(stage, pod) for pod in pods}) == 2
        for pod in pods:
            assert _nodes(stage, pod) == NODES
        assert len(files(stage)) == 2

        stage.remove("first")
        assert len(stage.machine.gpu_instances(0)) == 1
        stage.remove("second")
        assert (stage.machine.gpu_instances(0), files(stage)) == ([], [])

        whole = by_claim(stage, "whole", scheduler)
        assert _device(stage, whole) == CARD.uuid.lower()
        assert _nodes(stage, whole) == NODES
        stage.remove("whole")


def test_a_pod_written_for_nvidias_plugin_gets_an_instance_that_is_made_for_it(stage: Stage) -> None:
    open_cards(stage, "all")
    give_by(stage, "claims")
    stage.wait(lambda: len(devices(slices(stage))) > 1, what="what can be made in slices")
    [profile] = [profile.id for profile in CARD.profiles if profile.name == LARGE]
    limits = {resource(LARGE): "1"}
    for scheduler in (DEFAULT_SCHEDULER, stage.arena.scheduler_name):
        stage.arena.create([box(stage.arena, "large", limits=limits, scheduler_name=scheduler)])
        pod = running(stage.arena, "large", deadline=DEADLINE)
        [instance] = stage.machine.gpu_instances(0)
        assert (instance.profile, instance.computes) == (profile, (0,))
        assert _nodes(stage, pod) == NODES
        # The pod holds its instance alone, whatever kubelet reports of its resources: others get the rest of the card.
        by_claim(stage, "small", scheduler, template=PROFILE)
        # The Device shows the card as a whole, also after the agent has left.
        code = stage.agent.stop()
        [card] = stage.arena.get("devices", stage.node.name)["spec"]["devices"]
        stage.start_agent()
        assert (code, card["mig"]) == (0, {"enabled": False, "instances": []})
        stage.remove("large", "small")
        assert (stage.machine.gpu_instances(0), files(stage)) == ([], [])


def test_a_process_that_comes_after_the_agent_delays_a_pod_little(stage: PartitionStage) -> None:
    """Both start together, and the process may be restarted. kubelet repeats a call only a minute later."""
    open_cards(stage, "all")
    give_by(stage, "claims")
    stage.wait(lambda: len(devices(slices(stage))) > 1, what="what can be made in slices")
    for name in ("started", "restarted"):
        if name == "started":
            stage.agent.stop()
        stage.maker.stop()
        if name == "started":
            stage.start_agent()
            stage.agent.logged("partitions cannot be listed")
            stage.agent.logged("kubelet accepted the driver")
        submit_by_claim(stage, name, DEFAULT_SCHEDULER, template=PROFILE)
        time.sleep(2)  # kubelet asks for the instance meanwhile
        stage.maker = stage.start_maker()
        running(stage.arena, name, deadline=SOON)
    stage.remove("started", "restarted")
    assert stage.machine.gpu_instances(0) == []


@pytest.mark.skipif(not STARTS, reason="a benchmark: make bench-instances")
@pytest.mark.timeout(300 + 60 * STARTS)
def test_measure_how_soon_containers_run(stage: Stage) -> None:
    """Print milliseconds from the creation of a pod until it is ready, one pod after another, as JSON."""
    open_cards(stage, "all")
    give_by(stage, "claims")
    stage.wait(lambda: len(devices(slices(stage))) > 1, what="what can be made in slices")
    templates = {"new_instance": PROFILE, "whole_card": "one", "no_device": ""}
    measured: dict[str, list[float]] = {kind: [] for kind in templates}
    for number in range(STARTS):
        for kind, template in templates.items():
            name = f"{kind.replace('_', '-')}-{number}"
            began = time.monotonic()
            if template:
                submit_by_claim(stage, name, stage.arena.scheduler_name, template=template)
            else:
                stage.arena.create([box(stage.arena, name)])
            running(stage.arena, name, deadline=DEADLINE)
            measured[kind].append(1000 * (time.monotonic() - began))
            stage.remove(name)
    shares = {"p50": 0.5, "p99": 0.99}
    found = {
        kind: {name: round(figures.quantile(values, share)) for name, share in shares.items()}
        for kind, values in measured.items()
    }
    figures.result({"bench": "instances", "starts": STARTS, "milliseconds": found})


def make_class(arena: Arena, profile: str) -> str:
    """Make a DeviceClass of a profile's instances, as the chart does; return its path."""
    attributes, name = f'device.attributes["{DRA_DRIVER}"]', _class_name(arena, profile)
    expression = f'device.driver == "{DRA_DRIVER}" && {attributes}.type == "mig" && {attributes}.profile == "{profile}"'
    spec = {"extendedResourceName": resource(profile), "selectors": [{"cel": {"expression": expression}}]}
    arena.cluster.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    return f"{GROUP}/deviceclasses/{name}"


def make_template(arena: Arena, profile: str, name: str) -> None:
    """Make a ResourceClaimTemplate for one instance of a profile."""
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": _class_name(arena, profile)}}]}}
    template = {"metadata": {"name": name}, "spec": {"spec": claim}}
    arena.cluster.api.post(f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates", template)


def resource(profile: str) -> str:
    """Return the resource by which pods request an instance of a profile: `nvidia.com/mig-1g.10gb.me`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def _class_name(arena: Arena, profile: str) -> str:
    return f"{arena.id}.mig-{profile.replace('+', '.')}.{DRA_DRIVER}"


def open_cards(stage: Stage, value: str | None) -> None:
    """Set which cards of the node are open for instances; None for none."""
    stage.arena.merge("nodes", stage.node.name, {"metadata": {"labels": {PARTITIONS_KEY: value}}})


def _device(stage: Stage, pod: Manifest) -> str:
    """Return the name of the device that a pod's claim has."""
    [result] = stage.arena.get("resourceclaims", claim_of(pod))["status"]["allocation"]["devices"]["results"]
    return str(result["device"])


def _nodes(stage: Stage, pod: Manifest) -> set[str]:
    return {device for device in stage.node.container(pod).devices if device.startswith("nvidia")}
