"""The operator's memory, and others' binds, under waves of hostile objects.

Run `python -m tests.bench.resources.hostile_memory`. NODES, PODS and HOSTILE are environment variables. The operator
runs on a real control plane. There are two equal waves. In each, a tenant creates HOSTILE pods of all rows of
`tests.attacks.zoo` that the API server accepts, and a hostile Device changes. PODS pods of another namespace arrive
meanwhile. Then the tenant deletes all. `grown_mb` is how much the first wave adds to the resident memory, at its end
with all hostile pods present. `second_mb` is how much the second wave adds to that. A pod's creation takes `create_`
milliseconds, and its bind takes `bind_` from the answer on. Both include the API server's time for pods of a megabyte,
because it sends each of them to every watch of pods. So a watch of the benchmark sees a new pod only `seen_`
milliseconds after the answer. `seen_bind_` is the time from there until a watch shows the bind.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from devcluster import waiting
from tests.attacks import zoo
from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track, usage
from tests.bench.cluster.bulk import Bulk
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher

MIB: Final = 2**20
TENANT: Final = "hostile"
AT_ONCE: Final = 4
PAUSE: Final = 0.1
"""Seconds between two pods of the other namespace."""
BOUND_SECONDS: Final = 120.0
SETTLED_SECONDS: Final = 5.0

Raw = dict[str, Any]


def main() -> None:
    """Run the benchmark."""
    nodes, count = figures.number("NODES", 100), figures.number("PODS", 300)
    hostile = figures.number("HOSTILE", 500)
    with track.opened(nodes) as opened:
        measured = measure(opened, count=count, hostile=hostile)
    figures.result({"bench": "hostile_memory", **measured, "nodes": nodes, "pods": count, "hostile": hostile})


def measure(track: Track, *, count: int, hostile: int) -> dict[str, Any]:
    """Return the memory after each wave, and how soon the other pods were bound."""
    ours, rss = contestants.ours(track.arena, track.folder, timing={}), list[float]()
    times = Times()
    with track.settled(ours) as operator, _watcher(track) as watcher:
        asyncio.run(_open(track))
        before = usage.resident_bytes(operator.pid) / MIB
        refused = 0
        for wave in range(2):
            created, refused = asyncio.run(_wave(track, wave, count=count, hostile=hostile))
            waiting.until(
                lambda created=created: created.keys() <= watcher.bound.keys(),  # type: ignore[misc]
                deadline=BOUND_SECONDS,
                what="the pods of the other namespace to be bound",
                poll=0.1,
            )
            time.sleep(SETTLED_SECONDS)
            rss.append(usage.resident_bytes(operator.pid) / MIB)
            figures.say(f"wave {wave}: {before:.0f} -> {rss[-1]:.0f} MiB")
            times.add(created, watcher)
            asyncio.run(_clear(track, hostile))
            time.sleep(SETTLED_SECONDS)
        after, peak = usage.resident_bytes(operator.pid) / MIB, usage.peak_bytes(operator.pid) / MIB
    return {
        "before_mb": round(before),
        "grown_mb": round(rss[0] - before),
        "second_mb": round(rss[1] - rss[0]),
        "after_mb": round(after),
        "peak_mb": round(peak),
        **times.quantiles(),
        "refused_by_api": refused,
    }


def _watcher(track: Track) -> Watcher:
    """Return an observer that also records when a watch of whole pods first shows each."""
    return Watcher(track.arena.cluster, track.arena.namespace, {track.pods: lambda raw: [raw["metadata"]["name"]]})


class Times:
    """Seconds that the steps of each ordinary pod took."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {"create": [], "seen": [], "bind": [], "seen_bind": []}

    def add(self, created: Mapping[str, tuple[float, float]], watcher: Watcher) -> None:
        """Add the pods of a wave: when each was sent and answered."""
        for name, (sent, answered) in created.items():
            seen, bound = watcher.signaled[name], watcher.bound[name]
            steps = {"create": answered - sent, "seen": seen - answered, "bind": bound - answered}
            for step, took in {**steps, "seen_bind": bound - seen}.items():
                self._took[step].append(max(0.0, took))

    def quantiles(self) -> dict[str, int]:
        """Return the median and the 99th percentile of each step in milliseconds."""
        return {
            f"{step}_p{percent}_ms": round(1000 * figures.quantile(took, percent / 100))
            for step, took in self._took.items()
            for percent in (50, 99)
        }


