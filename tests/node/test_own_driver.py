"""Berth's own driver on a real node: a claim gets its cards, and no card is given in two ways."""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
import yaml

from berth_api.names import CARDS_KEY, DRA_DRIVER, HELD_BY_NAME
from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.boxes import START_SECONDS, box, running
from tests.node.conftest import KUBELET
from tests.node.dra_driver import GROUP, SLICES
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100
from tests.programs import versions

CARDS: Final = [a100(index) for index in range(3)]
BY_CLASS: Final = 36
"""The minor version of kubelet from which on pods get extended resources by classes."""
RESET_XID: Final = 79
"""After it, a card needs a reset."""
RESTARTED: Final = {
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}],
}
"""Fields of a container whose end by SIGKILL restarts all containers of its pod."""
DEADLINE: Final = START_SECONDS + 90
"""Seconds for a pod to start: kubelet asks a driver that was not registered again only after 60 to 90 s."""


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return the node with Berth, whose agent is a driver, and whose operator has its pools; the cards are by name."""
    options = {"dra": True, "dra_own_pools": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    with Stage(node, arena, tmp_path, gpus=CARDS, **options) as made, classes(arena):
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        try:
            yield made
        finally:
            # Pods cannot end without their driver.
            for name in made.names():
                made.remove(name)
            give_by(made, None)
            made.wait(lambda: not slices(made), what="the slices to go")


def test_pods_with_claims_get_their_cards_and_no_others(stage: Stage) -> None:
    assert slices(stage) == []
    give_by(stage, "claims")
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="the cards in slices")
    stage.wait(lambda: stage.node.allocatable(GPU) == 0, what="no card for kubelet's device API")

    pod = by_claim(stage, "by-kube-scheduler", DEFAULT_SCHEDULER)
    assert_has_its_card(stage, pod)
    assert len(files(stage)) == 1
    stage.remove("by-kube-scheduler")
    assert files(stage) == []

    # A pool has one scheduler at a time.
    berth = stage.arena.scheduler_name
    first, second = by_claim(stage, "first", berth), by_claim(stage, "second", berth)
    cards = [assert_has_its_card(stage, pod) for pod in (first, second)]
    assert len(set(cards)) == len(cards)

    # An agent that is killed leaves pods and slices; the next one serves both.
    before = slices(stage)
    stage.agent.kill()
    stage.start_agent()
    shared = by_claim(stage, "shared", berth, claim=claim_of(second))
    assert assert_has_its_card(stage, shared) == cards[1]
    assert slices(stage) == before

    # A new kubelet finds the driver again, with the claims that run.
    stage.node.restart_daemon("kubelet")
    if versions.minor(KUBELET) >= BY_CLASS:
        stage.submit({GPU: "1"}, "by-class")
        by_class = assert_has_its_card(stage, running(stage.arena, "by-class", deadline=DEADLINE))
        assert by_class not in cards
        stage.remove("by-class")
    else:
        by_claim(stage, "again", berth)
        stage.remove("again")
    stage.wait(lambda: devices(slices(stage)) == devices(before), what="the slices to be back")

    # Cards that claims hold stay with them when the others are given by name.
    give_by(stage, "name")
    stage.wait(lambda: stage.node.allocatable(GPU) == 1, what="the free card by name")
    stage.wait(lambda: slices(stage) == [], what="the slices to go")
    stage.submit({GPU: "1"}, "by-name")
    stage.hold("by-name")
    assert not set(stage.cards("by-name")) & set(cards)
    give_by(stage, "claims")
    stage.wait(lambda: len(slices(stage)) == len(CARDS) - 1, what="all cards but the one by name in slices")
    assert stage.is_running("by-name")
    stage.remove("by-name", "first", "second", "shared")
    assert files(stage) == []
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="all cards in slices")


def test_cards_are_given_by_name_and_by_claim_on_one_node(stage: Stage) -> None:
    give_by(stage, "both")
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="all cards in slices")
    assert tainted(stage) == []
    claimed = assert_has_its_card(stage, by_claim(stage, "claimed", stage.arena.scheduler_name))
    stage.wait(lambda: stage.node.allocatable(GPU) == len(CARDS) - 1, what="the claim's card to be withheld")
    stage.submit({GPU: str(len(CARDS) - 1)}, "named")
    stage.hold("named")
    named = stage.cards("named")
    assert claimed not in named
    uuids = sorted(card.uuid.lower() for card in CARDS if card.minor in named)
    stage.wait(lambda: tainted(stage) == uuids, what="taints on the cards of the pod by name")

    # Every card is in use, so a new pod waits, also after the agent was killed.
    submit_by_claim(stage, "late", stage.arena.scheduler_name)
    stage.wait(lambda: stage.waits("late"), what="the pod with a claim to wait")
    stage.agent.kill()
    stage.start_agent()
    stage.wait(lambda: stage.node.allocatable(GPU) == len(CARDS) - 1, what="the cards on offer again")
    assert (tainted(stage), stage.waits("late"), stage.is_running("named")) == (uuids, True, True)
    stage.remove("named")
    late = assert_has_its_card(stage, running(stage.arena, "late", deadline=DEADLINE))
    assert late in named
    stage.wait(lambda: tainted(stage) == [], what="the taints to end")

    # No card that a claim holds is given by name when the node's mode changes.
    give_by(stage, "name")
    stage.wait(lambda: slices(stage) == [], what="the slices to go")
    stage.wait(lambda: stage.node.allocatable(GPU) == 1, what="the free card by name")
    stage.submit({GPU: "1"}, "last")
    stage.hold("last")
    assert sorted([claimed, late, *stage.cards("last")]) == [card.minor for card in CARDS]

    # Nor when the driver is switched off. Its pods end when it runs again.
    stage.agent.kill()
    stage.start_agent(dra=None, dra_own_pools=None)
    try:
        stage.remove("last")
        stage.submit({GPU: "1"}, "without")
        stage.hold("without")
        assert stage.node.allocatable(GPU) == 1
        assert sorted([claimed, late, *stage.cards("without")]) == [card.minor for card in CARDS]
    finally:
        stage.agent.kill()
        stage.start_agent()


@pytest.mark.skipif(versions.minor(KUBELET) < BY_CLASS, reason="this kubelet gives pods no resources by class")
def test_after_a_change_of_mode_kubelet_rejects_no_pod_next_to_one_by_class(stage: Stage) -> None:
    give_by(stage, "claims")
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="the cards in slices")
    stage.wait(lambda: stage.node.allocatable(GPU) == 0, what="no card for kubelet's device API")
    stage.submit({GPU: "1"}, "by-class")
    assert_has_its_card(stage, running(stage.arena, "by-class", deadline=DEADLINE))

    # Two cards are offered, and kubelet counts the pod by class as a user of one of them.
    give_by(stage, "name")
    stage.wait(lambda: stage.node.allocatable(GPU) == len(CARDS) - 1, what="the free cards by name")
    stage.submit({GPU: "1"}, "first")
    stage.hold("first")
    stage.submit({GPU: "1"}, "second")
    stage.wait(lambda: stage.waits("second"), what="the second pod to wait")
    assert "Insufficient nvidia.com/gpu" in world.condition(stage.read("second"), "PodScheduled")["message"]
    assert stage.phases() == {"by-class": "Running", "first": "Running", "second": "Pending"}
    stage.remove("by-class")
    stage.hold("second")


@pytest.mark.skipif(versions.minor(KUBELET) < BY_CLASS, reason="this kubelet restarts no containers in place")
def test_pods_whose_containers_restart_in_place_keep_their_cards(stage: Stage) -> None:
    """kubelet ends all containers and starts them again, without a call of a plugin or a driver."""
    give_by(stage, "both")
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="all cards in slices")
    submit_by_claim(stage, "claimed", stage.arena.scheduler_name, container=RESTARTED)
    claimed = assert_has_its_card(stage, running(stage.arena, "claimed", deadline=DEADLINE))
    pod = box(stage.arena, "named", limits={GPU: "1"})
    pod["spec"]["containers"][0] |= RESTARTED
    stage.arena.create([pod])
    stage.hold("named")
    named = stage.cards("named")
    for name in ("claimed", "named"):
        assert stage.read(name)["spec"]["containers"][0].items() >= RESTARTED.items()
        before = stage.node.container(stage.read(name))
        os.kill(before.pid, signal.SIGKILL)
        stage.wait(lambda: restarts(stage.read(name)) == 1, what=f"{name} to restart", deadline=DEADLINE)  # noqa: B023 - called at once
        assert stage.node.container(running(stage.arena, name, deadline=DEADLINE)).id != before.id
    assert assert_has_its_card(stage, stage.read("claimed")) == claimed
    stage.hold("named")
    assert stage.cards("named") == named


@pytest.mark.skipif(versions.minor(KUBELET) < BY_CLASS, reason="this kubelet gives pods no resources by class")
def test_pods_by_claim_and_by_class_leave_cards_that_need_a_reset(stage: Stage, tmp_path: Path) -> None:
    stage.operator.stop()
    stage.start_operator(config=own_pools(stage.arena, tmp_path), scheduler_names=None, evictions_per_minute=600)
    give_by(stage, "claims")
    stage.wait(lambda: len(slices(stage)) == len(CARDS), what="the cards in slices")
    stage.wait(lambda: stage.node.allocatable(GPU) == 0, what="no card for kubelet's device API")
    failed = [assert_has_its_card(stage, by_claim(stage, "claimed", stage.arena.scheduler_name))]
    stage.submit({GPU: "1"}, "by-class")
    failed.append(assert_has_its_card(stage, running(stage.arena, "by-class", deadline=DEADLINE)))
    kept = assert_has_its_card(stage, by_claim(stage, "kept", stage.arena.scheduler_name))
    for minor in failed:
        stage.machine.xid(minor, RESET_XID)
    stage.wait(lambda: stage.names() == {"kept"}, what="the pods to be evicted", deadline=DEADLINE)
    assert assert_has_its_card(stage, stage.read("kept")) == kept


def restarts(pod: Manifest) -> int:
    """Return how often a pod's container was started again."""
    [status] = pod["status"]["containerStatuses"]
    return int(status["restartCount"])


