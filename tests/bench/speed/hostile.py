"""How long hostile objects hold the operator's loop: `python -m tests.bench.speed.hostile`.

NODES, PODS and HOSTILE are environment variables. The scheduler, its reporter and the state run on an API server in
memory. PODS ordinary pods arrive, are bound and leave. Then the same happens again, while HOSTILE objects of all rows
of `tests.attacks.zoo` come and go: pods that wait, pods that name their node themselves, and Devices with pods that fit
only on these Devices. Meanwhile, users request explanations of why these pods wait. A block is one turn of the loop.
`p99_ms` is over the longest block of each tenth of a second. `cpu_` figures are processor time, which other programs on
the machine do not lengthen.
"""

import asyncio
import contextlib
import gc
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import orjson

from berth_api import names
from berth_client.errors import CallError
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.visibility.explainer import Explainer
from berth_operator.commands.operate import COLLECT
from berth_operator.state.objects import pods
from tests.attacks import zoo
from tests.bench import figures
from tests.component.world import DEFAULT, World
from tests.objects.builders import CORE, NVIDIA, RATIO, device, entry, node, pod

Raw = dict[str, Any]

CARDS: Final = 8
WINDOW: Final = 0.1
"""Seconds whose longest block is one sample."""
PAUSE: Final = 0.002
"""Seconds between two pods."""
LIVES: Final = 400
"""Pods that exist at a time; the oldest leaves when another comes."""
HOSTILE_LIVES: Final = 200
LARGE: Final = 100_000
"""Bytes of a pod that the operator refuses, or that names its node, so that nothing of it is read again."""
LISTED: Final = 5
"""Kinds of hostile objects that the result names."""


