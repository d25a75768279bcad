"""What is said of a pod with ResourceClaims agrees with an exhaustive search, over random claims, classes and fleets.

`exhaustive` tries all sets of devices and shares no code with Berth. `make wait-answers CASES=5000` runs more cases
than `make test`.
"""

import copy
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from typing import Any, Final, NamedTuple

from berth_operator.core.advice.assumptions import ChangedNode, Gone
from berth_operator.core.advice.remedies import Remedy, RemedyKind
from berth_operator.core.advice.waits import Wait, Waits, Why
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from tests.claims.objects import exactly, first_available
from tests.objects.builders import device as device_object
from tests.objects.builders import entry, lease, node, pod
from tests.objects.resource_claims import NVIDIA_DRIVER, allocated, listed, resource_slice, taint
from tests.unit.core.advice.test_claim_devices import returned
from tests.unit.state.test_pods_with_claims import World

CASES: Final = int(os.environ.get("CASES", "100"))
FIRST: Final = int(os.environ.get("SEED", "0"))
FOREIGN: Final = "other.example.com"
RESOURCE: Final = "example.com/gpu"
LOCKED: Final = {"key": "locked", "effect": "NoSchedule"}
PRIORITY: Final = 5
"""The priority of the pod that waits."""
PLACES: Final = 2
"""The counter that instances of a card take from."""

POLICY: Final = Policy()

Raw = dict[str, Any]


# --- the model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """A device of a slice."""

    name: str
    attributes: Mapping[str, str]
    capacity: Mapping[str, int]
    shareable: bool = False
    tainted: bool = False
    foreign: bool = False
    places: int = 0
    broken: bool = False

    def raw(self) -> Raw:
        fields: Raw = {"capacity": {name: {"value": str(amount)} for name, amount in self.capacity.items()}}
        if self.shareable:
            fields["allowMultipleAllocations"] = True
        if self.tainted:
            fields["taints"] = [taint()]
        if self.places:
            counters = {"places": {"value": str(self.places)}}
            fields["consumesCounters"] = [{"counterSet": "card", "counters": counters}]
        return listed(self.name, {f"{NVIDIA_DRIVER}/{key}": value for key, value in self.attributes.items()}, **fields)


@dataclass(frozen=True)
class Wanted:
    """A request, or a subrequest."""

    count: int
    """0 for all devices."""
    where: tuple[str, str] | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)

    def raw(self) -> Raw:
        fields: Raw = {}
        if self.where is not None:
            fields["where"] = f'device.attributes["{NVIDIA_DRIVER}"].{self.where[0]} == "{self.where[1]}"'
        if self.capacity:
            fields["capacity"] = {"requests": {name: str(amount) for name, amount in self.capacity.items()}}
        return exactly(self.count, **fields)


@dataclass(frozen=True)
class WantedClaim:
    """A claim: for each request its alternatives, and the attributes in which all devices agree."""

    requests: tuple[tuple[Wanted, ...], ...]
    equal: tuple[str, ...] = ()


@dataclass
class ModelNode:
    devices: list[Listed]
    labels: dict[str, str]
    cpu: int
    unschedulable: bool = False
    taints: list[Raw] = field(default_factory=list)
    silent: bool = False


def exhaustive(
    node_: ModelNode, claims: Sequence[WantedClaim], class_where: tuple[str, str] | None, held: Collection[str]
) -> bool:
    """Return whether some choice of the node's devices meets all claims while other claims hold some devices."""
    wanted = [(number, choices) for number, claim in enumerate(claims) for choices in claim.requests]
    places = PLACES - sum(device.places for device in node_.devices if device.name in held)

    def go_on(left: Sequence[tuple[int, tuple[Wanted, ...]]], taken: list[tuple[int, Wanted, Listed]]) -> bool:
        if not left:
            return all(_agree(taken, number, claim) for number, claim in enumerate(claims))
        number, choices = left[0]
        for one in choices:
            matching = [device for device in node_.devices if _suits(one, device, class_where)]
            usable = [device for device in matching if _usable(device) and device.name not in held]
            sets: Iterable[tuple[Listed, ...]] = combinations(usable, one.count)
            if one.count == 0:
                sets = [tuple(matching)] if matching and matching == usable else []
            for devices in sets:
                more = [*taken, *((number, one, device) for device in devices)]
                if _holds(more, places) and go_on(left[1:], more):
                    return True
        return False

    return go_on(wanted, [])


def _usable(device: Listed) -> bool:
    return not (device.tainted or device.foreign or device.broken)


def _suits(one: Wanted, device: Listed, class_where: tuple[str, str] | None) -> bool:
    for where in (class_where, one.where):
        if where is not None and device.attributes.get(where[0]) != where[1]:
            return False
    return all(device.capacity.get(name, -1) >= amount for name, amount in one.capacity.items())


