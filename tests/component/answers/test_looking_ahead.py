"""`simulate` on a snapshot predicts what a new leader does when pods are created at once.

An earlier leader has filled the cluster of the snapshot. Pods of all protocols and gangs hold cards and wait, one has a
node reservation, and some have a nominated node. The whole run takes two minutes:

    BERTH_PODS=200 BERTH_GANGS=40 .venv/bin/pytest tests/component/answers/test_looking_ahead.py
"""

import asyncio
import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api import names, resources
from berth_api.admission import injection, renaming
from berth_client import times
from berth_client.reflector import EventType
from berth_operator.apis.visibility.operator_settings import SettingsInUse
from berth_operator.commands import preparing, snapshots
from berth_operator.commands.planning import Answer
from berth_operator.commands.preparing import Inputs
from berth_operator.core.advice.simulate import Outcome
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.pods import pod_mix_document
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from tests import manifests_of_others
from tests.component.world import EPOCH, NOTHING, Api, World, now
from tests.objects.builders import T4, T4_BYTES, asks, device, entry, lease, node, pod_group

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]

PODS: Final = int(os.environ.get("BERTH_PODS", "30"))
GANGS: Final = int(os.environ.get("BERTH_GANGS", "6"))
IS_WHOLE: Final = "BERTH_PODS" in os.environ
SEEDS: Final = 3
CASES: Final = [
    pytest.param(seed, preemption, id=f"{seed}, {'with' if preemption else 'without'} preemption")
    for seed in range(SEEDS)
    for preemption in (False, True)
    if IS_WHOLE or preemption is not bool(seed % 2)
]
NODES: Final = 8 + (PODS + 3 * GANGS) // 6
FILLING: Final = 30
"""Seconds that the earlier leader has led."""
WAVES: Final = 3
RESERVE_AFTER: Final = 10.0
REPORT: Final = 20.0
"""Seconds within which a reservation is shown in the condition."""
POOL: Final = {"pool": "a"}
FOREIGN: Final = "hami-scheduler"
SETTINGS: Final = Settings(_cli_parse_args=[], genius_priorities="ns=5")


def wall() -> str:
    return times.time(datetime.fromtimestamp(EPOCH + now(), UTC))


# --- pods as their authors write them ---------------------------------------------------------------------------

REQUESTS: Final = (
    {"nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "2"},
    {"nvidia.com/gpu": "4"},
    {"nvidia.com/gpu.shared": "1"},
    {"nvidia.com/mig-1g.10gb": "1"},
    {"kubernetes.io/gpu": "100"},
    {"kubernetes.io/gpu": "200"},
    {"kubernetes.io/gpu": "30"},
    {"kubernetes.io/gpu": "50", "cpu": "6"},
    {"kubernetes.io/gpu-memory": "12Gi"},
    {"kubernetes.io/gpu-core": "25", "kubernetes.io/gpu-memory-ratio": "40"},
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "20Gi"},
    {"kubernetes.io/gpu": "100", "kubernetes.io/rdma": "50"},
    {"kubernetes.io/rdma": "100"},
    {"cpu": "9"},
)
GENIUS: Final = (
    {names.GENIUS_NUMBER: "1"},
    {names.GENIUS_NUMBER: "2", names.GENIUS_MEMORY_EACH: "8"},
    {names.GENIUS_MEMORY_TOTAL: "10"},
)
MANIFESTS: Final = [
    copy.deepcopy(manifests_of_others.pod(each))
    for each in manifests_of_others.files()
    if manifests_of_others.documents(each)[0]["kind"] != "PodGroup"
]
MODELS: Final = ("*A100*", "*T4*", "!*T4*")


def written(name: str, draw: random.Random) -> Raw:
    """Return a pod of any protocol, with random constraints."""
    written = draw.choice((_of_resources, _of_resources, _of_genius, _of_others))(draw)
    metadata, spec = written["metadata"], written["spec"]
    metadata["name"] = name
    spec |= {"schedulerName": names.SCHEDULER, "priority": draw.choice((0, 0, 10, 100))}
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"pool": draw.choice("abc")}
    if draw.random() < 0.1:
        spec["tolerations"] = [{"operator": "Exists"}]
    if draw.random() < 0.15:
        spec["activeDeadlineSeconds"] = draw.choice((30, 4000))
    if draw.random() < 0.1:
        spec["preemptionPolicy"] = "Never"
    if draw.random() < 0.2:
        metadata.setdefault("labels", {})["app"] = draw.choice("xy")
    if draw.random() < 0.15:
        spec["affinity"] = _affinity(draw)
    if draw.random() < 0.1:
        spec["topologySpreadConstraints"] = [_spread(draw)]
    return {"apiVersion": "v1", "kind": "Pod", **written}


