"""Which devices the requests of a pod's ResourceClaims find, and why they do not find the others.

    answer = yield from of_pod(fleet, pod, policy)  ->  ClaimDevices

A device is found if the allocator takes it for the request alone. The allocator's own search is used, so the result
agrees with the decision. The reason for each other device is looked up afterwards: the first selector that does not
match, then pools, taints, holders and amounts. The generator yields None where the caller may do other work.
"""

import functools
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from berth_api import names
from berth_api.objects.visibility import ClaimDevices, LeftOut, RequestedDevices
from berth_api.values import keys
from berth_operator.core.claims.allocation.choices import Choices, prevented
from berth_operator.core.claims.allocation.plans import Context, RequestPlan
from berth_operator.core.claims.bounds.errors import AllocationError, NoWorkError
from berth_operator.core.claims.objects import capacity, extended, features, near_names
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.capacity import CapacityError
from berth_operator.core.claims.objects.requests import ALL, EXACT, DeviceClass, Request, ResourceClaim
from berth_operator.core.claims.objects.slices import CounterID, Device, DeviceID
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.decision import cycle
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import dynamic_resources, resource_claims
from berth_operator.core.fleet import claim_choice, claim_counts, extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.held_devices import held_devices
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PendingPod

MAX_LOOKS: Final = 20_000
"""Maximum number of comparisons of devices with requests for one answer: about 0.1 s if selectors are evaluated."""
STRIDE: Final = 64
"""Devices after which other work may be done; well below a millisecond."""
MAX_NAMED: Final = 5
"""Nodes that are named for a request."""
MAX_EXPRESSION: Final = 120
"""Characters of an expression."""


class Cause(NamedTuple):
    """Why a request does not find a device; FOUND if it does."""

    text: str
    is_selector: bool = False
    capacity: str = ""
    """The capacity of which the device has too little even if it is free; `text` is empty then."""
    is_error: bool = False
    """Whether an expression or a capacity fails for the device."""

    @property
    def is_lasting(self) -> bool:
        """Return whether the request never finds the device, whatever becomes free."""
        return self.is_selector or self.is_error or bool(self.capacity) or self == OTHER_NODES


FOUND: Final = Cause("found")
LATER: Final = Cause("that are not compared with the selectors yet")
OTHER_NODES: Final = Cause("for other nodes")
FOREIGN: Final = Cause("in pools that are not Berth's (claims.drivers and claims.pools of its configuration)")
SHARED: Final = Cause(
    "in pools that are Berth's, but from which another scheduler has allocated: Berth allocates nothing there until "
    "its claims are gone (kubectl berth doctor names them)"
)
TAINTED: Final = Cause("with a device taint that the request does not tolerate")
ALLOCATED: Final = Cause("allocated to other claims")
WITHHELD: Final = Cause("of cards that are unhealthy, or that pods hold by name")
USED_UP: Final = Cause("without enough capacity or counters left")
BY_NAME: Final = Cause(f"of nodes that give their cards by name (without the label {names.CARDS_KEY})")
UNLISTED: Final = Cause(
    "that their nodes' ResourceSlices do not list: pods hold them by name, they are faulty, or their driver does not "
    "run (kubectl berth doctor)"
)
_OF_CLASSES: Final = {
    names.DRA_DRIVER: names.GPU,
    f"mig.{names.DRA_DRIVER}": names.GPU,
    f"rdma.{names.DRA_DRIVER}": names.RDMA,
}
"""DeviceClass of Berth's own driver -> type of its cards."""
_BY_CLAIM: Final = frozenset({names.CARDS_BY_CLAIMS, names.CARDS_BY_SHARES, names.CARDS_BY_CLAIMS_AND_NAME})
_DEVICE: Final = re.compile(r" (?:on|for) device \S+: ")
_SELECTOR: Final = re.compile(r"selector #\d+$")


def is_possible(of: RequestedDevices) -> bool:
    """Return whether a node has enough devices that match, free or not."""
    return of["matching"] >= max(of["needed"], 1)


def sentence(of: RequestedDevices) -> str:
    """Return what a request needs and finds, and why it does not find other devices."""
    where = f" on {of['nodes'][0]}" if of["nodes"] else ""
    others = "; ".join(f"{cause['devices']} {cause['why']}" for cause in of["leftOut"])
    return (
        f"request {of['request']} of {of['claim']} needs {of['needed'] or 'all'} device(s) of one node and finds "
        f"{of['most']}{where}; of {of['devices']} it does not find {others or 'none'}"
    )


