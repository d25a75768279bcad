"""Random lives of pods of kube-scheduler and of berth-scheduler on the same nodes, audited by card after each step."""

import asyncio
import copy
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import orjson
import pytest

from berth_api import names
from berth_client.errors import Unreachable
from tests.component.extender.extender_stage import HALF, WHOLE, Raw, Stage, asking
from tests.component.world import Api, LostError, World, refusal
from tests.objects.builders import NVIDIA, device, entry, node, pod

pytestmark = pytest.mark.looptime

CORE: Final = "gpu-core"
MODELS: Final = ("A100", "H100")
NODES: Final = {f"n{number}": [MODELS[(number + minor) % 2] for minor in range(1 + number % 3)] for number in range(5)}
"""Node -> the models of its cards."""
REQUESTS: Final[tuple[Mapping[str, int], ...]] = (HALF, WHOLE, {NVIDIA: 1}, {NVIDIA: 2})
STEPS: Final = 80
FAULTS: Final = (LostError("the answer got lost"), Unreachable("no route"), refusal(422, "no"), refusal(503, "busy"))


def furnished(api: Api | None = None) -> World:
    world = World(api=api)
    for name, models in NODES.items():
        world.cluster.node_cache.put_node(node(name))
        world.cluster.node_cache.put_device(
            device(name, *(entry(minor, model=model) for minor, model in enumerate(models)))
        )
    return world


def audit(api: Api) -> None:
    """Check the pods that are bound on the API server: no card is used by more than it has, and models are right."""
    used: defaultdict[tuple[str, int], int] = defaultdict(int)
    for name, raw in api.pods.items():
        if not (on := raw["spec"].get("nodeName")):
            continue
        annotations = raw["metadata"]["annotations"]
        gpus = orjson.loads(annotations[names.ALLOCATED])["gpu"]
        wanted = annotations.get(names.MODEL_EXACT)
        for gpu in gpus:
            used[on, gpu["minor"]] += sum(int(each) for key, each in gpu["resources"].items() if key.endswith(CORE))
            assert wanted in (None, NODES[on][gpu["minor"]]), name
    assert all(each <= 100 for each in used.values()), dict(used)


def audit_state(world: World) -> None:
    """Check what is charged: no card is promised to more than it has."""
    used: Counter[tuple[str, int]] = Counter()
    for charge in world.fleet.charges.values():
        for grant in charge.grants:
            used[charge.node, grant.minor] += dict(grant.amounts)[CORE]
    assert all(each <= 100 for each in used.values()), dict(used)


class Life:
    """One random life of a cluster; kube-scheduler asks in the wrong order, twice, too late or not at all."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.random = random.Random(seed)
        self.world = furnished()
        self.stage = Stage(self.world, nodes=nodes)
        self.answers: dict[str, list[str]] = {}
        """Name of a waiting pod -> the nodes of the last answer to filter."""
        self.calls: set[asyncio.Task[str]] = set()
        self.number = 0

    def create(self) -> None:
        self.number += 1
        annotations = {names.MODEL_EXACT: self.random.choice(MODELS)} if self.random.random() < 0.5 else {}
        priority = self.random.choice((0, 0, 5))
        raw = asking(f"k{self.number}", self.random.choice(REQUESTS), annotations=annotations, priority=priority)
        self.stage.create(raw)
        self.answers[raw["metadata"]["name"]] = []

    def submit(self) -> None:
        self.number += 1
        self.world.submit(pod(f"b{self.number}", self.random.choice(REQUESTS)))

    def filter(self) -> None:
        if (name := self.waiting()) is not None:
            nodes = self.random.sample(sorted(NODES), self.random.randint(1, len(NODES)))
            result = self.stage.filter(copy.deepcopy(self.raw(name)), *nodes)
            assert {*result.names, *result.failed, *result.unresolvable} <= {*nodes}
            self.answers[name] = list(result.names)

    def bind(self) -> None:
        if (name := self.waiting()) is not None:
            answered = self.answers[name] if self.random.random() < 0.9 else []
            on = self.random.choice(answered or sorted(NODES))
            if self.random.random() < 0.3:
                self.world.api.faults[f"bind {name}"] = [self.random.choice(FAULTS)]
            task = asyncio.create_task(self.stage.bind(self.raw(name), on))
            self.calls.add(task)
            task.add_done_callback(self.calls.discard)

    def delete(self) -> None:
        # A bound pod only after the watch has shown it, since a watch keeps the order of events.
        unseen = {name for name in self.world.api.bound() if self.world.cluster.placements.is_assumed(f"uid-{name}")}
        if names_of_pods := sorted(self.world.api.pods.keys() - unseen):
            name = self.random.choice(names_of_pods)
            raw = self.raw(name)
            self.answers.pop(name, None)
            if name.startswith("k"):
                self.stage.watch.apply("DELETED", raw)
            self.world.delete(name)

    def waiting(self) -> str | None:
        """Return the name of a pod of kube-scheduler that waits."""
        waiting = [name for name in self.answers if not self.raw(name)["spec"].get("nodeName")]
        return self.random.choice(waiting) if waiting else None

    def raw(self, name: str) -> Raw:
        return self.world.api.pods[name]

    async def live(self) -> None:
        steps = [self.create, self.submit, self.filter, self.filter, self.bind, self.bind, self.delete]
        async with self.world.running():
            for _ in range(STEPS):
                self.random.choice(steps)()
                audit_state(self.world)
                await asyncio.sleep(self.random.choice((0, 0, 0.005, 0.02, 0.5)))
                audit(self.world.api)
                audit_state(self.world)
            await asyncio.gather(*self.calls)
            await asyncio.sleep(10)
            audit(self.world.api)


@pytest.mark.parametrize("seed", range(24))
async def test_no_card_is_allocated_twice(seed: int) -> None:
    life = Life(seed, nodes=1 + seed % 3)
    await life.live()
    api, fleet = life.world.api, life.world.fleet
    assert any(name.startswith("k") for _, name, _ in api.binds), "the test binds pods of kube-scheduler"
    # What is charged in the end is what is bound or reserved, and nothing else.
    reserved = {name for name in life.answers if life.stage.extender.reservations.get(f"uid-{name}") is not None}
    assert {each.pod.removeprefix("ns/") for each in fleet.charges.values()} == {*api.bound()} | reserved


@pytest.mark.parametrize("seed", range(4))
async def test_a_new_leader_binds_what_the_former_one_has_answered(seed: int) -> None:
    """The new leader knows no reservation, so it refuses at bind what does not fit, and nothing is allocated twice."""
    life = Life(seed, nodes=1)
    for _ in range(12):
        life.create()
    async with life.world.running() as api:
        for name in life.answers:
            result = life.stage.filter(life.raw(name))
            life.answers[name] = list(result.names)
        answered = {name: nodes[0] for name, nodes in life.answers.items() if nodes}
        first = dict(list(answered.items())[: len(answered) // 2])
        assert [await life.stage.bind(life.raw(name), on) for name, on in first.items()] == [""] * len(first)
    life.world.term = None
    successor = Stage(furnished(api))
    for raw in api.pods.values():
        successor.world.pods.apply("ADDED", copy.deepcopy(raw)) if raw["spec"].get("nodeName") else None
    async with successor.world.running():
        errors = [await successor.bind(life.raw(name), on) for name, on in answered.items() if name not in first]
    audit(api)
    assert errors == [""] * (len(answered) - len(first)), "nothing else has taken their devices meanwhile"
