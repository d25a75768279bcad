"""The process that makes MIG instances, on a real card and on a simulated one.

It changes the card's MIG mode, so the real card must be named: `make test-gpu-mig CARD=GPU-…`. Its MIG mode must be off
before. Afterwards it is off again, and no instance is left.
"""

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import pytest

from berth_agent.vendor import PartitionableCard, PartitionProfile, Placement, RefusedError
from berth_agent.vendors.nvidia.partitions.client import PartitionClient
from berth_agent.vendors.nvidia.partitions.server import NAME
from devcluster import waiting
from tests.gpu import clients
from tests.nvml import mig_profiles
from tests.nvml.fixture import NvmlFixture, Process, h100, with_profiles

CARD: Final = "BERTH_MIG_CARD"
"""Environment variable: the UUID of a card whose MIG mode may be changed."""
SMI_SECONDS: Final = 120.0
SOME: Final = 512
"""MiB that a process allocates on an instance."""
KILLS: Final = 8
KEY: Final = "test/one"
PLACEMENTS: Final = re.compile(r"Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d, ]+)\}\s*:\s*(\d+)")


class Bench(Protocol):
    """A card, and what looks at it from outside."""

    card: str
    library: Path | None
    environment: dict[str, str]

    def instances(self) -> list[str]:
        """Return the UUIDs of the card's MIG devices."""

    def placements(self) -> dict[int, tuple[Sequence[int], int]] | None:
        """Return starts and size of each profile by its id, as another program reads them; None if none does."""

    def using(self, instance: str, /) -> AbstractContextManager[int]:
        """Run a process that uses an instance, and return its id."""


@dataclass
class RealCard:
    """The card that the environment names, and nvidia-smi."""

    card: str
    library: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def instances(self) -> list[str]:
        """Return what `nvidia-smi -L` lists below the card."""
        listed = self._smi("-L").split("GPU ")
        return [uuid for part in listed if self.card in part for uuid in re.findall(r"UUID: (MIG-[^)]+)\)", part)]

    def placements(self) -> dict[int, tuple[Sequence[int], int]]:
        """Return what `nvidia-smi mig -lgipp` lists."""
        found = PLACEMENTS.findall(self._smi("mig", "-i", self.card, "-lgipp"))
        return {int(id_): ([int(start) for start in starts.split(",")], int(size)) for id_, starts, size in found}

    @contextlib.contextmanager
    def using(self, instance: str, /) -> Iterator[int]:
        """Compute on it."""
        with clients.client(SOME, CUDA_VISIBLE_DEVICES=instance) as (pid, seen):
            assert (seen["error"], seen["allocated"]) == (0, SOME)
            yield pid

    def _smi(self, *arguments: str) -> str:
        command = ["nvidia-smi", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=SMI_SECONDS).stdout


class SimulatedCard:
    """An H100 of the simulated library."""

    def __init__(self, folder: Path) -> None:
        self._machine = NvmlFixture(folder, gpus=[with_profiles(h100(), mig_profiles.H100_80)])
        self._machine.write()
        self.card = self._machine.gpus[0].uuid
        self.library: Path | None = self._machine.library
        self.environment = self._machine.environment()

    def instances(self) -> list[str]:
        """Return a name for each of those that are complete."""
        return [f"{made.profile} at {made.start}" for made in self._machine.gpu_instances(0) if made.computes]

    def placements(self) -> None:
        """Return nothing: the tables of the simulated library are what the process reads."""

    @contextlib.contextmanager
    def using(self, _instance: str, /) -> Iterator[int]:
        """List a process of this machine as one that uses the last instance that was made."""
        [*_, made] = self._machine.gpu_instances(0)
        with subprocess.Popen(["sleep", "infinity"]) as process:
            used = Process(pid=process.pid, used=SOME << 20, gpu_instance=made.id, compute_instance=made.computes[0])
            self._machine.gpus[0] = replace(self._machine.gpus[0], processes=[used])
            self._machine.write()
            yield process.pid
            process.kill()
        self._machine.gpus[0] = replace(self._machine.gpus[0], processes=[])
        self._machine.write()


