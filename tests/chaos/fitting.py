"""Recompute what fits where, from objects as plain JSON. This module shares no code with Berth.

It knows cpu, memory, the number of pods, whole cards (`nvidia.com/gpu`) and shares of one card (`kubernetes.io/gpu`) of
a model. It also knows node selectors, taints, cordons, readiness and heartbeats. It concludes nothing for a pod with
other constraints (`is_simple`).
"""

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.auditor import ALLOCATION, COUNTED, GANG, GANG_SIZE, WHOLE, has_ended, held_cards

CARDS: Final = "nvidia.com/gpu"
SHARE: Final = "kubernetes.io/gpu"
MODEL: Final = "berth.dev/gpu-model"
PLAIN: Final = frozenset({"cpu", "memory", CARDS, SHARE})
KNOWN: Final = frozenset({MODEL, GANG, GANG_SIZE, "berth.dev/epoch"})
"""Berth's annotations of pods that this module understands."""
CONSTRAINTS: Final = ("affinity", "topologySpreadConstraints", "resourceClaims", "schedulingGates", "overhead")
REPELLING: Final = ("NoSchedule", "NoExecute")
PREEMPTING: Final = "status-taint.cluster-autoscaler.kubernetes.io/berth-preempting"
"""The taint by which Berth keeps other schedulers off a node that pods leave for a pod of Berth."""
CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
SUFFIXES: Final = {"m": 1, "": 1000, "k": 10**6, "M": 10**9, "G": 10**12} | {
    f"{letter}i": 1000 * 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)
}
"""Suffix of a quantity -> thousandths."""

Object = Mapping[str, Any]
Amounts = Counter[str]
"""Resource -> thousandths."""


