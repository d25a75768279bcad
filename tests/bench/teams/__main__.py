"""Teams that share a fleet by Kueue's quotas: `python -m tests.bench.teams --help`.

Workloads of three teams in one cohort arrive and end at random. The teams borrow from each other and get back what they
lend. An auditor reads each revision in etcd and counts violations of these rules (`rules`):

* over_limit: a team holds more, running and terminating, than its nominal quota and what it may borrow.
* stranded: an admitted workload has a pod without a node for more than 30 s.
* evicted_twice: a workload or pod is evicted twice for the same place.
* late_reclaims: a team does not get back what it lends within 20 s beyond the grace period.
* waiting_heads: the head of a queue waits for more than 30 s while quota and places are free.
* large: the workload of 64 pods does not come through.

With --check, the queues have Berth's AdmissionCheck, and the same load runs without it first. `cpu_ms` is the
operator's CPU time for the check of a workload. `admissions_ratio` compares how fast a burst of small Jobs that all fit
is admitted with and without the check. With --faults, Kueue, the operator and the API server are killed at random, and
nothing is compared. The workloads then name their queue, because Kueue sets no default in its first moments.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp

from devcluster import Cluster, waiting
from tests.bench import figures
from tests.bench.cluster import usage
from tests.bench.cluster.bulk import Bulk
from tests.bench.teams import cluster as teams_cluster
from tests.bench.teams import load as teams_load
from tests.bench.teams.cluster import CARDS, Record, Running
from tests.bench.teams.faults import Faults
from tests.bench.teams.history import WHOLE, Event, Raw, Workload
from tests.bench.teams.load import GRACE_SECONDS, Unit
from tests.bench.teams.rules import LARGE, Audit

BURST: Final = 60
PAIRS: Final = 5
"""Of bursts, one without the check and one with it."""
BURST_SECONDS: Final = 300.0
SEND_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 300.0
"""After the last arrival, until nothing is left."""
POLL_SECONDS: Final = 0.5
SHOWN: Final = 10
"""Faults of each rule that are printed."""
BACKGROUND: Final = {"propagationPolicy": "Background"}


class Outcome(NamedTuple):
    """The result of one run."""

    audit: Audit
    workloads: int
    cpu_ms: float
    faults: Mapping[str, int]
    """How often each program was killed."""


def main() -> None:
    """Run the benchmark."""
    options = _arguments()
    figures.say_load()
    is_compared = options.check and not options.faults
    without = _run(options, check=False) if is_compared else None
    outcome = _run(options, check=options.check)
    figures.result(
        {
            "bench": "teams",
            "check": options.check,
            "workloads": outcome.workloads,
            **{name: len(rule.faults) for name, rule in outcome.audit.rules.items()},
            "large_wait_s": round(outcome.audit.large.waited, 1),
            "faults": sum(outcome.faults.values()),
            **(_compared(outcome, without) | _admissions(options) if without else {}),
        }
    )


def _compared(outcome: Outcome, without: Outcome) -> dict[str, float]:
    return {
        "stranded_without_check": len(without.audit.stranded.faults),
        "cpu_ms": round(outcome.cpu_ms - without.cpu_ms, 2),
        "cpu_ms_without_check": round(without.cpu_ms, 2),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.teams", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument(
        "--nodes", type=int, default=16, help=f"with {CARDS} cards each; the large workload has {LARGE}"
    )
    parser.add_argument(
        "--load", type=float, default=0.9, help="the part of the fleet that would be held without waits"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long a workload runs on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", action="store_true", help="kill Kueue, the operator and the API server at random")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def _run(options: argparse.Namespace, *, check: bool) -> Outcome:
    units = teams_load.units(options.workloads, seed=options.seed, seconds=options.seconds, named=options.faults)
    capacity = options.nodes * CARDS * WHOLE
    times = teams_load.arrivals(units, seed=options.seed, load=options.load, hundredths=capacity)
    figures.say(f"{'with' if check else 'without'} the check: {len(units)} units in {times[-1]:.0f} s")
    with teams_cluster.opened(options.nodes, check=check) as running:
        faults = Faults(running.cluster, seed=options.seed)
        with teams_cluster.recorded(running) as record:
            began = 0.0 if options.faults else usage.cpu_seconds(running.operator)
            asyncio.run(_drive(running.cluster, record, units, times, faults if options.faults else None))
            cpu = 0.0 if options.faults else usage.cpu_seconds(running.operator) - began
        return _judged(running, record, cpu)._replace(faults=faults.struck)


def _judged(running: Running, record: Record, cpu: float) -> Outcome:
    audit = Audit(running.fleet, grace=GRACE_SECONDS)
    audit.run(record.events)
    for name, rule in audit.rules.items():
        figures.say(f"{name}: {len(rule.faults)}")
        for fault in rule.faults[:SHOWN]:
            figures.say(f"  {fault}")
    workloads = len({event.uid for event in record.events if isinstance(event.value, Workload)})
    figures.say(f"{len(record.events)} revisions of {workloads} workloads and their pods")
    return Outcome(audit, workloads, 1000 * cpu / workloads, faults={})


def _admissions(options: argparse.Namespace) -> dict[str, float]:
    """Return how many small Jobs of a burst are admitted a second, and the ratio: medians of alternating bursts."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    with teams_cluster.opened(options.nodes, check=True) as running:
        for check in (False, True) * PAIRS:
            teams_cluster.make_queues(running, check=check)
            with teams_cluster.recorded(running) as record:
                rates[check].append(asyncio.run(_burst(running.cluster, record)))
    without, checked = (statistics.median(rates[check]) for check in (False, True))
    return {"admissions_per_s": round(checked, 2), "admissions_ratio": round(checked / without, 2)}


