"""The device nodes under /dev that a container needs to use its cards and instances."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from berth_agent.inventory import sysfs
from berth_agent.vendor import MisconfiguredError
from berth_api.device import DeviceSpec

UVM: Final = "/dev/nvidia-uvm"
CONTROL: Final = ("/dev/nvidiactl", UVM, "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""What every container gets, if it exists."""
NEEDED: Final[Mapping[str, str]] = {
    "nvidia-frontend": "/dev/nvidiactl",
    "nvidiactl": "/dev/nvidiactl",
    "nvidia-uvm": UVM,
}
"""What the driver has registered with the kernel (/proc/devices) -> its node, which every container needs.

The driver creates no nodes. Another program does, sometimes long after the driver was loaded. A container without a
node would run, and find no card. So CDI lists a node that is needed also before it exists: the container runtime then
refuses each start, as for the node of a card, and kubelet tries again. Where NVIDIA's runtime makes containers without
CDI, it creates the node itself.
"""
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "gdrcopy": ("gdrdrv",),
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/uverbs*", "infiniband/rdma_cm"),
}
"""CDI class -> where under /dev its nodes are."""

_MIG_MINORS: Final = Path("driver/nvidia-caps/mig-minors")
_CAPABILITY: Final = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")
_NO_COMPUTE_INSTANCE: Final = -1

Capability = tuple[int, int, int]
"""Minor of the card, GPU instance, compute instance; -1 for the GPU instance itself."""


class MissingDeviceNodeError(MisconfiguredError):
    """A device node is not there that containers must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNodes:
    """What of /dev is there, or will be."""

    control: tuple[str, ...] = ()
    awaited: frozenset[str] = frozenset()
    """Those of `control` that do not exist yet."""
    capabilities: Mapping[Capability, int] = field(default_factory=dict)
    """Capability -> N of /dev/nvidia-caps/nvidia-capN."""
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """CDI class -> its nodes; only classes that have some."""
    channels: tuple[int, ...] = ()
    """IMEX channels."""


def read(*, dev: Path, proc: Path) -> DeviceNodes:
    """Return the device nodes that exist, or that the loaded driver needs."""
    needed = _needed(proc / "devices")
    extras: dict[str, tuple[str, ...]] = {}
    for kind, patterns in EXTRAS.items():
        matches = [path for pattern in patterns for path in sysfs.entries(dev, pattern)]
        if matches:
            extras[kind] = tuple(f"/dev/{path.relative_to(dev)}" for path in matches)
    channels = sysfs.entries(dev, "nvidia-caps-imex-channels/channel[0-9]*")
    existing = {path for path in CONTROL if (dev / path.removeprefix("/dev/")).exists()}
    return DeviceNodes(
        control=tuple(path for path in CONTROL if path in needed or path in existing),
        awaited=needed - existing,
        capabilities=_capabilities(proc / _MIG_MINORS),
        extras=extras,
        channels=tuple(sorted(int(path.name[7:]) for path in channels)),
    )


def check(nodes: DeviceNodes, *, channels: Iterable[int]) -> None:
    """Check that the IMEX channels exist that containers must have.

    Raises:
        MissingNodeError: one is not.
    """
    for channel in channels:
        if channel not in nodes.channels:
            raise MissingDeviceNodeError(
                f"/dev/nvidia-caps-imex-channels/channel{channel}: not there, and --imex-required is set"
            )


def paths(spec: DeviceSpec, nodes: DeviceNodes) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each card and each instance by its id, without nodes that all share."""
    nodes_by_device: dict[str, tuple[str, ...]] = {}
    for card in spec.devices:
        if card.type == "gpu":
            card_node = f"/dev/nvidia{card.minor}"
            nodes_by_device[card.id] = (card_node,)
            for instance in card.mig.instances if card.mig else ():
                capabilities = [
                    (card.minor, instance.gpu_instance, _NO_COMPUTE_INSTANCE),
                    (card.minor, instance.gpu_instance, instance.compute_instance),
                ]
                numbers = [nodes.capabilities[key] for key in capabilities if key in nodes.capabilities]
                nodes_by_device[instance.id] = (
                    card_node,
                    *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers),
                )
    return nodes_by_device


def _needed(devices: Path) -> frozenset[str]:
    """Return the nodes that a container needs with the parts of the driver that are loaded."""
    try:
        words = devices.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return frozenset()
    return frozenset(NEEDED[word] for word in words if word in NEEDED)


def _capabilities(file: Path) -> Mapping[Capability, int]:
    try:
        return _parsed(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        # There is none where the driver knows no MIG.
        return {}


@lru_cache(maxsize=1)
def _parsed(text: str) -> Mapping[Capability, int]:
    """Return the capabilities; cached, because 4,300 lines cost 5 ms, and the device plugin reads them every second."""
    minors = {}
    for line in text.splitlines():
        if match := _CAPABILITY.fullmatch(line.strip()):
            card, gpu_instance, compute_instance, number = match.groups(default=str(_NO_COMPUTE_INSTANCE))
            minors[int(card), int(gpu_instance), int(compute_instance)] = int(number)
    return minors
