"""What measurements and events of AMD's driver mean for the health of their card. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from berth_agent.health import catalogue as kinds
from berth_agent.health.checks import Checks
from berth_agent.health.faults import Fault
from berth_agent.vendors.amd import catalogue

PAGE_COVER: Final = 100 << 20
"""Bytes of memory for each of which one page may be retired. The driver's source calls this the typical rate, and
derives the number from it from which it refuses a card."""
RECOVERED: Final = frozenset({"none"})
"""The methods of an event after which a card needs nothing: the driver has reset it."""


class Sensor(NamedTuple):
    """A temperature and its critical limit."""

    name: str
    celsius: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """What the driver reports of a card's memory and state."""

    uncorrectable: Mapping[str, int] = field(default_factory=dict)
    """Errors since the driver was loaded, by the block of the card; only blocks with errors."""
    retired_pages: int = 0
    pending_pages: int = 0
    failed_pages: int = 0
    sensors: Sequence[Sensor] = ()
    fell_off: bool = False
    """Whether it does not answer on the PCI bus."""


def of_measured(measured: CardFigures, checks: Checks, *, memory: int | None) -> list[Fault]:
    """Return what the driver's figures mean for a card with so many bytes of memory."""
    if not checks.memory:
        return []
    faults = []
    if measured.fell_off:
        faults.append(Fault(kind=kinds.OFF_THE_BUS, message="the GPU does not answer on the PCI bus"))
    if measured.uncorrectable:
        errors = ", ".join(f"{block} {count}" for block, count in sorted(measured.uncorrectable.items()))
        faults.append(Fault(kind=catalogue.UNCORRECTABLE, message=f"uncorrectable errors: {errors}"))
    if measured.failed_pages:
        message = f"{measured.failed_pages} bad memory pages could not be retired: reload the driver"
        faults.append(Fault(kind=catalogue.RETIREMENT_FAILED, message=message))
    if measured.pending_pages:
        message = f"{measured.pending_pages} bad memory pages are in use, and are retired later"
        faults.append(Fault(kind=kinds.RETIREMENT_PENDING, message=message))
    if memory and measured.retired_pages >= (most := max(memory // PAGE_COVER, 1)):
        message = f"{measured.retired_pages} memory pages are retired; from {most} on the GPU is to be replaced"
        faults.append(Fault(kind=kinds.PAGES_RETIRED, message=message))
    for sensor in measured.sensors:
        if sensor.celsius > sensor.limit:
            message = f"{sensor.name} has {sensor.celsius:g} °C; its critical limit is {sensor.limit:g} °C"
            faults.append(Fault(kind=catalogue.OVERHEATED, message=message))
            break
    return faults


def of_wedged(methods: str, checks: Checks) -> Fault | None:
    """Return what an event `WEDGED=rebind,bus-reset` means for its card; None if the driver has reset it."""
    if not checks.memory or RECOVERED.issuperset(methods.split(",")):
        return None
    message = f"the driver gave the GPU up; what may recover it, by the driver: {methods}"
    return Fault(kind=catalogue.WEDGED, message=message)
