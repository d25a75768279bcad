"""The response to Allocate: how a container gets its devices, by the configured strategies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from berth_agent.configuration.options import Flags, Options
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse, Mount
from berth_agent.kubelet_api.deviceplugin_pb2 import DeviceSpec as DeviceNode
from berth_agent.vendor import CDI_VENDOR
from berth_agent.vendors.nvidia.hand_over import device_nodes, resources
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_api.device import DeviceSpec

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
LISTED: Final = "/var/run/nvidia-container-devices"
"""Folder whose entries name a container's devices under `volume-mounts`."""
OWN_VENDOR: Final = f"{CDI_VENDOR}nvidia.com"
"""Vendor of the CDI devices that the agent specifies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationContext:
    """What Allocate responses are composed of."""

    spec: DeviceSpec
    options: Options
    nodes: DeviceNodes = field(default_factory=DeviceNodes)
    vendor: str = OWN_VENDOR
    unlisted: frozenset[str] = frozenset()
    """PCI addresses of cards that the driver holds and the spec does not list. NVML counts them, too."""


def compose(context: AllocationContext, ids: Sequence[str], *, key: str) -> ContainerAllocateResponse:
    """Compose the answer for one container; `key` ends the name of its CDI annotation."""
    flags = context.options.flags
    devices = list(dict.fromkeys(map(resources.device_of, ids)))
    device_names = devices
    if flags.device_id_strategy == "index":
        numbers = resources.indices(context.spec)
        device_names = [numbers[device] for device in devices]
    channels = [channel for channel in flags.imex_channel_ids if channel in context.nodes.channels]
    qualified = [
        *(f"{context.vendor}/gpu={device}" for device in device_names),
        *(f"{context.vendor}/imex-channel={channel}" for channel in channels),
        *(f"{context.vendor}/{kind}=all" for kind in extras(flags) if kind in context.nodes.extras),
    ]
    answer = ContainerAllocateResponse()
    if "cdi-annotations" in flags.device_list_strategy:
        answer.annotations[f"{flags.cdi_annotation_prefix}nvidia-device-plugin_{key}"] = ",".join(qualified)
    if "cdi-cri" in flags.device_list_strategy:
        answer.cdi_devices.extend(CDIDevice(name=name) for name in qualified)
    if flags.by_cdi_only:
        return answer
    if "envvar" in flags.device_list_strategy:
        answer.envs[VISIBLE] = ",".join(device_names)
        if channels:
            answer.envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
    if "volume-mounts" in flags.device_list_strategy:
        answer.envs[VISIBLE] = LISTED
        entries = [*device_names, *(f"imex/{channel}" for channel in channels)]
        answer.mounts.extend(Mount(host_path="/dev/null", container_path=f"{LISTED}/{entry}") for entry in entries)
    if flags.pass_device_specs:
        nodes_by_device = device_nodes.paths(context.spec, context.nodes)
        # Those that do not exist yet are created by NVIDIA's runtime, but only after the devices were looked up.
        control = (path for path in context.nodes.control if path not in context.nodes.awaited)
        paths = [*control, *(path for device in devices for path in nodes_by_device[device])]
        root = flags.dev_root.rstrip("/")
        answer.devices.extend(
            DeviceNode(container_path=path, host_path=root + path, permissions="rw") for path in dict.fromkeys(paths)
        )
    answer.envs.update({f"NVIDIA_{kind.upper()}": "enabled" for kind in extras(flags)})
    return answer


def extras(flags: Flags) -> list[str]:
    """Return the further CDI classes that containers get."""
    switches = {"gdrcopy": flags.gdrcopy_enabled, "gds": flags.gds_enabled, "mofed": flags.mofed_enabled}
    return [kind for kind, enabled in switches.items() if enabled]
