"""Partitions of AMD's cards, by claim and by name: each is charged alone, whichever driver lists them."""

from collections.abc import Callable
from typing import Any

import pytest

from berth_api import names
from berth_api.names import DRA_DRIVER, GPU_CORE
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import EVERY_DRIVER, OwnPools
from berth_operator.state.cache.cluster import Cluster
from tests.claims.objects import request
from tests.objects.builders import OFFERED, device, entry, every_pod, lease, node, pod
from tests.objects.resource_claims import PCI, ClaimsInTurns, Raw, listed, resource_slice

AMD_GPU = "amd.com/gpu"
AMD_DRIVER = "gpu.amd.com"
PARTITIONS = 8


def partition(minor: int) -> Raw:
    """Return a partition as the agent lists it: eight of each MI300X, which have its address."""
    card, number = divmod(minor, PARTITIONS)
    topology = {"busID": f"0000:{card + 5:02x}:00.0", "nodeID": 0, "pcieID": "", "socketID": -1}
    return entry(minor, id=f"GPU-000000000000000{card}-{number}", model="AMD Instinct MI300X", topology=topology)


def of_berth(minor: int) -> Raw:
    """Return a partition as Berth's driver lists it."""
    card, number = divmod(minor, PARTITIONS)
    uuid = f"GPU-000000000000000{card}-{number}"
    return listed(uuid.lower(), {"type": "gpu", "uuid": uuid, PCI: f"0000:{card + 5:02x}:00.0"})


def of_amd(minor: int) -> Raw:
    """Return a partition as AMD's driver 1.0 lists it: its device nodes are in its name alone.

    The number of its `cardN` differs from the number of its render node, as where a board has a card for its console.
    """
    attributes: dict[str, str | bool] = {
        "type": "amdgpu-partition",
        "productName": "AMD_Instinct_MI300X_OAM",
        "partitionProfile": "cpx_nps4",
        "deviceID": "0x74a1",
        PCI: f"0000:{minor // PARTITIONS + 5:02x}:00.0",
        "resource.kubernetes.io/pcieRoot": f"pci0000:{minor // PARTITIONS:02x}",
    }
    return listed(f"gpu-{minor + 1}-{minor + 128}", attributes)


class World:
    """A node with cards of AMD in the mode CPX, whose partitions are given by name and to claims."""

    def __init__(self, driver: str, *, cards: int = 1) -> None:
        self.cluster = Cluster(grace=20.0, clock=lambda: 100.0)
        self.cluster.set_own_pools(OwnPools(drivers=frozenset({EVERY_DRIVER})))
        self.to = ClaimsInTurns(self.cluster)
        self.pods = every_pod(self.cluster)
        self.count = cards * PARTITIONS
        self.cluster.node_cache.put_node(node(offered={**OFFERED, AMD_GPU: str(self.count)}))
        labels = {names.VENDOR_LABEL: "amd"}
        self.cluster.node_cache.put_device(device("node", *map(partition, range(self.count)), labels=labels))
        self.cluster.node_cache.put_lease(lease())
        as_listed: Callable[[int], Raw] = of_berth if driver == DRA_DRIVER else of_amd
        self.to.put_slice(resource_slice(*map(as_listed, range(self.count)), driver=driver))
        self.to.put_class({"metadata": {"name": "gpu"}, "spec": {}})

    def place(self, name: str, **fields: Any) -> Placement | Failure:
        """Decide about a pod, and assume its placement if there is one."""
        self.cluster.put_pending(pod(name, **fields))
        outcome = decide(self.cluster.fleet, self.cluster.pending[f"uid-{name}"], Policy())
        if isinstance(outcome, Placement):
            self.cluster.placements.assume(outcome)
        return outcome

    def by_name(self, name: str) -> Placement | Failure:
        return self.place(name, requests={AMD_GPU: "1"})

    def by_claim(self, name: str) -> Placement | Failure:
        """Place a pod with a claim of one device, and write its allocation as the API server shows it then."""
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-claim-{name}"}
        raw: Raw = {"metadata": metadata, "spec": {"devices": {"requests": [request()]}}}
        self.to.put_claim(raw)
        outcome = self.place(name, resourceClaims=[{"name": "c", "resourceClaimName": name}])
        if isinstance(outcome, Placement):
            [allocation] = outcome.claims.allocations
            reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
            self.to.put_claim({**raw, "status": {"allocation": allocation.written(), "reservedFor": reserved}})
        return outcome

    def used(self) -> list[int]:
        """Return the minors of the partitions that something is charged to."""
        fleet = self.cluster.fleet
        row, cards = fleet.rows["node"], fleet.cards["gpu"]
        cores = cards.used[cards.index[GPU_CORE], row]
        return [minor for minor in range(self.count) if cores[minor]]


@pytest.mark.parametrize("driver", [DRA_DRIVER, AMD_DRIVER])
@pytest.mark.parametrize("first", ["by name", "by claim"])
def test_pods_by_name_and_by_claim_share_the_partitions_of_one_card(driver: str, first: str) -> None:
    world = World(driver)
    ways = {"by name": world.by_name, "by claim": world.by_claim}
    second = next(way for way in ways if way != first)
    for number, way in enumerate([first, second] * (PARTITIONS // 2)):
        outcome = ways[way](f"pod-{number}")
        assert isinstance(outcome, Placement), (number, way, outcome.message)
        assert len(world.used()) == number + 1
    assert isinstance(world.by_name("late"), Failure)
    assert isinstance(world.by_claim("later"), Failure)


@pytest.mark.parametrize("driver", [DRA_DRIVER, AMD_DRIVER])
def test_ten_claims_hold_ten_partitions_of_eight_cards(driver: str) -> None:
    world = World(driver, cards=8)
    for number in range(10):
        assert isinstance(world.by_claim(f"pod-{number}"), Placement)
    assert len(world.used()) == 10
