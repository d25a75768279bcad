"""Read all cards of the node. A card that fails is listed as unhealthy, and never hides the others.

If a failing card no longer reports its UUID, minor or model, the values of its last successful reading are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from berth_agent.boot import boot_id
from berth_agent.conditions import Finding
from berth_agent.health.checks import Checks
from berth_agent.health.faults import Fault, mark, with_more
from berth_agent.inventory import sysfs
from berth_agent.inventory.plugins import checked
from berth_agent.readings import Process, Reading
from berth_agent.vendors.nvidia import capabilities, rules
from berth_agent.vendors.nvidia.capabilities import Capabilities
from berth_agent.vendors.nvidia.labels import CardFacts, Facts, labels_of
from berth_agent.vendors.nvidia.nvml import library
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError
from berth_agent.vendors.nvidia.nvml.links import LinkEnd, links, wires
from berth_agent.vendors.nvidia.rules import Measured
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec, Mig, MigInstance, MigStrategy
from berth_api.plugins import in_one_line
from berth_api.resources import quantity

READ_FAILED: Final = "ReadFailed"
MAX_READS: Final = 3
"""Reads of all cards while their number changes; the reading after the last one is soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardReading:
    """What one card reported."""

    card: DeviceInfo
    node: LinkEnd
    facts: CardFacts
    processes: tuple[Process, ...]


class Reader:
    """Reads cards, and remembers what they were; for use in the thread that owns NVML."""

    def __init__(
        self, *, sysfs_root: Path, proc_root: Path, mig_strategy: MigStrategy, checks: Checks, with_processes: bool
    ) -> None:
        self._sysfs = sysfs_root
        self._boot_id = boot_id(proc_root)
        self._with_processes = with_processes
        self._mig_strategy = mig_strategy
        self._checks = checks
        self._known: dict[int, DeviceInfo] = {}
        self._facts: dict[str, CardFacts] = {}
        self.handles: Mapping[str, Handle] = {}
        """Handles of the cards that answered the last reading, by their UUIDs."""

    def read(self) -> Reading:
        """Return a reading of all cards.

        Raises:
            NvmlError: the driver does not answer at all.
        """
        # All again if their number changes meanwhile: an index would pass for another card's.
        for _ in range(MAX_READS):
            count = library.cards()
            sound: dict[int, _CardReading] = {}
            failed: dict[int, NvmlError] = {}
            for index in range(count):
                try:
                    sound[index] = self._read_card(library.card(index))
                except NvmlError as error:
                    if error.lost_session:
                        raise
                    failed[index] = error
                except (OSError, ValueError) as error:
                    # A file of sysfs, or a value that a Device cannot have. The other cards are listed all the same.
                    failed[index] = NvmlError(in_one_line(error), reason=READ_FAILED)
            if library.cards() == count:
                break
        ends = [reading.node for reading in sound.values()]
        cards = {
            index: reading.card.model_copy(update={"links": links(reading.node, ends)})
            for index, reading in sound.items()
        }
        self.handles = {reading.card.id: reading.node.handle for reading in sound.values()}
        # A card that failed is listed as what it was at this index, unless its id or minor is a listed card's by now: a
        # reloaded driver may exchange them, and the API server refuses all cards if two have one minor.
        listed = list(cards.values())
        unread: dict[int, NvmlError] = {}
        for index, failure in failed.items():
            card = self._known.get(index)
            if card is None or any(card.id == other.id or card.minor == other.minor for other in listed):
                unread[index] = failure
            else:
                listed.append(mark(card, [Fault(kind=failure.reason, message=str(failure))]))
        # What is not listed is forgotten: its facts are, and its minor would keep out the card that has it now.
        still = {index: card for index, card in self._known.items() if index < count and index not in unread}
        self._known = still | cards
        facts = self._facts | {reading.card.id: reading.facts for reading in sound.values()}
        self._facts = {card.id: facts[card.id] for card in listed}
        spec = DeviceSpec(
            driver_version=library.driver_version(),
            cuda_version=library.cuda_version(),
            mig_strategy=self._mig_strategy,
            boot_id=self._boot_id,
            devices=sorted(listed, key=lambda card: card.minor),
        )
        loaded = Finding(type=names.DRIVER_LOADED, ok=True, reason="DriverLoaded")
        reading = Reading(
            spec=spec,
            findings=(loaded, _read_finding(unread)),
            labels=labels_of(spec),
            facts=Facts(machine=sysfs.machine(self._sysfs), cards=self._facts),
        )
        processes = {reading.card.minor: reading.processes for reading in sound.values()}
        return replace(reading, processes=processes) if self._with_processes else reading

    def _read_card(self, handle: Handle) -> _CardReading:
        bus_id = library.bus_id(handle)
        mig, parts = _mig(handle)
        card = with_more(self._card(handle, bus_id, mig), rules.of_measured(_measured(handle), self._checks))
        facts = CardFacts(
            compute=library.compute_capability(handle),
            pci_class=sysfs.pci_class(self._sysfs, bus_id),
            is_vgpu=library.unless_unsupported(default=False, function=library.is_vgpu, of=(handle,)),
            parts=parts,
        )
        end = LinkEnd(handle=handle, minor=card.minor, bus_id=bus_id, wires=wires(handle))
        processes: tuple[Process, ...] = ()
        if self._with_processes:
            processes = library.unless_unsupported(default=(), function=library.processes, of=(handle,))
        return _CardReading(card=card, node=end, facts=facts, processes=processes)

    def _card(self, handle: Handle, bus_id: str, state: Mig | None) -> DeviceInfo:
        card = DeviceInfo(
            type="gpu",
            minor=library.minor(handle),
            id=library.uuid(handle),
            module_id=library.unless_unsupported(default=-1, function=library.module_id, of=(handle,)),
            health=True,
            model=library.name(handle),
            resources={
                names.PREFIX + names.GPU_CORE: 100,
                names.PREFIX + names.GPU_MEMORY: quantity.format_bytes(library.memory(handle)),
                names.PREFIX + names.GPU_MEMORY_RATIO: 100,
            },
            topology=sysfs.place(self._sysfs, bus_id),
        )
        update = _capabilities(handle, card.model).fields() | ({"mig": state} if state else {})
        return checked(names.GPU, [card.model_copy(update=update)])[0]


