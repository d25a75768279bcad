"""A fleet from a seed: nodes with eight cards each, the pods that hold them, the pods that wait, and their changes.

The rows have the form of the visibility API, and agree: what holders hold is not free on their nodes. The same seed
gives the same rows and changes. Only times are relative to now.
"""

import random
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from berth_api.allocation import held
from berth_api.objects.visibility import (
    Card,
    FleetNode,
    HeldPart,
    HoldingPod,
    LackingNode,
    NodeScore,
    ObjectMeta,
    PodExplanation,
    QueuedPod,
    ReasonGroup,
)

GI: Final = 2**30
CARDS: Final = 8
RACK: Final = 16
"""Nodes of a rack: they are alike."""
ZONES: Final = ("zone-a", "zone-b", "zone-c")
MIG: Final = "1g.10gb"
MIG_RESOURCE: Final = f"nvidia.com/mig-{MIG}"
INSTANCES: Final = 7
NAMESPACES: Final = ("ml-training", "research", "inference", "vision", "speech", "batch", "notebooks", "simulation")
APPS: Final = {
    "train": "Job",
    "finetune": "Job",
    "serve": "Deployment",
    "eval": "Job",
    "notebook": "StatefulSet",
    "render": "Job",
}
SIZES: Final = (1, 1, 1, 2, 2, 4, 4, 8, 8, 8)
"""Cards of a pod."""
ATTEMPTS: Final = (1, 4, 8, 8, 16, 40)
"""How often it is tried to place a pod on a node before any change."""
CHURN: Final = 0.05
"""Share of the nodes on which pods come and go in one step."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of GPU."""

    name: str
    memory: int
    watts: int
    link: str = ""


H100: Final = Model("NVIDIA H100 80GB HBM3", 80 * GI, 700, "NVLink x18")
A100: Final = Model("NVIDIA A100-SXM4-80GB", 80 * GI, 400, "NVLink x12")
L40S: Final = Model("NVIDIA L40S", 48 * GI, 350)
RACKS: Final = (H100, H100, A100, H100, L40S, A100)
"""The models of racks, in turn; one of six racks has MIG instances."""
WITH_MIG: Final = 5

FILTERS: Final = {"Insufficient c": "resources", "node(s) didn't": "node-affinity", "node(s) had un": "taints"}
"""Beginning of a reason -> its filter; the others are about devices."""

Change = tuple[str, str, Any]
"""Resource, type of event, row."""


