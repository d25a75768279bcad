"""How soon kube-scheduler and Berth bind a pod after the event that it waits for.

Each kind of event is a scene with one pod for each class. Each pod waits for its own event on its own node (label
`slot`). The events happen one after another. A separate watch records when the event happened and when its pod was
bound.
"""

import asyncio
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from devcluster import waiting
from tests.bench import figures
from tests.bench.cluster import crowd
from tests.bench.cluster.bulk import Bulk
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Signals, Watcher

BOUND_SECONDS: Final = 60.0
POLL: Final = 0.005
SLOT: Final = "bench.berth.dev/slot"
LOCK: Final = "bench.berth.dev/lock"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
PORT: Final = 20_000
CORES: Final = 64
"""Of each node."""

Raw = dict[str, Any]


class Stage:
    """The cluster, and the nodes on which a scheduler's pods wait."""

    def __init__(self, track: Track, contestant: Contestant, slots: int) -> None:
        self.arena, self._track, self._who = track.arena, track, contestant
        nodes = track.arena.cluster.api.get("/api/v1/nodes", limit=str(slots))["items"]
        self.nodes: list[str] = [each["metadata"]["name"] for each in nodes]

    def label_slots(self) -> None:
        """Label each node with the number of its slot."""
        for number, name in enumerate(self.nodes):
            self.arena.merge("nodes", name, {"metadata": {"labels": {SLOT: str(number)}}})

    def pod(self, number: int, requests: Mapping[str, str] | None = None, **fields: Any) -> Raw:
        """Return a pod that can only run on the node of its slot."""
        fields = {"nodeSelector": {SLOT: str(number)}, **fields}
        own = {"cpu": f"{100 + number}m"} if requests is None else requests
        return self.arena.pod(f"waits-{number}", requests=own, scheduler_name=self._who.scheduler_name, **fields)

    def holder(self, number: int, requests: Mapping[str, str] | None = None, **fields: Any) -> Raw:
        """Return a bound pod on the node of a slot."""
        return self.arena.pod(f"holds-{number}", requests=requests, nodeName=self.nodes[number], **fields)

    def holder_leaves(self, number: int) -> None:
        """Delete the pod on the node of a slot."""
        self.arena.delete("pods", f"holds-{number}", grace_seconds=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One kind of event."""

    pod: Callable[[Stage, int], Raw]
    """Returns the pod that waits."""
    event: Callable[[Stage, int], object]
    happened: Callable[[Watcher, Stage, int], float | None]
    """Returns when the watch saw the event."""
    prepare: Callable[[Stage, int], object] = lambda _stage, _number: None
    """Creates the reason why the pod has to wait."""
    clean: Callable[[Stage, int], object] = lambda _stage, _number: None
    holder: Callable[[Stage, int], Raw] | None = None
    """Returns a pod that is bound to the node of the slot from the beginning."""


# --- the scenes ----------------------------------------------------------------------------------------------------


def _lock(stage: Stage, number: int) -> None:
    taint = {"key": LOCK, "effect": "NoSchedule"}
    stage.arena.merge("nodes", stage.nodes[number], {"spec": {"taints": [taint]}})


def _unlock(stage: Stage, number: int) -> None:
    stage.arena.merge("nodes", stage.nodes[number], {"spec": {"taints": None}})


def _unlocked(watcher: Watcher, stage: Stage, number: int) -> float | None:
    return watcher.signaled.get(f"unlocked {stage.nodes[number]}")


def _key(stage: Stage, number: int, value: str | None) -> None:
    stage.arena.merge("nodes", stage.nodes[number], {"metadata": {"labels": {f"{LOCK}-{number}": value}}})


def _keyed(watcher: Watcher, stage: Stage, number: int) -> float | None:
    return watcher.signaled.get(f"keyed {stage.nodes[number]}")


def _holder_gone(watcher: Watcher, _stage: Stage, number: int) -> float | None:
    return watcher.gone.get(f"holds-{number}")


def _listening(number: int) -> Raw:
    return {"containerPort": 80, "hostPort": PORT + number}


def _on_port(pod: Raw, number: int) -> Raw:
    pod["spec"]["containers"][0]["ports"] = [_listening(number)]
    return pod


def _affinity(kind: str, number: int) -> Raw:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": f"app-{number}"}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _app(number: int) -> dict[str, str]:
    return {"app": f"app-{number}"}


def _new_node(stage: Stage, number: int) -> str:
    return f"new-{stage.arena.id}-{number}"


def _add_node(stage: Stage, number: int) -> None:
    label = {SLOT: _new_node(stage, number)}
    # A scheduler can use the node once the node controller has removed its first taint.
    stage.arena.cluster.create_nodes([_new_node(stage, number)], labels=label)


def _node_added(watcher: Watcher, stage: Stage, number: int) -> float | None:
    return watcher.signaled.get(f"unlocked {_new_node(stage, number)}")


def _claim(stage: Stage, number: int) -> None:
    spec = {
        "storageClassName": "",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": f"{stage.arena.id}-{number}",
    }
    name = f"claim-{number}"
    stage.arena.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})


def _volume(stage: Stage, number: int) -> None:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": stage.arena.namespace, "name": f"claim-{number}"},
    }
    name = f"{stage.arena.id}-{number}"
    stage.arena.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})


def _claim_bound(watcher: Watcher, _stage: Stage, number: int) -> float | None:
    return watcher.signaled.get(f"bound claim-{number}")


def _drop_claim(stage: Stage, number: int) -> None:
    for kind, name in (
        ("persistentvolumeclaims", f"claim-{number}"),
        ("persistentvolumes", f"{stage.arena.id}-{number}"),
    ):
        stage.arena.delete(kind, name)
        # An object that finalizers still hold would be deleted together with what is applied under its name.
        stage.arena.wait(functools.partial(_is_gone, stage, kind, name), what=f"{name} to go")


def _is_gone(stage: Stage, kind: str, name: str) -> bool:
    return all(each["metadata"]["name"] != name for each in stage.arena.list(kind))


def _mounting(number: int) -> Raw:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{number}"}}]}


SCENES: Final[Mapping[str, Scene]] = {
    "taint_removed": Scene(pod=Stage.pod, prepare=_lock, event=_unlock, happened=_unlocked, clean=_unlock),
    "label_added": Scene(
        pod=lambda stage, number: stage.pod(number, nodeSelector={f"{LOCK}-{number}": "open"}),
        event=lambda stage, number: _key(stage, number, "open"),
        happened=_keyed,
        clean=lambda stage, number: _key(stage, number, None),
    ),
    "host_port_freed": Scene(
        holder=lambda stage, number: _on_port(stage.holder(number), number),
        pod=lambda stage, number: _on_port(stage.pod(number), number),
        event=Stage.holder_leaves,
        happened=_holder_gone,
    ),
    "anti_affinity_pod_gone": Scene(
        holder=lambda stage, number: stage.holder(number, labels=_app(number)),
        pod=lambda stage, number: stage.pod(number, affinity=_affinity("podAntiAffinity", number)),
        event=Stage.holder_leaves,
        happened=_holder_gone,
    ),
    "affinity_pod_placed": Scene(
        pod=lambda stage, number: stage.pod(number, affinity=_affinity("podAffinity", number)),
        event=lambda stage, number: stage.arena.create([stage.holder(number, labels=_app(number))]),
        happened=lambda watcher, _stage, number: watcher.bound.get(f"holds-{number}"),
    ),
    "pod_left": Scene(
        holder=lambda stage, number: stage.holder(number, {"cpu": str(CORES - 2)}),
        pod=lambda stage, number: stage.pod(number, {"cpu": f"{10_000 + number}m"}),
        event=Stage.holder_leaves,
        happened=_holder_gone,
    ),
    "node_added": Scene(
        pod=lambda stage, number: stage.pod(number, nodeSelector={SLOT: _new_node(stage, number)}),
        event=_add_node,
        happened=_node_added,
        clean=lambda stage, number: stage.arena.delete("nodes", _new_node(stage, number)),
    ),
    "claim_bound": Scene(
        pod=lambda stage, number: stage.pod(number, **_mounting(number)),
        prepare=_claim,
        event=_volume,
        happened=_claim_bound,
        clean=_drop_claim,
    ),
}


# --- what the watch records ----------------------------------------------------------------------------------------


def _node_says(node: Raw) -> list[str]:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
    keyed = [f"keyed {name}"] if any(key.startswith(LOCK) for key in labels) else []
    return keyed if node["spec"].get("taints") else [*keyed, f"unlocked {name}"]


def _claim_says(claim: Raw) -> list[str]:
    annotations = claim["metadata"].get("annotations", {})
    return [f"bound {claim['metadata']['name']}"] if BIND_COMPLETED in annotations else []


def _watched(track: Track) -> dict[str, Signals]:
    """Return the other paths to watch, and the function that reads each object there."""
    claims = f"/api/v1/namespaces/{track.arena.namespace}/persistentvolumeclaims"
    return {"/api/v1/nodes": _node_says, claims: _claim_says}


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(
    track: Track, contestants: Sequence[Contestant], kinds: Sequence[str], *, classes: int, count: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the quantiles of each contestant for each of these kinds of events."""
    quantiles: dict[str, dict[str, dict[str, float]]] = {}
    Stage(track, contestants[0], classes).label_slots()
    for name in kinds:
        quantiles[name] = {each.name: _play(track, each, SCENES[name], classes, count) for each in contestants}
        figures.say(f"{name}: {quantiles[name]}")
    return quantiles


def _play(track: Track, contestant: Contestant, scene: Scene, classes: int, count: int) -> dict[str, float]:
    stage = Stage(track, contestant, classes)
    slots = range(len(stage.nodes))
    for number in slots:
        scene.prepare(stage, number)
    if scene.holder is not None:
        crowd.fill(track, [scene.holder(stage, number) for number in slots])
    process = contestant.start()
    try:
        crowd.wait_for_reasons(track, [scene.pod(stage, number) for number in slots])
        time.sleep(track.calm)  # kube-scheduler's first back-off has passed by then, too
        with Watcher(track.arena.cluster, track.arena.namespace, _watched(track)) as watcher:
            took = [_sample(stage, scene, watcher, number) for number in slots[:count]]
    finally:
        process.stop()
        asyncio.run(_clear(track))
        for number in slots:
            scene.clean(stage, number)
    return _quantiles(took)


async def _clear(track: Track) -> None:
    """Delete all pods without grace: otherwise kwok would end them one by one."""
    async with Bulk(track.arena.cluster) as bulk:
        await bulk.clear(track.pods)
        await bulk.clear(f"/api/v1/namespaces/{track.arena.namespace}/events")


def _sample(stage: Stage, scene: Scene, watcher: Watcher, number: int) -> float:
    """Return the seconds from an event to the bind of the pod that waits for it."""
    scene.event(stage, number)
    pod = f"waits-{number}"
    try:
        waiting.until(lambda: pod in watcher.bound, deadline=BOUND_SECONDS, what=f"{pod} to be bound", poll=POLL)
        waiting.until(
            lambda: scene.happened(watcher, stage, number) is not None,
            deadline=BOUND_SECONDS,
            what="the watch to show the event",
            poll=POLL,
        )
    except waiting.WaitError:
        watcher.check()
        if pod not in watcher.bound:
            return math.inf
        raise
    happened_at = scene.happened(watcher, stage, number)
    # These are two watches: that of the bind may report first.
    return max(0.0, watcher.bound[pod] - (happened_at or 0.0))


def _quantiles(took: Sequence[float]) -> dict[str, float]:
    in_time = [each for each in took if each < math.inf]
    quantiles = {f"p{percent}_ms": round(1000 * figures.quantile(took, percent / 100), 1) for percent in (50, 99)}
    return {
        **{name: value if value < math.inf else 1000 * BOUND_SECONDS for name, value in quantiles.items()},
        "mean_ms": round(1000 * statistics.fmean(in_time or [BOUND_SECONDS]), 1),
    }
