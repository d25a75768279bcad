"""NICs together with GPUs, their virtual functions, and every NIC of a node, by the pods' annotations."""

import json
from typing import Any

from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
GPUS, NICS = "nvidia.com/gpu", "koordinator.sh/rdma"


def place(switch: str, node: int = 0) -> Manifest:
    """Return the place of a card on the board."""
    return {"topology": {"socketID": 0, "nodeID": node, "pcieID": switch, "busID": ""}}


def nic(minor: int, switch: str, **fields: Any) -> Manifest:
    """Return a healthy NIC with two virtual functions."""
    functions = [{"minor": number, "busID": f"0000:{minor}f:00.{number}"} for number in (1, 0)]
    groups = [{"labels": {"net": "fast"}, "vfs": functions}]
    return {
        "type": "rdma",
        "minor": minor,
        "id": f"0000:{minor}f:00.7",
        "health": True,
        "resources": {NICS: 100},
        "vfGroups": groups,
        **place(switch),
        **fields,
    }


def board(world: World) -> str:
    """Create a node of three switches with a NIC each, and two GPUs under the second of them."""
    [node] = world.arena.nodes()
    under = {0: "A", 1: "B", 2: "B", 3: "C"}
    cards = [words.gpu(minor, **place(switch)) for minor, switch in under.items()]
    world.device(node, [*cards, *(nic(minor, switch) for minor, switch in enumerate("ABC"))])
    world.wait_ready(node, "True")
    return node


def hinted(**rdma: Any) -> dict[str, str]:
    return {HINT: json.dumps({"rdma": rdma})}


def held(world: World, name: str) -> dict[str, list[Any]]:
    """Return a pod's grants: minors of GPUs; of NICs the minors with their shares and functions."""
    allocated = words.allocation(world.bound(name))
    nics = [(each["minor"], each["resources"], each.get("extension")) for each in allocated.get("rdma", [])]
    return {"gpu": [each["minor"] for each in allocated.get("gpu", [])], "rdma": nics}


def part(amount: int, minor: int, *functions: int) -> tuple[int, dict[str, str], Any]:
    """Return a grant of a share of a NIC, with these of its virtual functions."""
    vfs = [{"minor": number, "busID": f"0000:{minor}f:00.{number}"} for number in functions]
    return minor, {NICS: str(amount)}, {"vfs": vfs} if vfs else None


def test_nics_are_allocated_with_gpus_by_function_and_all_of_them(shared: World) -> None:
    node = board(shared)
    together = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}

    shared.pod("pair", {GPUS: "2", NICS: "100"}, annotations=together)
    assert held(shared, "pair") == {"gpu": [1, 2], "rdma": [part(100, 1)]}
    shared.pod("function", {NICS: "10"}, annotations=hinted(vfSelector={"matchLabels": {"net": "fast"}}))
    assert held(shared, "function") == {"gpu": [], "rdma": [part(10, 0, 0)]}
    shared.audit(node)

    # The NIC next to the pair is allocated whole, so that not every NIC has something left.
    shared.pod("every", {NICS: "20"}, annotations=hinted(allocateStrategy="ApplyForAll", vfSelector={}))
    assert "node(s) have too little free on some RDMA devices (every one requested)" in shared.waits("every")
    shared.remove("pair")
    assert held(shared, "every")["rdma"] == [part(20, 0, 1), part(20, 1, 0), part(20, 2, 0)]

    shared.remove("function")
    shared.pod("again", {NICS: "30"}, annotations=hinted(vfSelector={}))
    assert held(shared, "again")["rdma"] == [part(30, 0, 0)]
