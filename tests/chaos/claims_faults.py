"""Faults of a run with ResourceClaims: leaders are killed at chosen writes, and cards get other minors."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.chaos.claims_site import ClaimsSite
from tests.chaos.claims_workload import BY_CLAIM
from tests.chaos.replicas import Replica
from tests.stand_ins.proxy import Rule

STATUS: Final = r"/resourceclaims/[^/]+/status\?fieldManager=[^&]*$"
"""Status writes, without the test of the fence, which is a dry run."""
BINDING: Final = rf"/pods/[^/]*{BY_CLAIM}[^/]+/binding"
AFTER_STATUS: Final = "leader killed between status and Binding"
PATIENCE: Final = 20.0
"""Seconds until the leader sends the write at which it is killed."""
CALM: Final = 0.5
"""Seconds between two faults."""


class ClaimsFaults:
    """Injects faults, in an order that a seed gives."""

    def __init__(self, site: ClaimsSite, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.late = 0
        """Writes of a killed leader that arrived after the next one had begun."""
        self._site = site
        self._chance = random.Random(f"faults {seed}")
        self._kinds: Mapping[str, Callable[[], None]] = {
            "renumbered": self._renumber,
            "renumbered while its agent was away": self._renumber_without_agent,
            "slices again": self._publish,
            "leader killed": lambda: self._kill(self._site.replicas.leader()),
            AFTER_STATUS: self._kill_after_status,
            "leader killed before status": lambda: self._kill_holding("PUT", STATUS),
            "leader killed before Binding": lambda: self._kill_holding("POST", BINDING),
        }
        self._order = ["renumbered", AFTER_STATUS]
        """What comes next, from the end: first what a short run has to show."""

    def strike(self) -> None:
        """Inject the next fault: each kind once in a random order, then all again."""
        if not self._order:
            self._order = self._chance.sample(sorted(self._kinds), len(self._kinds))
        kind = self._order.pop()
        self._kinds[kind]()
        self.counts[kind] += 1
        time.sleep(CALM)

    def _renumber(self) -> None:
        self._chance.choice(self._site.machines).permute(self._chance)

    def _renumber_without_agent(self) -> None:
        machine = self._chance.choice(self._site.machines)
        machine.kill()
        machine.permute(self._chance)
        machine.start()

    def _publish(self) -> None:
        self._site.driver.publish(self._chance.choice(self._site.pools))

    def _kill(self, leader: Replica) -> None:
        """Kill a leader, and let another lead at once, as if its Lease had expired."""
        ended, live = leader.identity, self._site.live
        leader.process.kill()
        self._site.world.free_lease()
        live.until(lambda: live.holder not in ("", ended), what="the next leader")

    def _kill_after_status(self) -> None:
        """Kill a leader that has allocated a claim, and has no answer yet."""
        leader = self._site.replicas.leader()
        with self._at(leader, leader.proxy.lose("PUT", STATUS, count=1)):
            self._kill(leader)

    def _kill_holding(self, method: str, path: str) -> None:
        """Kill a leader whose write arrives once the next one leads."""
        leader = self._site.replicas.leader()
        held = leader.proxy.hold(method, path, count=1)
        with self._at(leader, held):
            self._kill(leader)
            time.sleep(self._chance.uniform(0, 2.0))
            self.late += len(held.caught)

    @contextlib.contextmanager
    def _at(self, leader: Replica, rule: Rule) -> Iterator[None]:
        """Wait until the leader sends a write; pass everything on at the end."""
        try:
            rule.wait(timeout=PATIENCE)
            yield
        finally:
            leader.proxy.clear()
