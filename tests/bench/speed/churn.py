"""What waiting pods cost while the cluster changes: `python -m tests.bench.speed.churn`.

NODES, WAITING, SECONDS and JOINING are environment variables. kube-scheduler and Berth run one after the other on one
API server. On all nodes, the cpu is requested in full. One node is tainted throughout, like a control plane node. There
are two scenarios:

* storm: WAITING pods of 200 classes wait. Another node's taint is added or removed four times a second for SECONDS.
* join: half as many pods wait. JOINING nodes join, one every two seconds, each with capacity for seven of the pods.

The API server's audit log counts Events and status writes, from the creation of the pods until 15 s after the end of
the scenario. It also shows the seconds from a pod's creation to its first reason. In the end, each condition must state
the current reason: the reason that a pod created at that time would get. `stale_s` is the seconds until all conditions
do, or null if this takes more than a minute.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from devcluster import waiting
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track, usage
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track

PERIOD: Final = 0.25
"""Seconds between two changes of the taint."""
PAUSE: Final = 2.0
"""Seconds between two nodes that join."""
CLASSES: Final = 200
START_SECONDS: Final = 120.0
STALE_SECONDS: Final = 60.0
COUNTED_SECONDS: Final = 15.0
MIB: Final = 2**20
TAINT: Final = {"key": "bench.berth.dev/maintenance", "effect": "NoSchedule"}

Raw = dict[str, Any]


def main() -> None:
    """Run the benchmark."""
    waiters, seconds = figures.number("WAITING", 600), figures.number("SECONDS", 40)
    joining = figures.number("JOINING", 15)
    with track.opened(figures.number("NODES", 10)) as opened:
        costs = Churn(opened, waiters=waiters, seconds=seconds, joining=joining).measure()
    figures.result({"bench": "churn", **costs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one scenario for one scheduler."""

    events: int
    status_writes: int
    first_report_p99_s: float
    stale_s: float | None
    rss_mb: int


