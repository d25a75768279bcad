"""Carry out advice by its words only: a sentence in, the clusters that it may mean out.

    carried_out(world, "a node like a with 9 GPUs")  ->  World, ...

Whatever the words leave open is chosen as unfavourably as they allow: cards of a model that no pod requests, with
little memory and far from each other. If the words count pods instead of naming them, all choices of pods are tried. A
sentence that this module does not know fails.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Final

import yaml

from berth_api import names
from berth_api.allocation import Grant
from berth_operator.core.decision.gang import Gang
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo, DeviceInventory, NodeInfo
from berth_operator.core.values.request import PendingPod, Taint, Toleration
from berth_operator.core.values.storage import VolumeClaim
from tests.objects import volumes
from tests.objects.builders import GI, OFFERED, SUMS, add, card, inventory, node_info, other_card

NEW: Final = "new"
"""The name of a node that is added."""
HOSTNAME: Final = "kubernetes.io/hostname"
OUT_OF_SERVICE: Final = "node.kubernetes.io/"
"""The prefix of the taints of nodes that are out of service, which a new node is not."""
TYPES: Final = {"GPU": "gpu", "RDMA device": "rdma", "FPGA": "fpga"}
UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "": 1}


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster with one pod or gang that waits."""

    nodes: Mapping[str, NodeInfo]
    devices: Mapping[str, DeviceInventory]
    """Node -> its Device; a node may have none."""
    unit: PendingPod | Gang
    silent: frozenset[str] = frozenset()
    """Nodes whose agents are silent."""
    charges: tuple[Charge, ...] = ()
    nominees: tuple[Charge, ...] = ()
    """What is kept for pods on their nominated nodes."""
    volumes: tuple[object, ...] = ()
    """Claims and volumes."""

    def fleet(self) -> Fleet:
        made = Fleet()
        for name, info in self.nodes.items():
            add(made, info, self.devices.get(name), fresh=name not in self.silent)
        volumes.put(made, *self.volumes)
        for each in self.charges:
            made.charge(each)
        for each in self.nominees:
            made.nominate(each)
        return made

    def with_node(self, info: NodeInfo) -> "World":
        return replace(self, nodes={**self.nodes, info.name: info})

    def without(self, gone: Sequence[Charge]) -> "World":
        uids = {each.uid for each in gone}
        return replace(self, charges=tuple(each for each in self.charges if each.uid not in uids))


def carried_out(world: World, words: str) -> list[World]:
    """Return the clusters that the words may mean: one, unless they count pods that they do not name."""
    for pattern, carry_out in SENTENCES.items():
        if match := re.fullmatch(pattern, words):
            return [*carry_out(world, *match.groups())]
    raise AssertionError(f"advice that is not known here: {words}")


# --- nodes that are added -----------------------------------------------------------------------------------------


def _another(world: World, like: str) -> Iterator[World]:
    yield _with_new(world, _like(world, like), world.devices.get(like))


def _new(world: World, like: str | None, what: str) -> Iterator[World]:
    info = node_info(NEW, offered={}, sums={}, cpu=0, memory=0) if like is None else _like(world, like)
    devices = None if like is None else world.devices.get(like)
    for clause in re.split(r" and (?=with |without |no label)", what):
        if listed := re.fullmatch(r"with (\d+ (?:GPU|RDMA|FPGA).*)", clause):
            devices = _devices(devices or inventory(), listed[1])
            info = replace(info, allocatable={**info.allocatable, **SUMS, **OFFERED})
        else:
            info = _changed(info, clause.removeprefix("with "))
    yield _with_new(world, info, devices)


def _like(world: World, name: str) -> NodeInfo:
    info = world.nodes[name]
    labels = {key: NEW if key == HOSTNAME else value for key, value in info.labels.items()}
    taints = tuple(each for each in info.taints if not each.key.startswith(OUT_OF_SERVICE))
    return replace(info, name=NEW, labels=labels, taints=taints, cordoned=False, ready=True, unreachable=False)


def _with_new(world: World, info: NodeInfo, devices: DeviceInventory | None) -> World:
    shown = world.devices if devices is None else {**world.devices, NEW: devices}
    return replace(world.with_node(info), devices=shown)


