"""The checks: first each pod by itself, then each card, then each node."""

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Final

from demo.audit import quantity, requests, view
from demo.audit.fault import Fault, FaultKind
from demo.audit.requests import Form
from demo.audit.snapshot import BROKEN, Snapshot, read
from demo.audit.view import Card, Grant, Key, Pod

EPOCH: Final = "berth.dev/epoch"
VISIBLE: Final = ".devices.berth.dev/visible"
GLOBS: Final = "berth.dev/gpu-model"
EXACT: Final = "nvidia-gpu-scheduler/gpu.model"
REGEX: Final = "genius/gpu-model"

Holding = tuple[Pod, Grant]


def audit(
    *,
    pods: Iterable[view.Manifest],
    nodes: Iterable[view.Manifest],
    devices: Iterable[view.Manifest],
    scheduler: str = "berth-scheduler",
) -> list[Fault]:
    """Return every fault in a cluster whose device pods are bound by one scheduler; objects are the API's JSON."""
    snapshot = read(pods=pods, nodes=nodes, devices=devices)
    own_pods = [pod for pod in snapshot.pods if pod.scheduler == scheduler]
    foreign_pods = [pod for pod in snapshot.pods if pod.scheduler != scheduler]
    faults = list(snapshot.unreadable)
    for pod in own_pods:
        faults += _own(pod, snapshot)
    for pod in foreign_pods:
        faults += _foreign(pod, snapshot)
    faults += _shared_cards([pod for pod in own_pods if pod.node], snapshot)
    faults += _full_nodes(snapshot)
    return faults


# --- one pod ------------------------------------------------------------------------------------------------


def _own(pod: Pod, snapshot: Snapshot) -> Iterator[Fault]:
    """Check a pod of our scheduler."""
    if not pod.node:
        if view.ALLOCATION in pod.annotations:
            yield _about(pod, FaultKind.NOT_BOUND, "it carries an allocation, but no node")
        return
    if pod.node not in snapshot.nodes:
        yield _about(pod, FaultKind.UNKNOWN_NODE, f"it is bound to {pod.node}, which does not exist")
    if not pod.annotations.get(EPOCH, "").isdecimal():
        yield _about(pod, FaultKind.MISSING_EPOCH, f"it was bound, but {EPOCH} does not name the term")
    yield from _allocation(pod, snapshot)


def _allocation(pod: Pod, snapshot: Snapshot) -> Iterator[Fault]:
    """Compare the request of a pod with its allocation."""
    try:
        card_requests = requests.cards(pod.spec)
    except BROKEN as error:
        yield _about(pod, FaultKind.UNREADABLE, f"it is bound, but its request cannot be honoured: {error}")
        return
    text = pod.annotations.get(view.ALLOCATION)
    if text is None:
        if card_requests:
            yield _about(
                pod, FaultKind.MISSING_ALLOCATION, f"it is bound and asks for devices, but has no {view.ALLOCATION}"
            )
        return
    try:
        granted = view.grants(text)
    except BROKEN as error:
        yield _about(pod, FaultKind.MALFORMED_ALLOCATION, f"{view.ALLOCATION}: {error}")
        return
    yield from _counts(pod, card_requests, granted)
    for grant in granted:
        yield from _grant(pod, card_requests, grant, snapshot)
    yield from _visible(pod, granted)


def _counts(pod: Pod, card_requests: list[requests.Request], granted: list[Grant]) -> Iterator[Fault]:
    requested = {request.what: request.count for request in card_requests}
    granted_counts = Counter(grant.instance if grant.instance in requested else grant.type for grant in granted)
    for kind in sorted(requested.keys() | granted_counts.keys()):
        if requested.get(kind, 0) != granted_counts[kind]:
            text = f"it asks for {requested.get(kind, 0)} {kind} device(s), but was given {granted_counts[kind]}"
            yield _about(pod, FaultKind.WRONG_COUNT, text)
    for name, times in Counter(grant.name for grant in granted).items():
        if times > 1:
            yield _about(pod, FaultKind.BOOKED_TWICE, f"its allocation names {name} {times} times")


