"""Gangs whose members have ResourceClaims, on the real API server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_api import names
from tests.integration.operator.test_claims_of_pods import Claims
from tests.integration.operator.world import World
from tests.resource_claims import NVIDIA_DRIVER

NODES = 8
DEVICES = 8
LARGE, SMALL = "large", "small"


class Racks(Claims):
    """Nodes without agents, half of them with large devices, which come first."""

    def list_devices(self) -> None:
        """List the devices of all nodes, as a driver."""
        for number, node in enumerate(self.nodes):
            model = {"model": {"string": LARGE if number < NODES // 2 else SMALL}}
            devices = [{"name": f"gpu-{place}", "attributes": model} for place in range(DEVICES)]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": NVIDIA_DRIVER, "nodeName": node, "pool": pool, "devices": devices}
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            self.world.api.apply({**kind, "metadata": {"name": f"{node}-gpus"}, "spec": spec})
            self.driver.nodes.append(node)

    def member(self, group: str, name: str, minimum: int, model: str = "") -> None:
        """Create a member with a claim of all devices of a node, of a model if one is given."""
        expression = f'device.attributes["{NVIDIA_DRIVER}"].model == "{model}"'
        selectors = {"selectors": [{"cel": {"expression": expression}}]} if model else {}
        exactly = {"deviceClassName": self.driver.name, "count": DEVICES, **selectors}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        self.world.api.post(self._collection, {"metadata": {"name": name}, "spec": spec})
        annotations = {names.POD_GROUP: group, names.POD_GROUP_MIN_MEMBER: str(minimum)}
        pod = self.world.arena.pod(
            name, annotations=annotations, resourceClaims=[{"name": "gpu", "resourceClaimName": name}]
        )
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.world.arena.create([pod])


@pytest.fixture
def racks(world: World, tmp_path: Path) -> Iterator[Racks]:
    world.arena.nodes(NODES)
    own = Racks(world, tmp_path, nodes=NODES)
    yield own
    own.driver.withdraw()


def test_eight_members_with_eight_devices_each_are_placed_where_one_after_the_other_would_not_fit(racks: Racks) -> None:
    world = racks.world
    racks.list_devices()
    members = [f"m{number}" for number in range(NODES)]
    for number, name in enumerate(members):
        # Those that can use any device come first.
        racks.member("g", name, NODES, LARGE if number >= NODES // 2 else "")
    racks.operator()
    node_of = {name: world.bound(name)["spec"]["nodeName"] for name in members}
    assert sorted(node_of.values()) == sorted(racks.nodes)
    assert {node_of[name] for name in members[NODES // 2 :]} == {*racks.nodes[: NODES // 2]}
    assert racks.consumers() == {name: [name] for name in members}
    assert len(racks.held()) == NODES * DEVICES
    for name in ("n0", "n1"):
        racks.member("other", name, 2, LARGE)
    world.waits("n0", "0 of the 2 required members fit")
    assert racks.consumers().keys() == {*members}
    world.remove(members[-1])
    world.waits("n0", "1 of the 2 required members fit")
    assert racks.consumers().keys() == {*members[:-1]}
    world.remove(members[-2])
    for name in ("n0", "n1"):
        world.bound(name)
    assert racks.consumers().keys() == {*members[:-2], "n0", "n1"}