def _changed(info: NodeInfo, clause: str) -> NodeInfo:
    """Return a node with other labels, taints or amounts."""
    if match := re.fullmatch(r"the labels? (.+)", clause):
        return replace(info, labels={**info.labels, **dict(each.split("=") for each in match[1].split(" and "))})
    if match := re.fullmatch(r"no labels? (.+)", clause):
        left = {key: value for key, value in info.labels.items() if key not in match[1].split(" and ")}
        return replace(info, labels=left)
    if match := re.fullmatch(r"without the taints? (.+)", clause):
        return _untainted(info, match[1])
    return replace(info, allocatable={**info.allocatable, **_amounts(clause)})


def _untainted(info: NodeInfo, listed: str) -> NodeInfo:
    gone = {_taint(each) for each in listed.split(" and ")}
    assert gone <= {*info.taints}, (gone, info.taints)
    return replace(info, taints=tuple(each for each in info.taints if each not in gone))


def _taint(text: str) -> Taint:
    key, _, effect = text.rpartition(":")
    return Taint(key=key.partition("=")[0], value=key.partition("=")[2], effect=effect)


def _devices(before: DeviceInventory, listed: str) -> DeviceInventory:
    """Return a Device with the listed devices in place of others of their types."""
    listed, together, _ = listed.partition(" under the same PCIe switches")
    vendor, made, types = before.vendor, list[CardInfo](), set[str]()
    for each in re.split(r" and (?=\d+ (?:GPU|RDMA|FPGA))", listed):
        match = re.fullmatch(DEVICES, each)
        assert match is not None, f"devices that are not known here: {each}"
        vendor, kind = (match["vendor"] or vendor).lower(), TYPES[match["type"]]
        types.add(kind)
        made += [
            _device(kind, minor, match.groupdict(), together=bool(together)) for minor in range(int(match["count"]))
        ]
    kept = tuple(each for each in before.cards if each.type not in types)
    return replace(before, vendor=vendor, cards=(*kept, *made))


DEVICES: Final = (
    r"(?P<count>\d+) (?P<type>GPU|RDMA device|FPGA)s?(?: of model (?P<model>.+?))?(?: of (?P<vendor>(?!model)\S+))?"
    r"(?: in the partition mode (?P<mode>\S+))?"
    r"(?: with device labels (?P<labels>.+?))?(?: with (?P<memory>\S+) memory)?"
    r"(?: (?P<place>under one PCIe switch|on one NUMA node|under one PCIe switch on one NUMA node))?"
)


def _device(kind: str, minor: int, words: Mapping[str, str | None], *, together: bool) -> CardInfo:
    own = f"{kind}-{minor}"
    place = words["place"] or ""
    pcie = "one" if together or "PCIe" in place else own
    numa = 0 if "NUMA" in place or pcie == "one" else minor
    requirements = (words["labels"] or "").split(" and ")
    requirements += [f"{names.DEVICE_PARTITION}={words['mode']}"] if words["mode"] else []
    labels = tuple(sorted(filter(None, map(_label, requirements))))
    if kind != "gpu":
        return other_card(kind, minor, pcie=pcie, numa=numa, labels=labels)
    memory = _amount(words["memory"]) if words["memory"] else GI
    more = {"huawei.com/npu-core": 100, "huawei.com/npu-cpu": 100, "huawei.com/npu-dvpp": 100}
    model = _model(words["model"] or "")
    return card(minor, memory=memory, model=model, more=more, pcie=pcie, numa=numa, labels=labels)


def _label(requirement: str) -> tuple[str, str] | None:
    """Return a label as a requirement of a selector demands it; None if it demands that there is none."""
    if match := re.fullmatch(r"([\w./-]+) in \((.+)\)", requirement):
        return match[1], match[2].split(",")[-1]
    if match := re.fullmatch(r"([\w./-]+)(?:=(\S+))?", requirement):
        return match[1], match[2] or "any"
    assert re.fullmatch(r"(?:!\S+|\S+!=\S+|\S+ notin \(.+\)|)", requirement), requirement
    return None


def _model(words: str) -> str:
    """Return the last model that is named; without a name, one that no word names."""
    named = [each for each in words.split(" and ") if each and not each.startswith("not ")]
    return re.split(r" or |\|", named[0])[-1].strip("*^$").replace("*", " ") if named else "Voodoo 2"


def _amounts(listed: str) -> dict[str, int]:
    split = (each.split(" ") for each in listed.split(" and "))
    return {name: _amount(amount, cpu=name == "cpu") for amount, name in split}