def _grant(pod: Pod, card_requests: list[requests.Request], grant: Grant, snapshot: Snapshot) -> Iterator[Fault]:
    """Check one card of a pod against the Device and the request."""
    key = Key(node=pod.node, type=grant.type, minor=grant.minor)
    card = snapshot.cards.get(key)
    if card is None:
        yield _about(pod, FaultKind.UNKNOWN_CARD, f"it was given {key}, which no Device has")
        return
    for request in card_requests:
        if request.what in (grant.type, grant.instance):
            yield from _granted_device(pod, key, grant, request, card)
    if grant.type == "gpu":
        yield from _model(pod, key, card)


def _granted_device(pod: Pod, key: Key, grant: Grant, request: requests.Request, card: Card) -> Iterator[Fault]:
    """Check the form, the id and the amounts of one granted device."""
    expected_form = card.form(request.form)
    if grant.form is not expected_form:
        gives = f"its Device gives it as {expected_form}" if expected_form else f"its Device gives no {request.form}"
        yield _about(pod, FaultKind.WRONG_FORM, f"it was given {key} as {grant.form}; {gives}")
        return
    if not card.names(grant):
        difference = f"its allocation calls {key} {grant.id or '(nothing)'}, its Device {card.id}"
        yield _about(
            pod,
            FaultKind.WRONG_ID,
            difference if grant.form is Form.CARD else f"{key} has no {grant.form} {grant.id} {grant.instance}",
        )
    yield from _amounts(pod, key, grant, card.expected(grant, request))


def _amounts(pod: Pod, key: Key, grant: Grant, expected: dict[str, int]) -> Iterator[Fault]:
    for name in sorted(expected.keys() | grant.amounts.keys()):
        amount, charge = grant.amounts.get(name, 0), expected.get(name, 0)
        if amount != charge:
            text = (
                f"on {key} it was given {_shown(name, amount)} of {name}; its request comes to {_shown(name, charge)}"
            )
            yield _about(pod, FaultKind.WRONG_AMOUNT, text)


def _model(pod: Pod, key: Key, card: Card) -> Iterator[Fault]:
    for source, accepts in _constraints(pod):
        try:
            accepted = accepts(card.model.strip().lower())
        except re.error as error:
            yield _about(pod, FaultKind.UNREADABLE, f"it is bound, but its {source} is no pattern: {error}")
            continue
        if not accepted:
            yield _about(pod, FaultKind.WRONG_MODEL, f"{key} is a {card.model}, which its {source} does not allow")


def _constraints(pod: Pod) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield each model constraint of the pod as a test on a name in lower case."""
    if globs := pod.annotations.get(GLOBS, "").lower():
        yield GLOBS, lambda model: any(fnmatch.fnmatchcase(model, glob.strip()) for glob in globs.split(","))
    if exact := pod.annotations.get(EXACT, "").strip().lower():
        yield EXACT, lambda model: model == exact
    if regex := pod.labels.get(REGEX, ""):
        yield REGEX, lambda model: re.search(regex, model, re.IGNORECASE) is not None


def _visible(pod: Pod, granted: list[Grant]) -> Iterator[Fault]:
    """Check that containers see only cards of their pod, and that each container that requests GPUs sees some."""
    allocated = {grant.seen for grant in granted if grant.type == "gpu"}
    for key, value in pod.annotations.items():
        shown = value.split(",") if key.endswith(VISIBLE) else []
        if unknown := [name for name in shown if name not in allocated]:
            yield _about(pod, FaultKind.WRONG_VISIBLE, f"{key} names {', '.join(unknown)}, not of its allocation")
        if len(shown) > len(set(shown)):
            yield _about(pod, FaultKind.WRONG_VISIBLE, f"{key} names a card twice")
    for container in (*(pod.spec.get("initContainers") or ()), *pod.spec["containers"]):
        requests_gpus = any(
            requests.type_of(name) == "gpu" and amount for name, amount in requests.of_container(container).items()
        )
        if requests_gpus and f"{container['name']}{VISIBLE}" not in pod.annotations:
            yield _about(
                pod, FaultKind.WRONG_VISIBLE, f"container {container['name']} asks for GPUs, but is shown none"
            )


def _foreign(pod: Pod, snapshot: Snapshot) -> Iterator[Fault]:
    """Check that a pod of another scheduler holds no devices on a node with a Device."""
    if pod.node not in snapshot.devices:
        return
    if view.ALLOCATION in pod.annotations:
        text = f"it is of scheduler {pod.scheduler}, but carries an allocation on {pod.node}"
        yield _about(pod, FaultKind.FOREIGN_POD, text)
        return
    devices = sorted(name for name, amount in requests.total(pod.spec).items() if requests.type_of(name) and amount)
    if devices:
        text = f"it is of scheduler {pod.scheduler}, but takes {', '.join(devices)} on {pod.node}"
        yield _about(pod, FaultKind.FOREIGN_POD, text)


# --- one card -----------------------------------------------------------------------------------------------


def _shared_cards(pods: list[Pod], snapshot: Snapshot) -> Iterator[Fault]:
    holdings: defaultdict[Key, list[Holding]] = defaultdict(list)
    for pod in pods:
        for grant in _readable(pod):
            holdings[Key(node=pod.node, type=grant.type, minor=grant.minor)].append((pod, grant))
    for key, holders in holdings.items():
        yield from _one_card(key, snapshot.cards.get(key), holders)


def _readable(pod: Pod) -> list[Grant]:
    """Return a pod's cards; an allocation that cannot be read was reported with its pod."""
    try:
        return view.grants(pod.annotations.get(view.ALLOCATION, "{}"))
    except BROKEN:
        return []


