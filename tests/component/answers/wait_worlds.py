"""Small random clusters in which a pod waits, and changes of them by objects of the API server.

This module does not use the code that explains a wait. The exception is `change_of`, which reads what a remedy assumes,
to make exactly that true.
"""

import asyncio
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from berth_api import allocation, names, resources
from berth_api.allocation import REPLICA_MARK, REPLICAS, Grant, mig
from berth_operator.core.advice.assumptions import ChangedNode, FreeCards, Gone, NewNode, Reporting
from berth_operator.core.advice.remedies import Remedy, RemedyKind
from berth_operator.core.advice.waits import Wait, Waits
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PendingPod
from berth_operator.state.watches import sinks
from berth_operator.state.watches.storage import Storage
from tests.component.evictions.test_node_reservations import Crowded
from tests.objects import volumes
from tests.objects.builders import (
    A100,
    GPU,
    NVIDIA,
    T4,
    T4_BYTES,
    Raw,
    condition,
    device,
    entry,
    instance,
    lease,
    node,
    pod,
    pod_group,
    replica,
    whole,
)

IDLE: Final = 8.0
"""Virtual seconds after which an operator is idle."""
AFTER: Final = 20.0
"""Virtual seconds within which the operator has reacted, back-offs and evictions included."""
RESERVE_AFTER: Final = 2.0
HOSTNAME: Final = "kubernetes.io/hostname"
GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
BOUND: Final = {"pv.kubernetes.io/bind-completed": "yes"}
NEW: Final = "2100-01-01T00:00:00Z"
"""When a node that is starting was created."""
PROFILE: Final = "1g.10gb"
INSTANCES: Final = 2
"""MIG instances of a card in MIG mode."""
SLICES: Final = 4
"""Slices of a time-sliced card."""
CORES: Final = ("2", "4", "8")
TAINTS: Final[Sequence[list[Raw]]] = (
    *([],) * 6,
    [{"key": "locked", "effect": "NoSchedule"}],
    [{"key": "drained", "value": "x", "effect": "NoExecute"}],
)
LABELS: Final[Mapping[str, tuple[str | None, ...]]] = {"zone": (None, "a", "b"), "pool": (None, None, "1", "2")}


def affinity(rng: Random) -> Raw:
    """Return the fields of a pod that attracts or repels pods with a label, or spreads."""
    key, app = rng.choice((HOSTNAME, "zone")), rng.choice("xy")
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    spread = {**term, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return rng.choice(
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}},
            {"affinity": {"podAffinity": {REQUIRED: [term]}}},
            {"topologySpreadConstraints": [spread]},
        )
    )


def selection(rng: Random) -> Raw:
    """Return the fields of a pod that selects nodes by labels."""
    terms = [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["1", "3"]}]},
        {
            "matchExpressions": [
                {"key": "zone", "operator": "NotIn", "values": ["a"]},
                {"key": "pool", "operator": "Exists"},
            ]
        },
    ]
    required = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": rng.sample(terms, rng.choice((1, 2)))}}}
    return rng.choice(({"nodeSelector": {"pool": rng.choice("123")}}, {"affinity": required}))


def some_cards(rng: Random) -> list[Raw]:
    """Return the entries of a Device: whole cards, time-sliced ones, or some with MIG instances."""
    model, memory = rng.choice(((A100, 80 * 2**30), (T4, T4_BYTES)))
    kind, count = rng.choice(("whole", "whole", "whole", "sliced", "MIG")), rng.choice((0, 1, 2, 4))
    entries = [entry(minor, model=model, memory=memory, health=rng.random() > 0.15) for minor in range(count)]
    for each in entries:
        if kind == "sliced":
            each["replicas"] = SLICES
        elif kind == "MIG" and rng.random() < 0.8:
            ids = [f"MIG-{each['minor']}-{number}" for number in range(INSTANCES)]
            fields = {"profile": PROFILE, "computeInstance": 0, "memory": "9Gi"}
            listed = [{"id": name, "gpuInstance": number, **fields} for number, name in enumerate(ids)]
            each["mig"] = {"enabled": True, "instances": listed}
    return entries


def budget(app: str, allowed: int) -> Raw:
    """Return a PodDisruptionBudget for the pods with a label."""
    selector = {"matchLabels": {"app": app}}
    metadata = {"name": app, "namespace": "ns", "uid": f"uid-budget-{app}"}
    return {"metadata": metadata, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}


