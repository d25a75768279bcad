"""The checks: first each pod by itself, then each card, then each node."""

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Final

from demo.audit import asked, quantity, view
from demo.audit.asked import Form
from demo.audit.finding import Finding, Kind
from demo.audit.view import Card, Grant, Key, Pod
from demo.audit.world import BROKEN, World, read

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
) -> list[Finding]:
    """Return every fault in a cluster whose device pods are bound by one scheduler; objects are the API's JSON."""
    world = read(pods=pods, nodes=nodes, devices=devices)
    ours = [pod for pod in world.pods if pod.scheduler == scheduler]
    foreign = [pod for pod in world.pods if pod.scheduler != scheduler]
    findings = list(world.unreadable)
    for pod in ours:
        findings += _own(pod, world)
    for pod in foreign:
        findings += _foreign(pod, world)
    findings += _shared_cards([pod for pod in ours if pod.node], world)
    findings += _full_nodes(world)
    return findings


# --- one pod ------------------------------------------------------------------------------------------------


def _own(pod: Pod, world: World) -> Iterator[Finding]:
    """Check a pod of our scheduler."""
    if not pod.node:
        if view.ALLOCATION in pod.annotations:
            yield _about(pod, Kind.NOT_BOUND, "it carries an allocation, but no node")
        return
    if pod.node not in world.nodes:
        yield _about(pod, Kind.UNKNOWN_NODE, f"it is bound to {pod.node}, which does not exist")
    if not pod.annotations.get(EPOCH, "").isdecimal():
        yield _about(pod, Kind.MISSING_EPOCH, f"it was bound, but {EPOCH} does not name the term")
    yield from _allocation(pod, world)


def _allocation(pod: Pod, world: World) -> Iterator[Finding]:
    """Compare what the pod asks with what it was given."""
    try:
        asks = asked.cards(pod.spec)
    except BROKEN as error:
        yield _about(pod, Kind.UNREADABLE, f"it is bound, but its request cannot be honoured: {error}")
        return
    text = pod.annotations.get(view.ALLOCATION)
    if text is None:
        if asks:
            yield _about(
                pod, Kind.MISSING_ALLOCATION, f"it is bound and asks for devices, but has no {view.ALLOCATION}"
            )
        return
    try:
        granted = view.grants(text)
    except BROKEN as error:
        yield _about(pod, Kind.MALFORMED_ALLOCATION, f"{view.ALLOCATION}: {error}")
        return
    yield from _counts(pod, asks, granted)
    for grant in granted:
        yield from _grant(pod, asks, grant, world)
    yield from _visible(pod, granted)


def _counts(pod: Pod, asks: list[asked.Ask], granted: list[Grant]) -> Iterator[Finding]:
    wanted = {ask.what: ask.count for ask in asks}
    given = Counter(grant.instance if grant.instance in wanted else grant.type for grant in granted)
    for kind in sorted(wanted.keys() | given.keys()):
        if wanted.get(kind, 0) != given[kind]:
            text = f"it asks for {wanted.get(kind, 0)} {kind} device(s), but was given {given[kind]}"
            yield _about(pod, Kind.WRONG_COUNT, text)
    for name, times in Counter(grant.name for grant in granted).items():
        if times > 1:
            yield _about(pod, Kind.BOOKED_TWICE, f"its allocation names {name} {times} times")


def _grant(pod: Pod, asks: list[asked.Ask], grant: Grant, world: World) -> Iterator[Finding]:
    """Check one card of a pod against the Device and the request."""
    key = Key(node=pod.node, type=grant.type, minor=grant.minor)
    card = world.cards.get(key)
    if card is None:
        yield _about(pod, Kind.UNKNOWN_CARD, f"it was given {key}, which no Device has")
        return
    for ask in asks:
        if ask.what in (grant.type, grant.instance):
            yield from _piece(pod, key, grant, ask, card)
    if grant.type == "gpu":
        yield from _model(pod, key, card)


