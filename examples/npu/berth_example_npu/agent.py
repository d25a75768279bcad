"""The agent's side: which NPUs a node has.

A real plug-in calls a driver. This one reads a file, `EXAMPLE_NPUS`, with the number of NPUs of each node and the
minors of broken ones: `{"node-1": {"count": 4, "broken": [3]}}`. A node that is not in the file has none.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from berth_api.device import DeviceInfo, Topology


class NpuAgent:
    """The NPUs of a node, as its driver reports them."""

    name = "npu"

    def __init__(self) -> None:
        self._file = Path(os.environ.get("EXAMPLE_NPUS", "/etc/example-npus.json"))

    def start(self) -> None:
        """Check that there is a driver; an exception here or in `read` is shown on the Device."""
        if not self._file.exists():
            raise FileNotFoundError(f"{self._file}: no such file; EXAMPLE_NPUS names it")

    def read(self, node: str) -> Sequence[DeviceInfo]:
        """Return the NPUs of a node."""
        npus = json.loads(self._file.read_text()).get(node, {})
        broken = npus.get("broken", [])
        return [_npu(node, minor, health=minor not in broken) for minor in range(npus.get("count", 0))]


def _npu(node: str, minor: int, *, health: bool) -> DeviceInfo:
    # `resources` may be left out: the default is 100 hundredths of one NPU.
    return DeviceInfo(
        type="npu",
        minor=minor,
        id=f"NPU-{node}-{minor}",
        health=health,
        model="Example NPU 1",
        topology=Topology(node_id=minor % 2, bus_id=f"0000:{0x40 + minor:02x}:00.0"),
    )