def of_pod(fleet: Fleet, pod: PendingPod, policy: Policy) -> Generator[None, None, ClaimDevices | None]:
    """Return what the claims of a pod find; None if the pod fits, or if claims keep it from no node.

    The Fleet is changed temporarily, so it must be a copy.
    """
    if pod.error or not claim_counts.is_searched(fleet, pod.request):
        return None
    # Decided again, because a change since then may have dropped on which nodes the search found nothing.
    if cycle.place(fleet, pod, policy) or resource_claims.passes(fleet, pod.request) is not fleet.present:
        return None
    rejected = fleet.present & ~dynamic_resources.passes(fleet, pod.request)
    alone = rejected
    for filter_ in policy.filters_of(pod.request):
        if filter_.NAME != dynamic_resources.NAME:
            alone = alone & filter_.passes(fleet, pod.request)
    # The rows that only the claims keep the pod from; if there are none, all that they do.
    rows = np.flatnonzero(alone if alone.any() else rejected).tolist()
    is_decided = fleet.claims.supply.work.left > 0
    if not rows:
        return None
    tallies: list[_Tally] = []
    for state in claim_counts.unallocated(fleet, pod.request):
        choices = (choice for alternatives in state.claim.requests for choice in alternatives.choices)
        tallies += (_Tally(_Wanted(state.key, choice, fleet.present), pod.namespace) for choice in choices)
    for name, of_class in extended_resources.rows_by_class(fleet, pod.request).items():
        for alternatives in extended.requests(pod.request.extended, {name: fleet.device_classes[name]})[0]:
            tallies.append(_Tally(_Wanted(name, alternatives.choices[0], of_class), pod.namespace))
    nodes, budget = 0, _Budget()
    for row in rows:
        node = _Node(fleet, fleet.names[row])
        for tally in tallies:
            if tally.wanted.rows[row]:
                yield from tally.look(node, budget)
        if budget.left < 0:
            break
        nodes += 1
    return ClaimDevices(
        nodes=nodes,
        complete=nodes == len(rows),
        together=_together(fleet, pod, tallies) if is_decided else "",
        requests=[tally.result() for tally in tallies],
    )


def impossible(answer: ClaimDevices) -> Iterator[RequestedDevices]:
    """Yield the requests that no node can meet, free or not; of `firstAvailable` the first subrequest."""
    by_request: dict[tuple[str, str], list[RequestedDevices]] = {}
    for request in answer["requests"] if answer["complete"] else ():
        by_request.setdefault((request["claim"], request["request"].partition("/")[0]), []).append(request)
    for choices in by_request.values():
        if not any(map(is_possible, choices)):
            yield choices[0]


class _Wanted(NamedTuple):
    """A request of a claim."""

    claim: str
    request: Request
    rows: Mask
    """The rows where it is requested."""


@dataclass(slots=True)
class _Budget:
    """Devices that may still be compared."""

    left: int = MAX_LOOKS