def quantity(text: object) -> int:
    """Return an amount in thousandths."""
    digits = str(text).rstrip("mkMGTi")
    return int(float(digits) * SUFFIXES[str(text)[len(digits) :]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a pod needs of a node."""

    amounts: Amounts
    cards: int = 0
    share: int = 0
    """Hundredths of one card."""
    model: str = "*"
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    is_simple: bool = True

    @property
    def has_devices(self) -> bool:
        """Return whether the pod requests cards."""
        return bool(self.cards or self.share)


def request_of(raw: Object) -> Request:
    """Return the request of a pod."""
    spec, annotations = raw["spec"], raw["metadata"].get("annotations") or {}
    amounts = Counter({"pods": 1000})
    for container in spec.get("containers", ()):
        for name, amount in (container.get("resources", {}).get("requests") or {}).items():
            amounts[name] += quantity(amount)
    understood = set(amounts) <= PLAIN | {"pods"} and all(
        name in KNOWN for name in annotations if name.startswith("berth.dev/")
    )
    return Request(
        amounts=amounts,
        cards=amounts[CARDS] // 1000,
        share=amounts[SHARE] // 1000,
        model=annotations.get(MODEL, "*"),
        selector=spec.get("nodeSelector") or {},
        tolerations=spec.get("tolerations") or (),
        is_simple=understood and amounts[SHARE] <= 1000 * WHOLE and not any(spec.get(each) for each in CONSTRAINTS),
    )


@dataclass(slots=True, kw_only=True)
class Room:
    """What a node has left, and whether it takes pods at all."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Object]
    is_ready: bool
    free: Amounts
    total: Amounts
    """The allocatable."""
    cards: dict[str, tuple[str, Counter[str]]]
    """UUID of a healthy card -> its model, and hundredths that are free; empty if the agent is silent."""
    healthy: int = 0
    """Healthy cards, of a silent agent as well."""
    has_device: bool = False
    is_heard: bool = False
    is_known: bool = True
    """Whether it is known which cards its pods hold."""

    def take(self, request: Request, held: Mapping[str, Counter[str]] | None = None) -> None:
        """Charge a pod; without an allocation, any cards that it may get."""
        self.free.subtract(request.amounts)
        chosen = self._chosen(request) if held is None else held
        for card, amounts in chosen.items():
            if card in self.cards:
                self.cards[card][1].subtract(amounts)

    def _chosen(self, request: Request) -> Mapping[str, Counter[str]]:
        if request.cards:
            amounts = Counter(dict.fromkeys(COUNTED, WHOLE))
            return dict.fromkeys(self.idle(request.model)[: request.cards], amounts)
        if request.share:
            amounts = Counter(dict.fromkeys(COUNTED, request.share))
            fullest = sorted(self.with_share(request), key=lambda card: min(self.cards[card][1].values()))
            return dict.fromkeys(fullest[:1], amounts)
        return {}

    def idle(self, model: str) -> list[str]:
        """Return the cards of a model that no pod holds."""
        return [card for card, free in self._of(model) if all(free[each] >= WHOLE for each in COUNTED)]

    def with_share(self, request: Request) -> list[str]:
        """Return the cards on which a share is free."""
        return [card for card, free in self._of(request.model) if all(free[each] >= request.share for each in COUNTED)]

    def _of(self, model: str) -> Iterator[tuple[str, Counter[str]]]:
        return ((card, free) for card, (name, free) in self.cards.items() if fnmatch.fnmatchcase(name, model))

    def of_model(self, model: str) -> int:
        """Return the number of healthy cards of a model."""
        return sum(1 for _ in self._of(model))

    # --- reasons ----------------------------------------------------------------------------------------------

    def repels(self, request: Request) -> bool:
        """Return whether a pod of Berth does not tolerate a taint, other than that of a cordon."""
        return any(
            taint["effect"] in REPELLING
            and taint["key"] not in (CORDON["key"], PREEMPTING)
            and not _tolerates(request, taint)
            for taint in self.taints
        )

    def is_cordoned(self, request: Request) -> bool:
        """Return whether the node is cordoned, and the pod does not tolerate that."""
        return any(taint["key"] == CORDON["key"] for taint in self.taints) and not _tolerates(request, CORDON)

    def matches(self, request: Request) -> bool:
        """Return whether the pod's node selector accepts the node."""
        return all(self.labels.get(key) == value for key, value in request.selector.items())

    def lacks(self, request: Request, name: str) -> bool:
        """Return whether too little of a resource is free."""
        return self.free[name] < request.amounts[name]

    def lacks_cards(self, request: Request) -> bool:
        """Return whether too few cards are free."""
        return len(self.idle(request.model)) < request.cards or bool(request.share and not self.with_share(request))

    def is_open(self, request: Request) -> bool:
        """Return whether the node takes such a pod if it has enough."""
        usable = (self.is_heard and self.is_known) or not request.has_devices
        return (
            self.is_ready
            and usable
            and not self.is_cordoned(request)
            and not self.repels(request)
            and self.matches(request)
        )

    def fits(self, request: Request) -> bool:
        """Return whether the pod fits."""
        enough = not any(self.lacks(request, name) for name in request.amounts)
        return self.is_open(request) and enough and not self.lacks_cards(request)


def _tolerates(request: Request, taint: Object) -> bool:
    return any(_matches(each, taint) for each in request.tolerations)


def _matches(toleration: Object, taint: Object) -> bool:
    by_key = toleration.get("key") in (None, "", taint["key"])
    by_effect = toleration.get("effect") in (None, "", taint["effect"])
    exists = toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
    return by_key and by_effect and exists


def room_of(node: Object, device: Object | None, *, is_heard: bool) -> Room:
    """Return what a node has without its pods."""
    status, spec = node.get("status") or {}, node.get("spec") or {}
    taints = list(spec.get("taints") or ())
    if spec.get("unschedulable"):
        taints.append(CORDON)
    total = Counter({name: quantity(amount) for name, amount in (status.get("allocatable") or {}).items()})
    conditions = status.get("conditions") or ()
    listed = (device or {}).get("spec", {}).get("devices") or ()
    cards = [card for card in listed if card["type"] == "gpu" and card.get("health")]
    return Room(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        taints=taints,
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        free=Counter(total),
        total=total,
        cards={card["id"]: (card.get("model", ""), Counter(dict.fromkeys(COUNTED, WHOLE))) for card in cards},
        healthy=len(cards),
        has_device=bool(listed),
        is_heard=is_heard,
    )


def holds(raw: Object) -> Mapping[str, Counter[str]] | None:
    """Return the cards that a bound pod holds; None if that is not known."""
    request = request_of(raw)
    allocation = (raw["metadata"].get("annotations") or {}).get(ALLOCATION, "")
    return held_cards(allocation) if allocation or not request.has_devices else None


def charge(rooms: Mapping[str, Room], pods: Iterable[Object]) -> None:
    """Charge the pods that are bound and have not ended to their nodes."""
    for raw in pods:
        room = rooms.get(raw["spec"].get("nodeName") or "")
        if room is not None and not has_ended(raw):
            held = holds(raw)
            room.is_known = room.is_known and held is not None
            room.take(request_of(raw), held or {})


Left = tuple[Amounts, dict[str, Counter[str]]]
"""What a node has left while members are placed: resources, and hundredths of each card."""


def gang_fits(requests: Sequence[Request], rooms: Sequence[Room]) -> bool:
    """Return whether all members fit at once, by trying every assignment to nodes and cards."""
    left = {
        room.name: (Counter(room.free), {card: Counter(free) for card, (_, free) in room.cards.items()})
        for room in rooms
    }
    return _place(list(requests), rooms, left)


def _place(requests: list[Request], rooms: Sequence[Room], left: dict[str, Left]) -> bool:
    if not requests:
        return True
    request, *others = requests
    for room in rooms:
        free, cards = left[room.name]
        is_enough = all(free[name] >= amount for name, amount in request.amounts.items())
        for chosen in _choices(request, room, cards) if is_enough and room.is_open(request) else ():
            _take(left[room.name], request, chosen, -1)
            if _place(others, rooms, left):
                return True
            _take(left[room.name], request, chosen, 1)
    return False


def _choices(request: Request, room: Room, cards: Mapping[str, Counter[str]]) -> Iterator[Sequence[str]]:
    """Yield the sets of cards that a pod may get; of cards that are alike the first ones."""
    if not request.has_devices:
        yield ()
        return
    amount, count = (WHOLE, request.cards) if request.cards else (request.share, 1)
    alike: dict[object, list[str]] = defaultdict(list)
    for card, free in cards.items():
        model, _ = room.cards[card]
        if fnmatch.fnmatchcase(model, request.model) and all(free[each] >= amount for each in COUNTED):
            alike[model, tuple(free[each] for each in COUNTED)].append(card)
    yield from [each[:count] for each in alike.values() if len(each) >= count]


def _take(left: Left, request: Request, chosen: Sequence[str], sign: int) -> None:
    free, cards = left
    for name, amount in request.amounts.items():
        free[name] += sign * amount
    for card in chosen:
        for each in COUNTED:
            cards[card][each] += sign * (WHOLE if request.cards else request.share)
