"""The inventory of one node with NVIDIA's cards: what NVML and sysfs show, and what is wrong if they fail."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.health.catalogue import EVENTS_FAILED
from berth_agent.health.faults import Fault, FaultEvent, with_more
from berth_agent.inventory import sysfs
from berth_agent.inventory.plugins import MAX_MESSAGE, checked
from berth_agent.readings import CardSample, Reading
from berth_agent.vendor import FaultListener, RefusedError
from berth_agent.vendors.nvidia import catalogue, rules
from berth_agent.vendors.nvidia.labels import Facts
from berth_agent.vendors.nvidia.nvml import library, sampling
from berth_agent.vendors.nvidia.nvml.events import SHORT_WAIT, WAIT, EventWatcher
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError, NvmlEvent
from berth_agent.vendors.nvidia.nvml.reader import Reader
from berth_agent.vendors.nvidia.nvml.session import Session
from berth_api import names
from berth_api.device import DeviceSpec
from berth_api.plugins import in_one_line

VENDOR: Final = "0x10de"
"""NVIDIA among the vendors of PCI devices."""
DRIVER: Final = "nvidia"
"""The driver's name in sysfs."""
RELEASE_SECONDS: Final = 5.0
"""Seconds that the driver has to end a reading and to close its session, before MIG instances are changed."""
NOT_NEEDED: Final = Finding(
    type=names.DRIVER_LOADED,
    ok=True,
    reason="NotNeeded",
    message="the PCI bus has no GPU of NVIDIA's, so no driver is needed",
)
WITHOUT_CARDS: Final = Reading(
    spec=DeviceSpec(devices=[]),
    findings=(NOT_NEEDED, Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")),
    facts=Facts(),
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NvmlInventory:
    """Readings of this node."""

    def __init__(self, settings: Settings) -> None:
        self._node = settings.node_name
        self._timeout = settings.read_timeout
        self._sysfs: Path = settings.sysfs_root
        self._bound: frozenset[tuple[str, int]] | None = None
        """The cards that the driver held at the last reading, each with its link."""
        self._rebound: frozenset[str] = frozenset()
        """Addresses of cards that the driver bound again, and that have not answered since."""
        self._checks = settings.checks
        self._events = EventWatcher(report=self._report, milliseconds=SHORT_WAIT if settings.dra_partitions else WAIT)
        self._listener: FaultListener | None = None
        self._session = Session(path=settings.nvml_library, before_closing=self._events.end)
        self._reader = Reader(
            sysfs_root=settings.sysfs_root,
            proc_root=settings.proc_root,
            mig_strategy=settings.mig_strategy,
            checks=settings.checks,
            with_processes=settings.truth and settings.foreign,
        )
        self._last = without_driver(reason="NotReadYet", message="")
        self._sampled: Mapping[str, Handle] = {}
        """Samples of the cards of this session's last reading, by their UUIDs; for the owner's thread."""
        self._xids: Counter[tuple[str, int]] = Counter()
        self._counting = threading.Lock()
        self._reading = asyncio.Lock()

    async def read(self) -> Mapping[str, Reading]:
        """Read all cards; a driver that is missing or does not answer becomes a condition, as any other failure."""
        try:
            async with self._reading, asyncio.timeout(self._timeout):
                self._last = await self._session.run(self._read_cards)
                self._rebound -= {
                    card.topology.bus_id
                    for card in self._last.spec.devices
                    if card.topology and card.id in self._last.reset
                }
        except NvmlError as error:
            self._last = self._without_driver(error)
        except TimeoutError:
            self._last = failed(
                self._last, reason="ReadTimedOut", problem=f"the driver did not answer within {self._timeout:g} s"
            )
        except Exception as error:  # noqa: BLE001 - sysfs may fail in any way, and drivers report values of any form
            self._last = failed(self._last, reason="ReadFailed", problem=in_one_line(error))
        return {self._node: self._last}

    def _without_driver(self, error: NvmlError) -> Reading:
        """Return the reading of a node whose driver does not answer; it needs none if it has no card."""
        try:
            if sysfs.has_gpus(self._sysfs, VENDOR) is False:
                return WITHOUT_CARDS
        except OSError as unread:
            # Whether the node has cards is not known. Its driver may be missing, so the last reading stands no longer.
            return without_driver(reason=error.reason, message=f"{error}; the PCI bus: {in_one_line(unread)}")
        return without_driver(reason=error.reason, message=str(error))

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Have no card open, and read none, in this context.

        Raises:
            RefusedError: the driver does not answer.
        """
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._reading.acquire()
                try:
                    await self._session.run(self._session.reset)
                except BaseException:
                    self._reading.release()
                    raise
        except (TimeoutError, NvmlError) as error:
            raise RefusedError(f"NVML is not closed for a change of MIG instances: {error or 'no answer'}") from error
        try:
            yield
        finally:
            self._reading.release()

    async def sample(self) -> Mapping[str, CardSample]:
        """Return current measurements of the last reading's cards, by UUID; wait as long as the driver does."""
        try:
            return await self._session.run(self._sample_cards)
        except NvmlError:
            # The readings report it.
            return {}

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return the number of Xids since the start, by UUID and Xid."""
        with self._counting:
            return dict(self._xids)

    def listen(self, listener: FaultListener) -> None:
        """Call the listener with Xids and double-bit errors as they come."""
        self._listener = listener

    def close(self) -> None:
        """Close the session with the library."""
        self._events.stop()
        self._session.close()

    def _read_cards(self) -> Reading:
        """Read all cards. Open the session first if it is closed, or if the driver gained or lost a card."""
        self._sampled = {}
        bound = sysfs.bindings(self._sysfs, DRIVER)
        if bound != self._bound:
            _log.info("NVML session reopened: the driver's cards changed", cards=len(bound))
            self._session.reset()
        self._session.ensure_open()
        # A reading that fails or comes too late must not lose a reset: the next one reports it.
        self._rebound |= {address for address, _ in bound - (bound if self._bound is None else self._bound)}
        self._bound = bound
        reading = self._reader.read()
        checked(names.GPU, reading.spec.devices)
        self._events.follow(self._reader.handles if self._checks.events else {})
        self._sampled = self._reader.handles
        reset = {card.id for card in reading.spec.devices if card.topology and card.topology.bus_id in self._rebound}
        return replace(_with_events(reading, self._events), reset=frozenset(reset & self._reader.handles.keys()))

    def _sample_cards(self) -> dict[str, CardSample]:
        handles = self._sampled if self._session.is_open else {}
        return {card: sampling.sample(handle) for card, handle in handles.items()}

    def _report(self, card: str, event: NvmlEvent | None) -> None:
        """Pass an event on, from the thread that waits for events. An event of an unknown card concerns all cards."""
        if event is None:
            if self._listener:
                self._listener(FaultEvent(node=self._node))
            return
        cards = [card] if card else list(self._reader.handles)
        if event.kind == library.XID_EVENT:
            number = event.data if event.data in catalogue.NUMBERS else catalogue.OTHER
            with self._counting:
                self._xids.update((uuid, number) for uuid in cards)
            fault = rules.of_xid(event.data, self._checks, gpu_instance=event.gpu_instance)
        else:
            fault = rules.of_double_bit(self._checks)
        if fault and self._listener:
            for uuid in cards:
                self._listener(FaultEvent(node=self._node, card=uuid, faults=(fault,)))


def _with_events(reading: Reading, events: EventWatcher) -> Reading:
    """Mark the cards whose events are not received: their faults would go unnoticed."""
    troubles = {device.id: events.failure or events.unregistered.get(device.id, "") for device in reading.spec.devices}
    if not any(troubles.values()):
        return reading
    marked = list(reading.spec.devices)
    for position, device in enumerate(marked):
        if trouble := troubles[device.id]:
            fault = Fault(kind=EVENTS_FAILED, message=f"no events are received: {trouble}")
            marked[position] = with_more(device, [fault])
    return replace(reading, spec=reading.spec.model_copy(update={"devices": marked}))


def without_driver(*, reason: str, message: str) -> Reading:
    """Return the reading of a node whose driver does not answer: no cards, and why."""
    findings = (
        Finding(type=names.DRIVER_LOADED, ok=False, reason=reason, message=message),
        Finding(type=names.INVENTORY_READ, ok=False, reason="NoDriver"),
    )
    spec = DeviceSpec(driver_version="", cuda_version="", devices=[])
    return Reading(spec=spec, findings=findings, processes=None, facts=Facts())


def failed(last: Reading, *, reason: str, problem: str) -> Reading:
    """Return the last reading as one that could not be renewed."""
    finding = Finding(
        type=names.INVENTORY_READ,
        ok=False,
        reason=reason,
        message=f"{problem[:MAX_MESSAGE]}; the devices are those of the last reading",
    )
    return replace(last, findings=(last.findings[0], finding), reset=frozenset())
