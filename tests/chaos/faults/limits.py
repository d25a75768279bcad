"""The operator's clock is wrong, or the operator gets no more memory or files."""

import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from tests.chaos.faults.base import Family, Healed

HOUR: Final = 3600
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class LimitFaults(Family):
    """Faults of what a process gets of its machine."""

    weights: ClassVar[Mapping[str, int]] = {
        "clock_ahead": 5,
        "clock_behind": 5,
        "memory_limited": 0,
        "files_limited": 4,
    }

    def clock_ahead(self) -> Healed:
        """Step the leader's clock forward by hours, and back."""
        return self._step(HOUR * self.chance.randint(1, 48))

    def clock_behind(self) -> Healed:
        """Step the leader's clock back by hours, and forward."""
        return self._step(-HOUR * self.chance.randint(1, 48))

    def files_limited(self) -> Healed:
        """Forbid the leader to open more files or connections for a while."""
        leader = self.site.replicas.leader()
        pid = leader.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len([*Path(f"/proc/{pid}/fd").iterdir()]), before[1]))
        leader.proxy.sever()
        self.last(1.0, 2.0)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        return Healed()

    def memory_limited(self) -> None:
        """Limit the leader's memory to what it uses, as a control group does, until it ends or is killed."""
        leader = self.site.replicas.leader(with_standby=True)
        pid, since = leader.process.pid, time.monotonic()
        self.site.excused.add(leader.process.name)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * PAGE
        resource.prlimit(pid, resource.RLIMIT_AS, (used, resource.prlimit(pid, resource.RLIMIT_AS)[1]))
        self.last(1.0, 2.0)
        leader.process.kill()
        self.site.measure_failover("memory_limited", since)

    def _step(self, seconds: int) -> Healed:
        clock = self.site.replicas.leader().clock
        clock.step(seconds)
        self.last(0.5, 2.0)
        clock.step(0)
        return Healed()