class _Node:
    """The devices of a node, and the allocated parts of them."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        supply = fleet.claims.supply
        self._fleet = fleet
        self.name, self.classes, self.holdings = name, fleet.claims.classes, supply.holdings
        self.devices = supply.on(name, fleet.labels[fleet.rows[name]])
        self.pools = self.devices.pools
        self.held = held_devices(fleet, name, self.devices)
        allocated = replace(supply.holdings.allocated, withheld=self.held.withheld)
        self._choices = Choices(1, self.pools, allocated, features.ALL)
        self._context = Context(pools=self.pools, classes=self.classes, features=features.ALL)

    def plan(self, request: Request) -> RequestPlan:
        """Return the plan of a request for single devices, without constraints."""
        device_class = self.classes.get(request.device_class) or DeviceClass(name=request.device_class)
        return RequestPlan(
            context=self._context,
            claim=ResourceClaim(namespace="", name="", requests=()),
            number=0,
            request=replace(request, mode=EXACT),
            device_class=device_class,
            constraints=(),
            matched=self.pools.selected.of((device_class.selectors, request.selectors)),
        )

    def unlisted(self, device_class: str) -> tuple[Cause, int]:
        """Return how many cards no slice lists although the class of Berth's own driver is for such cards, and why."""
        row, card_type = self._fleet.rows[self.name], _OF_CLASSES.get(device_class, "")
        if card_type not in self._fleet.cards:
            return UNLISTED, 0
        columns = self._fleet.cards[card_type]
        minors = set(columns.minor[row, columns.present[row]].tolist())
        listed = {card.minor for same in self.devices.cards.values() for card in same.cards if card.type == card_type}
        is_by_claim = self._fleet.labels[row].get(names.CARDS_KEY) in _BY_CLAIM
        return UNLISTED if is_by_claim else BY_NAME, len(minors - listed)

    @functools.cached_property
    def _takers(self) -> Mapping[DeviceID | CounterID, set[str]]:
        """The claims that have each device, and each counter of their devices."""
        counters = {device.id: [counter for counter, _ in device.consumes] for device in self.pools.devices}
        takers: dict[DeviceID | CounterID, set[str]] = {}
        for state in self._fleet.claims.held_on(self.name):
            for id_ in (*state.held.devices, *state.held.shared):
                for part in (id_, *counters.get(id_, ())):
                    takers.setdefault(part, set()).add(state.key)
        return takers

    def users(self, device: Device) -> Iterator[str]:
        """Yield the claims that have what a device lacks: its shares, or the counters of which too little is left."""
        yield from self._takers.get(device.id, ())
        left = self._choices.counters(device.pool).left if device.consumes else {}
        for counter, amount in device.consumes:
            if left[counter] < amount:
                yield from self._takers.get(counter, ())

    def cause(self, plan: RequestPlan, device: Device) -> Cause:
        """Return why a request does not find a device, or FOUND."""
        try:
            if device.id not in self.devices.foreign and self._choices.take(plan, device):
                self._choices.undo(plan)
                return FOUND
            if not plan.selects(device):
                # The first selector that does not match.
                for owner, selectors in (
                    (f"DeviceClass {plan.device_class.name}", plan.device_class.selectors),
                    ("the request", plan.request.selectors),
                ):
                    for number, expression in enumerate(selectors):
                        if not plan.context.pools.selected.matches(device, expression, owner):
                            text = " ".join((expression or "").split())
                            shown = text if len(text) <= MAX_EXPRESSION else f"{text[: MAX_EXPRESSION - 1]}…"
                            why = f"that do not match selector #{number} of {owner}: {shown}"
                            return Cause(why, is_selector=True)
                return OTHER_NODES
        except NoWorkError:
            return LATER
        except AllocationError as error:
            # Without the claim and the device: devices for which an expression fails in the same way count together.
            owner, _, why = _DEVICE.sub("\0", str(error)).partition("\0")
            selector = _SELECTOR.search(owner)
            what = f"{selector[0]} fails" if selector else "the request fails"
            why = (why or str(error)).removeprefix("CEL runtime error: ")
            return Cause(f"for which {what}: {why}", is_error=True)
        if device.id in self.devices.foreign:
            return SHARED if self._fleet.claims.own.include(device.pool) else FOREIGN
        if lacking := _never_enough(plan, device):
            return Cause("", capacity=lacking)
        if prevented(device, plan.request):
            return TAINTED
        if device.id in self.held and not plan.request.admin:
            return ALLOCATED if self.holdings.hold(device.id) else WITHHELD
        return USED_UP


