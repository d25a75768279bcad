"""Pods with claims of Berth's own driver on a real node: every kind of container, and the faults of a card."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api import names
from berth_api.names import DRA_DRIVER
from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.boxes import START_SECONDS, box, running
from tests.node.dra_driver import GROUP, SLICES
from tests.node.stage import Stage
from tests.node.test_choice_holds import divided
from tests.node.test_own_driver import give_by
from tests.nvml.fixture import NvmlFixture, a100

CARD, DIVIDED = a100(0), divided(1)
DEADLINE: Final = START_SECONDS + 90
"""Seconds for a pod to start: kubelet asks a driver that was not registered again only after 60 to 90 s."""
QUIET: Final = 4.0
LOOK: Final = ["list", "/dev"]
CONTROL: Final = {"nvidiactl", "nvidia-uvm"}


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return a node that gives its cards by claim: a whole card, and the three instances of another."""
    options = {"dra": True, "kubelet_folder": node.root, "resync_interval": 1.0, "quiet_period": QUIET}
    with Stage(node, arena, tmp_path, gpus=[CARD, DIVIDED], **options) as made, _classes(arena):
        give_by(made, "claims")
        made.wait(lambda: len(taints(made)) == 1 + len(DIVIDED.migs), what="the card and the instances in slices")
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            for name in made.names():
                made.remove(name)
            give_by(made, None)
            made.wait(lambda: not taints(made), what="the slices to go")


def test_every_kind_of_container_has_the_device_of_its_claim(stage: Stage) -> None:
    stage.arena.create([by_claim(stage, "small", "mig"), by_claim(stage, "whole", "gpu")])
    for name, card in (("small", DIVIDED), ("whole", CARD)):
        pod = running(stage.arena, name, deadline=DEADLINE)
        claim = stage.arena.get("resourceclaims", pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])
        [result] = claim["status"]["allocation"]["devices"]["results"]
        assert result["device"] in {uuid.lower() for uuid in [mig.uuid for mig in card.migs] or [card.uuid]}
        for container in ("first", "sidecar", "main"):
            seen = {line for line in stage.node.output(pod, container).splitlines() if line.startswith("nvidia")}
            assert seen == {*CONTROL, f"nvidia{card.minor}"}, container
        assert "nvidia0" not in stage.node.output(pod, "without")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the catalogue, what causes it, and what ends it; None if time does."""

    kind: str
    cause: Callable[[Stage], object]
    end: Callable[[Stage], object] | None


def change(**fields: Any) -> Callable[[Stage], None]:
    """Return what changes the card."""

    def apply(stage: Stage) -> None:
        for name, value in fields.items():
            setattr(stage.machine.gpus[0], name, value)
        stage.machine.write()

    return apply


def annotate(annotation: str, value: str | None) -> Callable[[Stage], object]:
    """Return what annotates the Device."""
    return lambda stage: stage.arena.merge(
        "devices", stage.node.name, {"metadata": {"annotations": {annotation: value}}}
    )


def machine(act: Callable[[NvmlFixture], object]) -> Callable[[Stage], None]:
    """Return what happens to the machine."""

    def apply(stage: Stage) -> None:
        act(stage.machine)

    return apply


def recovered(stage: Stage) -> None:
    """Call the card recovered."""
    change(lost=False)(stage)
    annotate(names.RECOVERED_DEVICES, CARD.uuid)(stage)


FAULTS: Final = (
    Fault("Xid94", machine(lambda cards: cards.xid(0, 94)), None),
    Fault("Xid48", machine(lambda cards: cards.xid(0, 48)), recovered),
    Fault("Xid79", machine(lambda cards: cards.xid(0, 79)), recovered),
    Fault("DoubleBitEcc", machine(lambda cards: cards.double_bit_error(0)), recovered),
    Fault("GpuIsLost", change(lost=True), recovered),
    Fault("RowRemapFailed", change(remapped_failure=True), change(remapped_failure=False)),
    Fault("DriverNeedsReset", change(recovery_action=1), change(recovery_action=0)),
    Fault("Cordoned", annotate(names.CORDONED_DEVICES, "gpu/0"), annotate(names.CORDONED_DEVICES, None)),
)


def test_faults_are_taints_and_the_health_in_the_status_of_pods(stage: Stage) -> None:
    stage.arena.create([by_claim(stage, "pod", "gpu")])
    started = stage.node.container(running(stage.arena, "pod", deadline=DEADLINE)).started
    device = CARD.uuid.lower()
    stage.wait(lambda: health(stage.read("pod")) == ["Healthy"], what="the health in the pod's status")
    for fault in FAULTS:
        fault.cause(stage)
        stage.wait(lambda fault=fault: taints(stage)[device] == [(fault.kind, "NoSchedule")], what=fault.kind)
        stage.wait(lambda: health(stage.read("pod")) == ["Unhealthy"], what=f"{fault.kind} in the pod's status")
        if fault.end:
            fault.end(stage)
        stage.wait(lambda: not any(taints(stage).values()), what=f"the end of {fault.kind}")
        stage.wait(lambda: health(stage.read("pod")) == ["Healthy"], what=f"the health after {fault.kind}")
    assert stage.node.container(stage.read("pod")).started == started


def by_claim(stage: Stage, name: str, template: str) -> Manifest:
    """Return a pod with a claim of one device for an init container, a sidecar and its main container."""
    pod = box(stage.arena, name, words=[*LOOK, "wait"], scheduler_name=DEFAULT_SCHEDULER)
    spec = pod["spec"]
    [main] = spec["containers"]
    without = {**main, "name": "without"}
    main["resources"] = {"claims": [{"name": "device"}]}
    spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": template}]
    first = {**main, "name": "first", "args": [*LOOK, "exit", "0"]}
    spec["initContainers"] = [first, {**main, "name": "sidecar", "restartPolicy": "Always"}]
    spec["containers"] = [main, without]
    return pod


def health(pod: Manifest) -> list[str]:
    """Return the health of the devices of a pod's main container, as kubelet has it."""
    [main] = [status for status in pod["status"]["containerStatuses"] if status["name"] == "main"]
    return [resource["health"] for shown in main.get("allocatedResourcesStatus", ()) for resource in shown["resources"]]


def taints(stage: Stage) -> dict[str, list[tuple[str, str]]]:
    """Return the values and effects of the driver's taints by device, as the slices list them."""
    items = stage.node.cluster.api.get(SLICES, fieldSelector=f"spec.driver={DRA_DRIVER}")["items"]
    return {
        device["name"]: [(taint["value"], taint["effect"]) for taint in device.get("taints", ())]
        for item in items
        for device in item["spec"]["devices"]
    }


@contextmanager
def _classes(arena: Arena) -> Iterator[None]:
    """Make a DeviceClass, and a ResourceClaimTemplate for one device, of each type."""
    api = arena.cluster.api
    for kind in ("gpu", "mig"):
        expression = f'device.driver == "{DRA_DRIVER}" && device.attributes["{DRA_DRIVER}"].type == "{kind}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": f"{arena.id}.{kind}"}, "spec": spec})
        claim = {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": f"{arena.id}.{kind}"}}]}}
        template = {"metadata": {"name": kind}, "spec": {"spec": claim}}
        api.post(f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates", template)
    try:
        yield
    finally:
        for kind in ("gpu", "mig"):
            api.delete(f"{GROUP}/deviceclasses/{arena.id}.{kind}")
