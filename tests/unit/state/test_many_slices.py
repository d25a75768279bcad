"""Many ResourceSlices of one node: they are applied by turn, and only a number of them is used."""

from collections import Counter

import pytest

from berth_api.names import DRA_DRIVER
from berth_operator.controllers.reconcile import status
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import MAX_SLICES, OwnPools
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.listener import NoListener
from berth_operator.state.cache.views import NodeView, StatusKind
from berth_operator.state.watches.claims import KEPT_SECONDS, ResourceClaims
from tests.objects.builders import GPU, device, entry, lease, node, waiting
from tests.objects.resource_claims import NVIDIA_DRIVER, gpu, listed, resource_slice, taint

OTHER = "net.example.com"


class _Counting(NoListener):
    """Counts how often a Node's status was due."""

    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()

    def status_changed(self, kind: StatusKind, name: str) -> None:
        if kind is StatusKind.NODE:
            self.changes[name] += 1


class World:
    """A node of four GPUs."""

    def __init__(self, *own: str) -> None:
        self.now, self.listener = 100.0, _Counting()
        self.cluster = Cluster(grace=20.0, clock=lambda: self.now, listener=self.listener)
        self.cluster.set_own_pools(OwnPools(drivers=frozenset(own)))
        self.to = ResourceClaims(self.cluster)
        self.cluster.node_cache.put_node(node())
        self.cluster.node_cache.put_device(device("node", *map(entry, range(4))))
        self.cluster.node_cache.put_lease(lease())

    def put(self, *names: str, driver: str = NVIDIA_DRIVER) -> None:
        for name in names:
            self.to.put_slice(resource_slice(listed(name), name=name, driver=driver, count=len(names)))

    def turn(self) -> None:
        self.cluster.refresh_devices()

    def accounted(self) -> str:
        """Return the reason of the condition `Accounted`."""
        view = self.cluster.view(StatusKind.NODE, "node")
        assert isinstance(view, NodeView)
        [reason] = [shown.reason for shown in status.wanted(view, str).conditions if shown.type == "Accounted"]
        return reason

    def fits(self) -> bool:
        outcome = decide(self.cluster.fleet, waiting("p", {GPU: 100}), Policy())
        assert isinstance(outcome, Placement | Failure)
        return isinstance(outcome, Placement)


def many(count: int, prefix: str = "s") -> list[str]:
    return [f"{prefix}{number:03}" for number in range(count)]


def test_a_node_whose_slices_change_often_between_two_turns_is_computed_once() -> None:
    world = World(DRA_DRIVER)
    world.listener.changes.clear()
    for name in many(50):
        world.to.put_slice(resource_slice(gpu(0, taints=[taint()]), name=name, driver=DRA_DRIVER, count=50))
    world.turn()
    assert world.listener.changes == {"node": 1}
    world.turn()
    assert world.listener.changes == {"node": 1}


@pytest.mark.parametrize(("own", "fits"), [((), False), ((NVIDIA_DRIVER,), True)], ids=["of others", "of Berth"])
def test_slices_beyond_the_bound_are_not_used_and_the_device_shows_it(own: tuple[str, ...], *, fits: bool) -> None:
    world = World(*own)
    world.put(*many(MAX_SLICES + 2))
    world.put("net", driver=OTHER)
    world.turn()
    assert sorted(world.cluster.fleet.claims.slices) == ["net", *many(MAX_SLICES)]
    assert world.accounted() == "TooManySlices"
    # The slices that are not read may list any card.
    assert world.fits() is fits


def test_a_slice_is_used_when_it_changes_after_others_were_deleted() -> None:
    world = World(DRA_DRIVER)
    *used, one, other = many(MAX_SLICES + 2)
    world.put(*used, one, other, driver=DRA_DRIVER)
    world.to.remove_slice(used[0])
    world.now += KEPT_SECONDS
    world.cluster.expire_slices()
    world.put(one, driver=DRA_DRIVER)
    world.turn()
    assert sorted(world.cluster.fleet.claims.slices) == [*used[1:], one]
    assert world.accounted() == "TooManySlices"
    world.to.remove_slice(other)
    world.turn()
    assert world.accounted() == "AllKnown"


def test_slices_that_are_kept_for_their_driver_count() -> None:
    """Otherwise slices that are created and deleted by turns would be kept without a bound."""
    world = World(DRA_DRIVER)
    world.put("stays", *many(MAX_SLICES - 1), driver=DRA_DRIVER)
    for name in many(MAX_SLICES - 1):
        world.to.remove_slice(name)
    world.put(*many(10, "t"), driver=DRA_DRIVER)
    assert list(world.cluster.fleet.claims.slices) == ["stays"]


def test_a_slice_for_many_nodes_does_not_count() -> None:
    world = World(DRA_DRIVER)
    world.put(*many(MAX_SLICES), driver=DRA_DRIVER)
    wide = resource_slice(listed("wide"), name="wide", driver=DRA_DRIVER, pool="rack")
    del wide["spec"]["nodeName"]
    world.to.put_slice({**wide, "spec": {**wide["spec"], "allNodes": True}})
    assert "wide" in world.cluster.fleet.claims.slices
