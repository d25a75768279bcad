"""Properties of every request for cards without locality.

Each allocated card is healthy, has the requested type, model, labels and size, and has enough left. All GPUs are of one
model. A pod waits only if too few cards have these properties. The properties of requests with locality are in the test
modules of their features.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation import Grant
from berth_api.request import model
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import (
    A100,
    A100_BYTES,
    CORE,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    SHARED,
    T4,
    T4_BYTES,
    asks,
    card,
    charge,
    fleet,
    grant,
    hints,
    other_card,
    waiting,
)

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRequest:
    """What a pod requests of one type of device, in its author's terms."""

    kind: str = "gpu"
    amounts: Amounts
    count: int
    """Number of cards; 0 for all healthy and accepted cards."""
    each: Amounts
    whole: bool = False
    """Whether no other pod may use the card."""
    strategy: str = ""
    rack: str = ""
    model: str = ""
    memory: int = 0
    """The minimum memory that the pod gets of each card."""

    @property
    def hint(self) -> dict[str, Any]:
        strategy = {"allocateStrategy": self.strategy} if self.strategy else {}
        return strategy | ({"selector": {"matchLabels": {"rack": self.rack}}} if self.rack else {})

    @property
    def constraints(self) -> dict[str, str]:
        memory = {names.MIN_GPU_MEMORY: str(self.memory)} if self.memory else {}
        return memory | ({names.MODEL_EXACT: self.model} if self.model else {})

    def accepts(self, info: CardInfo) -> bool:
        """Return whether the pod accepts a card, whatever is used of it."""
        large = "gpu-memory" not in dict(info.amounts) or self.on(info)["gpu-memory"] >= self.memory
        labelled = not self.rack or ("rack", self.rack) in info.labels
        return info.type == self.kind and info.healthy and large and labelled and self.model in ("", info.model)

    def fits(self, info: CardInfo, held: Sequence[Amounts]) -> bool:
        """Return whether a card, with these amounts in use, can serve the pod."""
        if not self.accepts(info) or (self.whole and held):
            return False
        need = self.on(info)
        return all(sum(other[name] for other in held) + need[name] <= total for name, total in info.amounts)

    def on(self, info: CardInfo) -> dict[str, int]:
        """Return what the pod takes of a card."""
        return filled(self.each, info)


def filled(amounts: Amounts, info: CardInfo) -> dict[str, int]:
    """Return amounts with memory computed from ratio, or ratio from memory, by the card's memory, rounded down."""
    total = dict(info.amounts)
    amounts_ = {name: amounts.get(name, 0) for name in total}
    if "gpu-memory" in amounts:
        amounts_["gpu-memory-ratio"] = amounts["gpu-memory"] * 100 // total["gpu-memory"]
    elif "gpu-memory-ratio" in amounts:
        amounts_["gpu-memory"] = amounts["gpu-memory-ratio"] * total["gpu-memory"] // 100
    return amounts_


def part_of(kind: str, hundredths: int) -> dict[str, int]:
    return {"gpu-core": hundredths, "gpu-memory-ratio": hundredths} if kind == "gpu" else {kind: hundredths}


WHOLE = part_of("gpu", 100)
GPUS = (
    TypeRequest(amounts={NVIDIA: 1}, count=1, each=WHOLE, whole=True),
    TypeRequest(amounts={NVIDIA: 2}, count=2, each=WHOLE, whole=True),
    TypeRequest(amounts={GPU: 300}, count=3, each=WHOLE, whole=True),
    TypeRequest(amounts={CORE: 100, RATIO: 200}, count=2, each={"gpu-core": 50, "gpu-memory-ratio": 100}, whole=True),
    TypeRequest(amounts={GPU: 30}, count=1, each=part_of("gpu", 30)),
    TypeRequest(amounts={RATIO: 70}, count=1, each={"gpu-memory-ratio": 70}),
    TypeRequest(amounts={MEMORY: 9 * GI}, count=1, each={"gpu-memory": 9 * GI}),
    TypeRequest(amounts={CORE: 60, MEMORY: GI}, count=1, each={"gpu-core": 60, "gpu-memory": GI}),
    TypeRequest(amounts={SHARED: 2, RATIO: 60}, count=2, each={"gpu-memory-ratio": 30}),
    TypeRequest(amounts={SHARED: 2, CORE: 100, MEMORY: 20 * GI}, count=2, each={"gpu-core": 50, "gpu-memory": 10 * GI}),
)


def of_others(kind: str) -> tuple[TypeRequest, ...]:
    """Return a strategy for what a pod may request of NICs or FPGAs."""
    name = f"kubernetes.io/{kind}"
    return (
        TypeRequest(kind=kind, amounts={name: 50}, count=1, each={kind: 50}),
        TypeRequest(kind=kind, amounts={name: 200}, count=2, each={kind: 100}, whole=True),
        TypeRequest(kind=kind, amounts={name: 2}, count=2, each={kind: 1}, strategy="RequestsAsCount"),
        TypeRequest(kind=kind, amounts={name: 30}, count=0, each={kind: 30}, strategy="ApplyForAll"),
    )


