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
from tests.builders import (
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


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param(
            [limited("a", {GPU: "50"})], {"a/memory-limit-0": CARD // 2, "a/sm-limit-0": 50}, id="half of a card"
        ),
        pytest.param(
            [limited("a", {MEMORY: "8Gi"})], {"a/memory-limit-0": 8 * GI, "a/sm-limit-0": 0}, id="memory alone"
        ),
        pytest.param(
            [limited("a", {CORE: "30", RATIO: "25"})],
            {"a/memory-limit-0": CARD // 4, "a/sm-limit-0": 30},
            id="core and ratio",
        ),
        pytest.param(
            [limited("a", {GPU: "20"}), limited("b", {GPU: "30"})],
            {"a/memory-limit-0": CARD // 5, "a/sm-limit-0": 20, "b/memory-limit-0": CARD * 3 // 10, "b/sm-limit-0": 30},
            id="two share what their pod has of a card",
        ),
        pytest.param(
            [limited("a", {CORE: "10", MEMORY: "8Gi"}), limited("b", {CORE: "40", MEMORY: "2Gi"})],
            {"a/memory-limit-0": 8 * GI, "a/sm-limit-0": 10, "b/memory-limit-0": 2 * GI, "b/sm-limit-0": 40},
            id="memory and core are split by themselves",
        ),
        pytest.param(
            [limited("a", {SHARED: "2", MEMORY: "16Gi"})],
            {"a/memory-limit-0": 8 * GI, "a/memory-limit-1": 8 * GI, "a/sm-limit-0": 0, "a/sm-limit-1": 0},
            id="spread over two cards",
        ),
        pytest.param(
            [limited("a", {GPU: "100"}), limited("b", {GPU: "100"})],
            {"a/memory-limit-0": CARD, "a/sm-limit-0": 100, "b/memory-limit-0": CARD, "b/sm-limit-0": 100},
            id="a card each",
        ),
        pytest.param([container("a", {GPU: "50"})], {}, id="a container that reads none has none"),
        pytest.param(
            [limited("a", {GPU: "20"}), container("b", {GPU: "30"})],
            {"a/memory-limit-0": CARD // 5, "a/sm-limit-0": 20},
            id="next to one that reads none",
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
    assert written(limited("a", {}), limited("b", {}), labels=labels) == {
        "a/memory-limit-0": 8 * GI,
        "a/sm-limit-0": 0,
        "b/memory-limit-0": 8 * GI,
        "b/sm-limit-0": 0,
    }


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


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param(
            [by_mps("a", {GPU: "50"})], {"a/mps-memory-limit": "0=40960M", "a/mps-threads": "50"}, id="half a card"
        ),
        pytest.param(
            [by_mps("a", {MEMORY: "1000000000"})],
            {"a/mps-memory-limit": "0=953M", "a/mps-threads": "100"},
            id="memory alone, rounded down",
        ),
        pytest.param(
            [by_mps("a", {GPU: "20"}), by_mps("b", {GPU: "30"})],
            {
                "a/mps-memory-limit": "0=16384M",
                "a/mps-threads": "20",
                "b/mps-memory-limit": "0=24576M",
                "b/mps-threads": "30",
            },
            id="two containers",
        ),
        pytest.param(
            [by_mps("a", {SHARED: "2", MEMORY: "16Gi", CORE: "50"})],
            {"a/mps-memory-limit": "0=8192M,1=8192M", "a/mps-threads": "25"},
            id="two cards",
        ),
        pytest.param(
            [by_mps("a", {CORE: "1", MEMORY: "2Mi"}), by_mps("b", {CORE: "1", MEMORY: "1Mi"})],
            {
                "a/mps-memory-limit": "0=2M",
                "a/mps-threads": "1",
                "b/mps-memory-limit": "0=1M",
                "b/mps-threads": "1",
            },
            id="never 0",
        ),
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
