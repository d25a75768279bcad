"""A fleet of nodes with simulated GPUs: kwok simulates the nodes, and one agent reports the devices of all.

The agent has only the shipped rights (`agents`).
"""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import yaml

from devcluster import waiting
from devcluster.additions import agents, installation
from devcluster.control_plane import nodes
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.processes import state

CRDS: Final = Path(__file__).parents[2] / "crds"
AGENT: Final = "berth-agent"
EXAMPLE: Final = Path(__file__).parents[2] / "manifests" / "configuration" / "fleet.yaml"
"""A fleet on which every file of `manifests/examples` can be placed, except the pod that is to wait."""


def generated(cluster: Cluster, *, count: int, gpus: int, profile: str) -> Path:
    """Write a fleet file of nodes node-0, node-1, … with equal cards."""
    file = cluster.folder / "fleet.yaml"
    file.write_text(document(pattern=f"node-[0-{count - 1}]", gpus=gpus, profile=profile))
    return file


def start(cluster: Cluster, file: Path, *, deadline: float = 120.0) -> list[str]:
    """Create the nodes of a fleet file; return their names when each has a Device object."""
    names = node_names(file)
    cluster.install_crds(CRDS)
    cluster.play_device_plugins()
    cluster.create_nodes(names, deadline=deadline)
    options = [f"--fleet={file.absolute()}", *agents.options(cluster, names)]
    pid = cluster.run(AGENT, [sys.executable, "-m", "berth_agent", *options])
    waiting.until(
        lambda: _all_reported(cluster, pid=pid, names=names),
        deadline=deadline,
        what=f"the devices of {len(names)} nodes",
        poll=0.2,
    )
    return names


def node_names(file: Path) -> list[str]:
    """Return the nodes that a fleet file describes; the agent checks everything else in it.

    Raises:
        DevclusterError: the file cannot be read, or names no nodes.
    """
    try:
        groups = yaml.safe_load(file.read_text())["nodes"]
        return [name for group in groups for name in nodes.expand(group["names"])]
    except OSError as error:
        raise DevclusterError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise DevclusterError(f"{file} is no fleet file: `nodes` lacks a list with `names` in each entry") from error


def document(*, pattern: str, gpus: int, profile: str) -> str:
    """Return the text of the fleet file."""
    fleet = {"nodes": [{"names": pattern, "profile": profile, "gpus": gpus}]}
    return yaml.safe_dump(fleet, sort_keys=False)


def _all_reported(cluster: Cluster, *, pid: int, names: Collection[str]) -> bool:
    if not state.is_alive(pid):
        raise DevclusterError("\n".join([f"{AGENT} ended; its last lines:", *installation.last_lines(cluster, AGENT)]))
    devices = cluster.api.get(cluster.api.resource("devices").path())["items"]
    return set(names) <= {device["metadata"]["name"] for device in devices}