class Stage(World):
    """A world whose API server sends each object as a line of JSON."""

    def send(self, line: bytes, event: str = "ADDED") -> None:
        """Pass an object to the state as the reflector of pods does."""
        self.pods.apply(event, pods.transform(orjson.loads(line)))  # type: ignore[arg-type]

    def create(self, raw: Raw) -> None:
        """Create a pod."""
        self.api.pods[raw["metadata"]["name"]] = raw
        self.send(orjson.dumps(raw))

    def leave(self, name: str) -> None:
        """Delete a pod at once."""
        if (raw := self.api.pods.pop(name, None)) is not None:
            self.send(orjson.dumps(raw), "DELETED")

    def seen_bound(self, pod: Raw) -> None:
        """Pass on the pod with its node a moment later."""
        line = orjson.dumps(pod)
        asyncio.get_running_loop().call_later(0.02, self._seen, line)

    def _seen(self, line: bytes) -> None:
        raw = orjson.loads(line)
        if raw["metadata"]["name"] in self.api.pods:
            self.pods.apply("MODIFIED", pods.transform(raw))

    def fill(self, nodes: int) -> None:
        """Add nodes with eight cards each, and one node for each hostile Device."""
        links = [{"minor": other, "type": "NVLink", "count": 12} for other in range(CARDS)]
        for number in range(nodes):
            name = f"node-{number}"
            self.cluster.node_cache.put_node(
                node(name, labels={"zone": f"zone-{number % 3}", "kubernetes.io/hostname": name})
            )
            entries = (
                entry(
                    minor,
                    id=f"GPU-{number}-{minor}",
                    links=[each for each in links if each["minor"] != minor],
                    topology={"nodeID": minor // 4, "pcieID": f"switch-{minor // 2}"},
                )
                for minor in range(CARDS)
            )
            self.cluster.node_cache.put_device(device(name, *entries))
            self.cluster.fleet.set_fresh(name, fresh=True)
        for number in range(len(zoo.DEVICES)):
            self.cluster.node_cache.put_node(
                node(f"hostile-{number}", labels={"hostile": str(number)}, allocatable=_MANY)
            )


_MANY: Final = {"cpu": "1000", NVIDIA: "256"}


class Blocks:
    """The turns of the loop: the longest of each window, in seconds of the clock and of the processor."""

    def __init__(self) -> None:
        self.wall: list[float] = [0.0]
        self.cpu: list[float] = [0.0]
        self.is_own = False
        """Whether the current turn prepares an object, which is the benchmark's work."""
        self.doing = ""
        """The kind of the object that came last."""
        self.longest: dict[str, float] = {}
        """Kind -> the longest turn after one of it came, in the processor's milliseconds."""

    async def watch(self) -> None:
        """Measure until cancelled."""
        ends_at = time.perf_counter() + WINDOW
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            now, took = time.perf_counter(), time.thread_time() - cpu
            if not self.is_own:
                self.wall[-1], self.cpu[-1] = max(self.wall[-1], now - wall), max(self.cpu[-1], took)
                self.longest[self.doing] = max(self.longest.get(self.doing, 0.0), round(1000 * took, 1))
            self.is_own = False
            if now > ends_at:
                self.wall.append(0.0)
                self.cpu.append(0.0)
                ends_at = now + WINDOW

    def figures(self) -> dict[str, float]:
        """Return p50, p99 and maximum in milliseconds."""
        measured = {}
        for name, values in (("", self.wall), ("cpu_", self.cpu)):
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                measured[f"{name}{label}_ms"] = round(1000 * figures.quantile(values, share), 1)
        return measured


def main() -> None:
    """Run the benchmark."""
    nodes, count = figures.number("NODES", 1000), figures.number("PODS", 3000)
    hostile = figures.number("HOSTILE", 500)
    figures.say_load()
    without = asyncio.run(run(nodes, count, 0))
    with_them = asyncio.run(run(nodes, count, hostile))
    sizes = {"nodes": nodes, "pods": count, "hostile": hostile}
    figures.result({"bench": "hostile", "without": without, "with": with_them, **sizes})


async def run(nodes: int, count: int, hostile: int) -> dict[str, Any]:
    """Return the blocks of the loop, and how soon the ordinary pods were bound."""
    stage, blocks = Stage(), Blocks()
    stage.fill(nodes)
    # As the operator does it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    async with stage.running():
        await _ordinary(stage, 200, "warm")  # the first decision of each class computes all columns
        watcher = asyncio.create_task(blocks.watch())
        live: deque[tuple[str, str]] = deque()
        asking = asyncio.create_task(_ask(stage, blocks, live))
        attack = asyncio.create_task(_attack(stage, blocks, hostile, live))
        took = await _ordinary(stage, count, "pod")
        await attack
        asking.cancel()
        watcher.cancel()
    waits = {f"bind_{label}_ms": round(1000 * figures.quantile(took, share)) for label, share in _SHARES}
    worst = dict(sorted(blocks.longest.items(), key=lambda item: -item[1])[:LISTED])
    return {**blocks.figures(), **waits, "unbound": count - len(took), "longest_cpu_ms": worst}


_SHARES: Final = (("p50", 0.5), ("p99", 0.99))


async def _ordinary(stage: Stage, count: int, prefix: str) -> list[float]:
    """Create pods one after the other, delete the oldest, and return the seconds until each was bound."""
    created: dict[str, float] = {}
    took: list[float] = []

    def bound(raw: Raw) -> None:
        if (at := created.get(raw["metadata"]["name"])) is not None:
            took.append(time.perf_counter() - at)

    stage.api.on_bound.append(bound)
    for number in range(count):
        name = f"{prefix}-{number}"
        created[name] = time.perf_counter()
        stage.create(_ordinary_pod(name, number))
        stage.leave(f"{prefix}-{number - LIVES}")
        await asyncio.sleep(PAUSE)
    await asyncio.sleep(1)
    stage.api.on_bound.remove(bound)
    for number in range(count - LIVES, count):
        stage.leave(f"{prefix}-{number}")
    return took


def _ordinary_pod(name: str, number: int) -> Raw:
    requests: Sequence[dict[str, str]] = (
        {"cpu": "1", NVIDIA: "1"},
        {"cpu": "4", NVIDIA: "4"},
        {"cpu": "2", CORE: "50", RATIO: "50"},
        {"cpu": "1"},
    )
    labels = {"app": f"app-{number % 40}"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    fields: Raw = {"topologySpreadConstraints": [spread]} if number % 3 == 0 else {}
    return pod(name, requests[number % len(requests)], labels=labels, **fields)


async def _attack(stage: Stage, blocks: Blocks, count: int, live: deque[tuple[str, str]]) -> None:
    """Create hostile objects one after the other, and delete the oldest; keep kind and name of those that live."""
    hostile = itertools.islice(_hostile(), count)
    while True:
        blocks.is_own = True
        if (prepared := next(hostile, None)) is None:
            break
        kind, act, name = prepared
        await asyncio.sleep(0)
        blocks.doing = kind
        act(stage)
        await asyncio.sleep(5 * PAUSE)
        live.extend([(kind, name)] if name else [])
        if len(live) > HOSTILE_LIVES:
            stage.leave(live.popleft()[1])
            await asyncio.sleep(0)
    while live:
        stage.leave(live.popleft()[1])
        await asyncio.sleep(0)


async def _ask(stage: Stage, blocks: Blocks, live: deque[tuple[str, str]]) -> None:
    """Ask for explanations of hostile pods, as fast as they are given, until cancelled."""
    managed = frozenset({names.SCHEDULER})
    explainer = Explainer(
        cluster=stage.cluster,
        pods=stage.api,
        policy=lambda _: DEFAULT,
        managed=lambda: managed,
        ranking=lambda _uid: None,
        reservation=lambda _uid: "",
        refusal=lambda _uid: "",
        term=lambda: 1,
    )
    for number in itertools.count():
        await asyncio.sleep(PAUSE)
        if live:
            kind, name = live[number % len(live)]
            blocks.doing = f"explanation of {kind}"
            with contextlib.suppress(StatusError, CallError):
                # Users are many, and the limit is one for each.
                await explainer.explain(f"user-{number}", "ns", name)


Act = Callable[[Stage], object]


def _hostile() -> Iterator[tuple[str, Act, str]]:
    """Yield (kind, act, name of the pod) of all kinds of pods in turns; every so often, of a hostile Device."""
    for number in itertools.count():
        for place, kind in enumerate(zoo.PODS):
            yield _arrival(
                kind,
                zoo.hostile_pod(kind, number, **({"on": f"node-{number % 100}"} if number % 2 else {})),
                f"hostile-{number}-{place}",
            )
        node_number = number % len(zoo.DEVICES)
        kind, make = list(zoo.DEVICES.items())[node_number]
        yield (
            kind,
            partial(_put_device, line=orjson.dumps(make(f"hostile-{node_number}", number)), number=node_number),
            "",
        )
        for level, cards in itertools.product(("nvlink", "numa", "pcie"), (2, 16, 64)):
            raw = pod(
                "linked",
                {NVIDIA: str(cards)},
                annotations={names.GPU_TOPOLOGY: level},
                nodeSelector={"hostile": str(node_number)},
            )
            yield _arrival(f"{cards} cards by {level} of {kind}", raw, f"linked-{number}-{level}-{cards}")


def _arrival(kind: str, raw: Raw, name: str) -> tuple[str, Act, str]:
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    line = orjson.dumps(raw)
    # Millions of objects that only the API server would have would slow the collector of garbage down.
    kept = raw if len(line) < LARGE else {"metadata": {**raw["metadata"], "labels": {}, "annotations": {}}, "spec": {}}

    def arrive(stage: Stage) -> None:
        stage.api.pods[name] = kept
        stage.send(line)

    return kind, arrive, name


def _put_device(stage: Stage, *, line: bytes, number: int) -> None:
    stage.cluster.node_cache.put_device(orjson.loads(line))
    stage.cluster.fleet.set_fresh(f"hostile-{number}", fresh=True)


if __name__ == "__main__":
    main()