def tainted(stage: Stage) -> list[str]:
    """Return the names of the devices that slices list with the taint of pods by name."""
    listed = [device for spec in slices(stage) for device in spec["devices"]]
    return sorted(
        device["name"] for device in listed if HELD_BY_NAME in [taint["key"] for taint in device.get("taints", ())]
    )


def by_claim(stage: Stage, name: str, scheduler: str, *, claim: str = "", template: str = "one") -> Manifest:
    """Create a pod with a claim, its own of a template or an existing one, and return it once it runs."""
    submit_by_claim(stage, name, scheduler, claim=claim, template=template)
    return running(stage.arena, name, deadline=DEADLINE)


def submit_by_claim(
    stage: Stage,
    name: str,
    scheduler: str,
    *,
    claim: str = "",
    template: str = "one",
    container: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Create a pod with a claim, its own of a template or an existing one; `container` has fields of its container."""
    pod = box(stage.arena, name, scheduler_name=scheduler)
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    pod["spec"]["containers"][0] |= container
    stage.arena.create([pod])


def claim_of(pod: Manifest) -> str:
    """Return the name of a pod's claim."""
    if extended := pod["status"].get("extendedResourceClaimStatus"):
        return str(extended["resourceClaimName"])
    [source] = pod["spec"]["resourceClaims"]
    return str(source.get("resourceClaimName") or pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])


