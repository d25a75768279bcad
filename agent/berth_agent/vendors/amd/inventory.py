"""The inventory of one node with AMD's cards: what sysfs shows, and what is wrong if it shows nothing."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from berth_agent.boot import boot_id
from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import Fault, FaultEvent, with_more
from berth_agent.inventory import sysfs
from berth_agent.inventory.plugins import in_thread
from berth_agent.readings import CardSample, Process, Reading
from berth_agent.vendor import FaultListener
from berth_agent.vendors.amd import cards as cards_module
from berth_agent.vendors.amd import catalogue, health, processes, rules, sampling
from berth_agent.vendors.amd.attributes import Attributes
from berth_agent.vendors.amd.cards import Card
from berth_agent.vendors.amd.events import EventListener, EventSource, KernelEvents, Wedged
from berth_agent.vendors.amd.labels import MODE, AmdFacts, labels_of
from berth_agent.vendors.amd.links import links
from berth_agent.vendors.amd.process_rounds import ProcessRounds
from berth_api import names
from berth_api.device import MAX_DEVICES, DeviceInfo, DeviceSpec
from berth_api.resources import quantity

VENDOR: Final = "0x1002"
"""AMD's GPUs among the vendors of PCI devices."""
DRIVER: Final = "amdgpu"
"""The driver's name in sysfs."""
MODULE: Final = Path("module/amdgpu")
WITHOUT_CARDS: Final = Reading(
    spec=DeviceSpec(devices=[]),
    findings=(
        Finding(
            type=names.DRIVER_LOADED,
            ok=True,
            reason="NotNeeded",
            message="the PCI bus has no GPU of AMD's, so no driver is needed",
        ),
        Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead"),
    ),
    facts=AmdFacts(),
)

T = TypeVar("T")