def _amount(text: str, *, cpu: bool = False) -> int:
    match = re.fullmatch(r"(\d+)(m|Ki|Mi|Gi|Ti|)", text)
    assert match is not None, text
    if cpu:
        return int(match[1]) * (1 if match[2] else 1000)
    return int(match[1]) * UNITS[match[2]]


# --- nodes that change --------------------------------------------------------------------------------------------


def _relabelled(world: World, more: str | None, fewer: str | None, node: str) -> Iterator[World]:
    info = world.nodes[node]
    for clause in filter(None, (more, fewer)):
        info = _changed(info, clause)
    yield world.with_node(info)


def _uncordoned(world: World, node: str) -> Iterator[World]:
    yield world.with_node(replace(world.nodes[node], cordoned=False))


def _without_taints(world: World, taints: str, node: str) -> Iterator[World]:
    yield world.with_node(_untainted(world.nodes[node], taints))


def _tolerating(world: World, listed: str) -> Iterator[World]:
    """Yield the cluster in which the pod, or each member of its gang, also has these tolerations."""
    added = [Toleration(**toleration) for toleration in yaml.safe_load(f"[{listed}]")]

    def changed(pod: PendingPod) -> PendingPod:
        return replace(pod, request=replace(pod.request, tolerations=(*pod.request.tolerations, *added)))

    unit = world.unit
    members = replace(unit, members=tuple(map(changed, unit.members))) if isinstance(unit, Gang) else changed(unit)
    yield replace(world, unit=members)


def _ready(world: World, node: str) -> Iterator[World]:
    yield world.with_node(replace(world.nodes[node], ready=True, unreachable=False))


def _reporting(world: World, node: str) -> Iterator[World]:
    yield replace(world, silent=world.silent - {node})


def _healthy(world: World, listed: str, node: str) -> Iterator[World]:
    named, before = listed.split(" and "), world.devices[node]
    failed = [each for each in before.cards if f"{each.type} {each.minor}" in named]
    assert len(failed) == len(named), (listed, before)
    assert all(each.failed for each in failed), (listed, before)
    cards = tuple(replace(each, healthy=True, failed=False) if each in failed else each for each in before.cards)
    yield replace(world, devices={**world.devices, node: replace(before, cards=cards)})


def _capacity(world: World, listed: str, node: str) -> Iterator[World]:
    info = world.nodes[node]
    for each in re.split(r" and (?=capacity for |(?:gpu|rdma|fpga) \d)", listed):
        if match := re.fullmatch(r"(gpu|rdma|fpga) (\d+)(?: with (.+) more)? free", each):
            world = _freed(world, node, (match[1], int(match[2])), _amounts(match[3]) if match[3] else None)
        elif match := re.fullmatch(r"(?:capacity for )?(\d+) more pods?|(.+) more", each.replace("capacity for ", "")):
            more = {"pods": int(match[1])} if match[1] else _amounts(match[2])
            grown = {name: info.allocatable.get(name, 0) + amount for name, amount in more.items()}
            info = replace(info, allocatable={**info.allocatable, **grown})
        else:
            raise AssertionError(f"capacity that is not known here: {each}")
    yield world.with_node(info)


def _freed(world: World, node: str, of: tuple[str, int], amounts: Mapping[str, int] | None) -> World:
    """Return the cluster when pods no longer use a card, or use so much less of it."""
    left = None if amounts is None else dict(amounts)
    charges = []
    for each in world.charges:
        grants = each.grants if each.node != node else tuple(_less(each.grants, of, left))
        charges.append(replace(each, grants=grants))
    return replace(world, charges=tuple(charges))


def _less(grants: Sequence[Grant], of: tuple[str, int], left: dict[str, int] | None) -> Iterator[Grant]:
    for each in grants:
        if (each.type, each.minor) != of:
            yield each
        elif left is not None:
            taken = {name: min(amount, left.get(name, 0)) for name, amount in each.amounts}
            left |= {name: left[name] - amount for name, amount in taken.items() if name in left}
            amounts = tuple((name, amount - taken[name]) for name, amount in each.amounts if amount > taken[name])
            if amounts:
                yield replace(each, amounts=amounts)


# --- pods ---------------------------------------------------------------------------------------------------------


Words = str | None


def _ended(world: World, named: Words, more: Words, others: Words, node: Words) -> Iterator[World]:
    there = [each for each in world.charges if node is None or each.node == node]
    yield from map(world.without, _meant(there, named, more, others))