class _Tally:
    """Counts what one request finds."""

    def __init__(self, wanted: _Wanted, namespace: str) -> None:
        self.wanted, self._namespace = wanted, namespace
        self._causes: dict[DeviceID, Cause] = {}
        """What keeps each device from the request. If a device is for several nodes, the node that finds it counts."""
        self._found: dict[str, int] = {}
        """Node -> devices that it finds there."""
        self._unlisted: Counter[Cause] = Counter()
        self._users: set[str] = set()
        """The claims that use up devices."""
        self._largest: dict[str, ExactQuantity] = {}
        """Capacity of which devices have too little -> the most that one of them has."""
        self._capacities: dict[str, None] = {}
        """Capacities of the devices that do not have a requested one."""
        self._matching = 0
        self.enough: list[str] = []
        """Nodes with enough for this request alone."""

    def look(self, node: _Node, budget: _Budget) -> Iterator[None]:
        """Count the devices of a node, as far as the budget goes."""
        plan, on_node = node.plan(self.wanted.request), Counter[Cause]()
        for device in node.pools.devices[: max(0, budget.left)]:
            cause = node.cause(plan, device)
            on_node[cause] += 1
            if cause.capacity:
                self._note_capacity(cause.capacity, device)
            if cause == USED_UP:
                self._users.update(node.users(device))
            if self._causes.get(device.id) != FOUND:
                self._causes[device.id] = cause
            if on_node.total() % STRIDE == 0:
                yield
        yield
        budget.left -= max(1, len(node.pools.devices))
        cause, number = node.unlisted(self.wanted.request.device_class)
        self._unlisted[cause] += number
        count = self._found[node.name] = on_node[FOUND]
        matching = sum(number for cause, number in on_node.items() if not cause.is_lasting)
        self._matching = max(self._matching, matching - on_node[FOREIGN])
        if self.wanted.request.mode != ALL:
            is_enough = count >= self.wanted.request.count
        else:
            is_enough = 0 < count == matching and all(pool.usable for pool in node.pools.pools)
        if is_enough:
            self.enough.append(node.name)

    def _note_capacity(self, name: str, device: Device) -> None:
        if (has := device.capacity.get(name)) is None:
            self._capacities.update(dict.fromkeys(device.capacity))
        elif name not in self._largest or self._largest[name].amount < has.value.amount:
            self._largest[name] = has.value

    def result(self) -> RequestedDevices:
        """Return the counts."""
        request, counts = self.wanted.request, Counter(self._causes.values())
        most, found = max(self._found.values(), default=0), counts.pop(FOUND, 0)
        counts += self._unlisted
        return RequestedDevices(
            claim=self.wanted.claim,
            request=request.full_name,
            needed=0 if request.mode == ALL else request.count,
            devices=len(self._causes) + self._unlisted.total(),
            found=found,
            most=most,
            nodes=sorted(name for name, number in self._found.items() if 0 < number == most)[:MAX_NAMED],
            enough=len(self.enough),
            matching=self._matching,
            leftOut=[
                LeftOut(devices=number, why=self._why(cause), selector=cause.is_selector)
                for cause, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            ],
        )

    def _why(self, cause: Cause) -> str:
        """Return a cause in words; claims of other namespaces are only counted."""
        if cause.capacity:
            return self._why_capacity(cause.capacity)
        if cause != USED_UP or not self._users:
            return cause.text
        own = sorted(name for namespace, name in map(keys.split, self._users) if namespace == self._namespace)
        named = own[:MAX_NAMED]
        listed, more = ", ".join(named), len(self._users) - len(named)
        if more:
            listed = f"{listed} and {more} more" if named else f"{more} of other namespaces"
        return f"{cause.text}, because other ResourceClaims have parts of them: {listed}"

    def _why_capacity(self, name: str) -> str:
        """Return which capacity devices lack, and the most that there is, or the capacities that there are."""
        requested = self.wanted.request.capacity[name]
        if name in self._largest:
            most = self._largest[name]
            if most.amount >= requested.amount:
                return f"whose capacity {name} does not allow {requested} (the largest has {most})"
            return f"with less than the requested {requested} of capacity {name} (the largest has {most})"
        if meant := near_names.near(name, self._capacities):
            return f"without a capacity {name}{near_names.question(meant)}"
        listed = ", ".join(sorted(self._capacities)[:MAX_NAMED])
        return f"without a capacity {name} (they have {listed or 'none'})"


def _never_enough(plan: RequestPlan, device: Device) -> str:
    """Return the requested capacity of which a device has too little even if it is free; empty if there is none."""
    try:
        return capacity.lacking(device.capacity, plan.request.capacity)
    except CapacityError:
        return ""


def _together(fleet: Fleet, pod: PendingPod, tallies: Sequence[_Tally]) -> str:
    """Return why a node that has enough for each request alone, by name the first, has not for all; empty if none."""
    by_request: dict[tuple[str, str], set[str]] = {}
    for tally in tallies:
        request = tally.wanted.request
        by_request.setdefault((tally.wanted.claim, request.parent or request.name), set()).update(tally.enough)
    if not (nodes := set.intersection(*by_request.values())):
        return ""
    node = min(nodes)
    alone = f"{node} has enough devices for each request alone"
    if node in claim_counts.nodes_not_searched(fleet, pod.request):
        return f"{alone}, but the search for all of them together ended at its bound"
    constrained = [state for state in claim_counts.unallocated(fleet, pod.request) if state.claim.constraints]
    # Without constraints their UIDs differ, by which refusals are remembered.
    known = fleet.claims.claims
    for state in constrained:
        known[state.key] = replace(state, uid=f"{state.uid}/free", claim=replace(state.claim, constraints=()))
    try:
        if constrained and claim_choice.choose(fleet, fleet.rows[node], pod, ()) is not None:
            listed = ", ".join(state.key for state in constrained)
            return f"{alone}, but not under the constraints of {listed}{_unknown_attributes(fleet, node, constrained)}"
    finally:
        for state in constrained:
            known[state.key] = state
    return f"{alone}, but not for all of them together"


def _unknown_attributes(fleet: Fleet, node: str, claims: Sequence[ClaimState]) -> str:
    """Return the attributes that constraints of claims name and no device of a node has, with near names."""
    devices = fleet.claims.supply.on(node, fleet.labels[fleet.rows[node]]).own
    known = {name for device in devices for name in device.attributes}
    named = dict.fromkeys(constraint.attribute for state in claims for constraint in state.claim.constraints)
    unknown = [f"{name}{near_names.question(near_names.near(name, known))}" for name in named if name not in known]
    return f": no device there has an attribute {' or '.join(unknown[:MAX_NAMED])}" if unknown else ""