def _holds(taken: Sequence[tuple[int, Wanted, Listed]], places: int) -> bool:
    """Return whether no device, capacity or counter is given twice."""
    times = Counter(device.name for _, _, device in taken)
    for device in {device.name: device for _, _, device in taken}.values():
        if times[device.name] > 1 and not device.shareable:
            return False
        for name, amount in device.capacity.items() if device.shareable else ():
            given = [one.capacity.get(name, amount) for _, one, other in taken if other.name == device.name]
            if sum(given) > amount:
                return False
    return sum({device.name: device.places for _, _, device in taken}.values()) <= places


def _agree(taken: Sequence[tuple[int, Wanted, Listed]], number: int, claim: WantedClaim) -> bool:
    for attribute in claim.equal:
        values = {device.attributes.get(attribute) for of_claim, _, device in taken if of_claim == number}
        if len(values) > 1 or None in values:
            return False
    return True


# --- random cases -------------------------------------------------------------------------------------------------


class Holder(NamedTuple):
    """A bound pod whose claim holds a device."""

    node: str
    device: str
    priority: int
    cpu: int


class Case:
    """A random cluster with a pod that may wait for devices."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.nodes = {name: self._node(name) for name in "abc"[: rng.choice((1, 1, 2, 2, 3))]}
        self.class_where = rng.choice((None, None, None, None, ("model", "x")))
        self.selector = {"pool": "1"} if rng.random() < 0.2 else {}
        self.cpu = rng.choice((0, 0, 2))
        self.by_class = rng.random() < 0.1
        self.claims = [self._claim() for _ in range(rng.choice((1, 1, 1, 2)))]
        if self.by_class:
            self.claims = [WantedClaim(((Wanted(rng.choice((1, 2, 3))),),))]
        self.world = World("unused", own=OwnPools(drivers=frozenset({NVIDIA_DRIVER})), gpus=0)
        self.world.cluster.node_cache.remove_node("unused")
        self.holders: dict[str, Holder] = {}
        self._put()

    def _node(self, name: str) -> ModelNode:
        rng, devices = self.rng, list[Listed]()
        kind = rng.choice(("plain", "plain", "shared", "instances", "cards"))
        for number in range(rng.choice((0, 1, 2, 3, 3, 4))):
            attributes = {"model": rng.choice("xy")}
            if rng.random() < 0.8:
                attributes["link"] = rng.choice("12")
            if kind == "cards":
                attributes |= {"type": "gpu", "uuid": f"GPU-{name}{number}"}
            devices.append(
                Listed(
                    name=f"{name}{number}",
                    attributes=attributes,
                    capacity={"memory": rng.choice((10, 20))},
                    shareable=kind == "shared",
                    tainted=rng.random() < 0.1,
                    places=rng.choice((1, 1, 2)) if kind == "instances" else 0,
                    broken=kind == "cards" and rng.random() < 0.2,
                )
            )
        if rng.random() < 0.15:
            devices.append(Listed(f"{name}-foreign", {"model": "x", "link": "1"}, {"memory": 20}, foreign=True))
        return ModelNode(
            devices=devices,
            labels={"pool": rng.choice("12")},
            cpu=rng.choice((1, 2, 8, 8)),
            unschedulable=rng.random() < 0.1,
            taints=[LOCKED] if rng.random() < 0.1 else [],
            silent=rng.random() < 0.1,
        )

    def _claim(self) -> WantedClaim:
        rng = self.rng
        equal = rng.choice(((), (), (), (), (), ("model",), ("link",), ("model", "link"), ("linkgroup",)))
        requests, number = [], rng.choice((1, 1, 1, 2))
        for _ in range(number):
            several = rng.random() < 0.25
            # As in Kubernetes, an expression that fails and a request for all devices that breaks a constraint end the
            # search. Next to other requests and choices, the order of the devices then decides what is found.
            alone = number == 1 and not several
            choices = [
                self._wanted(fails=alone and rng.random() < 0.1, may_be_all=alone or not equal)
                for _ in range(1 + several)
            ]
            requests.append(tuple(choices))
        return WantedClaim(tuple(requests), equal)

    def _wanted(self, *, fails: bool, may_be_all: bool) -> Wanted:
        rng = self.rng
        where = None if rng.random() < 0.6 else ("model", rng.choice("xxyyz"))
        if fails:
            where = "Model", "x"
        few: Sequence[Mapping[str, int]] = ({"memory": 5}, {"memory": 10}, {"memory": 15}, {"memory": 30}, {"mem": 5})
        amounts = {} if rng.random() < 0.6 else rng.choice(few)
        return Wanted(rng.choice((1, 1, 1, 1, 2, 2, 3, 0 if may_be_all else 1)), where, amounts)

    def _put(self) -> None:
        world, rng = self.world, self.rng
        selectors = []
        if self.class_where is not None:
            name, value = self.class_where
            selectors = [{"cel": {"expression": f'device.attributes["{NVIDIA_DRIVER}"].{name} == "{value}"'}}]
        spec: Raw = {"selectors": selectors}
        if self.by_class:
            spec["extendedResourceName"] = RESOURCE
        world.to.put_class({"metadata": {"name": "gpu"}, "spec": spec})
        for name, of_node in self.nodes.items():
            self._put_node(name, of_node)
        number = 0
        for name, of_node in self.nodes.items():
            used = 0
            for device in of_node.devices:
                # Instances are held as far as there are places.
                if not _usable(device) or used + device.places > PLACES or rng.random() < 0.2:
                    continue
                used += device.places
                holder, number = f"holder-{number}", number + 1
                priority, cpu = rng.choice((0, 0, 9)), int(rng.random() < 0.3)
                fields: Raw = {"shareID": f"share-{number}"} if device.shareable else {}
                if device.shareable:
                    # All of it, as a share that requests no amount.
                    amounts = {name: str(amount) for name, amount in device.capacity.items()}
                    fields["consumedCapacity"] = amounts
                claim = allocated(f"of-{holder}", device.name, node=name, pods=[f"uid-{holder}"], **fields)
                world.to.put_claim(claim)
                used_claims = [{"name": "c", "resourceClaimName": f"of-{holder}"}]
                raw = pod(holder, {"cpu": str(cpu)}, on=name, priority=priority, resourceClaims=used_claims)
                world.pods.apply("ADDED", copy.deepcopy(raw))
                self.holders[holder] = Holder(name, device.name, priority, cpu)

    def _put_node(self, name: str, of_node: ModelNode) -> None:
        cache = self.world.cluster.node_cache
        cache.put_node(self._raw_node(name, of_node))
        cards = [device for device in of_node.devices if "uuid" in device.attributes]
        if cards:
            entries = [
                entry(minor, id=device.attributes["uuid"], health=not device.broken)
                for minor, device in enumerate(cards)
            ]
            cache.put_device(device_object(name, *entries))
            if not of_node.silent:
                cache.put_lease(lease(name))
        own = [device for device in of_node.devices if not device.foreign]
        count = 2 if any(device.places for device in own) else 1
        self.world.to.put_slice(resource_slice(*(device.raw() for device in own), node=name, count=count))
        if count == 2:
            counters = resource_slice(node=name, name=f"{name}-counters", count=2)
            places = {"places": {"value": str(PLACES)}}
            counters["spec"] |= {"devices": None, "sharedCounters": [{"name": "card", "counters": places}]}
            self.world.to.put_slice(counters)
        for device in of_node.devices:
            if device.foreign:
                self.world.to.put_slice(resource_slice(device.raw(), node=name, driver=FOREIGN, name=f"{name}-foreign"))

    def _raw_node(self, name: str, of_node: ModelNode) -> Raw:
        return node(
            name,
            labels=of_node.labels,
            allocatable={"cpu": str(of_node.cpu)},
            taints=of_node.taints,
            unschedulable=of_node.unschedulable,
        )

    def pending(self) -> PendingPod:
        names = []
        for number, claim in enumerate(self.claims if not self.by_class else ()):
            requests = []
            for place, choices in enumerate(claim.requests):
                if len(choices) > 1:
                    requests.append(first_available(f"r{place}", *(one.raw() for one in choices)))
                else:
                    requests.append({"name": f"r{place}", "exactly": choices[0].raw()})
            constraints = [{"matchAttribute": f"{NVIDIA_DRIVER}/{name}"} for name in claim.equal]
            names.append(f"wanted-{number}")
            self.world.put_claim(*requests, name=names[-1], devices={"constraints": constraints})
        requested = {"cpu": str(self.cpu)} if self.cpu else {}
        fields: Raw = {"nodeSelector": self.selector, "priority": PRIORITY}
        if self.by_class:
            requested[RESOURCE] = str(self.claims[0].requests[0][0].count)
            fields["resourceClaims"] = []
        return self.world.pending("p", *names, requests=requested, **fields)

    # --- what is true -------------------------------------------------------------------------------------------

    def takes_when_empty(self, name: str) -> bool:
        """Return whether a node would take the pod if it were in service and had no other pods."""
        of_node = self.nodes[name]
        return self._is_accepted(of_node) and of_node.cpu >= self.cpu and self._has_devices(of_node, ())

    def takes(self, name: str, gone: Collection[str] = ()) -> bool:
        """Return whether a node takes the pod, once these holders are gone."""
        of_node = self.nodes[name]
        left = [holder for holder in self.holders if holder not in gone and self.holders[holder].node == name]
        used = sum(self.holders[holder].cpu for holder in left)
        held = {self.holders[holder].device for holder in left}
        return (
            not of_node.unschedulable
            and self._is_accepted(of_node)
            and (not self.cpu or of_node.cpu >= self.cpu + used)
            and self._has_devices(of_node, held)
        )

    def _is_accepted(self, of_node: ModelNode) -> bool:
        return not of_node.taints and self.selector.items() <= of_node.labels.items()

    def _has_devices(self, of_node: ModelNode, held: Collection[str]) -> bool:
        return exhaustive(of_node, self.claims, self.class_where, held)

    def is_placed(self, gone: Collection[str] = ()) -> bool:
        """Return whether some node takes the pod, once these holders are gone."""
        return any(self.takes(name, gone) for name in self.nodes)

    def lower(self, name: str) -> list[str]:
        """Return the holders on a node that may be evicted for the pod."""
        return [holder for holder, held in self.holders.items() if held.node == name and held.priority < PRIORITY]

    def in_service(self) -> "Case":
        """Return the case with nodes that reject no pod."""
        case = copy.copy(self)
        case.nodes = {
            name: replace(of_node, labels={"pool": "1"}, taints=[], cpu=self.cpu)
            for name, of_node in self.nodes.items()
        }
        return case

    def changed(self, change: ChangedNode) -> "Case":
        """Return the case with another node."""
        of_node = self.nodes[change.node.name]
        other = replace(
            of_node,
            labels=dict(change.node.labels),
            unschedulable=change.node.cordoned,
            taints=[LOCKED] if change.node.taints else [],
            cpu=change.node.allocatable["cpu"] // 1000,
        )
        case = copy.copy(self)
        case.nodes = {**self.nodes, change.node.name: other}
        return case


# --- what is said -------------------------------------------------------------------------------------------------


def test_what_is_said_of_claims_agrees_with_an_exhaustive_search() -> None:
    said, differences = Counter[str](), list[str]()
    for seed in range(FIRST, FIRST + CASES):
        case = Case(Random(seed))
        pod_ = case.pending()
        waits, wait = Waits(case.world.cluster.fleet.copy(), POLICY, Budgets()), Wait(pod=pod_)
        why = waits.why(wait)
        why = replace(why, claims=returned(waits.claims(wait, why)))
        remedies = [remedy for remedy in waits.remedies(wait, why) if remedy is not None]
        differences += [f"seed {seed}: {difference}" for difference in _differences(case, why, remedies, said)]
    sys.stdout.write(f"{CASES} cases, {len(differences)} wrong: {sorted(said.items())}\n")
    assert not differences, differences


def _differences(case: Case, why: Why, remedies: Sequence[Remedy], said: Counter[str]) -> Iterator[str]:
    explanation = why.explanation
    if not isinstance(explanation.result, Failure):
        said["placed"] += 1
        if not case.is_placed():
            yield "it would be placed, but no node takes it"
        return
    if case.is_placed():
        yield f"it waits, but a node takes it: {explanation.result.message}"
    true = sum(map(case.takes_when_empty, case.nodes))
    counted, not_searched = explanation.fits_when_empty or 0, explanation.not_searched
    said[f"fits {'some' if counted else 'none'}{', not searched' if not_searched else ''}"] += 1
    if not counted <= true <= counted + not_searched:
        yield f"said that {counted} nodes fit if empty (and {not_searched} perhaps), but {true} do"
    for remedy in remedies:
        said[f"{remedy.kind} {remedy.ends}"] += 1
        is_true = _is_true(case, remedy)
        if is_true is not None and is_true != bool(remedy.ends):
            yield f"said {remedy.sentence!r}, but that is {is_true}"


def _is_true(case: Case, remedy: Remedy) -> bool | None:
    """Return whether a change ends the wait in the model; for one that is needed first, whether the pod fits without.

    None if the model has no such change.
    """
    match remedy.assumes:
        case ChangedNode() as change:
            other = case.changed(change)
            return other.is_placed() or any(other.takes(name, other.lower(name)) for name in other.nodes)
        case Gone(uids=uids):
            return case.is_placed({uid.removeprefix("uid-") for uid in uids})
    if remedy.kind is RemedyKind.PREEMPTION and remedy.ends:
        count = int(remedy.what.removeprefix("the eviction of ").partition(" ")[0])
        return any(case.takes(remedy.node, gone) for gone in combinations(case.lower(remedy.node), count))
    if remedy.kind is RemedyKind.CLAIM:
        # Devices that no node has, whatever is changed of Nodes and pods.
        return any(map(case.in_service().takes_when_empty, case.nodes))
    return None
