"""The CDI specification of the node's devices. The container runtime looks up `gpu=GPU-…` in it.

The specification names device nodes. nvidia-ctk's specification also has the driver's libraries, and hooks that make
them known in a container. It can be used instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from berth_agent.kubelet.device_plugin.cdi_folder import VERSION
from berth_agent.vendor import Specification
from berth_agent.vendors.nvidia.hand_over import device_nodes, resources
from berth_agent.vendors.nvidia.hand_over.response import OWN_VENDOR, VISIBLE, AllocationContext, extras
from berth_api.device import DeviceSpec

NVIDIA_CTK_VENDOR: Final = "nvidia.com"
"""Vendor of the devices that `nvidia-ctk cdi generate` specifies."""


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
