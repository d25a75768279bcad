"""The annotations that limit how much of its cards each container may use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import annotations
from berth_operator.state.objects import pods
from tests.objects.builders import (
    CORE,
    GI,
    GPU,
    MEMORY,
    RATIO,
    SHARED,
    Raw,
    add,
    card,
    container,
    fleet,
    inventory,
    node_info,
    pod,
)

CARD = 80 * GI
FLEET = {"node": [card(minor, memory=CARD) for minor in range(4)]}


def limited(name: str, requests: dict[str, str], **fields: Any) -> Raw:
    """Return a container that reads the limit of its first card."""
    path = f"metadata.annotations['{name}.devices.berth.dev/memory-limit-0']"
    entry = {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return container(name, requests, env=[entry], **fields)


def written(*containers: Raw, labels: dict[str, str] | None = None, init: tuple[Raw, ...] = ()) -> dict[str, int]:
    """Return the limits that are written, by `container/what`."""
    raw = pod("p", containers=list(containers), initContainers=list(init), labels=labels or {})
    placement = decide(fleet(FLEET), pods.pending(pods.transform(raw)), Policy())
    assert isinstance(placement, Placement), placement
    limits = annotations(placement)
    return {key.replace(".devices.berth.dev", ""): int(text) for key, text in limits.items() if "-limit-" in key}


def of(name: str, *memory: int, sm: int) -> dict[str, int]:
    """Return a container's limits: memory for each card, and the same part of the multiprocessors of each."""
    return {
        **{f"{name}/memory-limit-{number}": amount for number, amount in enumerate(memory)},
        **{f"{name}/sm-limit-{number}": sm for number in range(len(memory))},
    }


TWO = [limited("a", {GPU: "20"}), limited("b", {GPU: "30"})]
SPLIT = [limited("a", {CORE: "10", MEMORY: "8Gi"}), limited("b", {CORE: "40", MEMORY: "2Gi"})]
A_CARD_EACH = [limited(name, {GPU: "100"}) for name in "ab"]
ON_TWO_CARDS = [limited("a", {SHARED: "2", MEMORY: "16Gi"})]


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([limited("a", {GPU: "50"})], of("a", CARD // 2, sm=50), id="half of a card"),
        pytest.param([limited("a", {MEMORY: "8Gi"})], of("a", 8 * GI, sm=0), id="memory alone"),
        pytest.param([limited("a", {CORE: "30", RATIO: "25"})], of("a", CARD // 4, sm=30), id="core and ratio"),
        pytest.param(TWO, of("a", CARD // 5, sm=20) | of("b", CARD * 3 // 10, sm=30), id="two share a card"),
        pytest.param(SPLIT, of("a", 8 * GI, sm=10) | of("b", 2 * GI, sm=40), id="memory and core are split apart"),
        pytest.param(ON_TWO_CARDS, of("a", 8 * GI, 8 * GI, sm=0), id="spread over two cards"),
        pytest.param(A_CARD_EACH, of("a", CARD, sm=100) | of("b", CARD, sm=100), id="a card each"),
        pytest.param([container("a", {GPU: "50"})], {}, id="a container that reads none has none"),
        pytest.param(
            [TWO[0], container("b", {GPU: "30"})], of("a", CARD // 5, sm=20), id="next to one that reads none"
        ),
    ],
)
def test_limits(containers: list[Raw], expected: dict[str, int]) -> None:
    assert written(*containers) == expected


def test_an_init_container_has_its_own() -> None:
    limits = written(limited("a", {GPU: "40"}), init=(limited("i", {GPU: "20"}),))
    assert (limits["i/memory-limit-0"], limits["a/memory-limit-0"]) == (CARD // 5, CARD * 2 // 5)


def test_by_label_all_may_use_all() -> None:
    labels = {"genius/gpu-memory-each": "8192"}
    expected = of("a", 8 * GI, sm=0) | of("b", 8 * GI, sm=0)
    assert written(limited("a", {}), limited("b", {}), labels=labels) == expected


def by_mps(name: str, requests: dict[str, str]) -> Raw:
    """Return a container that reads the limits of MPS."""
    path = f"metadata.annotations['{name}{names.MPS_MEMORY_SUFFIX}']"
    entry = {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return container(name, {**requests, names.MPS_RESOURCE: "1"}, env=[entry])


def written_for_mps(*containers: Raw, labels: dict[str, str] | None = None) -> dict[str, str]:
    raw = pods.transform(pod("p", containers=list(containers), labels=labels or {}))
    built = fleet({})
    add(
        built, node_info(labels={names.ISOLATION_KEY: "mps"}, more={names.MPS_RESOURCE: 100}), inventory(*FLEET["node"])
    )
    placement = decide(built, pods.pending(raw), Policy())
    assert isinstance(placement, Placement), placement
    assert placement.charge.isolation == "mps"
    return {
        key.replace(".devices.berth.dev", ""): text for key, text in annotations(placement).items() if "/mps-" in key
    }


def of_mps(name: str, memory: str, threads: int) -> dict[str, str]:
    return {f"{name}/mps-memory-limit": memory, f"{name}/mps-threads": str(threads)}


TWO_BY_MPS = [by_mps("a", {GPU: "20"}), by_mps("b", {GPU: "30"})]
TINY = [by_mps("a", {CORE: "1", MEMORY: "2Mi"}), by_mps("b", {CORE: "1", MEMORY: "1Mi"})]
OF_TWO_CARDS = [by_mps("a", {SHARED: "2", MEMORY: "16Gi", CORE: "50"})]


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param([by_mps("a", {GPU: "50"})], of_mps("a", "0=40960M", 50), id="half a card"),
        pytest.param(
            [by_mps("a", {MEMORY: "1000000000"})], of_mps("a", "0=953M", 100), id="memory alone, rounded down"
        ),
        pytest.param(TWO_BY_MPS, of_mps("a", "0=16384M", 20) | of_mps("b", "0=24576M", 30), id="two containers"),
        pytest.param(OF_TWO_CARDS, of_mps("a", "0=8192M,1=8192M", 25), id="two cards"),
        pytest.param(TINY, of_mps("a", "0=2M", 1) | of_mps("b", "0=1M", 1), id="never 0"),
    ],
)
def test_limits_of_mps(containers: list[Raw], expected: dict[str, str]) -> None:
    assert written_for_mps(*containers) == expected


@given(st.lists(st.integers(2, 20), min_size=1, max_size=5))
def test_containers_that_run_together_may_never_use_more_than_their_pod_has(amounts: list[int]) -> None:
    limits = written(*(limited(f"c{number}", {GPU: str(amount)}) for number, amount in enumerate(amounts)))
    memory = sum(amount for key, amount in limits.items() if "memory" in key)
    assert memory <= CARD * sum(amounts) // 100
    assert memory > CARD * sum(amounts) // 100 - len(amounts) - 1
    assert sum(amount for key, amount in limits.items() if "sm" in key) == sum(amounts)
