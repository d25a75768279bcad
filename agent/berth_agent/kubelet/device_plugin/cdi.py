"""The CDI specification of the node's devices. The container runtime looks up `gpu=GPU-…` in it.

The specification names device nodes. nvidia-ctk's specification also has the driver's libraries, and hooks that make
them known in a container. It can be used instead.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from berth_agent import files
from berth_agent.kubelet.device_plugin import device_nodes, resources
from berth_agent.kubelet.device_plugin.response import OWN_VENDOR, VISIBLE, AllocationContext, extras
from berth_api.device import DeviceSpec

VERSION: Final = "0.5.0"
"""The first with hostPath; containerd reads it since 1.7."""
MODE: Final = 0o644
"""The file mode, as nvidia-ctk's. Programs other than the container runtime read specifications, too."""
NVIDIA_CTK_VENDOR: Final = "nvidia.com"
"""Vendor of the devices that `nvidia-ctk cdi generate` specifies."""

Specification = dict[str, Any]


def specifications(context: AllocationContext) -> dict[str, Specification]:
    """Return each specification by its class; none without cards, or if no container gets its devices by CDI."""
    flags = context.options.flags
    if not flags.by_cdi or not any(_cards(context.spec)):
        return {}
    root = flags.dev_root.rstrip("/")
    # Cards and instances, by UUID or index, whichever containers get, and `all` cards.
    paths = device_nodes.paths(context.spec, context.nodes)
    names = resources.indices(context.spec) if flags.device_id_strategy == "index" else {uuid: uuid for uuid in paths}
    gpus = [{"name": names[uuid], "containerEdits": _edits(paths[uuid], root)} for uuid in paths]
    cards = [path for card in _cards(context.spec) for path in paths[card]]
    specifications = {"gpu": _specification("gpu", [*gpus, {"name": "all", "containerEdits": _edits(cards, root)}])}
    specifications["gpu"]["containerEdits"] = _edits(context.nodes.control, root)
    if flags.by_cdi_only:
        # Else NVIDIA's container runtime would add what an image asks for. With another strategy the environment
        # is that strategy's.
        specifications["gpu"]["containerEdits"]["env"] = [f"{VISIBLE}=void"]
    for kind in extras(flags):
        if nodes := context.nodes.extras.get(kind):
            specifications[kind] = _specification(kind, [{"name": "all", "containerEdits": _edits(nodes, root)}])
    if channels := [channel for channel in flags.imex_channel_ids if channel in context.nodes.channels]:
        specifications["imex-channel"] = _specification(
            "imex-channel",
            [
                {
                    "name": str(channel),
                    "containerEdits": _edits([f"/dev/nvidia-caps-imex-channels/channel{channel}"], root),
                }
                for channel in channels
            ],
        )
    return specifications


def _specification(kind: str, devices: Sequence[Mapping[str, Any]]) -> Specification:
    return {"cdiVersion": VERSION, "kind": f"{OWN_VENDOR}/{kind}", "devices": list(devices)}


def _cards(spec: DeviceSpec) -> Iterable[str]:
    return (device.id for device in spec.devices if device.type == "gpu")


def _edits(paths: Iterable[str], root: str) -> dict[str, Any]:
    return {"deviceNodes": [{"path": path, "hostPath": root + path} for path in paths]}


class CdiFolder:
    """The agent's specifications in the folder that the container runtime reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, Specification] | None = None

    def write(self, specifications: dict[str, Specification]) -> None:
        """Write these specifications, each file atomically, and delete specifications of other classes.

        Raises:
            OSError: the folder cannot be written.
        """
        if specifications == self._written:
            return
        for file in self._path.glob(f"{OWN_VENDOR}-*.json"):
            if file not in map(self._file, specifications):
                file.unlink()
        if specifications:
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
        for kind, specification in specifications.items():
            # The runtime reads whatever ends with .json, at any moment.
            content = orjson.dumps(specification, option=orjson.OPT_INDENT_2)
            files.write(self._file(kind), content, mode=MODE, draft=f".{OWN_VENDOR}-{kind}.{os.getpid()}")
        self._written = specifications

    def _file(self, kind: str) -> Path:
        return self._path / f"{OWN_VENDOR}-{kind}.json"
