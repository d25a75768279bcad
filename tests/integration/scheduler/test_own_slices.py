"""kube-scheduler gives claims those devices of Berth's driver that our allocator gives, as `make dra-rows` predicts.

Several nodes get claims one after another, so later ones find MIG instances and shares that earlier ones hold.
`make test-versions` does the same with kube-scheduler 1.37.
"""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api.names import DRA_DRIVER
from devcluster import Cluster, waiting
from tests.claims import own, scenario
from tests.differential import judges
from tests.differential.draft import Raw, container, node_of, pod_of
from tests.objects.resource_claims import listed, resource_slice
from tests.programs import versions

NODES: Final = 8
ROUNDS: Final = 5
DEADLINE: Final = 120.0
RESOURCES: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{RESOURCES}/namespaces/default/resourceclaims"
PODS: Final = "/api/v1/namespaces/default/pods"
SENTINEL: Final = "sentinel"
KINDS: Final = {"gpu": own.GPU, "mig": own.MIG, "rdma": f"rdma.{DRA_DRIVER}"}
"""Type of a device -> the class that selects it."""


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory, version: str) -> Iterator[Cluster]:
    """Return a cluster with Berth's DeviceClasses, in which only the test changes nodes and pods."""
    folder: Path = tmp_path_factory.mktemp("own") / "cluster"
    programs = versions.replaced(version, "kube-apiserver", "kube-scheduler")
    with Cluster(folder=folder, extra_args=judges.ARGUMENTS, replaced=programs) as running:
        judges.prepare(running, [(f"{RESOURCES}/deviceclasses", one) for one in own.CLASSES])
        yield running


@dataclass(slots=True)
class Node:
    """A node, and what claims hold of it."""

    name: str
    draw: own.Draw
    slices: list[Raw]
    held: list[Raw] = field(default_factory=list)


def test_kube_scheduler_gives_the_devices_that_are_predicted(own_cluster: Cluster) -> None:
    nodes = [_node(own_cluster, number) for number in range(NODES)]
    _wait_until_slices_are_seen(own_cluster)
    found = 0
    for number in range(ROUNDS):
        predicted: dict[str, list[list[Raw]] | None] = {}
        for node in nodes:
            claims = [node.draw.claim(f"{node.name}-{number}")]
            outcome = scenario.outcome(own.asked(node.slices, claims, node.held, node.name))
            assert "error" not in outcome
            node.held += own.taken(outcome, number)
            predicted[f"{node.name}-{number}"] = _devices(outcome["results"]) if outcome["results"] else None
            _create(own_cluster, f"{node.name}-{number}", [node.name], claims[0])
        given = {name: _given(own_cluster, name) for name in predicted}
        assert given == predicted
        for name in (name for name, devices in predicted.items() if devices is None):
            own_cluster.api.delete(f"{PODS}/{name}", grace_seconds=0)
            own_cluster.api.delete(f"{CLAIMS}/{name}")
        found += sum(devices is not None for devices in predicted.values())
    assert NODES * ROUNDS / 3 < found < NODES * ROUNDS


def test_a_device_without_a_type_stops_no_pod(own_cluster: Cluster) -> None:
    """Test each class: a node that lists such a device is a candidate for the pod, too."""
    on_node = {
        "typed": [listed(kind, {"type": kind}) for kind in KINDS],
        "untyped": [listed("card", {"model": "H100"})],
    }
    for name, devices in on_node.items():
        own_cluster.api.post("/api/v1/nodes", node_of(name))
        own_cluster.api.post(f"{RESOURCES}/resourceslices", resource_slice(*devices, node=name, driver=DRA_DRIVER))
    _wait_until_slices_are_seen(own_cluster, "later")
    for kind, name in KINDS.items():
        request = {"name": "one", "exactly": {"deviceClassName": name}}
        _create(own_cluster, f"of-{kind}", list(on_node), {"spec": {"devices": {"requests": [request]}}})
    for kind, name in KINDS.items():
        what = f"a node for a claim of {name}"
        waiting.until(functools.partial(_bound, own_cluster, f"of-{kind}"), deadline=DEADLINE, what=what)
        assert own_cluster.api.get(f"{PODS}/of-{kind}")["spec"]["nodeName"] == "typed"


def _node(cluster: Cluster, number: int) -> Node:
    name = f"own-{number}"
    draw = own.Draw(random.Random(number), name)
    cluster.api.post("/api/v1/nodes", node_of(name))
    slices = [cluster.api.post(f"{RESOURCES}/resourceslices", manifest) for manifest in draw.manifests()]
    return Node(name=name, draw=draw, slices=slices)


def _wait_until_slices_are_seen(cluster: Cluster, last_node: str = SENTINEL) -> None:
    """Wait until kube-scheduler gives a device of a slice that was created after all others."""
    cluster.api.post("/api/v1/nodes", node_of(last_node))
    last = resource_slice(listed("gpu-0", {"type": "gpu"}), node=last_node, driver=DRA_DRIVER)
    cluster.api.post(f"{RESOURCES}/resourceslices", last)
    request = {"name": "gpu", "exactly": {"deviceClassName": own.GPU}}
    _create(cluster, last_node, [last_node], {"spec": {"devices": {"requests": [request]}}})
    waiting.until(lambda: _bound(cluster, last_node), deadline=DEADLINE, what="the slices to be seen")


def _create(cluster: Cluster, name: str, nodes: Sequence[str], claim: Raw) -> None:
    """Create a claim, and a pod with it that fits only these nodes."""
    cluster.api.post(CLAIMS, {"metadata": {"name": name}, "spec": claim["spec"]})
    spec: Raw = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _on(nodes)}},
        "resourceClaims": [{"name": "claim", "resourceClaimName": name}],
        "containers": [container("main", resources={"claims": [{"name": "claim"}]})],
    }
    cluster.api.post(PODS, pod_of(name, "default", spec))


def _on(nodes: Sequence[str]) -> Raw:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def _bound(cluster: Cluster, name: str) -> bool:
    return bool(cluster.api.get(f"{PODS}/{name}")["spec"].get("nodeName"))


def _given(cluster: Cluster, name: str) -> list[list[Raw]] | None:
    """Return the devices that kube-scheduler gave to the claim of a pod; None if it found none."""

    def decided() -> Raw:
        pod = cluster.api.get(f"{PODS}/{name}")
        conditions = pod.get("status", {}).get("conditions", [])
        is_refused = any(one.get("reason") == "Unschedulable" for one in conditions)
        return pod if pod["spec"].get("nodeName") or is_refused else {}

    pod = waiting.until(decided, deadline=DEADLINE, what=f"a verdict on pod {name}")
    if not pod["spec"].get("nodeName"):
        return None
    return _devices([cluster.api.get(f"{CLAIMS}/{name}")["status"]["allocation"]])


def _devices(allocations: Sequence[Raw]) -> list[list[Any]]:
    """Return the results of each allocation without the ids of shares, which are random."""
    return [
        [
            {key: value for key, value in result.items() if key != "shareID"}
            for result in allocation["devices"]["results"]
        ]
        for allocation in allocations
    ]
