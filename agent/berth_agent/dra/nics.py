"""The node's RDMA NICs as devices of ResourceSlices, and what a container gets of one.

Like MIG instances of a card, the virtual functions of a NIC are listed in place of the NIC. A container gets the device
files of the function. It gets no network interface, which RoCE needs besides.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from berth_agent.dra.devices import MAX_TEXT, STANDARD, ListedDevice, fault_of
from berth_agent.inventory.discovery import rdma
from berth_agent.inventory.sysfs import UNTOLD
from berth_agent.vendor import RefusedError
from berth_api.allocation.device_ids import nic_name
from berth_api.device import DeviceInfo, DeviceSpec
from berth_api.names import DEVICE_LINK_LAYER, DEVICE_RDMA, RDMA


def listed(spec: DeviceSpec, *, roots: Mapping[str, str]) -> tuple[ListedDevice, ...]:
    """Return the NICs of a node by their PCI addresses.

    Args:
        spec: the node's devices.
        roots: PCIe root complex by PCI address.
    """
    nics = sorted((device for device in spec.devices if device.type == RDMA), key=lambda nic: nic.id)
    return tuple(device for nic in nics for device in _functions(nic, roots))


def _functions(nic: DeviceInfo, roots: Mapping[str, str]) -> Iterable[ListedDevice]:
    common: dict[str, dict[str, Any]] = {
        "type": {"string": RDMA},
        "productName": {"string": nic.model[:MAX_TEXT]},
        "linkLayer": {"string": nic.labels.get(DEVICE_LINK_LAYER, "")[:MAX_TEXT]},
    }
    # Virtual functions are behind the same root as their NIC.
    if root := roots.get(nic.id):
        common[f"{STANDARD}pcieRoot"] = {"string": root}
    if nic.topology and nic.topology.node_id != UNTOLD:
        common[f"{STANDARD}numaNode"] = {"int": nic.topology.node_id}
    virtual = [function.bus_id for group in nic.vf_groups for function in group.vfs if function.bus_id]
    for address in virtual or [nic.id]:
        own = {f"{STANDARD}pciBusID": {"string": address}}
        if not virtual:
            own["rdmaDevice"] = {"string": nic.labels.get(DEVICE_RDMA, "")[:MAX_TEXT]}
        yield ListedDevice(
            name=nic_name(address),
            type=RDMA,
            id=address,
            card=nic.id,
            place=address,
            attributes={**common, **own},
            **fault_of(nic),
        )


def edits(sysfs_root: Path, address: str) -> dict[str, Any]:
    """Return the edits of a CDI device that give a container one function.

    Raises:
        RefusedError: the function has no RDMA device now.
    """
    files = rdma.char_devices(sysfs_root, address)
    if not files:
        raise RefusedError(f"the NIC {address} has no RDMA device now")
    return {"deviceNodes": [rdma.cdi_node(file) for file in (*files, *rdma.connection_manager(sysfs_root))]}
