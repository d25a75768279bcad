"""Pods with ResourceClaims on a real node: a real driver gives them devices, and Berth charges the cards."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from devcluster import Arena
from devcluster.arena import DEFAULT_SCHEDULER
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node import dra_driver as drivers
from tests.node.boxes import box, running
from tests.node.dra_driver import DraDriver
from tests.node.stage import SHARE, Stage
from tests.nvml.fixture import a100

CARDS: Final = [a100(index) for index in range(3)]
DEVICES: Final = {f"gpu-{card.minor}": card.address for card in CARDS[:2]}
"""The PCI addresses of the driver's devices; the last card is none of them."""

Holders = Mapping[int, list[tuple[str, str]]]
"""Minor of a card -> the names and UIDs of what holds it."""


@pytest.fixture
def dra_driver(request: pytest.FixtureRequest, node: RealNode, arena: Arena) -> Iterator[DraDriver]:
    """Return the running driver, with a template for claims; the parameter has the addresses of its devices, if any."""
    policy = drivers.addressed(arena, request.param) if request.param else contextlib.nullcontext()
    with policy, DraDriver(node, devices=len(DEVICES)) as driver, drivers.template(arena, "one"):
        yield driver


@pytest.fixture
def stage(
    node: RealNode,
    arena: Arena,
    dra_driver: DraDriver,
    tmp_path: Path,
) -> Iterator[Stage]:
    """Return the node with Berth and the driver, whose pods go before it does."""
    assert dra_driver.devices().keys() == DEVICES.keys()
    with Stage(node, arena, tmp_path, gpus=CARDS) as made:
        yield made


def by_claim(stage: Stage, name: str, scheduler: str) -> Manifest:
    """Create a pod with a claim of one device, and return it once it runs."""
    pod = box(stage.arena, name, scheduler_name=scheduler)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    stage.arena.create([pod])
    return running(stage.arena, name)


def claim_of(stage: Stage, pod: Manifest) -> tuple[Manifest, str]:
    """Return the claim of a pod, and its device."""
    [claimed] = pod["status"]["resourceClaimStatuses"]
    claim = stage.arena.get("resourceclaims", claimed["resourceClaimName"])
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (drivers.NAME, stage.node.name)
    return claim, result["device"]


def assert_injected(stage: Stage, pod: Manifest, claim: Manifest, device: str) -> None:
    """Check the variables that the driver sets by CDI."""
    variables = stage.node.container(pod).environment
    own = {name: value for name, value in variables.items() if name.startswith("GPU_DEVICE_")}
    number = device.removeprefix("gpu-")
    assert own[f"GPU_DEVICE_{number}"] == device
    assert own[f"GPU_DEVICE_{number}_RESOURCE_CLAIM"] == claim["metadata"]["uid"]
    assert all(name.startswith(f"GPU_DEVICE_{number}") for name in own)
    assert variables["DRA_RESOURCE_DRIVER_NAME"] == drivers.NAME


def reported(stage: Stage, claim: Manifest, device: str) -> bool:
    """Return whether the agent reports the device of a claim, and no other, as kubelet does to it."""
    metadata = claim["metadata"]
    own = {"namespace": metadata["namespace"], "claim": metadata["name"], "driver": drivers.NAME}
    return bool(stage.device()["status"].get("claimed") == [{**own, "pool": stage.node.name, "device": device}])


def holders(stage: Stage) -> Holders:
    """Return what holds the cards, as the Device shows it."""
    uses = stage.device()["status"].get("devices", ())
    return {use["minor"]: [(each["name"], each["uid"]) for each in use["holders"]] for use in uses if use["holders"]}


def given_by_name(stage: Stage) -> str:
    """Return the status of the Device's condition `GivenByName`; it has none while all cards are given by name."""
    return str(world.condition(stage.device(), "GivenByName").get("status", ""))


@pytest.mark.parametrize("dra_driver", [DEVICES], indirect=True, ids=["addressed"])
def test_a_claim_is_charged_its_card_until_its_container_ends(stage: Stage) -> None:
    stage.wait(lambda: given_by_name(stage) == "False", what="the listed cards to be kept")
    pod = by_claim(stage, "by-claim", DEFAULT_SCHEDULER)
    claim, device = claim_of(stage, pod)
    assert_injected(stage, pod, claim, device)
    card, name = int(device.removeprefix("gpu-")), claim["metadata"]["name"]
    held = {card: [(f"resourceclaim/{name}", claim["metadata"]["uid"])]}
    stage.wait(lambda: holders(stage) == held, what="the claim to be charged")
    stage.wait(lambda: reported(stage, claim, device), what="the agent to report the device")

    stage.submit({SHARE: "100"}, "by-name")
    stage.hold("by-name")
    assert stage.cards("by-name") == [CARDS[-1].minor]
    stage.submit({SHARE: "200"}, "two")
    stage.wait(lambda: stage.waits("two"), what="a pod to wait for cards of the driver")
    reason = world.condition(stage.read("two"), "PodScheduled")["message"]
    assert f"listed by {drivers.NAME} for ResourceClaims" in reason

    stage.arena.merge("resourceclaims", name, {"metadata": {"finalizers": None}})
    stage.arena.delete("resourceclaims", name)
    # The name in place of a UID: only the agent knows of it now.
    gone = [(f"resourceclaim/{name}", name)]
    stage.wait(lambda: holders(stage).get(card) == gone, what="what the container has to stay charged")
    stage.remove("by-claim")
    stage.wait(lambda: card not in holders(stage), what="the card to be released")


@pytest.mark.parametrize("dra_driver", [{}], indirect=True, ids=["unaddressed"])
def test_devices_without_an_address_are_no_cards(stage: Stage) -> None:
    pod = by_claim(stage, "by-claim", DEFAULT_SCHEDULER)
    claim, device = claim_of(stage, pod)
    assert_injected(stage, pod, claim, device)
    stage.wait(lambda: reported(stage, claim, device), what="the agent to report the device")
    stage.submit({SHARE: "300"}, "by-name")
    stage.hold("by-name")
    expected = dict.fromkeys(range(3), "by-name")
    stage.wait(lambda: {minor: name for minor, [(name, _)] in holders(stage).items()} == expected, what="the holders")
    assert given_by_name(stage) == ""


@pytest.mark.parametrize("dra_driver", [DEVICES], indirect=True, ids=["addressed"])
def test_berth_gives_the_cards_of_its_pool_by_name_and_by_claim(stage: Stage, tmp_path: Path) -> None:
    stage.operator.stop()
    stage.start_operator(config=pool_of_berth(stage, tmp_path), scheduler_names=None)
    pod = by_claim(stage, "by-claim", stage.arena.scheduler_name)
    claim, device = claim_of(stage, pod)
    assert_injected(stage, pod, claim, device)
    card = int(device.removeprefix("gpu-"))

    stage.submit({SHARE: "200"}, "by-name")
    stage.hold("by-name")
    assert sorted([card, *stage.cards("by-name")]) == [each.minor for each in CARDS]
    stage.submit({SHARE: "100"}, "next")
    stage.wait(lambda: stage.waits("next"), what="a pod to wait for the card of the claim")
    stage.remove("by-claim")
    stage.hold("next")
    assert stage.cards("next") == [card]


def pool_of_berth(stage: Stage, folder: Path) -> Path:
    """Write a configuration by which the driver's pools are Berth's."""
    file = folder / "berth.yaml"
    body = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [{"schedulerName": stage.arena.scheduler_name}],
        "claims": {"drivers": [drivers.NAME]},
    }
    file.write_text(yaml.safe_dump(body))
    return file
