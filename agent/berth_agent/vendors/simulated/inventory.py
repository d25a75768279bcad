"""An inventory without hardware: any number of nodes and kinds of devices, from a fleet file.

Ids are derived from the names of node and card, so that a restart changes none.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from berth_agent.conditions import Finding, unhealthy
from berth_agent.inventory.interface import NothingMeasured
from berth_agent.readings import Reading
from berth_agent.vendor import FaultListener
from berth_agent.vendors.amd import labels as amd_labels
from berth_agent.vendors.nvidia import capabilities
from berth_agent.vendors.nvidia import labels as nvidia_labels
from berth_agent.vendors.nvidia.capabilities import Capabilities
from berth_agent.vendors.simulated import fleet, machine
from berth_agent.vendors.simulated.fleet import FleetError, NodeGroup, SimulatedFleet
from berth_agent.vendors.simulated.machine import SimulatedMachine
from berth_agent.vendors.simulated.profiles import CardProfile
from berth_api import names
from berth_api.allocation import mig
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, Topology

FINDINGS: Final = (
    Finding(type=names.DRIVER_LOADED, ok=True, reason="Simulated"),
    Finding(type=names.INVENTORY_READ, ok=True, reason="Simulated"),
)

LABELS: Final = {"nvidia": nvidia_labels.labels_of, "amd": amd_labels.labels_of}

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class SimulatedInventory(NothingMeasured):
    """Readings of all nodes of a fleet file, which is read again when it changes.

    Raises:
        FleetError: the file is wrong at the start.
    """

    def __init__(self, *, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._built: dict[str, tuple[object, Reading]] = {}
        self._built = self._merge(fleet.load(path))

    async def read(self) -> Mapping[str, Reading]:
        """Return the fleet as its file describes it; when the file turns wrong, the last fleet stays in force."""
        await asyncio.to_thread(self._refresh)
        return {name: reading for name, (_, reading) in self._built.items()}

    def listen(self, listener: FaultListener) -> None:
        """Do nothing: there are no fault events."""

    def close(self) -> None:
        """Do nothing: no hardware is held."""

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._built = self._merge(fleet.load(self._path))
        except FleetError as error:
            _log.error("fleet file is wrong; the last fleet stays", error=str(error))
        else:
            _log.info("fleet file changed", path=str(self._path), nodes=len(self._built))

    def _merge(self, read: SimulatedFleet) -> dict[str, tuple[object, Reading]]:
        """Build the nodes, keeping the very Reading of each that is as before."""
        merged: dict[str, tuple[object, Reading]] = {}
        for name, group in read.nodes.items():
            cards = [read.profiles[card] for card in group.cards()]
            previous = self._built.get(name)
            same = previous is not None and previous[0] == (group, cards)
            merged[name] = previous if previous and same else ((group, cards), simulate(name, group, cards))
        return merged


def simulate(node: str, group: NodeGroup, cards: Sequence[CardProfile]) -> Reading:
    """Build one node."""
    wiring = SimulatedMachine(cards=cards)
    devices: list[DeviceInfo] = []
    for minor in range(len(cards)):
        gpu = _gpu(node, minor=minor, wiring=wiring)
        if minor in group.mig:
            instances = [
                MigInstance(
                    id=f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{gpu.id}/{number}')}",
                    profile=profile,
                    gpu_instance=number + 1,
                    compute_instance=0,
                    memory=f"{mig.gibibytes(profile)}Gi",
                )
                for number, profile in enumerate(group.mig[minor])
            ]
            gpu = gpu.model_copy(update={"mig": Mig(enabled=True, instances=instances)})
        elif group.replicas > 1:
            gpu = gpu.model_copy(update={"replicas": group.replicas})
        if minor in group.unhealthy:
            gpu = unhealthy(gpu, reason="Simulated", message="the fleet file calls this card unhealthy")
        devices.append(gpu)
    nics = [wiring.other(minor, first=machine.FIRST_NIC) for minor in range(group.rdma)]
    fpgas = [wiring.other(minor, first=machine.FIRST_FPGA) for minor in range(group.fpga)]
    devices += [_other(names.RDMA, minor, "Mellanox ConnectX-7", place) for minor, place in enumerate(nics)]
    devices += [_other(names.FPGA, minor, "Xilinx Alveo U50", place) for minor, place in enumerate(fpgas)]
    driver, cuda = (cards[0].driver, cards[0].cuda) if cards else ("", "")
    spec = DeviceSpec(driver_version=driver, cuda_version=cuda, mig_strategy=group.mig_strategy, devices=devices)
    labels = LABELS[cards[0].vendor](spec) if cards else {}
    return Reading(spec=spec, findings=FINDINGS, labels=labels, heartbeat=group.heartbeat)


def _gpu(node: str, *, minor: int, wiring: SimulatedMachine) -> DeviceInfo:
    """Return a healthy card, whole and not shared."""
    profile = wiring.cards[minor]
    encoders, decoders = capabilities.video_engines(profile.model) or (None, None)
    known = Capabilities(
        multiprocessors=profile.multiprocessors,
        memory_bandwidth=profile.memory_bandwidth,
        encoders=encoders,
        decoders=decoders,
    )
    card = DeviceInfo(
        type="gpu",
        minor=minor,
        id=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{minor}')}",
        module_id=minor + 1 if profile.nvlinks or profile.mesh or profile.hive else -1,
        health=True,
        model=profile.model,
        resources={
            names.PREFIX + names.GPU_CORE: 100,
            names.PREFIX + names.GPU_MEMORY: profile.memory,
            names.PREFIX + names.GPU_MEMORY_RATIO: 100,
        },
        topology=wiring.gpu(minor),
        links=wiring.links(minor),
    )
    update = known.fields() | ({"mig": Mig(enabled=False)} if profile.mig else {})
    return card.model_copy(update=update) if update else card


def _other(device_type: str, minor: int, model: str, place: Topology) -> DeviceInfo:
    """Return a NIC or FPGA, which is known by its PCI address."""
    return DeviceInfo(
        type=device_type,
        minor=minor,
        id=place.bus_id,
        health=True,
        model=model,
        resources={names.PREFIX + device_type: 100},
        topology=place,
    )


def _stamp(path: Path) -> tuple[int, ...]:
    """Return one version of the file from another; a missing file is a version too."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return (0,)
    return (status.st_mtime_ns, status.st_size, status.st_ino)
