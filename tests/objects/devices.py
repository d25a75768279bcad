"""Nodes as their agent finds them, with ids that a table can name: card 3 is GPU-3, its second instance MIG-3-1."""

from typing import Any

from berth_agent.configuration.options import Flags, Options, Sharing
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_agent.vendors.nvidia.hand_over.response import AllocationContext
from berth_agent.vendors.simulated.fleet import NodeGroup
from berth_agent.vendors.simulated.inventory import simulate
from berth_agent.vendors.simulated.profiles import BUILT_IN
from berth_api.device import DeviceInfo, DeviceSpec

GPU = "nvidia.com/gpu"


def spec(gpus: int = 2, profile: str = "a100", **fields: Any) -> DeviceSpec:
    """Describe a node: cards of one profile; further fields are those of a fleet file's nodes."""
    group = NodeGroup(names="node", profile=profile, gpus=gpus, **fields)
    device_spec = simulate("node", group, [BUILT_IN[profile]] * gpus).spec
    return device_spec.model_copy(update={"devices": [_named(each) for each in device_spec.devices]})


def _named(card: DeviceInfo) -> DeviceInfo:
    if card.type != "gpu":
        return card
    changes: dict[str, Any] = {"id": f"GPU-{card.minor}"}
    if card.mig:
        instances = [
            each.model_copy(update={"id": f"MIG-{card.minor}-{number}"})
            for number, each in enumerate(card.mig.instances)
        ]
        changes["mig"] = card.mig.model_copy(update={"instances": instances})
    return card.model_copy(update=changes)


def options(
    *, slices: int = 1, of: str = GPU, rename: bool = False, one_at_most: bool = False, **flags: Any
) -> Options:
    """Return options of the device plugin; more than one replica enables time-slicing."""
    replicas = {of: slices} if slices > 1 else {}
    sharing = Sharing(replicas=replicas, rename=rename, one_at_most=one_at_most)
    return Options(flags=Flags(**flags), sharing=sharing)


def machine(device_spec: DeviceSpec, chosen: Options, **fields: Any) -> AllocationContext:
    """Return a machine of a node and options; without further fields it has no device files under /dev."""
    return AllocationContext(spec=device_spec, options=chosen, nodes=DeviceNodes(**fields))
