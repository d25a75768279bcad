"""A pod that ends wakes the pods that may now fit, and no pod that it cannot help."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import GPU, NVIDIA, Raw, decided, device, entry, half, node, parked, pod, whole, woken

ZONE = "topology.kubernetes.io/zone"
NODES = {"a": "1", "b": "1", "c": "2"}
SHY = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": ZONE, "labelSelector": {}}]}
PORTS = [{"name": "main", "ports": [{"hostPort": 80, "containerPort": 80}]}]

HELD: dict[str, tuple[Raw | None, Raw]] = {
    "whole": ({NVIDIA: "1"}, {"allocated": whole(0)}),
    "other": ({NVIDIA: "1"}, {"allocated": whole(1)}),
    "half": ({GPU: "50"}, {"allocated": half(1)}),
    "unknown": ({NVIDIA: "1"}, {}),
    "cpu": ({"cpu": "3"}, {}),
    "port": (None, {"containers": PORTS}),
    "shy": (None, {"affinity": {"podAntiAffinity": SHY}}),
}
WANTED: dict[str, tuple[Raw | None, Raw]] = {
    "one": ({NVIDIA: "1"}, {}),
    "two": ({NVIDIA: "2"}, {}),
    "half": ({GPU: "50"}, {}),
    "cpu": ({"cpu": "2"}, {}),
    "both": ({"cpu": "2", NVIDIA: "1"}, {}),
    "port": (None, {"containers": PORTS}),
    "shy": (None, {"affinity": {"podAntiAffinity": SHY}}),
    "picky": ({"cpu": "2"}, {"nodeSelector": {ZONE: "2"}}),
}


def cluster_of(held: Sequence[tuple[str, str]]) -> Cluster:
    """Return a cluster in which pods of these kinds are on these nodes."""
    cluster = Cluster(grace=20.0, clock=lambda: 0.0)
    for name, zone in NODES.items():
        cluster.node_cache.put_node(node(name, labels={ZONE: zone}, allocatable={"cpu": "4"}))
        cluster.node_cache.put_device(device(name, entry(0), entry(1)))
    for number, (kind, on) in enumerate(held):
        requests, fields = HELD[kind]
        cluster.put_bound(pod(f"held-{number}", requests, on=on, **fields))
    return cluster


@given(
    held=st.lists(st.tuples(st.sampled_from(sorted(HELD)), st.sampled_from(sorted(NODES))), min_size=1, max_size=12),
    waiting=st.lists(st.sampled_from(sorted(WANTED)), min_size=1, max_size=6),
    leaver=st.integers(min_value=0, max_value=11),
)
def test_every_pod_that_fits_after_a_pod_was_deleted_was_woken(
    held: list[tuple[str, str]], waiting: list[str], leaver: int
) -> None:
    cluster = cluster_of(held)
    for number, kind in enumerate(waiting):
        requests, fields = WANTED[kind]
        cluster.put_pending(pod(f"waits-{number}", requests, **fields))
    decided(cluster)

    cluster.remove_bound(f"uid-held-{leaver % len(held)}")

    decided(cluster)
    for pending in cluster.pending.values():
        if pending.uid not in cluster.fleet.charges:
            assert isinstance(decide(cluster.fleet, pending, Policy()), Failure), pending.name


def test_pods_that_do_not_fit_there_are_not_woken() -> None:
    cluster = cluster_of([(kind, name) for name in NODES for kind in ("whole", "other", "cpu")])
    for kind, (requests, fields) in WANTED.items():
        cluster.put_pending(pod(kind, requests, **fields))
    assert len(decided(cluster)) == len(WANTED)

    cluster.remove_bound("uid-held-0")

    assert set(woken(cluster)) == {"one", "half", "shy"}


def test_pods_with_terms_on_the_deleted_pod_wake_though_its_node_has_no_capacity() -> None:
    cluster = cluster_of([("cpu", "a"), ("cpu", "c"), ("shy", "a"), ("cpu", "a")])
    parked(cluster, pod("near", {"cpu": "2"}, nodeSelector={ZONE: "1"}))

    cluster.remove_bound("uid-held-2")

    [placement] = decided(cluster)
    assert isinstance(placement, Placement)
    assert placement.node == "b"
