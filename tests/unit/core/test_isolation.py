"""No node is in two modes, and no card promises more than it has, whatever arrives, leaves or is relabelled."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import annotations
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PendingPod
from berth_operator.state.objects import pods
from tests.objects.builders import (
    CORE,
    GPU,
    MEMORY,
    MI,
    NVIDIA,
    RATIO,
    SHARED,
    T4_BYTES,
    Raw,
    add,
    card,
    container,
    divided,
    inventory,
    node_info,
    pod,
)

NODES: Final = ("a", "b")
LABELS: Final[tuple[dict[str, str], ...]] = ({names.ISOLATION_KEY: "mps"}, {names.ISOLATION_KEY: "hami-core"}, {})
READ: Final = {"mps": "mps-memory-limit", "hami-core": "memory-limit-0"}

shares = st.sampled_from(
    ({GPU: "50"}, {GPU: "33"}, {MEMORY: "3Gi"}, {CORE: "10", RATIO: "7"}, {SHARED: "2", MEMORY: "4Gi", CORE: "20"})
)
others = st.sampled_from(({GPU: "100"}, {GPU: "200"}, {NVIDIA: "1"}, {"nvidia.com/mig-1g.10gb": "1"}))
wanted = st.tuples(shares, st.sampled_from(("mps", "mps", "hami-core", ""))) | st.tuples(others, st.just(""))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), wanted),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("label"), st.tuples(st.sampled_from(NODES), st.sampled_from(LABELS))),
    ),
    min_size=15,
    max_size=40,
)


def fleet() -> Fleet:
    built = Fleet()
    for name in NODES:
        devices = inventory(card(0, memory=T4_BYTES), card(1, memory=T4_BYTES), divided(2, "1g.10gb"))
        add(built, labelled(name, {}), devices)
    return built


def labelled(name: str, labels: dict[str, str]) -> NodeInfo:
    return node_info(name, labels=labels, more={names.MPS_RESOURCE: 200, names.HAMI_CORE_RESOURCE: 200})


def label(built: Fleet, name: str, labels: dict[str, str]) -> None:
    built.put_node(labelled(name, labels))


def admitted(number: int, requests: dict[str, str], mode: str) -> Raw:
    """Return a pod as admission leaves it."""
    if not mode:
        return pod(f"pod-{number}", requests)
    path = f"metadata.annotations['main.devices.berth.dev/{READ[mode]}']"
    env = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    return pod(f"pod-{number}", containers=[container("main", {**requests, f"berth.dev/{mode}": "1"}, env=env)])


def waiting(number: int, requests: dict[str, str], mode: str) -> PendingPod:
    return pods.pending(pods.transform(admitted(number, requests, mode)))


def limits(placement: Placement) -> Iterator[tuple[str, int, int]]:
    """Yield (UUID, limit in bytes, bytes that its pod holds) for each card of a share."""
    written = annotations(placement)
    seen = written["main" + names.VISIBLE_SUFFIX].split(",")
    held = [dict(each.amounts)["gpu-memory"] for each in placement.grants]
    if text := written.get("main" + names.MPS_MEMORY_SUFFIX):
        written_limits = [int(each.partition("=")[2].removesuffix("M")) * MI for each in text.split(",")]
    else:
        written_limits = [int(written[f"main.devices.berth.dev/memory-limit-{number}"]) for number in range(len(seen))]
    yield from zip(seen, written_limits, held, strict=True)


@given(steps)
def test_no_node_is_in_two_modes_and_limits_fit_on_their_cards(steps: list[tuple[str, object]]) -> None:
    built, placed = fleet(), {}
    for number, (step, what) in enumerate(steps):
        if step == "create":
            outcome = decide(built, waiting(number, *what), Policy())  # type: ignore[misc]
            if isinstance(outcome, Placement):
                built.charge(outcome.charge)
                placed[outcome.pod.uid] = outcome
                labels = built.labels[built.rows[outcome.node]]
                is_of_mps = labels.get(names.ISOLATION_KEY) == "mps"
                assert is_of_mps == (outcome.pod.request.isolation == "mps")
        elif step == "label":
            label(built, *what)  # type: ignore[misc]
        elif placed:
            uid = list(placed)[what % len(placed)]  # type: ignore[operator]
            built.release(uid)
            del placed[uid]
        check(placed)


def check(placed: dict[str, Placement]) -> None:
    modes: dict[str, set[bool]] = {}
    promised: Counter[tuple[str, str]] = Counter()
    for placement in placed.values():
        mode = placement.pod.request.isolation
        modes.setdefault(placement.node, set()).add(mode == "mps")
        for card_, limit, held in limits(placement) if mode else ():
            assert held - MI < limit <= held
            promised[placement.node, card_] += limit
    assert all(len(each) == 1 for each in modes.values())
    assert all(each <= T4_BYTES for each in promised.values())