def assert_has_its_card(stage: Stage, pod: Manifest) -> int:
    """Check that a pod's container has the device nodes of its claim's card, and no other's; return the minor."""
    claim = stage.arena.get("resourceclaims", claim_of(pod))
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (DRA_DRIVER, stage.node.name)
    [card] = [card for card in CARDS if card.uuid.lower() == result["device"]]
    container = stage.node.container(pod)
    nodes = {device for device in container.devices if device.startswith("nvidia")}
    assert nodes == {"nvidiactl", "nvidia-uvm", f"nvidia{card.minor}"}
    assert container.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    return card.minor


def slices(stage: Stage) -> list[Manifest]:
    """Return the specs of the driver's slices, by their names."""
    items = stage.node.cluster.api.get(SLICES, fieldSelector=f"spec.driver={DRA_DRIVER}")["items"]
    return [one["spec"] for one in sorted(items, key=lambda one: str(one["metadata"]["name"]))]


def devices(specs: list[Manifest]) -> list[str]:
    """Return the names of the devices of slices."""
    return sorted(device["name"] for spec in specs for device in spec.get("devices", ()))


def files(stage: Stage) -> list[str]:
    """Return the CDI files of claims."""
    return [name for name in os.listdir(stage.node.cdi) if DRA_DRIVER in name]  # noqa: PTH208 - names, not paths


def give_by(stage: Stage, mode: str | None) -> None:
    """Set how the node's cards are given; None for the default."""
    stage.arena.merge("nodes", stage.node.name, {"metadata": {"labels": {CARDS_KEY: mode}}})


@contextlib.contextmanager
def classes(arena: Arena) -> Iterator[None]:
    """Make a DeviceClass of the driver's whole cards, and a ResourceClaimTemplate for one."""
    api = arena.cluster.api
    expression = f'device.driver == "{DRA_DRIVER}" && device.attributes["{DRA_DRIVER}"].type == "gpu"'
    device_class = f"{arena.id}.{DRA_DRIVER}"
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": GPU}
    api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": device_class}, "spec": spec})
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}
    template = {"metadata": {"name": "one"}, "spec": {"spec": claim}}
    api.post(f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates", template)
    try:
        yield
    finally:
        api.delete(f"{GROUP}/deviceclasses/{device_class}")


def own_pools(arena: Arena, folder: Path) -> Path:
    """Write the configuration of an operator that has the pools of the driver, and return its file."""
    file = folder / "berth.yaml"
    body = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [{"schedulerName": arena.scheduler_name}],
        "claims": {"drivers": [DRA_DRIVER]},
    }
    file.write_text(yaml.safe_dump(body))
    return file