async def _burst(cluster: Cluster, record: Record) -> float:
    """Create small Jobs that fit at once; return how many were admitted a second, and delete them."""
    units, began = teams_load.burst(BURST), time.monotonic()
    async with Bulk(cluster) as bulk, asyncio.TaskGroup() as tasks:
        for unit in units:
            tasks.create_task(_create(cluster, bulk, unit))
        took = await _all_admitted(record) - began
    async with Bulk(cluster) as bulk:
        for unit in units:
            await _delete(cluster, bulk, unit)
        await _drain(record)
    return BURST / took


async def _all_admitted(record: Record) -> float:
    """Return when the last of the burst was admitted.

    Raises:
        WaitError: some were not in time.
    """

    async def admitted() -> dict[str, float] | None:
        firsts = {event.uid: event.at for event in reversed(record.events) if _is_admitted(event)}
        return firsts if len(firsts) == BURST else None

    firsts = await waiting.until_async(
        admitted, deadline=BURST_SECONDS, what=f"{BURST} small Jobs to be admitted", poll=POLL_SECONDS
    )
    assert firsts is not None
    return max(firsts.values())


def _is_admitted(event: Event) -> bool:
    return isinstance(event.value, Workload) and event.value.is_admitted


async def _drive(
    cluster: Cluster, record: Record, units: Sequence[Unit], times: Sequence[float], faults: Faults | None
) -> None:
    """Create each unit at its time, and delete those that do not end by themselves when they have run."""
    began = time.monotonic()
    async with Bulk(cluster) as bulk, asyncio.TaskGroup() as tasks:
        removing = tasks.create_task(_remove(cluster, record, bulk, units))
        striking = tasks.create_task(faults.strike()) if faults else None
        for unit, at in zip(units, times, strict=True):
            await asyncio.sleep(began + at - time.monotonic())
            tasks.create_task(_create(cluster, bulk, unit))
        figures.say(f"all units were created after {time.monotonic() - began:.0f} s")
        if faults:
            faults.is_calm = True
        await _drain(record)
        removing.cancel()
        if striking:
            striking.cancel()
    left = _left(record)
    figures.say(f"{len(left)} workloads were left after {time.monotonic() - began:.0f} s")
    # Those that hold quota first: the others may wait for it.
    for workload in sorted(left, key=lambda each: not each.has_quota)[:SHOWN]:
        pods = list(record.state.pods_of(workload))
        bound = sum(bool(pod.node) for pod in pods)
        quota = "admitted" if workload.is_admitted else "with quota" if workload.has_quota else "without quota"
        figures.say(f"  {workload.team}/{workload.name} {quota}, {bound} of {len(pods)} pods have nodes")


async def _remove(cluster: Cluster, record: Record, bulk: Bulk, units: Sequence[Unit]) -> None:
    """Delete units that do not end by themselves, so many seconds after all their pods were bound."""
    left = [unit for unit in units if not unit.completes]
    due: dict[str, float] = {}
    while left:
        await asyncio.sleep(POLL_SECONDS)
        for unit in left:
            if len(record.bound[unit.name]) >= unit.pods:
                due.setdefault(unit.name, time.monotonic() + unit.seconds)
        over = [unit for unit in left if due.get(unit.name, float("inf")) <= time.monotonic()]
        left = [unit for unit in left if unit not in over]
        await asyncio.gather(*(_delete(cluster, bulk, unit) for unit in over))


async def _drain(record: Record) -> None:
    """Wait until no workload is left, or for so long."""
    await asyncio.to_thread(waiting.within, lambda: not _left(record), seconds=DRAIN_SECONDS, poll=POLL_SECONDS)


def _left(record: Record) -> list[Workload]:
    return [workload for workload in list(record.state.workloads.values()) if not workload.is_over]


async def _create(cluster: Cluster, bulk: Bulk, unit: Unit) -> None:
    resource = cluster.api.resource(unit.plural)
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    await _send(bulk, "POST", resource.path(namespace=unit.team), {**head, **unit.manifest}, done=HTTPStatus.CONFLICT)


async def _delete(cluster: Cluster, bulk: Bulk, unit: Unit) -> None:
    path = cluster.api.resource(unit.plural).path(namespace=unit.team, name=unit.name)
    # Kueue deletes a pod that it evicts.
    await _send(bulk, "DELETE", path, BACKGROUND, done=HTTPStatus.NOT_FOUND)


async def _send(bulk: Bulk, method: str, path: str, body: Raw, *, done: HTTPStatus) -> None:
    """Send a request, again and again for a while: what it needs may have been killed.

    Raises:
        WaitError: it was refused until the end.
    """

    async def is_sent() -> bool:
        try:
            await bulk.request(method, path, body)
        except (RuntimeError, aiohttp.ClientError) as error:
            return f": {done} " in str(error)
        return True

    await waiting.until_async(is_sent, deadline=SEND_SECONDS, what=f"{method} {path}", poll=POLL_SECONDS)


if __name__ == "__main__":
    main()
