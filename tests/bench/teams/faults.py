"""Faults of the benchmark of teams: Kueue, the operator and the API server are killed, and start again.

Every other program that ends because one of them is missing also starts again.
"""

import asyncio
import collections
import random
import signal
import time
from typing import Final

from devcluster import Cluster
from devcluster.additions import installation
from tests.bench import figures
from tests.chaos.control_plane import API_SERVER, ControlPlane

KILLED: Final = ("kueue", installation.OPERATOR, API_SERVER)
PAUSE_SECONDS: Final = 45.0
"""On average, between two faults: more than a term of the operator or of Kueue takes to expire."""
AWAY_SECONDS: Final = 2.0
"""From the end of a program to its start, as kubelet starts a container again."""


class Faults:
    """Kills one program after another while `strike` runs.

    Attributes:
        struck: how often each was killed.
        is_calm: whether nothing more is killed; what ends still starts again.
    """

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(f"faults {seed}")
        self.struck: collections.Counter[str] = collections.Counter()
        self.is_calm = False

    async def strike(self) -> None:
        """Kill programs at random times, until this is cancelled; those that ended start again."""
        with ControlPlane(self._cluster) as programs:
            for name in programs.names():
                programs.remember(name)
            try:
                while True:
                    await self._keep(programs, self._chance.uniform(0.5, 1.5) * PAUSE_SECONDS)
                    if self.is_calm:
                        continue
                    name = self._chance.choice(KILLED)
                    figures.say(f"{name} is killed")
                    programs.end(name, signal.SIGKILL)
                    self.struck[name] += 1
            finally:
                _start_ended(programs)

    @staticmethod
    async def _keep(programs: ControlPlane, seconds: float) -> None:
        """Start what has ended, for so long."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            await asyncio.sleep(AWAY_SECONDS)
            await asyncio.to_thread(_start_ended, programs)


def _start_ended(programs: ControlPlane) -> None:
    for name in programs.names():
        if not programs.runs(name):
            programs.start(name)
