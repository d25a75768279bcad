"""Faults of the benchmark of teams: Kueue, the operator and the API server are killed, and start again."""

import asyncio
import collections
import random
import signal
from typing import Final

from devcluster import Cluster
from devcluster.additions import installation
from tests.bench import figures
from tests.chaos.control_plane import API_SERVER, ControlPlane

KILLED: Final = ("kueue", installation.OPERATOR, API_SERVER)
PAUSE_SECONDS: Final = 20.0
"""On average, between a start and the next fault."""
AWAY_SECONDS: Final = 2.0
"""From the end of a program to its start, as kubelet starts a container again."""


class Faults:
    """Kills one program after another while `strike` runs.

    Attributes:
        struck: how often each was killed.
    """

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(f"faults {seed}")
        self.struck: collections.Counter[str] = collections.Counter()

    async def strike(self) -> None:
        """Kill a program at random times, and start it again, until this is cancelled."""
        with ControlPlane(self._cluster) as programs:
            while True:
                await asyncio.sleep(self._chance.uniform(0.5, 1.5) * PAUSE_SECONDS)
                name = self._chance.choice(KILLED)
                figures.say(f"{name} is killed")
                await asyncio.to_thread(programs.end, name, signal.SIGKILL)
                # Not cancelled in between: what was killed runs again at the end.
                await asyncio.shield(self._start(programs, name))
                self.struck[name] += 1

    async def _start(self, programs: ControlPlane, name: str) -> None:
        await asyncio.sleep(AWAY_SECONDS)
        await asyncio.to_thread(programs.start, name)
