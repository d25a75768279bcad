"""A fleet of nodes with simulated GPUs: nodes that kwok plays, and one agent that reports devices for all."""

import sys
from pathlib import Path
from typing import Final

import yaml

from devcluster import nodes, state, waiting
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError

CRDS: Final = Path(__file__).parent.parent / "crds"
AGENT: Final = "berth-agent"
LAST_LINES: Final = 15


def start(cluster: Cluster, *, count: int, gpus: int, profile: str, deadline: float = 120.0) -> None:
    """Create nodes node-0, node-1, … and return when each has a Device object."""
    pattern = f"node-[0-{count - 1}]"
    cluster.install_crds(CRDS)
    cluster.play_device_plugins()
    cluster.create_nodes(nodes.expand(pattern), deadline=deadline)
    file = cluster.folder / "fleet.yaml"
    file.write_text(document(pattern=pattern, gpus=gpus, profile=profile))
    command = [sys.executable, "-m", "berth_agent", "--inventory", "simulated", "--fleet", str(file)]
    pid = cluster.run(AGENT, command)
    waiting.until(
        lambda: _all_reported(cluster, pid=pid, count=count),
        deadline=deadline,
        what=f"the devices of {count} nodes",
        poll=0.2,
    )


def document(*, pattern: str, gpus: int, profile: str) -> str:
    """Return the text of the fleet file."""
    fleet = {"nodes": [{"names": pattern, "profile": profile, "gpus": gpus}]}
    return yaml.safe_dump(fleet, sort_keys=False)


def _all_reported(cluster: Cluster, *, pid: int, count: int) -> bool:
    if not state.is_alive(pid):
        log = (cluster.folder / f"{AGENT}.log").read_text(errors="replace").splitlines()
        raise DevclusterError("\n".join([f"{AGENT} ended; its last lines:", *log[-LAST_LINES:]]))
    devices = cluster.api.resource("devices").path()
    return len(cluster.api.get(devices)["items"]) >= count