def _one_card(key: Key, card: Card | None, holders: list[Holding]) -> Iterator[Fault]:
    """Check that no whole card is shared, and that the shares of a card do not exceed it."""
    forms = sorted({(grant.form, pod.name) for pod, grant in holders})
    if len({form for form, _ in forms}) > 1:
        text = f"it is held as {' and as '.join(f'{form} by {pod}' for form, pod in forms)}"
        yield Fault(kind=FaultKind.MIXED, object=str(key), text=text)
        return
    yield from _subdevices(key, holders)
    pods = sorted({pod.name for pod, _ in holders})
    owners = sorted({pod.name for pod, grant in holders if grant.whole})
    if owners and len(pods) > 1:
        text = (
            f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it whole; its pods are {', '.join(pods)}"
        )
        yield Fault(kind=FaultKind.BOOKED_TWICE, object=str(key), text=text)
        return
    for name in sorted({name for _, grant in holders for name in grant.amounts}):
        limit = card.limit(name) if card else 0
        charged = sum(grant.amounts.get(name, 0) for _, grant in holders)
        if card and charged > limit:
            text = f"{_shown(name, charged)} of {name} are taken, of {_shown(name, limit)}, by {', '.join(pods)}"
            yield Fault(kind=FaultKind.OVERBOOKED, object=str(key), text=text)


def _subdevices(key: Key, holders: list[Holding]) -> Iterator[Fault]:
    """Check that no two pods hold the same slice or instance."""
    by_id: defaultdict[str, set[str]] = defaultdict(set)
    for pod, grant in holders:
        if grant.form is not Form.CARD:
            by_id[grant.id].add(pod.name)
    for name, pods in by_id.items():
        if len(pods) > 1:
            text = f"{name} is held by {' and '.join(sorted(pods))}"
            yield Fault(kind=FaultKind.BOOKED_TWICE, object=str(key), text=text)


# --- one node -----------------------------------------------------------------------------------------------


def _full_nodes(snapshot: Snapshot) -> Iterator[Fault]:
    """Check that the pods of a node, of all schedulers, request no more than it offers."""
    requested: defaultdict[str, defaultdict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for pod in snapshot.pods:
        for name, amount in {**requests.total(pod.spec), "pods": Fraction(1)}.items():
            requested[pod.node][name] += amount
    for node, offered in snapshot.nodes.items():
        for name, amount in requested[node].items():
            if not requests.type_of(name) and amount > offered.get(name, 0):
                text = (
                    f"its pods request {_shown(name, amount)} of {name}; it offers {_shown(name, offered.get(name, 0))}"
                )
                yield Fault(kind=FaultKind.NODE_FULL, object=f"node {node}", text=text)


def _about(pod: Pod, kind: FaultKind, text: str) -> Fault:
    return Fault(kind=kind, object=str(pod), text=text)


def _shown(name: str, amount: Fraction | int) -> str:
    return quantity.shown(name, Fraction(amount))
