"""`simulate` and `advise` agree with the operator, by the settings that it serves: random pods, five configurations."""

import asyncio
import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from berth_client.errors import ApiError
from berth_operator.apis.visibility.operator_settings import SettingsInUse
from berth_operator.commands import effective, preparing
from berth_operator.commands.effective import Served
from berth_operator.commands.errors import InputError
from berth_operator.commands.planning import Planner
from berth_operator.commands.preparing import Inputs, Origin
from berth_operator.core.advice.simulate import Outcome
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.fleet.pods import pod_mix_document
from berth_operator.core.fleet.pods.pod_mix import PodMix
from berth_operator.process.configured import Configured
from berth_operator.settings import configuration
from berth_operator.settings.flags import Settings
from berth_operator.state.watches.snapshot import Snapshot
from tests.component.world import World
from tests.objects.builders import T4, T4_BYTES, device, entry, half, lease, node, pod, whole

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]

PODS = 100
BATCH = "batch-scheduler"
KOORDINATOR = "koord-scheduler"
DRAINING = {"key": "draining", "effect": "NoSchedule"}
REQUESTS = (
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "2"},
    {"kubernetes.io/gpu": "100"},
    {"kubernetes.io/gpu": "30"},
    {"kubernetes.io/gpu": "50", "cpu": "6"},
    {"kubernetes.io/gpu-memory": "12Gi"},
    {"kubernetes.io/gpu": "150"},
    {"cpu": "9"},
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Settings of an operator, and the right of the user who asks."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    profiles: tuple[Raw, ...] = ({"schedulerName": names.SCHEDULER},)
    aliases: Mapping[str, list[str]] = field(default_factory=dict)
    may_read_fleet: bool = False

    @cached_property
    def configured(self) -> Configured:
        head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
        file = {**head, "profiles": list(self.profiles), "modelAliases": dict(self.aliases)}
        first = configuration.of_document(file, "file")
        return Configured(settings=self.settings, first=first, plugins={})

    @cached_property
    def settings(self) -> Settings:
        return Settings(_cli_parse_args=[], **self.flags)

    @property
    def schedulers(self) -> list[str]:
        return [each["schedulerName"] for each in self.profiles]


def profile(name: str = names.SCHEDULER, **fields: Any) -> Raw:
    return {"schedulerName": name, **fields}


CASES = {
    "priorities": Case(flags={"genius_priorities": "ns=5"}),
    "disabled filters": Case(profiles=(profile(plugins={"filters": {"disabled": ["taints", "cordon", "injected"]}}),)),
    "strategies": Case(profiles=(profile(strategy={"nodes": "MostAllocated", "cards": "LeastAllocated"}),)),
    "trusted schedulers": Case(flags={"trusted_schedulers": KOORDINATOR}, may_read_fleet=True),
    "two profiles": Case(
        profiles=(
            profile(plugins={"scores": {"disabled": ["fragmentation"], "weights": {"card-packing": 7}}}),
            profile(BATCH, strategy={"cards": "LeastAllocated"}, preemption=False),
        ),
        aliases={"small": ["*T4*"]},
    ),
}


# --- what there is ----------------------------------------------------------------------------------------------


def objects() -> Iterator[tuple[str, Raw]]:
    """Yield (kind, object): nodes of two models, some cordoned or tainted, and pods of another scheduler."""
    for number in range(12):
        name = f"node-{number:02}"
        cards = [entry(minor, model=T4, memory=T4_BYTES) if number % 3 == 0 else entry(minor) for minor in range(4)]
        taints = [DRAINING] if number == 4 else []
        yield "nodes", node(name, labels={"pool": "ab"[number % 2]}, taints=taints, unschedulable=number == 7)
        yield "devices", device(name, *cards, labels={})
        yield "leases", lease(name)
        if number % 4 == 1:
            theirs = {"schedulerName": KOORDINATOR, "priority": 1000, "bare": True}
            yield "pods", pod(f"theirs-{number}", {"kubernetes.io/gpu": "50"}, on=name, claims=half(0), **theirs)
        if number % 4 == 2:
            ours = {"schedulerName": names.SCHEDULER, "priority": 1000}
            yield "pods", pod(f"ours-{number}", {"nvidia.com/gpu": "1"}, on=name, allocated=whole(1), **ours)


def random_pods(case: Case, seed: str) -> list[Raw]:
    """Return pods as their authors write them."""
    draw = random.Random(seed)
    return [_random_pod(draw, f"p{number:03}", case) for number in range(PODS)]


def _random_pod(draw: random.Random, name: str, case: Case) -> Raw:
    labels = {names.GENIUS_PRIORITY: str(draw.choice((-1, 3, 5, 6)))} if draw.random() < 0.3 else {}
    annotations = {names.MODEL_GLOBS: draw.choice(("*A100*", "small"))} if draw.random() < 0.2 else {}
    spec: Raw = {"schedulerName": draw.choice(case.schedulers), "priority": draw.choice((0, 0, 10))}
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"pool": draw.choice("abc")}
    if draw.random() < 0.1:
        spec["tolerations"] = [{"operator": "Exists"}]
    return pod(name, draw.choice(REQUESTS), labels=labels, annotations=annotations, **spec)


