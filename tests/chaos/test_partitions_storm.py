"""Claims for MIG instances and shares while the programs are killed: a short part of `make partitions-storm`.

The other tests inject what the audit must find.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson
import pytest

from devcluster import Arena
from tests.chaos.partitions_auditor import MIB, Auditor, Findings, Part
from tests.chaos.partitions_storm import add_foreign, opened_cards, storm
from tests.nvml.fixture import NvmlFixture
from tests.nvml.mig_profiles import H100_80

CLAIMS: Final = 24
SEED: Final = int(datetime.now(UTC).strftime("%Y%m%d"))
PROFILE: Final = {profile.name: profile for profile in H100_80}
LAST: Final = len(opened_cards()) - 1


@pytest.mark.timeout(600)
def test_no_instance_overlaps_or_is_left_over_whatever_is_killed(arena: Arena) -> None:
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        run = asyncio.run(storm(arena, Path(folder), claims=CLAIMS, seed=SEED, kill_share=0.15))
    summary = run.summary()
    sys.stdout.write(f"seed {SEED}: {summary}\n")
    assert {kind: texts for kind, texts in run.findings().items() if texts} == {}
    assert summary["claims"] == CLAIMS
    assert summary["kills"]


class Scene:
    """A machine with foreign instances, its auditor, and two claims."""

    def __init__(self, folder: Path) -> None:
        self.machine = NvmlFixture(folder, gpus=opened_cards())
        add_foreign(self.machine)
        self.cards = [gpu.uuid for gpu in self.machine.gpus]
        self.record = folder / "partitions.json"
        self.auditor = Auditor(self.machine, cdi=folder / "cdi", records={self.record: "partitions"})
        self.machine.add_instance(0, PROFILE["3g.40gb"], 4)
        self.prepared: dict[str, Sequence[Part]] = {
            "instance": [Part(card=self.cards[0], profile="3g.40gb", slices=frozenset(range(4, 8)))],
            "foreign": [Part(card=self.cards[LAST], profile="3g.40gb")],
            "whole": [Part(card=self.cards[1])],
        }

    def found(self, prepared: Mapping[str, Sequence[Part]]) -> set[str]:
        """Return the kinds of findings."""
        self.auditor.look(prepared)
        kinds = (kind.name for kind in fields(Findings))
        return {kind for kind in kinds if getattr(self.auditor.findings, kind)}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    assert made.found(made.prepared) == set()
    return made


def share(card: str, *, part: float, cores: int) -> list[Part]:
    return [Part(card=card, memory=int(81559 * part), cores=cores)]


INJECTED: Final[Mapping[str, tuple[str, Callable[[Scene], object]]]] = {
    "two instances at one place": (
        "overlapping",
        lambda scene: scene.machine.add_instance(0, PROFILE["1g.10gb"], 6),
    ),
    "an instance on a whole card": (
        "overlapping",
        lambda scene: scene.machine.add_instance(1, PROFILE["1g.10gb"], 0),
    ),
    "a second claim of the whole card": (
        "overlapping",
        lambda scene: scene.prepared.update(second=scene.prepared["whole"]),
    ),
    "a second claim of a foreign instance": (
        "overlapping",
        lambda scene: scene.prepared.update(second=scene.prepared["foreign"]),
    ),
    "the instance of a claim is gone": ("lost", lambda scene: scene.machine.remove_instances(0)),
    "foreign instances are gone": ("foreign_touched", lambda scene: scene.machine.remove_instances(LAST)),
    "too much memory": (
        "over_shared",
        lambda scene: scene.prepared.update(
            whole=share(scene.cards[1], part=0.5, cores=10), second=share(scene.cards[1], part=0.51, cores=10)
        ),
    ),
    "too many cores": (
        "over_shared",
        lambda scene: scene.prepared.update(
            whole=share(scene.cards[1], part=0.4, cores=50), second=share(scene.cards[1], part=0.4, cores=51)
        ),
    ),
}


@pytest.mark.parametrize("name", INJECTED)
def test_the_audit_finds_what_is_injected(scene: Scene, name: str) -> None:
    kind, inject = INJECTED[name]
    assert scene.machine.gpus[1].memory == 81559 * MIB
    inject(scene)
    assert scene.found(scene.prepared) == {kind}


def test_the_audit_finds_what_is_left_over(scene: Scene) -> None:
    assert [text.partition(" has ")[0] for text in scene.auditor.rest()] == [scene.cards[0]]
    scene.machine.remove_instances(0)
    assert scene.auditor.rest() == []
    scene.record.write_bytes(orjson.dumps({"partitions": {"claim/gpu": {}}}))
    assert scene.auditor.rest() == ["partitions.json has claim/gpu"]