def _of_resources(draw: random.Random) -> Raw:
    annotations = {names.MODEL_GLOBS: draw.choice(MODELS)} if draw.random() < 0.2 else {}
    return _made(draw.choice(REQUESTS), annotations=annotations)


def _of_genius(draw: random.Random) -> Raw:
    return _made({"cpu": "1"}, labels={**draw.choice(GENIUS), names.GENIUS_PRIORITY: str(draw.choice((-1, 3, 7)))})


def _of_others(draw: random.Random) -> Raw:
    source = copy.deepcopy(draw.choice(MANIFESTS))
    metadata = {key: source["metadata"].get(key) or {} for key in ("labels", "annotations")}
    return {"metadata": metadata, "spec": source["spec"]}


def _made(requests: Raw, **metadata: Raw) -> Raw:
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"requests": dict(requests)}}]}}


def _affinity(draw: random.Random) -> Raw:
    kind = draw.choice(("podAffinity", "podAntiAffinity"))
    selector = {"matchLabels": {"app": draw.choice("xy")}}
    term = {"topologyKey": draw.choice(("pool", "kubernetes.io/hostname")), "labelSelector": selector}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _spread(draw: random.Random) -> Raw:
    when = draw.choice(("DoNotSchedule", "ScheduleAnyway"))
    selector = {"matchLabels": {"app": draw.choice("xy")}}
    return {"maxSkew": 2, "topologyKey": "pool", "whenUnsatisfiable": when, "labelSelector": selector}


def gang(name: str, draw: random.Random) -> list[Raw]:
    """Return the objects of a gang: by a PodGroup, by our annotations or by Koordinator's; often with spare members."""
    size = draw.randint(2, 5)
    minimum = draw.randint(2, size)
    shape = draw.choice(({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}, {"kubernetes.io/gpu": "50"}))
    spec = {"priority": draw.choice((0, 0, 10, 100)), "schedulerName": names.SCHEDULER}
    words: Raw = draw.choice(
        (
            {"labels": {names.POD_GROUP_LABEL: name}},
            {"annotations": {names.POD_GROUP: name, names.POD_GROUP_MIN_MEMBER: str(minimum)}},
            {
                "annotations": {
                    "gang.scheduling.koordinator.sh/name": name,
                    "gang.scheduling.koordinator.sh/min-available": str(minimum),
                }
            },
        )
    )
    members = [_member(f"{name}-{number}", shape, words, spec) for number in range(size)]
    if "labels" not in words:
        return members
    return [{"kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": minimum}}, *members]