def _piece(pod: Pod, key: Key, grant: Grant, ask: asked.Ask, card: Card) -> Iterator[Finding]:
    """Check what was given of a card: its form, its name and its amounts."""
    due = card.form(ask.form)
    if grant.form is not due:
        gives = f"its Device gives it as {due}" if due else f"its Device gives no {ask.form}"
        yield _about(pod, Kind.WRONG_FORM, f"it was given {key} as {grant.form}; {gives}")
        return
    if not card.names(grant):
        difference = f"its allocation calls {key} {grant.id or '(nothing)'}, its Device {card.id}"
        yield _about(
            pod,
            Kind.WRONG_ID,
            difference if grant.form is Form.CARD else f"{key} has no {grant.form} {grant.id} {grant.instance}",
        )
    yield from _amounts(pod, key, grant, card.due(grant, ask))


def _amounts(pod: Pod, key: Key, grant: Grant, wanted: dict[str, int]) -> Iterator[Finding]:
    for name in sorted(wanted.keys() | grant.amounts.keys()):
        given, due = grant.amounts.get(name, 0), wanted.get(name, 0)
        if given != due:
            text = f"on {key} it was given {_shown(name, given)} of {name}; its request comes to {_shown(name, due)}"
            yield _about(pod, Kind.WRONG_AMOUNT, text)


def _model(pod: Pod, key: Key, card: Card) -> Iterator[Finding]:
    for source, accepts in _constraints(pod):
        try:
            accepted = accepts(card.model.strip().lower())
        except re.error as error:
            yield _about(pod, Kind.UNREADABLE, f"it is bound, but its {source} is no pattern: {error}")
            continue
        if not accepted:
            yield _about(pod, Kind.WRONG_MODEL, f"{key} is a {card.model}, which its {source} does not allow")


def _constraints(pod: Pod) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Yield each model constraint of the pod as a test on a name in lower case."""
    if globs := pod.annotations.get(GLOBS, "").lower():
        yield GLOBS, lambda model: any(fnmatch.fnmatchcase(model, glob.strip()) for glob in globs.split(","))
    if exact := pod.annotations.get(EXACT, "").strip().lower():
        yield EXACT, lambda model: model == exact
    if regex := pod.labels.get(REGEX, ""):
        yield REGEX, lambda model: re.search(regex, model, re.IGNORECASE) is not None


def _visible(pod: Pod, granted: list[Grant]) -> Iterator[Finding]:
    """What a container is shown must be its pod's; a container that asks for GPUs is shown some."""
    own = {grant.seen for grant in granted if grant.type == "gpu"}
    for key, value in pod.annotations.items():
        shown = value.split(",") if key.endswith(VISIBLE) else []
        if strangers := [each for each in shown if each not in own]:
            yield _about(pod, Kind.WRONG_VISIBLE, f"{key} names {', '.join(strangers)}, not of its allocation")
        if len(shown) > len(set(shown)):
            yield _about(pod, Kind.WRONG_VISIBLE, f"{key} names a card twice")
    for container in (*(pod.spec.get("initContainers") or ()), *pod.spec["containers"]):
        asks = any(asked.type_of(name) == "gpu" and amount for name, amount in asked.requests(container).items())
        if asks and f"{container['name']}{VISIBLE}" not in pod.annotations:
            yield _about(pod, Kind.WRONG_VISIBLE, f"container {container['name']} asks for GPUs, but is shown none")


def _foreign(pod: Pod, world: World) -> Iterator[Finding]:
    """A pod of another scheduler on a node of ours must have nothing to do with devices."""
    if pod.node not in world.devices:
        return
    if view.ALLOCATION in pod.annotations:
        text = f"it is of scheduler {pod.scheduler}, but carries an allocation on {pod.node}"
        yield _about(pod, Kind.FOREIGN_POD, text)
        return
    devices = sorted(name for name, amount in asked.total(pod.spec).items() if asked.type_of(name) and amount)
    if devices:
        text = f"it is of scheduler {pod.scheduler}, but takes {', '.join(devices)} on {pod.node}"
        yield _about(pod, Kind.FOREIGN_POD, text)


