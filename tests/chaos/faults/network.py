"""Faults of the network and of proxies in the connections between Berth and the API server."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from tests.chaos.faults.base import Family, Healed
from tests.chaos.machines import GRACE, HEARTBEAT
from tests.stand_ins.proxy import FaultProxy, Rule

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
WATCHES: Final = "[?&]watch=true"
BINDINGS: Final = "/binding$"


class NetworkFaults(Family):
    """Faults of connections."""

    weights: ClassVar[Mapping[str, int]] = {
        "answers_delayed": 5,
        "watches_broken_in_frame": 6,
        "watches_ended_in_line": 6,
        "bind_answers_swallowed": 6,
        "answered_429": 6,
        "answered_500": 6,
        "answered_503": 6,
        "connections_broken": 6,
        "leader_partitioned": 0,
        "agents_partitioned": 0,
    }

    def answers_delayed(self) -> Healed:
        """Delay each part of all answers to the leader."""
        proxy = self._leaders_proxy()
        rules = [proxy.slow(method, ".", pause=lambda: self.chance.uniform(0.0, 0.3)) for method in METHODS]
        self.last(1.0, 2.0)
        return self._removed(rules)

    def watches_broken_in_frame(self) -> Healed:
        """Break the leader's watches within an event."""
        return self._watches(lambda proxy: proxy.tear("GET", WATCHES, count=self.chance.randint(1, 8)))

    def watches_ended_in_line(self) -> Healed:
        """End the leader's watches in order, but within a line."""
        return self._watches(lambda proxy: proxy.cut("GET", WATCHES, count=self.chance.randint(1, 8)))

    def bind_answers_swallowed(self) -> Healed:
        """Lose the answers to Bindings that were executed."""
        rule = self._leaders_proxy().lose("POST", BINDINGS, count=self.chance.randint(1, 6))
        probe = self.site.probe()
        self.until_struck(lambda: rule.caught)
        self.last(0.2, 0.8)
        self.site.remove(self.site.live.until_bound(probe))
        return self._removed([rule])

    def answered_429(self) -> Healed:
        """Answer all requests of the leader by 429."""
        return self._answered(429)

    def answered_500(self) -> Healed:
        """Answer all requests of the leader by 500."""
        return self._answered(500)

    def answered_503(self) -> Healed:
        """Answer all requests of the leader by 503."""
        return self._answered(503)

    def connections_broken(self) -> Healed:
        """Break all connections of both replicas."""
        for replica in self.site.replicas.all():
            replica.proxy.sever()
        return Healed()

    def leader_partitioned(self) -> Healed:
        """Lose all packets of the leader until another one leads; what it has sent arrives then."""
        proxy = self.site.replicas.leader(with_standby=True).proxy
        since = time.monotonic()
        proxy.freeze()
        self.site.measure_failover("leader_partitioned", since)
        proxy.thaw()
        return Healed()

    def agents_partitioned(self) -> Healed:
        """Lose all packets of the simulated nodes' agent until it counts as silent."""
        proxy = self.site.agent_proxy
        proxy.freeze()
        time.sleep(float(str(HEARTBEAT["lease_duration"])) + GRACE + 1)
        proxy.thaw()
        return Healed(node=self.chance.choice(self.site.machines.simulated))

    def _leaders_proxy(self) -> FaultProxy:
        return self.site.replicas.leader().proxy

    def _watches(self, fault: Callable[[FaultProxy], Rule]) -> Healed:
        proxy = self._leaders_proxy()
        rule = fault(proxy)
        proxy.sever()
        self.until_struck(lambda: rule.caught)
        self.last(0.5, 1.0)
        return self._removed([rule])

    def _answered(self, status: int) -> Healed:
        proxy = self._leaders_proxy()
        headers = {"Retry-After": "1"} if status == 429 else {}
        rules = [proxy.answer(method, ".", status=status, headers=headers) for method in METHODS]
        self.last(0.5, 1.5)
        return self._removed(rules)

    def _removed(self, rules: Sequence[Rule]) -> Healed:
        for rule in rules:
            rule.remove()
        return Healed()