class AmdInventory:
    """Readings of this node."""

    def __init__(self, settings: Settings, *, open_events: Callable[[], EventSource] = KernelEvents) -> None:
        self._checks = settings.checks
        self._processes: ProcessRounds | None = None
        self._without_processes = processes.NONE if settings.amd_processes == "none" else processes.UNUSED
        if settings.amd_processes != "none" and settings.truth and settings.foreign:
            sysfs_root, proc_root = settings.sysfs_root, settings.proc_root
            self._processes = ProcessRounds(
                partial(
                    processes.read,
                    settings.amd_processes,
                    sysfs_root=sysfs_root,
                    proc_root=proc_root,
                    numbers=itertools.count(),
                )
            )
        self._is_mixed = settings.amd_resource_naming_strategy == "mixed"
        self._open_events = open_events
        self._events: EventListener | None = None
        self._cards: tuple[Card, ...] = ()
        """The cards of the last reading."""
        self._node = settings.node_name
        self._sysfs = settings.sysfs_root
        self._boot_id = boot_id(settings.proc_root)
        self._attributes = Attributes()
        self._bound: frozenset[tuple[str, int]] | None = None
        """The cards that the driver held at the last reading, each with its link."""
        self._rebound: frozenset[str] = frozenset()
        """Addresses of cards that the driver bound again, and that have not answered since."""

    async def read(self) -> Mapping[str, Reading]:
        """Read all cards; a driver that is missing becomes a condition.

        Raises:
            Exception: the reading failed. The last one is kept by `CompletedInventory`, also while this one hangs.
        """
        reading = await _in_thread(self._read_cards)
        self._rebound -= {
            device.topology.bus_id for device in reading.spec.devices if device.topology and device.id in reading.reset
        }
        return {self._node: await self._with_processes(reading) if reading.spec.devices else reading}

    async def sample(self) -> Mapping[str, CardSample]:
        """Return current measurements of the last reading's cards, by id; wait as long as the driver does.

        The driver measures the partitions of a card together, so of them only the processes are known.
        """
        cards = self._cards
        listed = await self._processes.of(cards) if self._processes and cards else processes.NONE
        return await _in_thread(lambda: _sample(cards, listed.by_minor or {}))

    def listen(self, listener: FaultListener) -> None:
        """Call the listener with cards that the driver gives up, as it reports them; for use in the agent's loop."""

        def report(event: Wedged) -> None:
            fault = rules.of_wedged(event.methods, self._checks)
            for card in self._cards if fault else ():
                if card.address == event.address and fault:
                    listener(FaultEvent(node=self._node, card=card.id, faults=(fault,)))

        self._events = EventListener(report, open_source=self._open_events)

    def close(self) -> None:
        """Stop listening. A thread that hangs in the driver ends with the process."""
        if self._events:
            self._events.close()

    async def _with_processes(self, reading: Reading) -> Reading:
        listed = await self._processes.of(self._cards) if self._processes else self._without_processes
        findings = tuple(
            replace(finding, message=listed.problem) if finding.type == names.INVENTORY_READ and finding.ok else finding
            for finding in reading.findings
        )
        return replace(reading, processes=listed.by_minor, findings=findings)

    def _read_cards(self) -> Reading:
        folders = sysfs.gpus(self._sysfs, VENDOR)
        bound = sysfs.bindings(self._sysfs, DRIVER)
        # A reading that fails or comes too late must not lose a reset: the next one reports it.
        self._rebound |= {address for address, _ in bound - (bound if self._bound is None else self._bound)}
        self._bound = bound
        if folders is not None and not folders:
            return WITHOUT_CARDS
        held = {address for address, _ in bound}
        driven = [folder for folder in folders or () if folder.name in held]
        if not driven:
            message = f"the driver {DRIVER} holds none of the node's {len(folders or ())} GPUs of AMD's; load it"
            return _without_driver(reason="DriverNotLoaded", message=message)
        listed, unread = cards_module.read(self._attributes, self._sysfs, driven)
        listed = sorted(listed, key=lambda card: card.render)[:MAX_DEVICES]
        faults = {folder: self._faults(folder, listed) for folder in {card.folder for card in listed}}
        devices = [with_more(self._device(card, listed), faults[card.folder]) for card in listed]
        self._cards = tuple(listed)
        self._attributes.forget_unread()
        spec = DeviceSpec(driver_version=self._version("version"), boot_id=self._boot_id, devices=devices)
        return Reading(
            spec=spec,
            findings=(
                Finding(type=names.DRIVER_LOADED, ok=True, reason="DriverLoaded"),
                _read_finding(unread),
            ),
            labels=labels_of(spec),
            facts=AmdFacts(
                machine=sysfs.machine(self._sysfs),
                cards={card.id: card.device_id for card in listed},
                source_version=self._version("srcversion"),
            ),
            reset=frozenset(card.id for card in listed if card.address in self._rebound),
        )

    def _device(self, card: Card, listed: list[Card]) -> DeviceInfo:
        memory = {} if card.memory is None else {names.GPU_MEMORY: quantity.format_bytes(card.memory)}
        amounts = {names.GPU_CORE: 100, **memory, names.GPU_MEMORY_RATIO: 100}
        labels = {MODE: card.mode} if card.mode else {}
        if card.mode and self._is_mixed:
            # Kubelet counts it by a resource of its mode, so only pods with this resource may have it.
            labels[names.DEVICE_PARTITION] = card.mode
        return DeviceInfo(
            type=names.GPU,
            minor=card.minor,
            id=card.id,
            health=True,
            model=card.model,
            resources={names.PREFIX + name: amount for name, amount in amounts.items()},
            multiprocessors=card.compute_units,
            topology=card.topology,
            links=links(card, listed),
            labels=labels,
        )

    def _faults(self, folder: Path, listed: list[Card]) -> list[Fault]:
        """Return the faults of a card, which all its partitions have."""
        card = next(card for card in listed if card.folder == folder)
        measured = health.measured(self._attributes, folder)
        faults = rules.of_measured(measured, self._checks, memory=card.board_memory)
        if card.is_unreadable:
            message = f"the GPU is in mode {card.mode}; only a privileged agent can read its partitions"
            faults.append(Fault(kind=catalogue.PARTITIONS_UNREAD, message=message))
        return faults

    def _version(self, name: str) -> str:
        return self._attributes.text(self._sysfs / MODULE / name)[: cards_module.MAX_NAME]


async def _in_thread(work: Callable[[], T]) -> T:
    """Return what the work returns. It may hang in the driver, so its thread does not keep the process from ending."""
    result = await asyncio.wrap_future(in_thread(work))
    if isinstance(result, BaseException):
        raise result
    return result


def _without_driver(*, reason: str, message: str) -> Reading:
    findings = (
        Finding(type=names.DRIVER_LOADED, ok=False, reason=reason, message=message),
        Finding(type=names.INVENTORY_READ, ok=False, reason="NoDriver"),
    )
    return Reading(spec=DeviceSpec(devices=[]), findings=findings, processes=None, facts=AmdFacts())


def _sample(cards: Sequence[Card], listed: Mapping[int, tuple[Process, ...]]) -> dict[str, CardSample]:
    samples = {card.id: CardSample() if card.is_partition else sampling.sample(card.folder) for card in cards}
    return {
        card.id: replace(samples[card.id], processes=listed.get(card.minor, ()))
        for card in cards
        if card.minor in listed or not card.is_partition
    }


def _read_finding(unread: list[str]) -> Finding:
    if not unread:
        return Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
    message = f"the driver does not show the render node or the id of {', '.join(unread[:8])}; not listed"
    return Finding(type=names.INVENTORY_READ, ok=False, reason="CardsUnread", message=message)