# --- one card -----------------------------------------------------------------------------------------------


def _shared_cards(pods: list[Pod], world: World) -> Iterator[Finding]:
    holdings: defaultdict[Key, list[Holding]] = defaultdict(list)
    for pod in pods:
        for grant in _readable(pod):
            holdings[Key(node=pod.node, type=grant.type, minor=grant.minor)].append((pod, grant))
    for key, holders in holdings.items():
        yield from _one_card(key, world.cards.get(key), holders)


def _readable(pod: Pod) -> list[Grant]:
    """Return a pod's cards; an allocation that cannot be read was reported with its pod."""
    try:
        return view.grants(pod.annotations.get(view.ALLOCATION, "{}"))
    except BROKEN:
        return []


def _one_card(key: Key, card: Card | None, holders: list[Holding]) -> Iterator[Finding]:
    """Check that no whole card is shared, and that the parts of a shared one do not exceed the card."""
    forms = sorted({(grant.form, pod.name) for pod, grant in holders})
    if len({form for form, _ in forms}) > 1:
        text = f"it is held as {' and as '.join(f'{form} by {pod}' for form, pod in forms)}"
        yield Finding(kind=Kind.MIXED, object=str(key), text=text)
        return
    yield from _pieces(key, holders)
    pods = sorted({pod.name for pod, _ in holders})
    whole = sorted({pod.name for pod, grant in holders if grant.whole})
    if whole and len(pods) > 1:
        text = (
            f"{' and '.join(whole)} {'has' if len(whole) == 1 else 'have'} it whole, but its pods are {', '.join(pods)}"
        )
        yield Finding(kind=Kind.BOOKED_TWICE, object=str(key), text=text)
        return
    for name in sorted({name for _, grant in holders for name in grant.amounts}):
        limit = card.limit(name) if card else 0
        taken = sum(grant.amounts.get(name, 0) for _, grant in holders)
        if card and taken > limit:
            text = f"{_shown(name, taken)} of {name} are taken, of {_shown(name, limit)}, by {', '.join(pods)}"
            yield Finding(kind=Kind.OVERBOOKED, object=str(key), text=text)


def _pieces(key: Key, holders: list[Holding]) -> Iterator[Finding]:
    """Check that no slice or instance has two pods."""
    by_id: defaultdict[str, set[str]] = defaultdict(set)
    for pod, grant in holders:
        if grant.form is not Form.CARD:
            by_id[grant.id].add(pod.name)
    for name, pods in by_id.items():
        if len(pods) > 1:
            text = f"{name} is held by {' and '.join(sorted(pods))}"
            yield Finding(kind=Kind.BOOKED_TWICE, object=str(key), text=text)


# --- one node -----------------------------------------------------------------------------------------------


def _full_nodes(world: World) -> Iterator[Finding]:
    """Check that what all pods of a node request, of whatever scheduler, is no more than it offers."""
    taken: defaultdict[str, defaultdict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for pod in world.pods:
        for name, amount in {**asked.total(pod.spec), "pods": Fraction(1)}.items():
            taken[pod.node][name] += amount
    for node, offered in world.nodes.items():
        for name, amount in taken[node].items():
            if not asked.type_of(name) and amount > offered.get(name, 0):
                text = (
                    f"its pods request {_shown(name, amount)} of {name}; it offers {_shown(name, offered.get(name, 0))}"
                )
                yield Finding(kind=Kind.NODE_FULL, object=f"node {node}", text=text)


def _about(pod: Pod, kind: Kind, text: str) -> Finding:
    return Finding(kind=kind, object=str(pod), text=text)


def _shown(name: str, amount: Fraction | int) -> str:
    return quantity.shown(name, Fraction(amount))