REQUESTS = {"gpu": GPUS, "rdma": of_others("rdma"), "fpga": of_others("fpga")}
CONDITIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "healthy": st.sampled_from([True, True, True, False]),
        "labels": st.sampled_from([(), (("rack", "a"),), (("rack", "b"),)]),
    }
)
HARDLY: Sequence[Amounts] = ({"gpu-core": 5}, {"gpu-memory": 5})
"""An amount of memory smaller than a hundredth of a card."""
HOLDS: Mapping[str, Sequence[Amounts]] = {
    kind: [*(part_of(kind, each) for each in (1, 30, 40, 70, 100)), *(HARDLY if kind == "gpu" else ())]
    for kind in REQUESTS
}
Held = dict[tuple[str, int], list[Amounts]]
"""(type, minor) of a card -> what each pod holds of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's cards and what pods hold of them."""

    fleet: Fleet
    cards: Sequence[CardInfo]
    held: Held = field(default_factory=dict)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Draw a node with cards of all types, the same minors among each of them."""
    sizes = [draw(st.sampled_from([(A100, A100_BYTES), (T4, T4_BYTES)])) for _ in range(draw(st.integers(0, 4)))]
    card_infos = [card(i, model=name, memory=size, **draw(CONDITIONS)) for i, (name, size) in enumerate(sizes)]
    for kind in ("rdma", "fpga"):
        card_infos += [other_card(kind, minor, **draw(CONDITIONS)) for minor in range(draw(st.integers(0, 3)))]
    made = Node(fleet=fleet({"node": card_infos}), cards=card_infos)
    for number, info in enumerate(draw(st.lists(st.sampled_from(card_infos), max_size=5)) if card_infos else ()):
        amounts = draw(st.sampled_from(HOLDS[info.type]))
        made.held.setdefault((info.type, info.minor), []).append(filled(amounts, info))
        made.fleet.charge(charge(str(number), grant(info.minor, info.type, **amounts)))
    return made


@st.composite
def type_requests(draw: st.DrawFn) -> list[TypeRequest]:
    """Draw what a pod requests of one type of device, or of several."""
    requests = []
    for kind in draw(st.sampled_from([("gpu",), ("rdma",), ("fpga",), ("gpu", "rdma"), ("gpu", "rdma", "fpga")])):
        type_request = replace(draw(st.sampled_from(REQUESTS[kind])), rack=draw(st.sampled_from(["", "", "a", "c"])))
        if kind == "gpu":
            type_request = replace(
                type_request, model=draw(st.sampled_from(["", A100, T4])), memory=draw(st.sampled_from([0, 40 * GI]))
            )
        requests.append(type_request)
    return requests


def asked(wanted: Sequence[TypeRequest]) -> PodRequest:
    """Return the request of a pod with these requests."""
    amounts = {name: amount for type_request in wanted for name, amount in type_request.amounts.items()}
    annotations = hints(**{type_request.kind: type_request.hint for type_request in wanted})
    for type_request in wanted:
        annotations |= type_request.constraints
    return asks(amounts, annotations=annotations, model=model.of_pod(annotations, {}))


@settings(max_examples=100)
@given(nodes(), st.lists(type_requests(), min_size=1, max_size=8), st.sampled_from(sorted(CARD_STRATEGIES)))
def test_cards_are_given_as_asked_for_wherever_there_are_enough(
    node: Node, pods: list[list[TypeRequest]], strategy: str
) -> None:
    for wanted in pods:
        outcome = decide(node.fleet, waiting("pod", asked(wanted)), Policy(card_strategy=strategy))
        check(node, wanted, outcome.grants if isinstance(outcome, Placement) else ())


def check(node: Node, wanted: Sequence[TypeRequest], given_: Sequence[Grant]) -> None:
    """Check a pod's allocation, empty if the pod waits, against its request."""
    able = {
        type_request.kind: {
            each.id: each for each in node.cards if type_request.fits(each, node.held.get((each.type, each.minor), ()))
        }
        for type_request in wanted
    }
    most = {
        kind: max(Counter(each.model for each in cards.values()).values(), default=0) for kind, cards in able.items()
    }
    counts = {
        type_request.kind: type_request.count or max(sum(map(type_request.accepts, node.cards)), 1)
        for type_request in wanted
    }
    assert bool(given_) is all(most[kind] >= count for kind, count in counts.items())
    if not given_:
        return
    assert Counter(each.type for each in given_) == counts
    assert len({each.id for each in given_}) == len(given_)
    assert len({able["gpu"][each.id].model for each in given_ if each.type == "gpu"}) <= 1
    on = {type_request.kind: type_request.on for type_request in wanted}
    for each in given_:
        info = able[each.type][each.id]
        assert each.minor == info.minor
        assert {**dict.fromkeys(dict(info.amounts), 0), **dict(each.amounts)} == on[each.type](info)
