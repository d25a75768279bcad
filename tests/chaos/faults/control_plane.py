"""The API server and etcd are killed, stopped, and forget old revisions."""

import signal
from collections.abc import Mapping
from typing import ClassVar

from tests.chaos.control_plane import API_SERVER, ETCD
from tests.chaos.faults.base import Family, Healed

WATCHES = "[?&]watch=true"


class ControlPlaneFaults(Family):
    """Faults of the control plane's programs."""

    weights: ClassVar[Mapping[str, int]] = {
        "api_server_killed": 0,
        "api_server_terminated": 0,
        "api_server_stopped": 3,
        "etcd_killed": 3,
        "etcd_stopped": 3,
        "compacted": 0,
    }

    def api_server_killed(self) -> Healed:
        """Kill the API server, and start it again."""
        return self._ended(API_SERVER, signal.SIGKILL)

    def api_server_terminated(self) -> Healed:
        """Ask the API server to end, which ends watches in order, and start it again."""
        return self._ended(API_SERVER, signal.SIGTERM)

    def etcd_killed(self) -> Healed:
        """Kill etcd, and start it again."""
        return self._ended(ETCD, signal.SIGKILL)

    def api_server_stopped(self) -> Healed:
        """Stop the API server for less than a term."""
        return self._stopped(API_SERVER)

    def etcd_stopped(self) -> Healed:
        """Stop etcd for less than a term."""
        return self._stopped(ETCD)

    def compacted(self) -> Healed:
        """Break all watches of the replicas, and let the revisions be gone from which they would continue."""
        site = self.site
        site.replicas.leader(with_standby=True)  # a replica that has just started has no revisions
        rules = [each.proxy.answer("GET", WATCHES, status=503) for each in site.replicas.all()]
        for replica in site.replicas.all():
            replica.proxy.sever()
        self.last(0.5, 1.5)
        site.recorder.compact()
        site.control_plane.end(API_SERVER, signal.SIGKILL)
        site.control_plane.start(API_SERVER)
        site.until_served()
        for rule in rules:
            rule.remove()
        return Healed(returned=True)

    def _ended(self, program: str, number: signal.Signals) -> Healed:
        self.site.control_plane.end(program, number)
        self.last(0.1, 1.0)
        self.site.control_plane.start(program)
        return Healed(returned=program == API_SERVER)

    def _stopped(self, program: str) -> Healed:
        with self.site.control_plane.stopped(program):
            self.last(0.5, 3.0)
        return Healed()
