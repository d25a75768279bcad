"""Replicas of the operator are killed, stopped, continued and asked to end."""

import time
from collections.abc import Mapping
from typing import ClassVar

from tests.chaos.faults.base import Family, Healed
from tests.chaos.workload import HIGH

WHOLE = 100


class ReplicaFaults(Family):
    """Faults of the processes."""

    weights: ClassVar[Mapping[str, int]] = {
        "leader_killed": 1,
        "leader_stopped": 0,
        "leader_stopped_while_binding": 0,
        "leader_terminated": 4,
        "standby_killed": 4,
        "standby_stopped": 4,
    }

    def leader_killed(self) -> None:
        """Kill the leader."""
        leader = self.site.replicas.leader(with_standby=True)
        since = time.monotonic()
        leader.process.kill()
        self.site.measure_failover("leader_killed", since)

    def leader_stopped(self) -> Healed:
        """Stop the leader until another one leads, and let it continue."""
        leader = self.site.replicas.leader(with_standby=True)
        since = time.monotonic()
        leader.process.pause()
        self.site.measure_failover("leader_stopped", since)
        leader.process.resume()
        return Healed()

    def leader_stopped_while_binding(self) -> Healed:
        """Hold a Binding of the leader until the next leader has bound another pod to the card, and pass it on."""
        site, leader, node = self.site, self.site.replicas.leader(with_standby=True), self.any_node()
        held = leader.proxy.hold("POST", "/binding$")
        late = site.probe(node=node, share=WHOLE)
        if not self.until_struck(lambda: any(f"/{late}/" in each.path for each in held.caught)):
            held.release()
            site.remove(site.live.until_bound(late))
            return Healed()
        leader.process.pause()
        urgent = site.probe(node=node, share=WHOLE, priorityClassName=HIGH)
        site.remove(site.live.until_bound(urgent)) if self.chance.random() < 0.5 else site.live.until_bound(urgent)
        held.release()
        leader.process.resume()
        self.last(0.5, 1.0)
        if (pod := site.live.pods.get(urgent)) is not None:
            site.remove(pod)
        site.remove(site.live.until_bound(late))
        return Healed()

    def leader_terminated(self) -> Healed:
        """Ask the leader to end."""
        self.site.replicas.leader(with_standby=True).process.stop()
        return Healed()

    def standby_killed(self) -> Healed:
        """Kill the replica that does not lead."""
        self.site.replicas.standby().process.kill()
        return Healed()

    def standby_stopped(self) -> Healed:
        """Stop the replica that does not lead for a while."""
        standby = self.site.replicas.standby()
        standby.process.pause()
        self.last(0.5, 2.0)
        standby.process.resume()
        return Healed()
