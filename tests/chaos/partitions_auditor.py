"""Audit which MIG instances are on the cards, and which parts of cards claims have; it shares no code with the agent.

It reads the file in which the simulated NVML keeps its instances, and compares it with the ledger of the client that
called the driver.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from tests.nvml.fixture import Gpu, MadeInstance, NvmlFixture

CORES: Final = 100
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a claim has of a card; the whole card if nothing else is set."""

    card: str
    """UUID."""
    profile: str = ""
    """Name of the MIG profile; empty if it is no instance."""
    slices: frozenset[int] = frozenset()
    """Memory slices of an instance that is made on demand; empty if it was there before."""
    memory: int = 0
    """MiB of a share."""
    cores: int = 0
    """Hundredths of a share."""


@dataclass(kw_only=True)
class Findings:
    """What a run found wrong, in words."""

    overlapping: list[str] = field(default_factory=list)
    """Instances or claims that overlap."""
    left_over: list[str] = field(default_factory=list)
    """Instances, files and records that are there although no claim is prepared."""
    foreign_touched: list[str] = field(default_factory=list)
    """Instances of others that are gone or changed."""
    lost: list[str] = field(default_factory=list)
    """Instances of prepared claims that are not there."""
    over_shared: list[str] = field(default_factory=list)
    """Cards whose shares are more than the card."""
    stuck: list[str] = field(default_factory=list)
    """Calls that did not succeed in time, and programs that ended by themselves."""
    untrue: list[str] = field(default_factory=list)
    """What a Device said that was not true, and CDI files that were lost, although nothing had happened for a while."""


class Auditor:
    """Looks at one node."""

    def __init__(self, machine: NvmlFixture, *, cdi: Path, records: Mapping[Path, str]) -> None:
        """Remember the instances that are there: they are foreign.

        Args:
            machine: the cards.
            cdi: the folder of CDI files.
            records: the files in which programs record claims and partitions, with the key of their entries.
        """
        self._machine = machine
        self._cdi = cdi
        self._records = records
        self._foreign = self._instances()
        self.findings = Findings()

    def look(self, prepared: Mapping[str, Iterable[Part]]) -> None:
        """Compare the cards with the claims that are prepared now, by name."""
        instances = self._instances()
        parts = [(claim, part) for claim, own in prepared.items() for part in own]
        for gpu in self._machine.gpus:
            there = instances[gpu.uuid]
            for one, other in itertools.combinations(there, 2):
                if _slices(gpu, one) & _slices(gpu, other):
                    self._add("overlapping", f"{gpu.uuid} has {one} and {other}")
            for foreign in self._foreign[gpu.uuid]:
                if foreign not in there:
                    self._add("foreign_touched", f"{gpu.uuid} had {foreign}, and has {there}")
            own = [(claim, part) for claim, part in parts if part.card == gpu.uuid]
            for claim, part in own:
                self._look_at(gpu, claim, part, there)
            for (claim, part), (other_claim, other_part) in itertools.combinations(own, 2):
                if _exclude(part, other_part):
                    self._add("overlapping", f"{claim} and {other_claim} both have {part} and {other_part}")
        self._sum(parts)

    def rest(self) -> list[str]:
        """Return what is left when no claim is prepared."""
        left = [
            f"{uuid} has {instance}"
            for uuid, instances in self._instances().items()
            for instance in instances
            if instance not in self._foreign[uuid]
        ]
        left += [str(path) for path in self._cdi.glob("*-claim*")]
        for path, key in self._records.items():
            if path.exists():
                left += [f"{path.name} has {name}" for name in orjson.loads(path.read_bytes())[key]]
        return left

    def _look_at(self, gpu: Gpu, claim: str, part: Part, there: Iterable[MadeInstance]) -> None:
        if part.slices:
            wanted = [one for one in there if _name(gpu, one) == part.profile and _slices(gpu, one) == part.slices]
            if [len(one.computes) for one in wanted] != [1]:
                self._add("lost", f"{claim} has {part}, and {gpu.uuid} has {there}")
        elif not part.profile and not part.memory and there:
            self._add("overlapping", f"{claim} has the whole {gpu.uuid}, which has {there}")

    def _sum(self, parts: Iterable[tuple[str, Part]]) -> None:
        memory, cores = Counter[str](), Counter[str]()
        for _, part in parts:
            memory[part.card] += part.memory
            cores[part.card] += part.cores
        for gpu in self._machine.gpus:
            if memory[gpu.uuid] > gpu.memory // MIB or cores[gpu.uuid] > CORES:
                self._add("over_shared", f"{gpu.uuid} has shares of {memory[gpu.uuid]} MiB, {cores[gpu.uuid]} cores")

    def _add(self, kind: str, text: str) -> None:
        """Add a finding once: each look finds it again."""
        texts = getattr(self.findings, kind)
        if text not in texts:
            texts.append(text)

    def _instances(self) -> dict[str, list[MadeInstance]]:
        return {gpu.uuid: self._machine.gpu_instances(index) for index, gpu in enumerate(self._machine.gpus)}


def _exclude(one: Part, other: Part) -> bool:
    """Return whether no two claims may have both parts of a card."""
    if one.memory and other.memory:
        return False
    if one.slices and other.slices:
        return bool(one.slices & other.slices)
    return True if not (one.profile and other.profile) else one == other


def _slices(gpu: Gpu, instance: MadeInstance) -> frozenset[int]:
    [size] = [profile.size for profile in gpu.profiles if profile.id == instance.profile]
    return frozenset(range(instance.start, instance.start + size))


def _name(gpu: Gpu, instance: MadeInstance) -> str:
    return next(profile.name for profile in gpu.profiles if profile.id == instance.profile)
