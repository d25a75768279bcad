"""A real node whose operator and agent are pods, as in an installation."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from devcluster import Arena
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.control_plane.nodes import Strings
from devcluster.real_node import Container, RealNode
from tests.integration.operator import world
from tests.node.installed import Installation, Place
from tests.node.stage import Stage
from tests.nvml.fixture import a100

PROGRAMS: Final = ("operator", "webhook", "agent")
"""The containers; the label of each pod is `berth-` and this name."""
LOG_LINES: Final = 40


class Site(Stage):
    """A stage whose operator and agent are pods: what `installation` installs."""

    def __init__(
        self, node: RealNode, arena: Arena, folder: Path, installation: Callable[[Place, Path], Installation]
    ) -> None:
        super().__init__(node, arena, folder, gpus=[a100(index) for index in range(4)], device_list_strategy="envvar")
        self.machine.write()
        self.installation = installation(Place(cluster=arena.cluster, machine=self.machine), folder)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Remove Berth, and what its pods would need."""
        for name in PROGRAMS:
            if self.pod_of(name):
                sys.stdout.write(f"--- {name}\n{self.log(name)}\n")
        self.installation.uninstall()
        super().close()

    def pod_of(self, program: str) -> Manifest:
        """Return the newest pod of a program; empty if there is none."""
        query = {"labelSelector": f"app.kubernetes.io/name=berth-{program}"}
        pods = self.arena.cluster.api.get("/api/v1/pods", **query)["items"]
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default={})

    def log(self, program: str) -> str:
        """Return the last lines of a program; empty if its container has not started."""
        try:
            return "\n".join(self.node.output(self.pod_of(program), program).splitlines()[-LOG_LINES:])
        except (ValueError, FileNotFoundError):
            return ""

    def is_ready(self, program: str) -> bool:
        """Return whether the probes of a program succeed."""
        return world.condition(self.pod_of(program), "Ready").get("status") == "True"

    def is_accepted(self, name: str, limits: Strings, **fields: Any) -> bool:
        """Create a pod; return whether the API server accepted it: it refuses while the webhook does not answer."""
        try:
            self.submit(limits, name, **fields)
        except ApiError as error:
            if "failed calling webhook" in str(error):
                return False
            raise
        return True

    def containers(self, *names: str) -> list[Container]:
        """Return the containers of pods."""
        return [self.node.container(self.read(name)) for name in names]

    def is_bound(self, name: str) -> bool:
        """Return whether a pod has a node."""
        return "nodeName" in self.read(name)["spec"]