_Division = tuple[Mig | None, Mapping[str, Mapping[str, int]]]
_NO_MIG: Final[_Division] = (None, {})


def _capabilities(handle: Handle, model: str) -> Capabilities:
    """Return the static facts of a card; a vGPU is only a part of its model."""
    cores = library.if_reported(library.cores, handle) or 0
    width = library.if_reported(library.memory_bus_width, handle) or 0
    clock = library.if_reported(library.max_memory_clock, handle) or 0
    is_vgpu = library.if_reported(library.is_vgpu, handle)
    encoders, decoders = (None if is_vgpu else capabilities.video_engines(model)) or (None, None)
    return Capabilities(
        multiprocessors=capabilities.multiprocessors(cores, library.compute_capability(handle)),
        memory_bandwidth=capabilities.memory_bandwidth(width, clock),
        encoders=encoders,
        decoders=decoders,
    )


def _measured(handle: Handle) -> Measured:
    of = (handle,)
    return Measured(
        remap_failed=library.unless_unsupported(default=False, function=library.remapping_failed, of=of),
        retirement_pending=library.unless_unsupported(default=False, function=library.retirement_pending, of=of),
        retired_pages=library.unless_unsupported(default=0, function=library.retired_pages, of=of),
        recovery_action=library.unless_unsupported(default=0, function=library.recovery_action, of=of),
    )


def _mig(handle: Handle) -> "_Division":
    """Return the instances, and what each has, by its UUID; neither if the card knows no MIG.

    A card whose instances cannot be read is unread: as a whole card, it would be given next to the pods that have them.
    """
    enabled = library.unless_unsupported(default=None, function=library.mig_enabled, of=(handle,))
    if enabled is None:
        return _NO_MIG
    facts = [library.mig_facts(device) for device in library.mig_devices(handle)] if enabled else []
    instances = [
        MigInstance(
            id=fact.uuid,
            profile=fact.profile,
            gpu_instance=fact.gpu_instance,
            compute_instance=fact.compute_instance,
            memory=quantity.format_bytes(fact.memory),
        )
        for fact in facts
    ]
    return Mig(enabled=enabled, instances=instances), {fact.uuid: fact.parts for fact in facts}


def _read_finding(unread: Mapping[int, NvmlError]) -> Finding:
    if not unread:
        return Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
    errors = "; ".join(f"card {index}: {failure}" for index, failure in unread.items())
    return Finding(
        type=names.INVENTORY_READ,
        ok=False,
        reason="CardsUnread",
        message=f"cards that never answered this agent are not listed: {errors}",
    )
