"""Shares with limits on a real node, in a namespace that enforces Pod Security `restricted`.

Containers run `tests/mps/client.c`. It has the limits that CUDA would have by MPS or HAMi-core.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from berth_api import names
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.mps import build
from tests.mps.daemon import StandIn
from tests.node.stage import SHARE, Stage
from tests.nvml.fixture import a100

MPS, HAMI_CORE = names.MPS_RESOURCE, names.HAMI_CORE_RESOURCE
UNITS: Final = 100
WHOLE: Final = 81920
"""MiB of the card."""
OUT_OF_MEMORY: Final = 2
SERVER_ENDED: Final = 806
VERSION: Final = "1.0"
RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
USER: Final = 65534
HARDENED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
BY_ANNOTATION: Final = "metadata.annotations['main.devices.berth.dev/{}']"


class Limits(Stage):
    """A stage with one card, whose agent has both resources.

    Attributes:
        daemon: the MPS daemon.
        library: the folder with the versions of HAMi-core.
    """

    daemon: StandIn
    library: Path

    def share(self, name: str, resource: str, percent: int, wanted: int, **spec: Any) -> None:
        """Create a pod with a share of the card that allocates so many MiB."""
        environment = _BY_MPS if resource == MPS else _BY_HAMI_CORE
        pod = self.pod(
            name,
            {SHARE: str(percent), resource: "1"},
            words=[str(wanted)],
            environment={"NVIDIA_VISIBLE_DEVICES": BY_ANNOTATION.format("visible"), **environment},
            **spec,
        )
        [container] = pod["spec"]["containers"]
        container |= {"image": build.IMAGE, "securityContext": HARDENED}
        self.arena.create([pod])

    def seen(self, name: str) -> list[Manifest]:
        """Return what the client of a pod has printed since its last start."""
        try:
            return [json.loads(line) for line in self.node.output(self.read(name)).splitlines()]
        except (ValueError, FileNotFoundError):
            return []

    def all_seen(self, name: str) -> list[Manifest]:
        """Return what it has printed since its first start, as far as kubelet keeps it."""
        metadata = self.read(name)["metadata"]
        folder = self.node.root / "logs" / f"{metadata['namespace']}_{name}_{metadata['uid']}" / "main"
        lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines()]
        return [json.loads(line.split(" ", 3)[3]) for line in lines]

    def has_started(self, name: str) -> bool:
        """Return whether a pod runs and its client has reported."""
        return self.is_running(name) and bool(self.seen(name))

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a pod's container; None while it runs."""
        [status] = self.read(name)["status"].get("containerStatuses", [{}])
        code: int | None = status.get("state", {}).get("terminated", {}).get("exitCode")
        return code

    def waiting(self, name: str) -> str:
        """Return why a pod's container waits for its start; empty if it does not."""
        [status] = self.read(name)["status"].get("containerStatuses", [{}])
        return str(status.get("state", {}).get("waiting", {}).get("message", ""))

    def reason(self, condition: str) -> tuple[str, str]:
        """Return reason and message of a condition of the Device."""
        found = world.condition(self.device(), condition)
        return found.get("reason", ""), found.get("message", "")

    def offers(self, resource: str, count: int = UNITS) -> Callable[[], bool]:
        """Return whether the Node has so many free units of a resource, as a condition to wait for."""
        return lambda: self.node.allocatable(resource) == count


_BY_MPS: Final = {
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": BY_ANNOTATION.format("mps-memory-limit"),
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": BY_ANNOTATION.format("mps-threads"),
}
_BY_HAMI_CORE: Final = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": BY_ANNOTATION.format("memory-limit-0"),
    "CUDA_DEVICE_SM_LIMIT": BY_ANNOTATION.format("sm-limit-0"),
}


@contextmanager
def limits(node: RealNode, arena: Arena, folder: Path, *, mps: bool) -> Iterator[Limits]:
    """Run Berth on a node that limits shares by MPS, else by HAMi-core, until the end of the block."""
    with TemporaryDirectory(prefix="berth-") as short:
        programs = Path(short)
        programs.chmod(0o755)
        build.build(programs)
        build.write_image(programs / "image.tar", programs)
        node.import_images(programs / "image.tar")
        daemon, library = StandIn(programs), programs / "hami"
        daemon.start()
        options = {"mps": True, "mps_folder": daemon.folder, "mps_control": daemon.program} if mps else {}
        stage = Limits(
            node,
            arena,
            folder,
            gpus=[a100(0)],
            device_plugin=None,
            resync_interval=1.0,
            **options or {"hami_core": library},
        )
        stage.daemon, stage.library = daemon, library
        _label(arena, "nodes", node.name, {names.ISOLATION_KEY: "mps"} if mps else {})
        try:
            with stage:
                # The stage's own probe is not as restricted.
                _label(arena, "namespaces", arena.namespace, RESTRICTED)
                yield stage
        finally:
            daemon.kill()
            _label(arena, "nodes", node.name, {names.ISOLATION_KEY: None})


def install(stage: Limits, version: str = VERSION) -> Path:
    """Install a version of HAMi-core's stand-in as the agent's init container does; return its path."""
    library = stage.library / version / build.VGPU
    library.parent.mkdir(parents=True)
    library.write_bytes((stage.library.parent / build.VGPU).read_bytes())
    library.chmod(0o755)
    (stage.library / "next").symlink_to(version)
    (stage.library / "next").replace(stage.library / "current")
    return library


def _label(arena: Arena, kind: str, name: str, labels: dict[str, Any]) -> None:
    arena.cluster.api.merge(f"/api/v1/{kind}/{name}", {"metadata": {"labels": labels}})