# --- the operator -----------------------------------------------------------------------------------------------


def world_of(case: Case, pods: list[Raw]) -> World:
    settings, configured = case.settings, case.configured
    world = World(
        policies=configured.scheduled_policies(), trusted_schedulers=settings.trusted, priorities=settings.priorities
    )
    configured.apply_to(world.cluster)
    put = {
        "nodes": world.cluster.node_cache.put_node,
        "devices": world.cluster.node_cache.put_device,
        "leases": world.cluster.node_cache.put_lease,
    }
    for kind, each in objects():
        world.submit(each) if kind == "pods" else put[kind](each)
    world.submit(*pods)
    return world


def alone(world: World, name: str) -> str:
    """Return what the operator decides about a pod if it is the next."""
    waiting = world.cluster.pending[f"uid-{name}"]
    return shown(decide(world.fleet, waiting, world.policies[waiting.scheduler]))


def bound(raw: Raw) -> str:
    """Return where the operator bound a pod; empty if it did not."""
    allocated = json.loads(raw["metadata"]["annotations"].get(names.ALLOCATED, "{}"))
    minors = sorted(each["minor"] for each in allocated.get("gpu", ()))
    return f"{raw['spec']['nodeName']} {minors}" if raw["spec"].get("nodeName") else ""


# --- the command ------------------------------------------------------------------------------------------------


def mix(case: Case, waiting: list[Raw]) -> PodMix:
    """Return the mix of pods that the operator has seen: of those that exist."""
    return world_of(case, copy.deepcopy(waiting)).fleet.pod_mix


def planner(case: Case, file: Path | None, waiting: list[Raw], *, is_served: bool = True) -> Planner:
    """Return what `simulate` and `advise` decide with, read as a user with the right of the case reads it."""
    served = SettingsInUse(
        settings=case.settings,
        configuration=lambda: case.configured.scheduled_configuration,
        mix=lambda: pod_mix_document.document(mix(case, waiting)),
        reserved=dict,
    )

    async def get(path: str, params: Mapping[str, str]) -> Any:
        assert params == {"settings": "true"}
        if path.endswith("/fleet") and not case.may_read_fleet:
            raise ApiError(403, "Forbidden", "no")
        answer = served.of_cluster() if path.endswith("/fleet") else served.of_namespace(path.split("/")[-4])
        return json.loads(json.dumps(answer))

    def put(snapshot: Snapshot, _settings: Any) -> None:
        for kind, each in (*objects(), *(("pods", each) for each in waiting)):
            snapshot.put(kind, json.loads(json.dumps(each)))

    answers: Served | None = None if is_served else Served(why_not="not served")
    loop = asyncio.new_event_loop()
    try:
        origin = Origin(
            ask=lambda namespaces: answers or loop.run_until_complete(effective.ask(get, namespaces)), read=put
        )
        plan, note = preparing.planner(Inputs(file=str(file or ""), pod="ns/p", namespace="ns"), origin)
    finally:
        loop.close()
    assert ("not known" in note) is not is_served
    return plan


def shown(result: Placement | Failure) -> str:
    if isinstance(result, Failure):
        return result.message.partition(" preemption: ")[0]
    return f"{result.node} {sorted(each.minor for each in result.grants)}"


def advised(plan: Planner, name: str) -> str:
    try:
        return shown(plan.advise(f"ns/{name}")[1].result)
    except InputError as error:
        return str(error)


def document(raw: Raw) -> Raw:
    """Return a pod as a workload file has it."""
    metadata = {key: raw["metadata"][key] for key in ("name", "labels", "annotations") if raw["metadata"][key]}
    [container] = raw["spec"]["containers"]
    containers = [{key: container[key] for key in ("name", "resources")}]
    return {"kind": "Pod", "metadata": metadata, "spec": {**raw["spec"], "containers": containers}}


def simulated(outcomes: tuple[Outcome, ...]) -> dict[str, str]:
    return {each.pod.name: shown(each.result) if each.fits else "" for each in outcomes}


@pytest.mark.parametrize("name", CASES)
async def test_both_agree_with_the_operator(name: str, tmp_path: Path) -> None:
    case, pods = CASES[name], random_pods(CASES[name], name)
    file = tmp_path / "workload.json"
    file.write_text(json.dumps({"kind": "List", "items": [*map(document, pods)]}))
    keys, copies = [each["metadata"]["name"] for each in pods], json.loads(json.dumps(pods))
    plan = await asyncio.to_thread(planner, case, file, [])
    advisor = await asyncio.to_thread(planner, case, None, copies)
    ignorant = await asyncio.to_thread(planner, case, None, copies, is_served=False)
    world = world_of(case, pods)
    expected = {key: alone(world, key) for key in keys}
    assert {key: advised(advisor, key) for key in keys} == expected
    # The test would see settings that are not used.
    assert any(advised(ignorant, key) != expected[key] for key in keys)
    async with world.running() as api:
        await asyncio.sleep(2)
    decided = {key: bound(raw) for key, raw in api.pods.items() if key.startswith("p")}
    assert simulated(plan.simulate().pods) == decided
    assert 10 < sum(map(bool, decided.values())) < PODS - 10