def large() -> list[Raw]:
    """Return more pods than there are nodes for them: the one that has waited longest gets a node reservation."""
    spec = {"schedulerName": names.SCHEDULER, "priority": 1000, "preemptionPolicy": "Never", "nodeSelector": POOL}
    words = {"annotations": {names.MODEL_GLOBS: "*T4*"}}
    return [_member(f"large-{number}", {"nvidia.com/gpu": "4"}, words, spec) for number in range(NODES // 6 + 2)]


def _member(name: str, requests: Raw, words: Raw, spec: Raw) -> Raw:
    made = _made(requests, **copy.deepcopy(words))
    return {"kind": "Pod", "metadata": {"name": name, **made["metadata"]}, "spec": {**made["spec"], **spec}}


def written_at_once(prefix: str, draw: random.Random, count: int, gangs: int) -> list[Raw]:
    """Return what users create: pods and gangs, in random order."""
    units = [[written(f"{prefix}p{number:03}", draw)] for number in range(count)]
    units += [gang(f"{prefix}g{number:02}", draw) for number in range(gangs)]
    draw.shuffle(units)
    return [each for unit in units for each in unit]


# --- the API server and the operator ----------------------------------------------------------------------------


def created(document: Raw) -> Raw:
    """Return the object that the API server makes of a document."""
    name = document["metadata"]["name"]
    if document["kind"] == "PodGroup":
        return pod_group(name, document["spec"]["minMember"], created=wall())
    metadata = {"labels": {}, "annotations": {}, **copy.deepcopy(document["metadata"])}
    metadata |= {"namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": wall()}
    spec = resources.from_limits(copy.deepcopy(document["spec"]))
    return injection.injected(renaming.renamed({"metadata": metadata, "spec": spec, "status": {}}))


def fixtures() -> Iterator[tuple[str, Raw]]:
    """Yield (kind, object): nodes of several kinds."""
    for number in range(NODES):
        name = f"node-{number:02}"
        labels = {"pool": "ab"[number % 2], "kubernetes.io/hostname": name}
        taints = [{"key": "draining", "effect": "NoSchedule"}] if number == 4 else []
        yield "nodes", node(name, labels=labels, taints=taints, unschedulable=number == 7)
        yield "devices", device(name, *_cards(number), labels={})
        yield "leases", lease(name)


def _cards(number: int) -> Iterator[Raw]:
    for minor in range(4):
        if number % 3 == 0:
            yield entry(minor, model=T4, memory=T4_BYTES, id=f"GPU-{number}-{minor}")
        else:
            yield entry(minor, id=f"GPU-{number}-{minor}")
    if number % 3 == 1:
        for minor in range(2):
            amounts = {"kubernetes.io/rdma": "100"}
            yield {"type": "rdma", "minor": minor, "id": f"mlx-{number}-{minor}", "health": True, "resources": amounts}


class Server(Api):
    """An API server that stores conditions and nominated nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Raw] = {}
        self.inherited = NOTHING
        """The record of the last leader."""
        self.watch: Callable[[EventType, Raw], None] = lambda _type, _pod: None

    async def patch_pod_status(self, namespace: str, name: str, patch: Raw) -> None:
        await super().patch_pod_status(namespace, name, patch)
        status = self.pods[name]["status"]
        if "nominatedNodeName" in patch["status"]:
            status["nominatedNodeName"] = patch["status"]["nominatedNodeName"]
        for condition in patch["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled":
                known = status.get("conditions") or [{"lastTransitionTime": wall()}]
                status["conditions"] = [{**condition, "lastTransitionTime": known[0]["lastTransitionTime"]}]
        self.watch("MODIFIED", copy.deepcopy(self.pods[name]))

    def objects(self) -> Iterator[tuple[str, Raw]]:
        """Yield (kind, object) of all that there is, in the order in which lists show it."""
        yield from fixtures()
        for name in sorted(self.groups):
            yield "pod groups", self.groups[name]
        for name in sorted(self.pods):
            yield "pods", copy.deepcopy(self.pods[name])


class Leader(World):
    """An operator whose deleted pods do not end, and that reads what there is when it becomes the leader."""

    def __init__(self, server: Server, policy: Policy) -> None:
        super().__init__(policy=policy, schedulers=[names.SCHEDULER], api=server, priorities=SETTINGS.priorities)
        server.watch = self.pods.apply
        self.server, self.grace, self.inherited = server, 1e6, server.inherited
        cluster = self.cluster
        self._put: dict[str, Callable[[Raw], None]] = {
            "nodes": cluster.node_cache.put_node,
            "devices": cluster.node_cache.put_device,
            "leases": cluster.node_cache.put_lease,
            "pod groups": cluster.gangs.put_group,
            "pods": lambda each: self.pods.apply("ADDED", each),
        }
        for kind, each in server.objects():
            self._put[kind](each)

    def seen_bound(self, pod: Raw) -> None:
        pod["status"] = {"startTime": wall()}
        super().seen_bound(pod)

    def create(self, documents: list[Raw]) -> None:
        """Create objects, all of them before the next decision; a file's PodGroups come first."""
        for each in sorted(map(created, documents), key=lambda each: "minMember" not in each["spec"]):
            name = each["metadata"]["name"]
            if "minMember" in each["spec"]:
                self.server.groups[name] = each
                self.cluster.gangs.put_group(copy.deepcopy(each))
            else:
                self.submit(each)


def foreign(draw: random.Random) -> Iterator[Raw]:
    """Yield pods of another scheduler that are bound, one of which holds a card that we do not know."""
    for number in range(3):
        document = _made({"cpu": "4", **({"kubernetes.io/gpu": "100"} if number == 0 else {})})
        document["metadata"]["name"] = f"theirs-{number}"
        document["spec"] |= {"schedulerName": FOREIGN, "nodeName": f"node-{draw.randrange(NODES):02}", "priority": 1000}
        yield {"kind": "Pod", **document}


@dataclass(frozen=True, kw_only=True)
class Case:
    seed: int
    preemption: bool

    @property
    def policy(self) -> Policy:
        return replace(Policy(), preemption=self.preemption, reserve_after=RESERVE_AFTER)


# --- both sides ---------------------------------------------------------------------------------------------------


async def filled(case: Case, draw: random.Random) -> Server:
    """Return the API server of a cluster that an earlier leader has filled."""
    server = Server()
    leader = Leader(server, case.policy)
    for each in foreign(draw):
        leader.submit(created(each))
    async with leader.running():
        for number in range(WAVES):
            leader.create(written_at_once(f"old{number}", draw, PODS // 3, GANGS // 3))
            await asyncio.sleep(FILLING / WAVES)
        leader.create(large())
        await asyncio.sleep(RESERVE_AFTER + REPORT)
        server.inherited = leader.left()
    return server


def see_others(leader: Leader) -> None:
    """Show a leader pods that end before the snapshot is taken, so that it continues with another mix."""
    for _ in range(500):
        leader.fleet.pod_mix.see(asks({"cpu": 14_000, "kubernetes.io/gpu": 25}))
        leader.fleet.pod_mix.see(asks({"cpu": 30_000, "nvidia.com/gpu": 2}))


def settings_of(leader: Leader, case: Case) -> Raw:
    served = SettingsInUse(
        settings=SETTINGS,
        configuration=lambda: Configuration(policies={names.SCHEDULER: case.policy}),
        mix=lambda: pod_mix_document.document(leader.fleet.pod_mix),
        reserved=lambda: {each.uid: each.node for each in leader.inherited.node_reservations},
    )
    served_as: Raw = json.loads(json.dumps(served.of_cluster()))
    return served_as


def saved(folder: Path, server: Server, settings: Raw) -> Path:
    path = folder / "cluster.jsonl"
    lines = [snapshots.line(of, each) for of, each in server.objects()]
    path.write_bytes(b"".join([snapshots.head(), snapshots.operator(settings, now=EPOCH + now()), *lines]))
    return path


def simulated(path: Path, documents: list[Raw], folder: Path) -> Answer:
    file = folder / "workload.json"
    file.write_text(json.dumps({"kind": "List", "items": documents}))
    plan, note = preparing.planner(Inputs(file=str(file), namespace="ns"), preparing.of_file(path))
    assert note == ""
    return plan.simulate()


def predicted(outcome: Outcome) -> str:
    if not isinstance(outcome.result, Placement):
        return ""
    return f"{outcome.result.node} {sorted(each.id for each in outcome.result.grants)}"


def bound(raw: Raw) -> str:
    """Return where a pod is bound, and its cards; empty if it is not."""
    if not raw["spec"].get("nodeName"):
        return ""
    allocated = json.loads(raw["metadata"]["annotations"].get(names.ALLOCATED, "{}"))
    cards = sorted(str(card["id"]) for of_type in allocated.values() for card in of_type)
    return f"{raw['spec']['nodeName']} {cards}"


@pytest.mark.parametrize(("seed", "preemption"), CASES)
async def test_a_new_leader_does_what_was_simulated(seed: int, *, preemption: bool, tmp_path: Path) -> None:
    case, draw = Case(seed=seed, preemption=preemption), random.Random(seed)
    server = await filled(case, draw)
    waiting = {name for name, each in server.pods.items() if not each["spec"].get("nodeName")}
    assert server.inherited.node_reservations
    leader = Leader(server, case.policy)
    if case.seed % 2:
        see_others(leader)
    path = saved(tmp_path, server, settings_of(leader, case))
    documents = written_at_once("new", draw, PODS, GANGS)
    answer = simulated(path, documents, tmp_path)
    leader.create(documents)
    deleted = len(server.deletions)
    async with leader.running():
        await asyncio.sleep(5)
    expected = {name: bound(each) for name, each in server.pods.items() if name.startswith("new") or name in waiting}
    outcomes = {each.pod.name: predicted(each) for each in (*answer.pods, *answer.waiting)}
    assert outcomes == expected
    evicted = sorted(each.pod for each in answer.simulation.evicted)
    assert evicted == sorted(f"ns/{name}" for _, name in server.deletions[deleted:])
    assert any("would be evicted" in note for note in answer.notes) is bool(evicted)
    assert 5 < sum(map(bool, expected.values())) < len(expected) - 5
