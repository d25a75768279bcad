"""kube-scheduler with Berth's extender, kube-scheduler alone, and Berth: `python -m tests.bench.speed.extender`.

NODES, LARGE, PODS, CALLS and REPEAT are environment variables. All three race on one cluster of NODES nodes, with the
rules in `race`. kube-scheduler alone scores all nodes, too, and only counts cards. The extender is configured as
shipped, with TLS on both sides. Then a client filters, prioritizes and binds CALLS pods one by one. Each call has the
names of all nodes. This is done on the same cluster and on one of LARGE nodes (0 for none). The times are the client's.

The parts of a cycle are means over the race, from the metrics of kube-scheduler and of the operator.
"""

import asyncio
import itertools
import re
import ssl
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from tests.bench import figures
from tests.bench.cluster import contestants, track, usage
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.race import Race, Run
from tests.bench.cluster.track import READY_SECONDS, Track
from tests.integration.operator.world import free_ports
from tests.programs import kube_scheduler

PATH: Final = "/apis/nvidia-gpu-scheduler/v1/schedule"
HOST: Final = "berth-extender.berth-system.svc"
REQUESTS: Final = (
    {"nvidia.com/gpu": "1"},
    {"koordinator.sh/gpu": "50"},
    {"koordinator.sh/gpu": "200"},
    {"koordinator.sh/gpu-memory": "8Gi"},
)
IN_TREE: Final = ("PreFilter", "Filter", "PreScore", "Score", "NormalizeScore")
"""The extension points of a scheduling cycle before the node is chosen."""
ALGORITHM: Final = "scheduler_scheduling_algorithm_duration_seconds"
POINTS: Final = "scheduler_framework_extension_point_duration_seconds"
WARM: Final = 40
"""Pods before those that count: the first of each kind computes its columns for all nodes."""
SLOW: Final = 1
"""Status writes per second while calls are measured one by one."""
CALLS: Final = "berth_extender_call_seconds"

Raw = dict[str, Any]


def main() -> None:
    """Run the benchmark."""
    nodes, large = figures.number("NODES", 1000), figures.number("LARGE", 5000)
    pods, calls = figures.number("PODS", 2000), figures.number("CALLS", 400)
    with track.opened(nodes) as opened:
        bench = Bench(opened)
        rates = bench.race(pods=pods, repeat=figures.number("REPEAT", 1))
        small = bench.calls(calls)
    at_large = _at(large, calls) if large else {}
    figures.result({"bench": "extender", "nodes": nodes, **small, **rates, "large": at_large})


def _at(nodes: int, calls: int) -> Raw:
    with track.opened(nodes) as opened:
        return {"nodes": nodes, **Bench(opened).calls(calls)}


