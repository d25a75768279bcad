"""A real node with the machine's real cards, and pods that compute on them. It needs root and a driver of NVIDIA.

The image of a real node holds one static program. CUDA comes from the machine. Each container mounts it, and runs the
machine's own Python with the machine's own libraries.
"""

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.nodes import Strings
from devcluster.real_node import RealNode
from tests.gpu import client
from tests.gpu.ask import ask
from tests.gpu.describe import describe
from tests.node.stage import Stage
from tests.nvml.fixture import NvmlFixture

HOST: Final = "/host"
"""Where a container sees the machine's files."""
_LIBRARY: Final = re.compile(r"=> (/\S+)")


class RealMachine(NvmlFixture):
    """The machine as it is; nothing of it can be changed."""

    @property
    def library(self) -> Path:
        """Return the name of NVIDIA's library."""
        return Path("libnvidia-ml.so.1")

    @property
    def sysfs(self) -> Path:
        """Return the kernel's own."""
        return Path("/sys")

    def write(self) -> None:
        """Change nothing."""


class CardStage(Stage):
    """A stage with the machine's own cards."""

    def __init__(self, node: RealNode, arena: Arena, folder: Path, **options: object) -> None:
        found = describe(ask({}), folder)
        super().__init__(
            node, arena, folder, gpus=found.gpus, nvidia_dev_root=Path("/"), dev_folder=Path("/dev"), **options
        )
        self.machine = RealMachine(folder, gpus=found.gpus)

    def _make_device_nodes(self) -> None:
        """Make none: the driver has made them."""

    def client(self, name: str, limits: Strings, *, mebibytes: int, **fields: Any) -> Manifest:
        """Return a pod that allocates memory of its card, and says what it sees."""
        pod = self.pod(name, limits, **fields)
        [container] = pod["spec"]["containers"]
        container |= {"command": command(mebibytes), "volumeMounts": [{"name": "host", "mountPath": HOST}]}
        container["volumeMounts"][0]["readOnly"] = True
        container["env"] = [{"name": "PYTHONHOME", "value": f"{HOST}{sys.base_prefix}"}]
        container.pop("args")
        pod["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
        return pod

    def seen(self, name: str) -> Mapping[str, Any]:
        """Return what a client printed."""

        self.wait(lambda: self.is_running(name), what=f"{name} to run")
        text = self.wait(lambda: self.node.output(self.read(name)), what=f"what {name} sees")
        answer: dict[str, Any] = json.loads(text.splitlines()[-1])
        return answer


def command(mebibytes: int) -> list[str]:
    """Return how a container runs the client with the machine's Python, CUDA and C library."""
    python = Path(sysconfig.get_config_var("BINDIR"), Path(sys.executable).resolve().name)
    listed = subprocess.run(["ldd", python, _cuda()], check=True, stdout=subprocess.PIPE, text=True).stdout
    folders = {Path(found).parent for found in _LIBRARY.findall(listed)} | {_cuda().parent}
    search = ":".join(f"{HOST}{folder}" for folder in sorted(folders))
    loader = next(word for word in listed.split() if "/ld-linux" in word)
    return [
        f"{HOST}{Path(loader).resolve()}",
        *("--library-path", search),
        f"{HOST}{python}",
        *(f"{HOST}{client.__file__}", str(mebibytes)),
    ]


def _cuda() -> Path:
    """Return where the linker finds the driver's libcuda."""
    listed = subprocess.run(["ldconfig", "-p"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(next(line.split()[-1] for line in listed.splitlines() if "libcuda.so.1 " in line and "x86-64" in line))
