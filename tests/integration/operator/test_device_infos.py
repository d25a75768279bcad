"""Files with the cards of another vendor: from the node's folder to the Binding of a pod, and to its reason to wait."""

import json
import time
from pathlib import Path
from typing import Any

from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture

VENDOR = "node.koordinator.sh/gpu-vendor"
TWO = {"huawei.com/npu-core": "40", "kubernetes.io/gpu-memory-ratio": "200"}


def cards(vendor: str) -> list[dict[str, Any]]:
    """Return four cards, of which 0 and 2, and 1 and 3, are linked, on two NUMA nodes."""
    return [
        {
            "vendor": vendor,
            "model": "Ascend-910B3",
            "uuid": f"npu-{minor}-{minor}",
            "minor": str(minor),
            "resources": {"koordinator.sh/gpu-memory": "64Gi", "huawei.com/npu-core": "20"},
            "topology": {"p2pLinks": [{"peerMinor": str(minor ^ 2), "type": "HCCS"}], "nodeID": str(minor // 2)},
            "status": {"healthy": minor != 3, "errCode": "" if minor != 3 else "chip error"},
        }
        for minor in range(4)
    ]


def write(folder: Path, content: object) -> None:
    (folder / ".draft").write_text(json.dumps(content))
    (folder / ".draft").rename(folder / "huawei.json")


def conditions(device: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in device["status"]["conditions"]}


def test_a_pod_gets_whole_npus_by_the_annotations_of_their_plugin(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "xpu-device-infos"
    folder.mkdir()
    write(folder, cards("huawei"))
    machine = NvmlFixture(tmp_path / "machine", loaded=False)
    machine.folder.mkdir()
    machine.write()
    [node] = world.arena.nodes(1)
    world.operator()
    world.processes.node_agent(node, machine, device_infos=folder, poll_interval=0.2, resync_interval=1.0)
    world.wait(lambda: world.ready(node) == "True", what="the Device to be ready")

    shown = world.shown(node)
    assert shown["metadata"]["labels"][VENDOR] == "huawei"
    assert conditions(shown)["InventoryRead.xpu"] == ("True", "InventoryRead")
    assert [each["health"] for each in shown["spec"]["devices"]] == [True, True, True, False]

    began = time.time_ns()
    world.pod("npus", TWO, annotations={"berth.dev/gpu-topology": "hccs"})
    pod = world.bound("npus")
    annotations = pod["metadata"]["annotations"]
    assert words.minors(pod) == [0, 2]
    assert [each["id"] for each in words.allocation(pod)["gpu"]] == ["GPU-npu-0-0", "GPU-npu-2-2"]
    assert annotations["huawei.com/npu-core"] == "0,2"
    assert began < int(annotations["predicate-time"]) < time.time_ns()

    # The last good reading stays, and what pods hold stays charged.
    (folder / "huawei.json").write_text("garbage")
    world.wait(
        lambda: conditions(world.shown(node)).get("InventoryRead.xpu") == ("False", "Malformed"),
        what="the damaged file to be reported",
    )
    assert len(world.shown(node)["spec"]["devices"]) == 4

    # The plugin of another vendor needs a lock on the node.
    world.remove("npus")
    write(folder, cards("metax"))
    world.wait(lambda: world.shown(node)["metadata"]["labels"][VENDOR] == "metax", what="the other vendor")
    world.pod("shown", {"kubernetes.io/gpu": "100"})
    assert world.waits("shown", "lock") == (
        "0/1 nodes are available: 1 node(s) have too few GPUs that are given by name "
        "(1 requested; the device plugin of metax needs a lock on the node)."
    )
    world.wait(
        lambda: conditions(world.shown(node)).get("GivenByName") == ("False", "CardsWithheld"),
        what="the Device to show that its cards are not given",
    )
