"""How slow an API server may become before a leader loses its term: `python -m tests.bench.speed.election`.

DELAYS (seconds, separated by spaces), SECONDS and OVERLOAD are environment variables. kube-scheduler and Berth run
elections at the same time, with the default durations 15/10/2. Each has its own proxy, which delays every answer. For
each delay, the benchmark measures the seconds until each leads, and the terms that it loses in the next `SECONDS`. At
the end, it measures the recovery. No request is answered for `OVERLOAD` seconds, which ends both terms. A process that
exits is restarted at once, as the same pod. The figure is the seconds from the first answer to the next term.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.bench import figures
from tests.bench.cluster import contestants, track
from tests.bench.cluster.contestants import KUBE_SCHEDULER, OURS, Contestant
from tests.bench.cluster.track import Track
from tests.programs.processes import Process
from tests.stand_ins.delay import DelayProxy

DELAYS: Final = "0.5 1 2 4"
LEAD_SECONDS: Final = 60.0
"""A candidate that does not lead within this time is reported as never leading."""
POLL: Final = 0.02
STUCK: Final = 1e9
"""Delay in seconds at which no answer arrives."""
DEFAULTS: Final = {"lease_duration": 15, "renew_deadline": 10, "retry_period": 2}
POD: Final = "berth-system/berth-operator/0"
"""The pod name as in the manifest: kubelet restarts a container only after it has exited."""
LEADS: Final = {OURS: '"event": "term changed"', KUBE_SCHEDULER: "uccessfully acquired lease"}
"""The log text that shows that a term has begun."""


@dataclass(kw_only=True)
class Candidate:
    """A scheduler that is restarted at once whenever it exits, as kubelet does the first time."""

    contestant: Contestant
    ends: int = 0
    led_at: float | None = None
    """When the running process was first seen to lead."""
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        self.process = self.contestant.start()

    def poll(self) -> None:
        """Restart the process if it has exited, and record whether it leads."""
        if self.process.exit_code is not None:
            self.ends, self.led_at = self.ends + 1, None
            self.process = self.contestant.start()
        if self.led_at is None and LEADS[self.contestant.name] in self.process.text():
            self.led_at = time.monotonic()


def main() -> None:
    """Run the benchmark."""
    delays = [float(delay) for delay in os.environ.get("DELAYS", DELAYS).split()]
    seconds, overload = figures.number("SECONDS", 60), figures.number("OVERLOAD", 30)
    with track.opened(1) as opened:
        result = measure(opened, delays=delays, seconds=seconds, overload=overload)
    figures.result({"bench": "election", "seconds": seconds, "overload_s": overload, **result})


def measure(track: Track, *, delays: Sequence[float], seconds: float, overload: float) -> dict[str, Any]:
    """Return for each scheduler a row for each delay, and the seconds of its recovery."""
    server, arena, folder = track.arena.cluster.server, track.arena, track.folder
    result: dict[str, Any] = {OURS: {"delays": {}}, KUBE_SCHEDULER: {"delays": {}}}
    with DelayProxy(server=server) as first, DelayProxy(server=server) as second:
        proxies = {OURS: first, KUBE_SCHEDULER: second}
        contenders = [
            contestants.ours(arena, folder, timing={**DEFAULTS, "pod": POD}, via=first.kubeconfig),
            contestants.kube_scheduler(arena, folder, elects=True, via=second.kubeconfig),
        ]
        for delay in delays:
            rows = _under_delay(contenders, proxies, delay, seconds)
            figures.say(f"{delay:g} s: {rows}")
            for name, row in rows.items():
                result[name]["delays"][f"{delay:g}"] = row
        for name, recovery in _after_overload(contenders, proxies, overload).items():
            result[name]["recovery_s"] = recovery
    return result


def _under_delay(
    contenders: Sequence[Contestant], proxies: Mapping[str, DelayProxy], delay: float, seconds: float
) -> dict[str, dict[str, float | None]]:
    """Return the seconds until each leads (None: never), and the terms that each loses in the `seconds` after that."""
    _delay(proxies, delay)
    began = time.monotonic()
    candidates = [Candidate(contestant=contestant) for contestant in contenders]
    _watch(candidates, until_all_lead=LEAD_SECONDS)
    led = {
        candidate.contestant.name: candidate.led_at and round(candidate.led_at - began, 2) for candidate in candidates
    }
    _watch(candidates, seconds=seconds)
    _delay(proxies, 0)
    for candidate in candidates:
        candidate.process.stop()
    return {
        candidate.contestant.name: {"leads_after_s": led[candidate.contestant.name], "terms_lost": candidate.ends}
        for candidate in candidates
    }


def _after_overload(
    contenders: Sequence[Contestant], proxies: Mapping[str, DelayProxy], seconds: float
) -> dict[str, float | None]:
    """Return the seconds from the first answer after an overload to the next term of each."""
    candidates = [Candidate(contestant=contestant) for contestant in contenders]
    _watch(candidates, until_all_lead=LEAD_SECONDS)
    _delay(proxies, STUCK)
    _watch(candidates, seconds=seconds)
    lost = [candidate.contestant.name for candidate in candidates if candidate.ends or candidate.led_at is None]
    _delay(proxies, 0)
    recovered = time.monotonic()
    _watch(candidates, until_all_lead=LEAD_SECONDS)
    for candidate in candidates:
        candidate.process.stop()
    return {
        candidate.contestant.name: candidate.led_at and round(max(0.0, candidate.led_at - recovered), 2)
        for candidate in candidates
        if candidate.contestant.name in lost
    }


def _watch(candidates: Sequence[Candidate], *, seconds: float = 0.0, until_all_lead: float = 0.0) -> None:
    """Poll candidates for this many seconds, or until all of them lead."""
    end = time.monotonic() + max(seconds, until_all_lead)
    while time.monotonic() < end:
        for candidate in candidates:
            candidate.poll()
        if until_all_lead and all(candidate.led_at is not None for candidate in candidates):
            return
        time.sleep(POLL)


def _delay(proxies: Mapping[str, DelayProxy], seconds: float) -> None:
    for proxy in proxies.values():
        proxy.seconds = seconds


if __name__ == "__main__":
    main()