@pytest.fixture(params=["real", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Return the named card of this machine, or a simulated one."""
    if request.param == "simulated":
        return SimulatedCard(tmp_path)
    card = os.environ.get(CARD, "")
    if not card:
        pytest.skip("it changes the MIG mode of a card: make test-gpu-mig CARD=GPU-…")
    return RealCard(card)


class Maker:
    """The process, which a test may kill."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench, self._folder = bench, folder
        self.client = PartitionClient(folder / "socket")
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "berth_agent.vendors.nvidia.partitions"]
        options = ["--state", f"{self._folder / 'record'}", "--socket", f"{self._folder / 'socket'}"]
        if self._bench.library:
            options += ["--nvml-library", f"{self._bench.library}"]
        started = subprocess.Popen([*command, *options], env=os.environ | self._bench.environment)
        waiting.until((self._folder / "socket" / NAME).exists, what="the process that makes MIG instances")
        return started

    def kill(self) -> None:
        """Kill it, and do not wait."""
        self._process.kill()

    def stop(self) -> None:
        """Kill it, and remove its socket."""
        (self._folder / "socket" / NAME).unlink(missing_ok=True)
        self.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.stop()
        self._process = self._started()

    async def card(self) -> PartitionableCard:
        """Return the card as the process lists it."""
        listed = await self.client.list()
        [card] = [card for card in listed.cards if card.card == self._bench.card]
        return card


@pytest.fixture
async def maker(bench: Bench, tmp_path: Path) -> AsyncIterator[Maker]:
    """Return the process, for a card that is whole before and afterwards."""
    made = Maker(bench, tmp_path)
    try:
        before = await made.card()
        assert (before.is_partitioned, before.made, before.foreign) == (False, {}, ()), "turn its MIG mode off first"
        yield made
        made.restart()
        for key in (await made.card()).made:
            await made.client.destroy(key)
        await made.client.clear(bench.card)
        assert not (await made.card()).is_partitioned
    finally:
        made.stop()


def smallest(card: PartitionableCard) -> PartitionProfile:
    """Return the profile of which a card can have the most instances."""
    return max((profile for profile in card.profiles if "+" not in profile.name), key=lambda one: one.instances)


def place(profile: PartitionProfile, start: int) -> Placement:
    """Return where an instance is made."""
    return Placement(profile=profile.id, start=start, size=profile.size)


async def test_instances_are_made_used_and_destroyed(bench: Bench, maker: Maker) -> None:
    small = smallest(await maker.card())
    first = await maker.client.make(KEY, card=bench.card, placement=place(small, small.starts[-1]))
    assert await maker.client.make(KEY, card=bench.card, placement=place(small, small.starts[-1])) == first
    assert len(bench.instances()) == 1
    card = await maker.card()
    assert (card.is_partitioned, list(card.made)) == (True, [KEY])
    if (placements := bench.placements()) is not None:
        assert {profile.id: (list(profile.starts), profile.size) for profile in card.profiles} == placements
    with pytest.raises(RefusedError):
        await maker.client.make("test/two", card=bench.card, placement=place(small, small.starts[-1]))

    with bench.using(first) as pid:
        with pytest.raises(RefusedError, match=str(pid)):
            await maker.client.destroy(KEY)
        with pytest.raises(RefusedError):
            await maker.client.clear(bench.card)
        assert len(bench.instances()) == 1
    await maker.client.destroy(KEY)
    assert bench.instances() == []


async def test_a_card_can_have_all_instances_of_a_profile(bench: Bench, maker: Maker) -> None:
    small = smallest(await maker.card())
    keys = [f"test/{start}" for start in small.starts]
    for key, start in zip(keys, small.starts, strict=True):
        await maker.client.make(key, card=bench.card, placement=place(small, start))
    assert len(bench.instances()) == len(keys)
    maker.restart()
    assert set((await maker.card()).made) == set(keys)
    for key in keys:
        await maker.client.destroy(key)
    assert bench.instances() == []


async def test_a_process_that_is_killed_while_it_works_leaves_nothing(bench: Bench, maker: Maker) -> None:
    loop, small, rng = asyncio.get_running_loop(), smallest(await maker.card()), random.Random(1)
    began = loop.time()
    await maker.client.make(KEY, card=bench.card, placement=place(small, small.starts[0]))
    await maker.client.destroy(KEY)
    duration = loop.time() - began
    for _ in range(KILLS):
        wanted = place(small, rng.choice(small.starts))
        kill = loop.call_later(rng.uniform(0, duration), maker.kill)
        with contextlib.suppress(RefusedError):
            await maker.client.make(KEY, card=bench.card, placement=wanted)
            await maker.client.destroy(KEY)
        kill.cancel()
        maker.restart()
        await maker.client.make(KEY, card=bench.card, placement=wanted)
        assert len(bench.instances()) == 1
        await maker.client.destroy(KEY)
        assert bench.instances() == []
