"""Hostile pods: the data kept for them is bounded, and a refusal names what, where and what is allowed."""

import gc
import tracemalloc
from typing import Any

import pytest

from berth_api import names
from berth_api.values.caching import size_of
from berth_operator.core.decision.cycle import decide
from berth_operator.core.decision.messages import MAX_MESSAGE
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.affinity import NO_AFFINITY
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import pod_limits, pods
from tests.attacks.work import counted
from tests.attacks.zoo import PODS, hostile_pod
from tests.objects.builders import device, entry, node, pod

MIB = 2**20
MAX_CALLS = 200_000
"""To read a pod and to decide it: less than a tenth of a second."""
KEPT = 200_000
"""Bytes of what may stay of one pod: 500 of them are 100 MB."""


def grown_by(kinds: list[str], count: int) -> int:
    """Return how many bytes stay of pods of these kinds that are read and dropped one after another."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            for kind in kinds:
                pods.pending(pods.transform(hostile_pod(kind, number)))
                pods.charge(pods.transform(hostile_pod(kind, number, on="node")))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", PODS)
def test_a_hostile_pod_is_read_or_refused_in_a_few_words(kind: str) -> None:
    pending = pods.pending(pods.transform(hostile_pod(kind)))
    assert bool(pending.error) == bool(PODS[kind].refused)
    assert PODS[kind].refused in pending.error
    assert len(pending.error) <= MAX_MESSAGE


@pytest.mark.parametrize("kind", PODS)
def test_what_stays_of_a_live_pod_is_bounded(kind: str) -> None:
    pending = pods.pending(pods.transform(hostile_pod(kind, 1)))
    charge = pods.charge(pods.transform(hostile_pod(kind, 1, on="node")))
    assert size_of(pending) < KEPT
    assert size_of(charge) < KEPT


def test_deleted_pods_leave_no_more_than_the_caches_hold() -> None:
    # The attack that was found: 210 pods of 0.9 MB, created and deleted one after another, left 1.9 GB.
    kinds = ["a large image", "large labels", "many tolerations", "many terms of pod affinity"]
    assert grown_by(kinds, 5) < 40 * MIB


def test_deleted_pods_at_the_limits_leave_no_more_than_the_caches_hold() -> None:
    kinds = [kind for kind in PODS if "at the limit" in kind]
    assert grown_by(kinds, 6) < 60 * MIB


def test_of_a_bound_pod_only_the_part_within_the_limits_is_read() -> None:
    charge = pods.charge(pods.transform(hostile_pod("many extended resources", on="node")))
    assert len(charge.resources) == pod_limits.MAX_RESOURCES + 1
    assert dict(charge.resources)["pods"] == 1
    charge = pods.charge(pods.transform(hostile_pod("many host ports", on="node")))
    assert len(charge.ports) == pod_limits.MAX_HOST_PORTS
    charge = pods.charge(pods.transform(hostile_pod("many terms of pod affinity", on="node")))
    assert charge.affinity is NO_AFFINITY
    charge = pods.charge(pods.transform(hostile_pod("large labels", on="node")))
    assert charge.identity.labels == ()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(129)]},
            "spec.volumes: 129 volumes; allowed are at most 128",
        ),
        (
            {"volumes": [{"name": f"v{n}", "image": {"reference": "i"}} for n in range(129)]},
            "spec.volumes: 129 volumes; allowed are at most 128",
        ),
        (
            {"resourceClaims": [{"name": f"c{n}", "resourceClaimName": "shared"} for n in range(33)]},
            "spec.resourceClaims: 33 claims; allowed are at most 32",
        ),
        (
            {"tolerations": [{"key": f"k{n}"} for n in range(129)]},
            "spec.tolerations: 129 tolerations; allowed are at most 128",
        ),
        (
            {"annotations": {names.MODEL_GLOBS: "x" * 9000}},
            f"annotation {names.MODEL_GLOBS}: 9000 bytes; allowed are at most 8192",
        ),
        (
            {"labels": {f"k{n}": "v" for n in range(129)}},
            "metadata.labels: 129 labels; allowed are at most 128",
        ),
    ],
)
def test_a_part_that_is_a_little_too_large_is_named(fields: dict[str, Any], error: str) -> None:
    for name in ("one", "a replica"):
        assert pods.pending(pods.transform(pod(name, **fields))).error == error


@pytest.mark.parametrize("kind", PODS)
def test_reading_and_deciding_a_hostile_pod_takes_bounded_work(kind: str) -> None:
    made = Cluster(grace=40)
    for number in range(50):
        name = f"node-{number}"
        made.node_cache.put_node(node(name, labels={"kubernetes.io/hostname": name}))
        made.node_cache.put_device(device(name, *(entry(minor, id=f"GPU-{number}-{minor}") for minor in range(8))))
        made.fleet.set_fresh(name, fresh=True)
        made.put_bound(pods.transform(hostile_pod(kind, number, on=name)))

    def arrives() -> None:
        pending = pods.pending(pods.transform(hostile_pod(kind, 99)))
        decide(made.fleet, pending, Policy())

    counted(arrives, MAX_CALLS)