def ports(number: int) -> list[Raw]:
    return [{"name": "port", "ports": [{"hostPort": number, "containerPort": number}]}]


class WaitWorld(Crowded):
    """A random cluster with one waiting pod or gang, which an operator schedules in virtual time."""

    def __init__(self, rng: Random) -> None:
        self.random = rng
        super().__init__(after=rng.choice((0.0, RESERVE_AFTER)))
        self.policy = replace(self.policies[names.SCHEDULER], preemption=rng.random() < 0.5)
        self.policies[names.SCHEDULER] = self.policy
        self.storage = Storage(self.cluster)
        self.shown_nodes: dict[str, Raw] = {}
        self.devices: dict[str, Raw] = {}
        self.coming: dict[str, Raw] = {}
        """Node that is starting -> the Device that its agent will publish."""
        self.silent: list[str] = []
        """Nodes whose agents are silent."""
        self.number = 0
        budgets = sinks.disruption_budgets(self.cluster)
        for app in "xyz":
            if rng.random() < 0.25:
                budgets.apply("ADDED", budget(app, rng.choice((0, 0, 1, 9))))
        for number in range(rng.choice((0, 1, 2, 2, 3, 3))):
            self.join(f"n{number}")
        for _ in range(rng.choice((0, 3, 6, 9))):
            self.place()
        self.storage.put_class(volumes.raw_class("local"))
        self.wanted = self.wait()
        self.others = [pod("other", {NVIDIA: "2"}, priority=rng.choice((0, 9)))] if rng.random() < 0.2 else []

    # --- the cluster ------------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        rng = self.random
        labels = {key: value for key, values in LABELS.items() if (value := rng.choice(values))}
        if rng.random() < 0.7:
            labels[HOSTNAME] = name
        raw = node(
            name,
            labels=labels,
            allocatable={"cpu": rng.choice(CORES), "pods": rng.choice(("3", "9"))},
            taints=rng.choice(TAINTS),
            unschedulable=rng.random() < 0.12,
            conditions=[{"type": "Ready", "status": "False" if rng.random() < 0.05 else "True"}],
        )
        entries = some_cards(rng)
        if entries and rng.random() < 0.12:
            raw["metadata"]["creationTimestamp"] = NEW
            self.coming[name] = device(name, *entries)
            self.show(raw)
        elif entries and rng.random() < 0.15:
            self.silent.append(name)
            self.show(raw, device(name, *entries, conditions=[condition("Ready", "Unknown")]))
        else:
            self.show(raw, device(name, *entries) if entries else None)

    def show(self, raw: Raw, cards: Raw | None = None) -> None:
        """Show a Node, and its Device if it is new."""
        name = raw["metadata"]["name"]
        self.shown_nodes[name] = raw
        self.cluster.node_cache.put_node(copy.deepcopy(raw))
        if cards is not None:
            self.show_device(cards)

    def show_device(self, raw: Raw) -> None:
        self.devices[raw["metadata"]["name"]] = raw
        self.cluster.node_cache.put_device(copy.deepcopy(raw))

    def place(self) -> None:
        """Bind a pod that another scheduler might have chosen a node for, without overbooking a card."""
        if not self.shown_nodes:
            return
        rng, name = self.random, self.random.choice(sorted(self.shown_nodes))
        self.number += 1
        fields: Raw = {"on": name, "priority": rng.choice((0, 0, 5)), "labels": {"app": rng.choice("xyz")}}
        requests: Raw = {"cpu": rng.choice(("500m", "1", "2"))}
        free = [
            each["minor"]
            for each in self.entries(name)
            if each["health"] and "mig" not in each and each["minor"] not in self.held(name)
        ]
        parts = self.free_parts(name)
        if parts and rng.random() < 0.7:
            fields["allocated"] = allocation.render([part := rng.choice(parts)])
            requests[REPLICAS if REPLICA_MARK in part.id else mig.resource(PROFILE)] = "1"
        elif free and rng.random() < 0.7:
            taken = free[: rng.choice((1, 1, 2))]
            requests[NVIDIA] = str(len(taken))
            fields["allocated"] = whole(*taken)
        if rng.random() < 0.2:
            fields["containers"] = ports(80)
            requests, _ = {}, fields.pop("allocated", None)
        left = self.cluster.fleet
        cores = resources.amounts(requests).get("cpu", 0)
        row = left.rows[name]
        if (left.left("cpu")[row] < cores or left.left("pods")[row] < 1) and rng.random() < 0.9:
            return
        made = pod(f"placed-{self.number}", requests, **fields)
        self.submit_bound(made)

    def submit_bound(self, raw: Raw) -> None:
        self.api.pods[raw["metadata"]["name"]] = raw
        self.pods.apply("ADDED", copy.deepcopy(raw))

    def entries(self, name: str) -> list[Raw]:
        return list(self.devices[name]["spec"]["devices"]) if name in self.devices else []

    def held(self, name: str) -> set[int]:
        return {each.minor for each in self.grants(name)}

    def grants(self, name: str) -> list[Grant]:
        return [grant for charge in self.cluster.fleet.on_node(name) for grant in charge.grants]

    def free_parts(self, name: str) -> list[Grant]:
        """Return the free MIG instances and slices of a node; cards that pods hold whole have none."""
        parts = []
        for each in self.entries(name):
            minor = each["minor"]
            if "mig" in each:
                parts += [instance(minor, number, PROFILE) for number in range(INSTANCES)]
            elif each.get("replicas") and each["health"] and each["model"] == A100:
                parts += [replica(minor, number) for number in range(SLICES)]
        held = self.grants(name)
        taken, whole_cards = {each.id for each in held}, {each.minor for each in held if not each.parent}
        return [each for each in parts if each.id not in taken and each.minor not in whole_cards]

    # --- the pods that wait -----------------------------------------------------------------------------------------

    def wait(self) -> list[Raw]:
        """Return the pods of the unit that will wait."""
        rng = self.random
        requests: Raw = rng.choice(
            (
                *({"cpu": "1"}, {"cpu": "3"}, {"cpu": "9"}, {NVIDIA: "5"}, {GPU: "50"}, {NVIDIA: "1", "cpu": "2"}),
                *({NVIDIA: "1"}, {NVIDIA: "2", "cpu": "1"}, {NVIDIA: "2"}, {NVIDIA: "4"}),
                *({mig.resource(PROFILE): "1"}, {mig.resource(PROFILE): "3"}, {REPLICAS: "1"}, {REPLICAS: "2"}),
            )
        )
        fields: Raw = {"priority": rng.choice((0, 0, 9)), "labels": {"app": rng.choice("xyz")}}
        kind = rng.random()
        if kind < 0.2:
            fields |= selection(rng)
        elif kind < 0.35:
            fields |= affinity(rng)
        elif kind < 0.45:
            fields["containers"], requests = ports(80), {}
        elif kind < 0.6:
            fields["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
            self.some_claim()
        elif kind < 0.65 and NVIDIA in requests:
            fields["annotations"] = {names.MODEL_GLOBS: rng.choice(("*H100*", "*T4*"))}
        elif kind < 0.68:
            requests = {GPU: "150"}
        elif kind < 0.78 and NVIDIA in requests:
            fields["annotations"] = {names.GPU_SUBDEVICES: rng.choice(("only", "never"))}
        if rng.random() < 0.25:
            fields["tolerations"] = [{"key": "locked", "operator": "Exists"}]
        if rng.random() < 0.3:
            return self.gang(requests, fields)
        return [pod("waits", requests, **fields)]

    def some_claim(self) -> None:
        """Create the pod's claim, bound, unbound or not at all, and perhaps a volume in one zone."""
        choice = self.random.choice(("none", "delayed", "delayed", "zone", "lost"))
        if choice == "delayed":
            self.storage.put_claim(volumes.raw_claim("data"))
        elif choice in ("zone", "lost"):
            lost = {"phase": "Lost"} if choice == "lost" else {"phase": "Bound"}
            claim = volumes.raw_claim("data", spec={"volumeName": "pv"}, annotations=BOUND, status=lost)
            terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
            self.storage.put_volume(
                volumes.raw_volume(
                    "pv",
                    spec={
                        "claimRef": {"namespace": "ns", "name": "data", "uid": "uid-data"},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                    },
                    status={"phase": "Bound"},
                )
            )
            self.storage.put_claim(claim)

    def gang(self, requests: Raw, fields: Raw) -> list[Raw]:
        rng = self.random
        self.minimum = rng.choice((2, 2, 3))
        if rng.random() < 0.8:
            self.groups.apply("ADDED", pod_group("g", self.minimum))
        count = rng.choice((1, self.minimum, self.minimum))
        return [self.member(number, requests, fields) for number in range(count)]

    def member(self, number: int, requests: Raw, fields: Raw) -> Raw:
        mine = copy.deepcopy(fields)
        mine["labels"] = {**mine["labels"], GROUP: "g"}
        return pod(f"waits-{number}", requests, **mine)

    # --- what happens -----------------------------------------------------------------------------------------------

    def waiting(self) -> list[PendingPod]:
        """Return the pods of the unit that have no node."""
        own = {each["metadata"]["name"] for each in self.wanted}
        return sorted(
            (
                each
                for each in self.cluster.pending.values()
                if each.name in own and each.uid not in self.cluster.fleet.charges
            ),
            key=lambda each: each.name,
        )

    def is_bound(self, name: str) -> bool:
        return name in self.api.bound()

    def explained(self, asked: PendingPod) -> list[Remedy]:
        """Return what the operator says ends the wait of a pod."""
        tracker = self.cluster.gang_tracker
        gang, problem = (None, "") if asked.gang is None else tracker.waiting(asked.gang)
        wait = Wait(pod=asked, gang=gang, problem=problem)
        waits = Waits(self.cluster.fleet.copy(), self.policy, self.cluster.budgets, ())
        self.why = waits.why(wait)
        return [*filter(None, waits.remedies(wait, self.why))]

    def delete_pods(self, uids: Iterable[str]) -> None:
        for name in [name for name, raw in self.api.pods.items() if raw["metadata"]["uid"] in set(uids)]:
            self.delete(name)


Action = Callable[[WaitWorld], None]


def change_of(remedy: Remedy, world: WaitWorld) -> Action | None:
    """Return an action that makes true exactly what a remedy assumes; None if it cannot be made in such a world."""
    match remedy.assumes:
        case None:
            return _WITHOUT_ASSUMPTION.get((remedy.kind, remedy.ends))
        case NewNode() as new:
            return lambda at: add_node(at, new)
        case ChangedNode() as changed:
            return lambda at: at.show(as_raw(at.shown_nodes[changed.node.name], changed.node))
        case Reporting() as reporting:
            return lambda at: report(at, reporting.node)
        case Gone() | FreeCards() as freed if uids := holders(world, freed):
            return lambda at: at.delete_pods(uids)
    return None


def holders(world: WaitWorld, freed: Gone | FreeCards) -> Sequence[str]:
    """Return the pods that end, or hold cards that become free, or as many instances of them; each pod holds one."""
    if isinstance(freed, Gone):
        return freed.uids
    if not all(mig.is_resource(name) for card in freed.lack["cards"] for name in card["amounts"]):
        return ()
    on_node, uids = list(world.cluster.fleet.on_node(freed.lack["node"])), []
    for card in freed.lack["cards"]:
        of_card = [each.uid for each in on_node if card["minor"] in {grant.minor for grant in each.grants}]
        uids += of_card[: sum(card["amounts"].values()) or None]
    return uids


def report(world: WaitWorld, name: str) -> None:
    """Renew the Lease of a silent agent."""
    for renewed in "12":
        world.cluster.node_cache.put_lease(lease(name, renewed))


def add_node(world: WaitWorld, new: NewNode) -> None:
    """Add a node as assumed, with a name of its own."""
    name = "added"
    base = world.shown_nodes[new.like] if new.like else node(name, allocatable={"pods": "1"})
    raw = as_raw(base, new.node)
    raw["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    if HOSTNAME in raw["metadata"]["labels"]:
        raw["metadata"]["labels"][HOSTNAME] = name
    cards = copy.deepcopy(world.devices.get(new.like))
    if new.inventory is not None:
        entries = [
            entry(each.minor, model=each.model, memory=dict(each.amounts)["gpu-memory"], numa=0, id=f"GPU-{each.minor}")
            for each in new.inventory.cards
        ]
        cards = device(name, *entries)
    if cards is not None:
        cards["metadata"] |= {"name": name, "uid": f"uid-device-{name}"}
        cards["status"] = {}
    world.show(raw, cards)


def as_raw(base: Raw, info: NodeInfo) -> Raw:
    """Return a Node with the fields of a value, in the units of the API server."""
    raw = copy.deepcopy(base)
    raw["metadata"]["labels"] = dict(info.labels)
    raw["spec"] = {
        "unschedulable": info.cordoned,
        "taints": [{"key": each.key, "value": each.value, "effect": each.effect} for each in info.taints],
    }
    amounts = {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in info.allocatable.items()}
    raw["status"] |= {"allocatable": amounts, "capacity": amounts}
    raw["status"]["conditions"] = [{"type": "Ready", "status": "True" if info.ready else "False"}]
    return raw


def add_members(world: WaitWorld) -> None:
    """Create the missing members of the gang, like the first of them."""
    first = world.wanted[0]
    for number in range(len(world.wanted), world.minimum):
        more = copy.deepcopy(first)
        more["metadata"] |= {"name": f"waits-{number}", "uid": f"uid-waits-{number}"}
        world.wanted.append(more)
        world.submit(more)


def bind_claim(world: WaitWorld) -> None:
    """Create the claim that the pod names, bound to a volume that every node reaches."""
    world.storage.put_volume(
        volumes.raw_volume(
            "everywhere",
            version=2,
            spec={"claimRef": {"namespace": "ns", "name": "data", "uid": "uid-data"}},
            status={"phase": "Bound"},
        )
    )
    world.storage.put_claim(
        volumes.raw_claim(
            "data", version=2, spec={"volumeName": "everywhere"}, annotations=BOUND, status={"phase": "Bound"}
        )
    )


_WITHOUT_ASSUMPTION: Final[Mapping[tuple[RemedyKind, bool | None], Action]] = {
    (RemedyKind.MEMBER, True): add_members,
    (RemedyKind.CLAIM, True): bind_claim,
    (RemedyKind.PREEMPTION, True): lambda _: None,
}


def drawn(world: WaitWorld) -> Iterator[tuple[str, Any, Action]]:
    """Yield every action of a fixed list: its name, what it changes, and how."""
    for name, raw in world.shown_nodes.items():
        yield "another node", name, functools.partial(_add_another, name=name)
        if raw["spec"].get("unschedulable"):
            yield "uncordon", name, functools.partial(edit, name=name, spec={"unschedulable": False})
        if raw["spec"].get("taints"):
            yield "untaint", name, functools.partial(edit, name=name, spec={"taints": []})
        if raw["metadata"]["labels"].get("pool") != "1":
            yield "label", (name, "pool", "1"), functools.partial(edit, name=name, labels={"pool": "1"})
        yield "more cpu", name, functools.partial(edit, name=name, cpu="64")
    for name in world.silent:
        yield "report", name, functools.partial(report, name=name)
    for name, raw in world.coming.items():
        yield "device", name, functools.partial(WaitWorld.show_device, raw=raw)
    bound = [raw["metadata"]["uid"] for raw in world.api.pods.values() if raw["spec"].get("nodeName")]
    for uid in bound:
        yield "end", uid, functools.partial(WaitWorld.delete_pods, uids=[uid])
    yield "all end", "", functools.partial(WaitWorld.delete_pods, uids=bound)
    if any("volumes" in raw["spec"] for raw in world.wanted):
        yield "claim", "data", bind_claim
    if world.wanted[0]["metadata"]["labels"].get(GROUP) and len(world.wanted) < world.minimum:
        yield "members", "", add_members


def _add_another(world: WaitWorld, name: str) -> None:
    add_node(world, another(world, name))


def another(world: WaitWorld, name: str) -> NewNode:
    """Return a node like one that is there, as an autoscaler would add it."""
    info = world.cluster.fleet.node_info(name)
    return NewNode(node=replace(info, cordoned=False, ready=True), like=name)


def edit(world: WaitWorld, name: str, *, spec: Raw | None = None, labels: Raw | None = None, cpu: str = "") -> None:
    """Change a Node, and nothing else of it."""
    raw = copy.deepcopy(world.shown_nodes[name])
    raw["spec"] |= spec or {}
    raw["metadata"]["labels"] |= labels or {}
    if cpu:
        raw["status"]["allocatable"]["cpu"] = cpu
    world.show(raw)


async def idle(seconds: float = IDLE) -> None:
    """Run the operator until it has nothing left to do."""
    await asyncio.sleep(seconds)
