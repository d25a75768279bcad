"""The response to Allocate: how a container gets its devices, by the configured strategies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth_agent.configuration.options import Flags, Options
from berth_agent.kubelet.api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse, Mount
from berth_agent.kubelet.api.deviceplugin_pb2 import DeviceSpec as DeviceNode
from berth_agent.kubelet.device_plugin import device_nodes, resources
from berth_agent.kubelet.device_plugin.device_nodes import DeviceNodes
from berth_agent.kubelet.device_plugin.handler import RefusedError
from berth_agent.kubelet.device_plugin.resources import Offer
from berth_api.allocation import REPLICA_MARK
from berth_api.device import DeviceSpec

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
LISTED: Final = "/var/run/nvidia-container-devices"
"""Folder whose entries name a container's devices under `volume-mounts`."""
MAX_SHOWN: Final = 160
"""Characters of an unknown id that an error shows; the id of a replica has fewer."""
OWN_VENDOR: Final = "k8s.device-plugin.nvidia.com"
"""Vendor of the CDI devices that the agent specifies."""


class InvalidRequestError(RefusedError):
    """Kubelet requests devices that are not offered. The text is NVIDIA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationContext:
    """What Allocate responses are composed of."""

    spec: DeviceSpec
    options: Options
    nodes: DeviceNodes = field(default_factory=DeviceNodes)
    vendor: str = OWN_VENDOR


class OfferedIds:
    """The ids of an offer. They allow checking requests in a time that depends on the offer alone."""

    def __init__(self, offer: Offer) -> None:
        self._resource, self._known = offer.resource, frozenset(unit.id for unit in offer.units)

    def check(self, ids: Sequence[str], *, one_at_most: bool) -> None:
        """Check that a request is for offered units, each once.

        Raises:
            InvalidRequestError: it is not.
        """
        wrong = f'invalid allocation request for "{self._resource}": invalid request: '
        if len(ids) > len(self._known):
            raise InvalidRequestError(f"{wrong}{len(ids)} devices; offered are {len(self._known)}")
        for device in ids:
            if device not in self._known:
                shown = device if len(device) <= MAX_SHOWN else f"{device[:MAX_SHOWN]}... ({len(device)} characters)"
                raise InvalidRequestError(f"{wrong}unknown device: {shown}")
        if one_at_most and len(ids) > 1 and any(REPLICA_MARK in device for device in ids):
            raise InvalidRequestError(f"{wrong}maximum request size for shared resources is 1; found {len(ids)}")

    def only(self, ids: Iterable[str]) -> list[str]:
        """Return the ids that are offered."""
        return [device for device in ids if device in self._known]


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
        paths = [*context.nodes.control, *(path for device in devices for path in nodes_by_device[device])]
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
