"""The audit of Devices finds each kind of lie."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.device_auditor import OTHERS, Facts, facts, lies
from tests.nvml.fixture import NvmlFixture, a100, h100, mig_uuid, with_profiles
from tests.nvml.mig_profiles import H100_80

PROFILE: Final = {profile.name: profile for profile in H100_80}
BY_NAME, WHOLE, FOREIGN = [a100(0), *(with_profiles(h100(index), H100_80) for index in (1, 2))]
NUMBER: Final = 2
"""Of the GPU instance on the last card."""
INSTANCE: Final = mig_uuid(FOREIGN.uuid, NUMBER, 0)
ON_DEMAND: Final = f"{WHOLE.uuid.lower()}-3g-40gb-{PROFILE['3g.40gb'].id}-4"
CLAIMED: Final = {("shared", INSTANCE.lower()), ("made", ON_DEMAND)}


class Scene:
    """A card by name, one with an instance on demand, one with instances of others, and a Device that is true."""

    def __init__(self, folder: Path) -> None:
        gpus = [replace(gpu, fails=dict(gpu.fails)) for gpu in (BY_NAME, WHOLE, FOREIGN)]
        self.machine = NvmlFixture(folder, gpus=gpus)
        self.machine.write()
        self.machine.add_instance(1, PROFILE["3g.40gb"], 4)
        self.machine.add_instance(2, PROFILE["3g.40gb"], 4)
        self.machine.add_instance(2, PROFILE["1g.10gb"], 0, complete=False)
        shown = {"id": INSTANCE, "profile": "3g.40gb", "gpuInstance": NUMBER, "computeInstance": 0, "memory": "40Gi"}
        off = {"enabled": False, "instances": []}
        entries = [{"namespace": "team", "claim": claim, "device": device} for claim, device in sorted(CLAIMED)]
        self.device: dict[str, Any] = {
            "spec": {
                "devices": [
                    {"id": BY_NAME.uuid, "minor": 0, "health": True, "mig": off},
                    {"id": WHOLE.uuid, "minor": 1, "health": True, "mig": copy.deepcopy(off)},
                    {"id": FOREIGN.uuid, "minor": 2, "health": True, "mig": {"enabled": True, "instances": [shown]}},
                ]
            },
            "status": {"held": [_held("pod", BY_NAME.uuid)], "claimed": entries},
        }
        self.held: Mapping[str, set[str]] = {"pod": {BY_NAME.uuid}}

    @property
    def cards(self) -> list[dict[str, Any]]:
        """Return what the Device lists."""
        cards: list[dict[str, Any]] = self.device["spec"]["devices"]
        return cards

    @property
    def real(self) -> Facts:
        """Return what is true."""
        return facts(self.machine, on_demand={WHOLE.uuid}, held=self.held, claimed=CLAIMED)

    def found(self) -> set[tuple[str, str]]:
        """Return which card, and what of it, each lie names."""
        texts = lies(self.device, self.real)
        parted = [text.split(": the Device says ") for text in texts]
        return {(card, what.split()[0]) for card, what in parted}


def _held(pod: str, card: str) -> dict[str, Any]:
    return {"pod": pod, "container": "main", "devices": [{"type": "gpu", "minor": 0, "id": card}]}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    assert lies(made.device, made.real) == []
    return made


def _fail(scene: Scene, index: int) -> None:
    scene.machine.gpus[index].remapped_failure = True


def _change_instance(fields: Mapping[str, object], scene: Scene) -> None:
    scene.cards[2]["mig"]["instances"][0].update(fields)


Lie = tuple[set[tuple[str, str]], Callable[[Scene], object]]
LIES: Final[Mapping[str, Lie]] = {
    "a card fell off the bus": ({(BY_NAME.uuid, "health")}, lambda scene: scene.machine.lose(0)),
    "a card failed": ({(WHOLE.uuid, "health")}, lambda scene: _fail(scene, 1)),
    "a card recovered": ({(FOREIGN.uuid, "health")}, lambda scene: scene.cards[2].update(health=False)),
    "two numbers were exchanged": (
        {(BY_NAME.uuid, "minor"), (WHOLE.uuid, "minor")},
        lambda scene: (scene.cards[0].update(minor=1), scene.cards[1].update(minor=0)),
    ),
    "a card is missing": (
        {(BY_NAME.uuid, what) for what in ("minor", "health", "mig")},
        lambda scene: scene.cards.pop(0),
    ),
    "a card is not there any more": (
        {(FOREIGN.uuid, what) for what in ("minor", "health", "mig")},
        lambda scene: scene.machine.gpus.pop(2),
    ),
    "instances of others are gone": ({(FOREIGN.uuid, "mig")}, lambda scene: scene.machine.remove_instances(2)),
    "an instance of others is new": (
        {(FOREIGN.uuid, "mig")},
        lambda scene: scene.machine.add_instance(2, PROFILE["1g.10gb"], 1),
    ),
    "an instance on demand is listed": (
        {(WHOLE.uuid, "mig")},
        lambda scene: scene.cards[1].update(mig=scene.cards[2]["mig"]),
    ),
    "a card has no MIG": ({(WHOLE.uuid, "mig")}, lambda scene: scene.cards[1].pop("mig")),
    "an instance on demand is not made": ({(WHOLE.uuid, "instances")}, lambda scene: scene.machine.remove_instances(1)),
    "an instance on demand is of no claim": (
        {(WHOLE.uuid, "instances"), (WHOLE.uuid, "claimed")},
        lambda scene: scene.device["status"]["claimed"].pop(0),
    ),
    "an instance on demand is half made": (
        {(WHOLE.uuid, "instances")},
        lambda scene: scene.machine.add_instance(1, PROFILE["1g.10gb"], 0, complete=False),
    ),
    "a claim that has ended is listed": (
        {(BY_NAME.uuid, "claimed")},
        lambda scene: scene.device["status"]["claimed"].append({"claim": "ended", "device": BY_NAME.uuid.lower()}),
    ),
    "a claim of another's instance is missing": (
        {(OTHERS, "claimed")},
        lambda scene: scene.device["status"]["claimed"].pop(1),
    ),
    "a pod that has ended is listed": (
        {(WHOLE.uuid, "held")},
        lambda scene: scene.device["status"]["held"].append(_held("ended", WHOLE.uuid)),
    ),
    "a pod is missing": ({(BY_NAME.uuid, "held")}, lambda scene: scene.device["status"]["held"].clear()),
    "a pod has another card": (
        {(BY_NAME.uuid, "held"), (FOREIGN.uuid, "held")},
        lambda scene: scene.device["status"].update(held=[_held("pod", FOREIGN.uuid)]),
    ),
    "nothing is reported": (
        {(BY_NAME.uuid, "held"), (WHOLE.uuid, "claimed"), (WHOLE.uuid, "instances"), (OTHERS, "claimed")},
        lambda scene: scene.device.pop("status"),
    ),
    **{
        f"an instance has another {field}": ({(FOREIGN.uuid, "mig")}, partial(_change_instance, {field: value}))
        for field, value in {
            "id": mig_uuid(FOREIGN.uuid, 1, 0),
            "profile": "4g.40gb",
            "gpuInstance": 1,
            "computeInstance": 1,
        }.items()
    },
}


@pytest.mark.parametrize("name", LIES)
def test_the_audit_finds_what_is_not_true(scene: Scene, name: str) -> None:
    found, lie = LIES[name]
    lie(scene)
    assert scene.found() == found


def test_the_audit_finds_that_there_is_no_device(scene: Scene) -> None:
    assert lies({}, scene.real) == ["there is no Device"]


def test_a_finding_says_what_the_device_says_and_what_is_true(scene: Scene) -> None:
    scene.machine.lose(0)
    assert lies(scene.device, scene.real) == [f"{BY_NAME.uuid}: the Device says health True, and it is False"]