class Bench:
    """One cluster, with the certificates of the extender."""

    def __init__(self, track: Track) -> None:
        self._track, self._arena = track, track.arena
        self._certificates = kube_scheduler.certificates(Path(tempfile.mkdtemp(dir=track.folder)))
        self._port, self._metrics, self._kube_metrics = free_ports(3)
        served = kube_scheduler.flags(
            track.arena, self._certificates, self._port, contestants.extended_name(track.arena)
        )
        self._operator = contestants.ours(
            track.arena,
            track.folder,
            {**contestants.STOPPED, **served, "metrics_port": self._metrics, "metrics_address": "127.0.0.1"},
            account=f"bench-extender-{self._port}",
        )

    @property
    def _url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def race(self, *, pods: int, repeat: int) -> Raw:
        """Run all three `repeat` times; return the medians of pods per second."""
        race, ours = Race(self._track, pods=pods), contestants.ours(self._arena, self._track.folder)
        alone = contestants.kube_scheduler(self._arena, self._track.folder, percentageOfNodesToScore=100)
        extended = contestants.extended(
            self._arena, self._track.folder, self._url, self._certificates, metrics_port=self._kube_metrics
        )
        rates: dict[str, list[float]] = {each.name: [] for each in (alone, extended, ours)}
        for _ in range(repeat):
            for contestant in (alone, extended, ours):
                run = self._run(race, contestant, ours)
                rates[contestant.name].append(run.figures()["pods_per_s"])
                figures.say(f"{contestant.name}: {rates[contestant.name][-1]:.0f} pods/s, {run.bound} bound")
        medians = {name: round(statistics.median(each), 1) for name, each in rates.items()}
        return {
            "pods_per_s": medians[contestants.EXTENDED],
            "kube_scheduler_pods_per_s": medians[contestants.KUBE_SCHEDULER],
            "ours_pods_per_s": medians[contestants.OURS],
        }

    def _run(self, race: Race, contestant: Contestant, ours: Contestant) -> Run:
        if contestant.name != contestants.EXTENDED:
            self._track.settle(ours)
            return race.run(contestant)
        with self._track.settled(self._operator) as operator:
            scraped: list[str] = []
            used = usage.cpu_seconds(operator.pid)
            run = race.run(contestant, lambda: scraped.extend(self._scrape()))
            used = 1000 * (usage.cpu_seconds(operator.pid) - used) / run.bound
        say_cycle(1000 / run.figures()["pods_per_s"], *scraped)
        own = run.figures()["cpu_ms_per_pod"]
        figures.say(f"processor time for each pod: {own:.2f} ms of kube-scheduler, {used:.2f} ms of the operator")
        return run

    def _scrape(self) -> tuple[str, str]:
        """Return the metrics of kube-scheduler and of the operator."""
        return _fetch(f"https://127.0.0.1:{self._kube_metrics}/metrics"), _fetch(
            f"http://127.0.0.1:{self._metrics}/metrics"
        )

    def calls(self, count: int) -> Raw:
        """Filter, prioritize and bind this many pods; return the quantiles in milliseconds."""
        # Bringing thousands of new Nodes up to date takes minutes, and is not what is measured.
        operator = self._operator.start(f"--status-rate={SLOW}")
        operator.logged('"event": "leading"', deadline=READY_SECONDS)
        asyncio.run(self._track.create(list(self._pods(WARM + count))))
        names = [each["metadata"]["name"] for each in self._arena.list("nodes")]
        times = asyncio.run(self._call_all(names))
        asyncio.run(self._track.clear())
        operator.stop()
        quantiles: Raw = {}
        for verb, values in times.items():
            for share in (50, 99):
                quantiles[f"{verb}_p{share}_ms"] = round(1000 * figures.quantile(values[WARM:], share / 100), 2)
        figures.say(f"{len(names)} nodes: {quantiles}")
        return quantiles

    def _pods(self, count: int) -> Iterator[Raw]:
        scheduler_name = contestants.extended_name(self._arena)
        for number, requests in zip(range(count), itertools.cycle(REQUESTS), strict=False):
            yield self._arena.pod(f"call-{number}", requests=requests, limits=requests, scheduler_name=scheduler_name)

    async def _call_all(self, names: list[str]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
        connector = aiohttp.TCPConnector(ssl=_tls(self._certificates))
        async with aiohttp.ClientSession(self._url, connector=connector) as session:
            for pod in self._arena.list("pods"):
                metadata = pod["metadata"]
                args = {"Pod": pod, "Nodes": None, "NodeNames": names}
                filtered = await _timed(session, "filter", args, times)
                await _timed(session, "prioritize", args, times)
                [node] = filtered["NodeNames"]
                key = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
                bound = await _timed(session, "bind", {**key, "Node": node}, times)
                if bound["Error"]:
                    raise RuntimeError(bound["Error"])
            await connector.close(abort_ssl=True)
        return times


async def _timed(session: aiohttp.ClientSession, verb: str, args: Raw, times: dict[str, list[float]]) -> Any:
    body = orjson.dumps(args)
    began = time.perf_counter()
    async with session.post(f"{PATH}/{verb}", data=body, server_hostname=HOST) as response:
        response.raise_for_status()
        answer = await response.read()
    times[verb].append(time.perf_counter() - began)
    return orjson.loads(answer)


def _tls(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "client/ca.crt"))
    context.load_cert_chain(certificates / "client/tls.crt", certificates / "client/tls.key")
    return context


def _fetch(url: str) -> str:
    # kube-scheduler's own certificate, on loopback.
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    with urllib.request.urlopen(url, timeout=10, context=context) as response:  # noqa: S310 - loopback
        return str(response.read(), "utf-8")


def say_cycle(cycle: float, of_kube_scheduler: str, of_operator: str) -> None:
    """Print where the milliseconds of a cycle go, from the metrics of both programs."""
    algorithm = mean_ms(of_kube_scheduler, ALGORITHM)
    in_tree = sum(mean_ms(of_kube_scheduler, POINTS, extension_point=point) for point in IN_TREE)
    filtered, bound = (mean_ms(of_operator, CALLS, verb=verb) for verb in ("filter", "bind"))
    figures.say(f"a cycle takes {cycle:.2f} ms:")
    figures.say(f"  {in_tree:.2f} ms in kube-scheduler's own filters and scores")
    figures.say(f"  {filtered:.2f} ms in the extender's filter")
    between = algorithm - in_tree - filtered
    figures.say(f"  {between:.2f} ms from one to the other: JSON, TLS, waiting for the operator's other work")
    figures.say(f"  {cycle - algorithm:.2f} ms for the rest: the queue, the snapshot, and waiting for binds")
    figures.say(f"concurrently, a bind takes {bound:.2f} ms in the extender")


def mean_ms(text: str, metric: str, **labels: str) -> float:
    """Return the mean of a histogram in milliseconds, over all series with these labels; 0 without observations."""
    total, count = (_sum(text, f"{metric}_{part}", labels) for part in ("sum", "count"))
    return 1000 * total / count if count else 0.0


def _sum(text: str, name: str, labels: dict[str, str]) -> float:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for own, value in lines if all(each in own for each in wanted))


if __name__ == "__main__":
    main()