async def _open(track: Track) -> None:
    async with Bulk(track.arena.cluster) as bulk:
        await bulk.request("POST", "/api/v1/namespaces", {"metadata": {"name": TENANT}})
        await _until_has_account(bulk)


async def _until_has_account(bulk: Bulk) -> None:
    for _ in range(100):
        try:
            await bulk.request("GET", f"/api/v1/namespaces/{TENANT}/serviceaccounts/default")
        except RuntimeError:
            await asyncio.sleep(0.2)
        else:
            return


async def _wave(track: Track, wave: int, *, count: int, hostile: int) -> tuple[dict[str, tuple[float, float]], int]:
    """Create all objects of a wave; return when each ordinary pod was sent and answered, and how many were refused."""
    created: dict[str, tuple[float, float]] = {}
    objects = islice(_hostile(track), hostile)
    async with Bulk(track.arena.cluster) as bulk, asyncio.TaskGroup() as tasks:
        attacks = [tasks.create_task(_create(bulk, objects)) for _ in range(AT_ONCE)]
        tasks.create_task(_put_device(bulk, wave))
        for number in range(count):
            name = f"ordinary-{wave}-{number}"
            requests = {"cpu": "100m", crowd.GPU: "1"} if number % 4 == 0 else {"cpu": "100m"}
            limits = {crowd.GPU: "1"} if number % 4 == 0 else {}
            began = time.monotonic()
            await bulk.request("POST", track.pods, track.arena.pod(name, requests=requests, limits=limits))
            created[name] = began, time.monotonic()
            await asyncio.sleep(PAUSE)
    return created, sum(task.result() for task in attacks)


def _hostile(track: Track) -> Iterator[Raw]:
    for number in itertools.count():
        for place, kind in enumerate(zoo.PODS):
            raw = zoo.hostile_pod(kind, number)
            spec = {**raw["spec"], "schedulerName": track.arena.scheduler_name}
            spec["containers"] = [_valid(each) for each in spec["containers"]]
            metadata = {each: raw["metadata"][each] for each in ("labels", "annotations")}
            name = {"name": f"hostile-{number}-{place}", "namespace": TENANT}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **name}, "spec": spec}


def _valid(container: Raw) -> Raw:
    """Return a container as the API server accepts it: extended resources have limits."""
    requests = (container.get("resources") or {}).get("requests") or {}
    amounts = {name: str(amount) for name, amount in requests.items()}
    return {"image": "x", **container, "resources": {"requests": amounts, "limits": amounts}}


async def _create(bulk: Bulk, objects: Iterator[Raw]) -> int:
    """Create pods, and return how many the API server refused."""
    refused = 0
    for raw in objects:
        try:
            await bulk.request("POST", f"/api/v1/namespaces/{TENANT}/pods", raw)
        except RuntimeError as error:
            refused += 1
            figures.say(f"{raw['metadata']['name']}: {str(error)[:160]}")
    return refused


async def _put_device(bulk: Bulk, wave: int) -> None:
    """Create hostile Devices one after the other, each with other contents than in the wave before."""
    for place, make in enumerate(zoo.DEVICES.values()):
        name = f"hostile-{place}"
        spec = make(name, wave)["spec"]
        body = {"apiVersion": "berth.dev/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": spec}
        try:
            await bulk.request("POST", crowd.DEVICES, body)
        except RuntimeError as error:
            figures.say(f"{name}: {str(error)[:300]}")


async def _clear(track: Track, hostile: int) -> None:
    async with Bulk(track.arena.cluster) as bulk:
        devices = (f"{crowd.DEVICES}/hostile-{place}" for place in range(len(zoo.DEVICES)))
        pods = (
            f"/api/v1/namespaces/{TENANT}/pods/{each['metadata']['name']}" for each in islice(_hostile(track), hostile)
        )
        # As a collection, the answer would have all of them in full.
        paths = chain(devices, pods)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(_delete(bulk, paths))
    await track.clear()


async def _delete(bulk: Bulk, paths: Iterator[str]) -> None:
    for path in paths:
        try:
            await bulk.request("DELETE", path, {"gracePeriodSeconds": 0})
        except RuntimeError:
            figures.say(f"{path} was never there")


if __name__ == "__main__":
    main()