def _meant(pods: Sequence[Charge], named: Words, more: Words, others: Words) -> Iterator[tuple[Charge, ...]]:
    """Yield the pods that are named, with each choice of those that are only counted."""
    names = [f"ns/{each}" for each in named.split(", ")] if named else []
    known = [each for each in pods if each.pod in names]
    assert len(known) == len(names), (names, pods)
    own = [each for each in pods if each.pod.startswith("ns/") and each not in known]
    foreign = [each for each in pods if not each.pod.startswith("ns/")]
    for chosen in product(combinations(own, int(more or 0)), combinations(foreign, int(others or 0))):
        yield (*known, *chain(*chosen))


def _given_up(world: World, node: str, named: Words, more: Words, others: Words) -> Iterator[World]:
    there = [each for each in world.nominees if each.node == node]
    for gone in _meant(there, named, more, others):
        yield replace(world, nominees=tuple(each for each in world.nominees if each not in gone))


def _evicted(world: World, count: str, node: str) -> Iterator[World]:
    """Yield the cluster without so many pods of lower priority."""
    priority = world.unit.priority
    lower = [each for each in world.charges if each.node == node and each.priority < priority]
    yield from map(world.without, combinations(lower, int(count)))


def _more_members(world: World, count: str, like: str) -> Iterator[World]:
    assert isinstance(world.unit, Gang)
    [model] = [each for each in world.unit.members if each.name == like]
    more = (replace(model, uid=f"more-{number}", name=f"more-{number}") for number in range(int(count)))
    yield replace(world, unit=replace(world.unit, members=(*world.unit.members, *more)))


# --- volumes ------------------------------------------------------------------------------------------------------


def _bound(world: World, listed: str) -> Iterator[World]:
    """Yield the cluster with claims that are bound to volumes which every node reaches."""
    claims = {each.key: each for each in world.volumes if isinstance(each, VolumeClaim)}
    made = list[object]()
    for name in re.findall(r'"(\S+?)"', listed):
        claim = claims.get(f"ns/{name}") or volumes.claim(name)
        made += [replace(claim, volume=f"v-{name}", bound=True), volumes.volume(f"v-{name}", available=False)]
    yield replace(world, volumes=(*world.volumes, *made))


def _unhelpful(world: World) -> Iterator[World]:
    """Yield the cluster with an empty node like each that there is."""
    for name in world.nodes:
        yield from _another(world, name)


_PODS: Final = r"(?:pods? ([\w, -]+?)(?: and (\d+) more)?)?(?: and )?(?:(\d+) pods? of (?:an)?other namespaces?)?"
_LABELS: Final = r"(the labels? \S+(?: and [^ =]+=\S+)*)?(?: and )?(no labels? .+)?"
SENTENCES: Final[Mapping[str, Callable[..., Iterator[World]]]] = {
    r"another node like (\S+)": _another,
    r"a node(?: like (\S+))? ((?:with|without) .+)": _new,
    r"a new node, whatever it has,": _unhelpful,
    rf"{_LABELS} on (\S+)": _relabelled,
    r"uncordoning (\S+)": _uncordoned,
    r"removing the taints? (.+) from (\S+)": _without_taints,
    r"tolerations: \[(.+)\] in the pod's spec": _tolerating,
    r"(\S+) becoming ready": _ready,
    r"((?:(?: and )?(?:gpu|rdma|fpga) \d+)+) on (\S+) becoming healthy": _healthy,
    r"a report of the agent of (\S+)": _reporting,
    rf"the end of {_PODS}(?: on (\S+?))?(?:, which may wait for this pod,)?": _ended,
    rf"giving up what is kept on (\S+) for {_PODS}": _given_up,
    r"the eviction of (\d+) pod\(s\) of lower priority on (\S+)": _evicted,
    r"(\d+) more members? of PodGroup ns/g like (\S+) \(\d+ of \d+ exist\)": _more_members,
    r"(PersistentVolumeClaims? .+), bound to (?:a volume|volumes) that every node reaches": _bound,
    r"a volume for (PersistentVolumeClaim .+) that every node reaches": _bound,
    r"(.+(?: more| free| more pods?)) on (\S+)": _capacity,
}
"""What advice says would end a wait, or would not help -> how it is carried out; the first that matches."""