class Churn:
    """Both scenarios for both schedulers."""

    def __init__(self, track: Track, *, waiters: int, seconds: int, joining: int) -> None:
        self._track, self._arena = track, track.arena
        self._waiters, self._seconds, self._joining = waiters, seconds, joining
        self._nodes = sorted(node["metadata"]["name"] for node in self._arena.list("nodes"))

    def measure(self) -> dict[str, Any]:
        """Run everything and return the figures of both schedulers."""
        self._taint(self._nodes[0], on=True)
        contenders = contestants.kube_scheduler, contestants.ours
        costs = {who.name: self._run(who) for who in (make(self._arena, self._track.folder) for make in contenders)}
        self._taint(self._nodes[0], on=False)
        return {contestants.OURS: costs[contestants.OURS], **costs}

    def _run(self, contestant: Contestant) -> dict[str, Any]:
        storm = self._measure_scenario(contestant, "storm", self._waiters, self._storm)
        join = self._measure_scenario(contestant, "join", self._waiters // 2, self._join)
        stale = None if storm.stale_s is None or join.stale_s is None else max(storm.stale_s, join.stale_s)
        return {
            "events": storm.events + join.events,
            "status_writes": storm.status_writes + join.status_writes,
            "first_report_p99_s": storm.first_report_p99_s,
            "stale_s": stale,
            "rss_mb": max(storm.rss_mb, join.rss_mb),
        }

    def _measure_scenario(self, contestant: Contestant, name: str, waiters: int, scenario: Callable[[], None]) -> Cost:
        self._reset()
        process = contestant.start()
        self._begin(contestant)
        position = self._track.log.position()
        crowd.wait_for_reasons(self._track, [self._pod(contestant, number) for number in range(waiters)])
        scenario()
        end = time.monotonic()
        stale = self._stale(contestant, waiters)
        time.sleep(max(0.0, end + COUNTED_SECONDS - time.monotonic()))
        resident = usage.resident_bytes(process.pid)
        process.stop()
        requests = self._track.log.requests(contestant.user, since=position)
        cost = Cost(
            events=requests["create events"] + requests["patch events"],
            status_writes=requests["patch pods/status"],
            first_report_p99_s=round(figures.quantile(self._first_reports(contestant, position), 0.99), 2),
            stale_s=stale,
            rss_mb=round(resident / MIB),
        )
        figures.say(f"{contestant.name}, {name}: {cost}")
        return cost

    # --- the scenarios ----------------------------------------------------------------------------------------

    def _storm(self) -> None:
        """Change a taint repeatedly; in the end the node is tainted, and at the beginning it was not."""
        began = time.monotonic()
        for number in range(2 * round(self._seconds / PERIOD / 2) + 1):
            self._taint(self._nodes[-1], on=number % 2 == 0)
            time.sleep(max(0.0, began + PERIOD * (number + 1) - time.monotonic()))

    def _join(self) -> None:
        began = time.monotonic()
        for number in range(self._joining):
            self._arena.cluster.create_nodes([f"joined-{number}"], deadline=START_SECONDS)
            time.sleep(max(0.0, began + PAUSE * (number + 1) - time.monotonic()))

    # --- the cluster ------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        """Fill all nodes, and remove those that joined."""
        asyncio.run(self._track.clear())
        self._taint(self._nodes[-1], on=False)
        for number in range(self._joining):
            self._arena.delete("nodes", f"joined-{number}")
        full = {"cpu": "60"}
        crowd.fill(self._track, [self._arena.pod(f"full-{name}", requests=full, nodeName=name) for name in self._nodes])

    def _begin(self, contestant: Contestant) -> None:
        """Wait until a scheduler reports why a pod waits: then it has read the cluster."""
        self._probe(contestant, "first")

    def _probe(self, contestant: Contestant, name: str) -> str:
        """Create a pod, wait until its condition has a reason, delete it, and return the reason."""
        asyncio.run(self._track.create([self._pod(contestant, 0, name)]))
        reason = waiting.until(
            lambda: next(crowd.reasons([self._arena.get("pods", name)]), ""),
            deadline=START_SECONDS,
            what=f"{contestant.name} to report why {name} waits",
            poll=0.05,
        )
        self._arena.delete("pods", name, grace_seconds=0)
        return reason

    def _pod(self, contestant: Contestant, number: int, name: str = "") -> Raw:
        requests = {"cpu": f"{8000 + number % CLASSES}m"}
        return self._arena.pod(name or f"waits-{number}", requests=requests, scheduler_name=contestant.scheduler_name)

    def _taint(self, node: str, *, on: bool) -> None:
        self._arena.merge("nodes", node, {"spec": {"taints": [TAINT] if on else None}})

    # --- results ----------------------------------------------------------------------------------------------

    def _stale(self, contestant: Contestant, waiters: int) -> float | None:
        """Return the seconds until all waiting pods state the same reason as a new pod."""
        began = time.monotonic()
        current = self._probe(contestant, "last")
        while True:
            passed = time.monotonic() - began
            reasons = list(crowd.reasons(self._waiting()))
            if all(reason == current for reason in reasons):
                figures.say(f"{len(reasons)} of {waiters} pods wait and report: {current}")
                return round(passed, 1)
            if passed >= STALE_SECONDS:
                break
            time.sleep(0.5)
        figures.say(f"{sum(reason != current for reason in reasons)} of {len(reasons)} pods do not report: {current}")
        return None

    def _waiting(self) -> list[Raw]:
        items: list[Raw] = self._arena.cluster.api.get(self._track.pods, fieldSelector="spec.nodeName=")["items"]
        return items

    def _first_reports(self, contestant: Contestant, since: int) -> list[float]:
        """Return for each pod the seconds from its creation to its first reason."""
        created: dict[str, datetime] = {}
        first_reasons: dict[str, float] = {}
        for entry in self._track.log.entries(since=since):
            if not (name := _pod_of(entry)):
                continue
            at = datetime.fromisoformat(entry["stageTimestamp"])
            if entry["verb"] == "create" and not entry["objectRef"].get("subresource"):
                created[name] = at
            elif entry["user"]["username"] == contestant.user and entry["verb"] == "patch" and name in created:
                first_reasons.setdefault(name, (at - created[name]).total_seconds())
        return list(first_reasons.values())


def _pod_of(entry: Mapping[str, Any]) -> str:
    """Return the name of the pod that a request names; empty if it names none."""
    about = entry.get("objectRef") or {}
    return str(about.get("name", "")) if about.get("resource") == "pods" else ""


if __name__ == "__main__":
    main()
