"""A live cluster with another system: what runs, which workloads share cards, and how Berth takes over the nodes.

The plan uses only what the user may read, and nothing is written. A person runs the commands, node by node.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_api import names, request
from berth_api.values import listing
from berth_api.words import TABLE
from berth_operator.commands.migrate import workloads
from berth_operator.commands.migrate.live import Lists

Object = Mapping[str, Any]
Report = dict[str, Any]

BERTH: Final = "Berth"
PLUGIN: Final = "a device plugin"
"""Allocates cards to pods that no other scheduler of the table has placed."""
LABEL: Final = "scheduler=berth"
"""The label of the nodes that are Berth's, and their taint."""
MANAGED: Final = f"operator.managedNodes={LABEL}"
_KEY, _, _VALUE = LABEL.partition("=")
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A workload that belongs to another system."""

    kind: str
    namespace: str
    name: str
    image: str

    @property
    def title(self) -> str:
        """Return kind, namespace and name."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What of a system is in the cluster."""

    system: str
    programs: tuple[Program, ...]
    webhooks: tuple[str, ...]
    """The configurations of its mutating webhooks."""
    pods: int
    """Pods that its scheduler has or will place, or that request by its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The pods that hold devices of a node, by the system that gave them."""

    node: str
    offered: Mapping[str, str]
    """Device resources of the Node's allocatable."""
    holders: Mapping[str, tuple[str, ...]]
    """System -> namespace/name of its pods."""

    @property
    def is_shared(self) -> bool:
        """Return whether two systems give devices of this node to pods."""
        return len(self.holders) > 1

    @property
    def others(self) -> tuple[str, ...]:
        """Return the pods of other systems."""
        return tuple(pod for system, held in self.holders.items() if system != BERTH for pod in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do."""

    title: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """The whole answer."""

    found: tuple[Found, ...]
    nodes: tuple[NodeUse, ...]
    """The nodes in the order in which to move them: nodes with the fewest pods first."""
    before: tuple[Step, ...]
    each_node: Mapping[str, tuple[Step, ...]]
    after: tuple[Step, ...]
    watch: tuple[Step, ...]
    back: tuple[Step, ...]
    unread: Mapping[str, str]
    """Kind -> why it could not be read. What it would show is missing."""


def plan(lists: Lists) -> Takeover:
    """Return how to move a cluster to Berth, as far as the lists show it."""
    found, nodes = tuple(_systems(lists)), tuple(sorted(_nodes(lists), key=lambda use: (len(use.others), use.node)))
    # Each once, whatever its images: undone twice, a patch is there again.
    programs = {program.title: program for running in found for program in running.programs}
    plugins = tuple(program for program in programs.values() if program.kind == "DaemonSet")
    return Takeover(
        found=found,
        nodes=nodes,
        before=tuple(before(found, plugins)),
        each_node={use.node: tuple(of_node(use)) for use in nodes},
        after=AFTER,
        watch=WATCH,
        back=tuple(back(plugins)),
        unread=lists.unread,
    )


# --- what runs ------------------------------------------------------------------------------------------------


def _systems(lists: Lists) -> Iterator[Found]:
    programs = [
        Program(
            kind=body["kind"],
            namespace=body["metadata"].get("namespace") or "",
            name=body["metadata"]["name"],
            image=str(container.get("image") or ""),
        )
        for body in lists.of("daemonsets", "deployments")
        for container in body["spec"]["template"]["spec"].get("containers") or ()
    ]
    pods = Counter(_system_of(pod) for pod in lists.of("pods") if not _has_ended(pod))
    for name in dict.fromkeys(system.name for system in TABLE.systems):
        rows = [system for system in TABLE.systems if system.name == name]
        images = [part for row in rows for part in row.images]
        own = tuple(dict.fromkeys(program for program in programs if any(part in program.image for part in images)))
        namespaces = {program.namespace for program in own}
        webhooks = []
        for body in lists.of("mutatingwebhookconfigurations"):
            clients = [webhook.get("clientConfig") or {} for webhook in body.get("webhooks") or ()]
            if any((client.get("service") or {}).get("namespace") in namespaces for client in clients):
                webhooks.append(body["metadata"]["name"])
        if own or pods[name]:
            yield Found(system=name, programs=own, webhooks=tuple(webhooks), pods=pods[name])


def _system_of(pod: Object) -> str:
    """Return which system the pod belongs to; empty if nothing in it concerns devices or another scheduler."""
    scheduler = pod["spec"].get("schedulerName") or ""
    if scheduler == names.SCHEDULER:
        return BERTH
    by_scheduler = next((system.name for system in TABLE.systems if scheduler in system.schedulers), "")
    if by_scheduler:
        return by_scheduler
    titles = workloads.words_of(dict(pod))
    telling = (row for row in TABLE.rows() if row.word.title in titles and not row.word.only_with)
    return next((row.system.name for row in telling), PLUGIN if _devices(pod) else "")


def _devices(pod: Object) -> set[str]:
    """Return the device resources that a pod requests, by any system's words."""
    held = {
        name
        for container in pod["spec"].get("containers") or ()
        for part in ("limits", "requests")
        for name in (container.get("resources") or {}).get(part) or ()
    }
    return {name for name in held if _is_device(name)}


def _is_device(name: str) -> bool:
    return name in TABLE.resources or request.is_device(name) or name.startswith(names.NVIDIA_PREFIX)


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in _ENDED


def _nodes(lists: Lists) -> Iterator[NodeUse]:
    held: dict[str, dict[str, list[str]]] = {}
    for pod in lists.of("pods"):
        node = pod["spec"].get("nodeName") or ""
        # A pod holds devices by resources, or by annotations and labels about amounts.
        holds = node and not _has_ended(pod) and (_devices(pod) or workloads.words_of(dict(pod)))
        if holds and (system := _system_of(pod)):
            name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
            held.setdefault(node, {}).setdefault(system, []).append(name)
    for body in lists.of("nodes"):
        name = body["metadata"]["name"]
        allocatable = (body.get("status") or {}).get("allocatable") or {}
        offered = {name: str(value) for name, value in allocatable.items() if _is_device(name) and str(value) != "0"}
        if offered or name in held:
            holders = {system: tuple(sorted(pods)) for system, pods in sorted(held.get(name, {}).items())}
            yield NodeUse(node=name, offered=offered, holders=holders)


# --- what to do -----------------------------------------------------------------------------------------------

WATCH: Final = (
    Step(
        title="check that every device is healthy, that none is blocked, and that doctor finds nothing",
        commands=("kubectl berth devices", "kubectl berth doctor"),
    ),
    Step(
        title="see which pods hold devices, and which wait", commands=("kubectl berth who -A", "kubectl berth queue -A")
    ),
)


AFTER: Final = (
    Step(title="remove the other system and its webhooks"),
    Step(
        title=f"remove the value {MANAGED}, then the taints and labels",
        commands=(f"kubectl taint node -l {LABEL} {_KEY}-", f"kubectl label node -l {LABEL} {_KEY}-"),
    ),
)


def before(found: Sequence[Found], plugins: Sequence[Program]) -> Iterator[Step]:
    """Yield what to do before the first node."""
    yield Step(
        title="see how the manifests change, and keep a copy of what runs",
        commands=("kubectl berth migrate -A", "kubectl get all -A -o yaml > before.yaml"),
    )
    yield Step(
        title=f"install Berth only for nodes with the label {LABEL}: set the value {MANAGED}. No node has the label yet"
    )
    opt_outs = [system.opt_out for running in found for system in TABLE.systems if system.name == running.system]
    for opt_out in filter(None, opt_outs):
        yield Step(title=f"keep the other webhook out of each namespace that moves: label the namespace {opt_out}")
    if plugins:
        expression = {"key": _KEY, "operator": "NotIn", "values": [_VALUE]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        patch = shlex.quote(orjson.dumps({"spec": {"template": {"spec": {"affinity": affinity}}}}).decode())
        yield Step(
            title=f"keep the other device plugins off the nodes with the label {LABEL}. If a plugin already has a node "
            "affinity, add the expression to each of its terms instead",
            commands=tuple(
                f"kubectl patch daemonset -n {plugin.namespace} {plugin.name} --type merge -p {patch}"
                for plugin in plugins
            ),
        )


def of_node(use: NodeUse) -> Iterator[Step]:
    """Yield what to do with a node."""
    # Berth cannot know the cards of other systems' pods.
    known = {BERTH, *(system.name for system in TABLE.systems if not system.drain)}
    node, is_empty = use.node, not any(held for system, held in use.holders.items() if system not in known)
    yield Step(title="keep new pods off the node", commands=(f"kubectl cordon {node}",))
    if not is_empty:
        yield Step(
            title="end the node's pods with devices, because Berth does not know their cards",
            commands=(f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data",),
        )
    yield Step(
        title="give the node to Berth. New pods must then tolerate the taint",
        commands=(
            f"kubectl taint node {node} {LABEL}:NoSchedule --overwrite",
            f"kubectl label node {node} {LABEL} --overwrite",
            f"kubectl uncordon {node}",
        ),
    )
    yield Step(
        title="move workloads: apply their rewritten manifests. Until the last node is moved, their pods must tolerate "
        f"the taint (key {_KEY}, value {_VALUE})"
    )


def back(plugins: Sequence[Program]) -> Iterator[Step]:
    """Yield how to undo it."""
    yield Step(
        title="give a node back: end its pods of Berth, then remove label and taint. The other device plugins then "
        "start again",
        commands=(
            "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data",
            f"kubectl label node NODE {_KEY}-",
            f"kubectl taint node NODE {LABEL}:NoSchedule-",
            "kubectl uncordon NODE",
        ),
    )
    yield Step(title="apply the old manifests, from version control or from the copy")
    for plugin in plugins:
        yield Step(
            title="undo the change to the other device plugin",
            commands=(f"kubectl rollout undo -n {plugin.namespace} daemonset/{plugin.name}",),
        )


# --- reports --------------------------------------------------------------------------------------------------


def report(takeover: Takeover) -> Report:
    """Return the answer for programs."""
    return {
        "systems": [
            {
                "name": running.system,
                "programs": [{"object": program.title, "image": program.image} for program in running.programs],
                "webhooks": list(running.webhooks),
                "pods": running.pods,
            }
            for running in takeover.found
        ],
        "nodes": [
            {
                "name": use.node,
                "offers": dict(use.offered),
                "holders": {system: list(held) for system, held in use.holders.items()},
                "shared": use.is_shared,
                "steps": _steps(takeover.each_node[use.node]),
            }
            for use in takeover.nodes
        ],
        "before": _steps(takeover.before),
        "watch": _steps(takeover.watch),
        "after": _steps(takeover.after),
        "back": _steps(takeover.back),
        "notRead": dict(takeover.unread),
    }


def _steps(steps: Sequence[Step]) -> list[Report]:
    return [{"title": step.title, "commands": list(step.commands)} for step in steps]


def lines(takeover: Takeover) -> Iterator[str]:
    """Yield the answer for people."""
    yield "What runs:"
    for running in takeover.found:
        yield f"  {running.system}: {running.pods} pod{'' if running.pods == 1 else 's'}"
        yield from (f"    {program.title} ({program.image})" for program in running.programs)
        yield from (f"    MutatingWebhookConfiguration {webhook}" for webhook in running.webhooks)
    if not takeover.found:
        yield "  none of the systems that are known"
    yield ""
    yield "Whose cards are shared by what:"
    for use in takeover.nodes:
        held = "; ".join(f"{system}: {', '.join(pods)}" for system, pods in use.holders.items()) or "no pods"
        offered = listing.first_of(f"{name}: {amount}" for name, amount in use.offered.items())
        yield f"  {use.node} ({offered or 'no devices in allocatable'}): {held}"
        if use.is_shared:
            yield "    two systems give the same cards to pods here: drain it first"
    if not takeover.nodes:
        yield "  no node has devices"
    parts = (
        ("Before", takeover.before),
        *((f"Node {node}", steps) for node, steps in takeover.each_node.items()),
        ("After each node, watch", takeover.watch),
        ("After the last node", takeover.after),
        ("To go back", takeover.back),
    )
    for title, steps in parts:
        yield ""
        yield f"{title}:"
        for number, step in enumerate(steps, start=1):
            yield f"  {number}. {step.title}"
            yield from (f"       {command}" for command in step.commands)
    yield from (f"not read: {name}: {why}" for name, why in takeover.unread.items())