@dataclass(slots=True)
class Scene:
    """The rows of all three kinds, and their changes."""

    nodes: int = 48
    seed: int = 1
    waiting: int = 0
    """Pods that wait; by default one for each two nodes."""
    now: datetime = field(default_factory=lambda: datetime.now(tz=UTC))
    """From which the ages of pods count."""
    fleet: dict[str, FleetNode] = field(default_factory=dict, init=False)
    holders: dict[str, HoldingPod] = field(default_factory=dict, init=False)
    """By `namespace/name`."""
    queue: list[QueuedPod] = field(default_factory=list, init=False)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        for number in range(self.nodes):
            node = self._node(number)
            self.fleet[node["metadata"]["name"]] = node
        for node in self.fleet.values():
            self._fill(node)
            self._measure(node)
        self._queue(self.waiting or max(12, self.nodes // 2))

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, number: int) -> FleetNode:
        rack, chance = number // RACK, self._chance
        model = RACKS[rack % len(RACKS)]
        cards = [self._card(model, minor, mig=rack % len(RACKS) == WITH_MIG) for minor in range(CARDS)]
        if model.link:
            for card in cards:
                card["links"] = {other["id"]: model.link for other in cards if other is not card}
        silent, cordoned = chance.random() < 0.012, chance.random() < 0.015
        blocked = ["the Node is cordoned"] * cordoned + ["the agent is silent"] * silent
        return {
            "metadata": {"name": f"gpu-{number:04d}"},
            "ready": True,
            "schedulable": not cordoned,
            "reporting": not silent,
            "blocked": "; ".join(blocked),
            "models": {model.name: CARDS},
            "zone": ZONES[rack % len(ZONES)],
            "rack": f"rack-{rack:02d}",
            "isolation": "",
            "devices": cards,
            "resources": {
                "cpu": {"total": 192_000, "free": chance.randrange(8, 192) * 1000},
                "memory": {"total": 2048 * GI, "free": chance.randrange(64, 2048) * GI},
                "pods": {"total": 110, "free": chance.randrange(60, 100)},
            },
        }

    def _card(self, model: Model, minor: int, *, mig: bool) -> Card:
        healthy = mig or self._chance.random() > 0.006
        total = {"gpu-core": 100, "gpu-memory": model.memory, "gpu-memory-ratio": 100}
        total = {MIG_RESOURCE: INSTANCES} if mig else total if healthy else {}  # a failed card offers nothing
        instances: Any = [{"profile": MIG, "minor": minor, "free": True} for _ in range(INSTANCES if mig else 0)]
        return {
            "type": "gpu",
            "minor": minor,
            "id": f"GPU-{uuid.UUID(int=self._chance.getrandbits(128))}",
            "model": model.name,
            "healthy": healthy,
            "message": "" if healthy else "Xid 79 (GPU has fallen off the bus)",
            "blocked": "",
            "total": total,
            "free": dict(total),
            "held": 0,
            "users": 0,
            "numaNode": minor * 2 // CARDS,
            "pcie": f"pci0000:{minor // 2:02x}",
            "mig": instances,
            "links": {},
        }

    def _measure(self, node: FleetNode) -> None:
        """Measure the cards of a node; those of a silent agent, and one in fifty others, have no metrics."""
        for card in node["devices"]:
            if not node["reporting"] or not card["healthy"] or self._chance.random() < 0.02:
                card.pop("metrics", None)
                continue
            model = next(each for each in RACKS if each.name == card["model"])
            share = self._chance.choice((0.0, 0.35, 0.72, 0.93, 0.97, 1.0)) if card["users"] else 0.0
            used = int(model.memory * (0.1 + 0.85 * share)) if card["users"] else 0
            power = round(model.watts * (0.12 + 0.85 * share), 1)
            card["metrics"] = {"utilization": share, "memoryUsed": used, "power": power}

    # --- holders ----------------------------------------------------------------------------------------------------

    def _fill(self, node: FleetNode) -> None:
        """Place pods on a node without any; at least one, so that no node is free for a pod of eight cards."""
        attempts = self._chance.choice(ATTEMPTS) * (3 if node["devices"][0]["mig"] else 1)
        for _ in range(attempts):
            self._place(node)
        while all(not card["users"] for card in node["devices"]):
            self._place(node)

    def _place(self, node: FleetNode) -> HoldingPod | None:
        """Return a new pod that holds cards of a node; None if it has none that are free."""
        free = [card for card in node["devices"] if card["healthy"] and card["free"] == card["total"]]
        instances = [card for card in node["devices"] if card["free"].get(MIG_RESOURCE)]
        if instances:
            return self._hold(node, [_take_instance(self._chance.choice(instances))])
        if free and len(free) >= (size := self._chance.choice(SIZES)):
            share = 50 if size == 1 and self._chance.random() < 0.4 else 100
            return self._hold(node, [_take(card, share) for card in free[:size]])
        return None

    def _hold(self, node: FleetNode, parts: list[HeldPart]) -> HoldingPod:
        namespace, app, name = self._pod_name()
        since = self.now - timedelta(seconds=self._chance.randrange(30, 12 * 86400))
        ends = since + timedelta(days=14) if self._chance.random() < 0.3 else None
        holder: HoldingPod = {
            "metadata": {"name": name, "namespace": namespace, "uid": self._uid()},
            "node": node["metadata"]["name"],
            "owner": {"kind": APPS[app], "name": name.rpartition("-")[0]},
            "scheduler": "berth-scheduler",
            "since": _time(since),
            "endsBy": _time(ends) if ends else "",
            "devices": parts,
            "drifted": self._chance.random() < 0.002,
            "promised": False,
            "isolation": "",
            "exceeding": [],
        }
        self.holders[f"{namespace}/{name}"] = holder
        return holder

    def _release(self, holder: HoldingPod) -> None:
        node = self.fleet[holder["node"]]
        for part in holder["devices"]:
            card = next(each for each in node["devices"] if each["minor"] == part["minor"])
            card["users"] -= 1
            for name, amount in part["amounts"].items():
                card["free"][name] += amount
            _show_use(card)
        del self.holders[_key(holder)]

    def _pod_name(self) -> tuple[str, str, str]:
        namespace, app = self._chance.choice(NAMESPACES), self._chance.choice(list(APPS))
        return namespace, app, f"{app}-{self._chance.randrange(400):03d}-{self._chance.getrandbits(40):010x}"

    def _uid(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128)))

    # --- the queue --------------------------------------------------------------------------------------------------

    def _queue(self, count: int) -> None:
        while len(self.queue) < count:
            self._enqueue()
        self.queue.sort(key=lambda pod: ("active", "backoff", "unschedulable").index(pod["state"]))
        self._number()

    def _enqueue(self) -> None:
        namespace, _, name = self._pod_name()
        pods = [self._waiting_pod(namespace, name)]
        if self._chance.random() < 0.08:
            group = name.rpartition("-")[0]
            pods = [self._waiting_pod(namespace, f"{group}-worker-{member}") for member in range(7)]
            for pod in pods:
                pod |= {"requests": pods[0]["requests"], "priority": pods[0]["priority"], "reservedNode": ""}
                pod["gang"] = {"name": group, "members": 7, "required": 8}
                pod["message"] = f"PodGroup {namespace}/{group}: waiting for members: 7 of 8"
                pod["state"] = "unschedulable"
        self.queue += pods

    def _waiting_pod(self, namespace: str, name: str) -> QueuedPod:
        chance = self._chance
        cards, message = chance.choice(_messages(self.nodes))
        state = chance.choices(("active", "backoff", "unschedulable"), (1, 2, 9))[0]
        waited = chance.randrange(5, 40_000)
        return {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": self._uid(),
                "creationTimestamp": _time(self.now - timedelta(seconds=waited)),
            },
            "position": 0,
            "state": state,
            "priority": chance.choice((0, 0, 0, 100, 1000)),
            "waitingSeconds": waited,
            "scheduler": "berth-scheduler",
            "requests": {"cpu": 8000, "memory": 64 * GI, "nvidia.com/gpu": cards},
            "backoffSeconds": float(chance.randrange(1, 10)) if state == "backoff" else 0.0,
            "wakesOn": ["AssignedPodDelete", "NodeAdd", "DeviceUpdate"] if state == "unschedulable" else [],
            "message": "" if state == "active" else message,
            "reservedNode": chance.choice(list(self.fleet)) if cards == CARDS and chance.random() < 0.1 else "",
        }

    def _number(self) -> list[QueuedPod]:
        """Set the positions of the pods; return those whose position changed."""
        moved = [pod for position, pod in enumerate(self.queue, 1) if pod["position"] != position]
        for position, pod in enumerate(self.queue, 1):
            pod["position"] = position
        return moved

    # --- changes ----------------------------------------------------------------------------------------------------

    def step(self, *, share: float = CHURN, measured: bool = False) -> Iterator[Change]:
        """Start and end pods on a share of the nodes; `measured` if there are new metrics of all cards, too."""
        names = self._chance.sample(list(self.fleet), max(1, int(share * len(self.fleet))))
        by_node: dict[str, list[HoldingPod]] = {}
        for holder in self.holders.values():
            by_node.setdefault(holder["node"], []).append(holder)
        for name in names:
            yield from self._change_node(self.fleet[name], by_node.get(name, []))
        for name in self.fleet if measured else names:
            self._measure(self.fleet[name])
            yield "fleet", "MODIFIED", self.fleet[name]
        yield from self._change_queue()

    def _change_node(self, node: FleetNode, holders: list[HoldingPod]) -> Iterator[Change]:
        if holders:
            gone = self._chance.choice(holders)
            self._release(gone)
            yield "holders", "DELETED", gone
        if (placed := self._place(node)) is not None:
            yield "holders", "ADDED", placed

    def _change_queue(self) -> Iterator[Change]:
        before = len(self.queue)
        gone = self.queue.pop(self._chance.randrange(before))
        yield "queue", "DELETED", gone
        while len(self.queue) < before:
            self._enqueue()
        del self.queue[before:]
        new = {pod["metadata"]["name"] for pod in self.queue[before - 1 :]}
        for pod in self._number():
            yield "queue", "ADDED" if pod["metadata"]["name"] in new else "MODIFIED", pod

    # --- explanations -----------------------------------------------------------------------------------------------

    def explanation(self, namespace: str, name: str) -> PodExplanation | None:
        """Return the explanation of a pod; None if there is no such pod."""
        metadata: ObjectMeta = {"name": name, "namespace": namespace}
        holder = self.holders.get(f"{namespace}/{name}")
        if holder is not None:
            return _bound(metadata, holder)
        pod = next((each for each in self.queue if each["metadata"].items() >= metadata.items()), None)
        return None if pod is None else self._waits(metadata, pod)

    def _waits(self, metadata: ObjectMeta, pod: QueuedPod) -> PodExplanation:
        cards, names, groups = pod["requests"]["nvidia.com/gpu"], list(self.fleet), list(self._groups(pod["message"]))
        fits = groups[0]["count"] if groups else len(names)
        nearest = self._nearest(cards)
        near = nearest[0]["node"] if nearest else names[0]
        explained: PodExplanation = {
            "metadata": metadata,
            "state": {"active": "Active", "backoff": "BackingOff"}.get(pod["state"], "Waiting"),
            "message": pod["message"] or "the pod has not been tried yet",
            "nodes": len(names),
            "groups": groups,
            "nearest": nearest,
            "fitsNow": False,
            "fitsWhenEmpty": fits,
            "newNodeHelps": True,
            "remedies": [
                {
                    "kind": "NewNode",
                    "answer": "Ends",
                    "message": f"another node like {names[0]} would end the wait",
                    "node": names[0],
                    "newNode": True,
                }
            ],
            "outlook": [
                {
                    "title": "Fits",
                    "message": f"not now; on {fits} of {len(names)} nodes if they were empty",
                    "helps": True,
                },
                {"title": "New node", "message": f"another node like {names[0]} would end the wait", "helps": True},
                {"title": "Preemption", "message": f"not possible: {_no_victims(len(names))}", "helps": False},
            ],
            "changes": {
                "title": "What would end the wait, for example, if nothing else changes",
                "answers": [{"message": f"gpu 0 free on {near} would end the wait", "helps": True}],
            },
            "inVain": False,
            "preemption": {"possible": False, "message": _no_victims(len(names))},
            "queue": {
                "position": pod["position"],
                "of": len(self.queue),
                "state": pod["state"],
                "backoffSeconds": pod["backoffSeconds"],
                "wakesOn": pod["wakesOn"],
            },
        }
        if "gang" in pod:
            explained["gang"] = {**pod["gang"], "firstWithoutPlace": pod["metadata"]["name"]}
        if pod["reservedNode"]:
            why = f"reserved on {pod['reservedNode']}: 6 of 8 GPUs are free, the rest is held by pod eval-017-5d1f"
            explained["reservation"] = {"node": pod["reservedNode"], "message": why}
        return explained

    def _groups(self, message: str) -> Iterator[ReasonGroup]:
        """Yield the groups of nodes that a message counts."""
        names = iter(self.fleet)
        for count, reason in re.findall(r"(\d+) ([^,]+?)(?:, |\.$)", message.partition(": ")[2]):
            nodes = list(islice(names, int(count)))
            filters = [FILTERS.get(reason[:14], "devices")]
            yield ReasonGroup(reasons=[reason], counted=[reason], filters=filters, count=int(count), nodes=nodes[:100])

    def _nearest(self, cards: int) -> list[LackingNode]:
        """Return the nodes on which the fewest cards must become free for a pod of so many."""
        busy = {
            name: [card["minor"] for card in node["devices"] if card["users"]]
            for name, node in self.fleet.items()
            if not node["blocked"]
            and not node["devices"][0]["mig"]
            and all(card["healthy"] for card in node["devices"])
        }
        missing = {name: len(minors) - (CARDS - cards) for name, minors in busy.items()}
        near = sorted((name for name in busy if 0 < missing[name] <= CARDS), key=lambda name: (missing[name], name))
        return [
            {
                "node": name,
                "resources": {"cpu": 4000} if place == 2 else {},
                "cards": [{"type": "gpu", "minor": minor, "amounts": {}} for minor in busy[name][: missing[name]]],
            }
            for place, name in enumerate(near[:5])
        ]


def _bound(metadata: ObjectMeta, holder: HoldingPod) -> PodExplanation:
    scores: list[NodeScore] = [
        {"node": holder["node"], "total": 241.5, "terms": {"binpack": 160.0, "topology": 81.5}},
        {"node": "gpu-0001", "total": 203.0, "terms": {"binpack": 120.0, "topology": 83.0}},
    ]
    return {
        "metadata": metadata,
        "state": "Bound",
        "message": f"bound to {holder['node']} with GPU 0",
        "bind": {"kept": True, "message": "", "node": holder["node"], "scores": scores},
    }


def _take(card: Card, share: int) -> HeldPart:
    """Take a share of a card, in hundredths."""
    amounts = {name: amount * share // 100 for name, amount in card["total"].items()}
    return _took(card, amounts, card["id"])


def _take_instance(card: Card) -> HeldPart:
    number = card["free"][MIG_RESOURCE]
    return _took(card, {MIG_RESOURCE: 1}, f"MIG-{card['id'][4:]}-{number}")


def _took(card: Card, amounts: dict[str, int], device: str) -> HeldPart:
    card["users"] += 1
    for name, amount in amounts.items():
        card["free"][name] -= amount
    _show_use(card)
    return {"type": "gpu", "minor": card["minor"], "id": device, "model": card["model"], "amounts": amounts}


def _show_use(card: Card) -> None:
    used = {name: amount - card["free"][name] for name, amount in card["total"].items()}
    card["held"] = round(held.hundredths([used], card["total"])) if card["users"] else 0
    for number, instance in enumerate(card["mig"]):
        instance["free"] = number < card["free"][MIG_RESOURCE]


def _no_victims(nodes: int) -> str:
    return f"0/{nodes} nodes are available: {nodes} No preemption victims found for incoming pod."


def _messages(nodes: int) -> list[tuple[int, str]]:
    """Return (requested cards, message of the condition)."""
    most, few = nodes * 3 // 4, nodes // 5
    busy = "node(s) have too few free GPUs (8 requested with gpu-core 100 and gpu-memory-ratio 100)"
    head = f"0/{nodes} nodes are available: "
    return [
        (8, f"{head}{most} {busy}, {nodes - most} node(s) didn't match Pod's node affinity/selector."),
        (8, f"{head}{nodes} {busy}."),
        (4, f"{head}{nodes} node(s) have too few healthy GPUs of model *B200* (4 requested)."),
        (1, f"{head}{nodes - few} Insufficient cpu, {few} node(s) had untolerated taint(s)."),
        (16, f"{head}{nodes} node(s) have too few healthy GPUs (16 requested)."),
    ]


def _key(holder: HoldingPod) -> str:
    return f"{holder['metadata'].get('namespace', '')}/{holder['metadata']['name']}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
