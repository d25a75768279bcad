"""GPUs that other programs list in files on the node: Koordinator's `xpu-device-infos`.

The agents of several vendors write these files for koordlet. Each file is a JSON list of devices. This module knows
Koordinator's form of the list, and no vendor.

A reading is used as a whole or not at all. If a file is damaged or gone, the GPUs of the last good reading stay listed,
and the condition `InventoryRead.xpu` of the Device says why.
"""

import asyncio
import contextlib
import itertools
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from berth_agent import files
from berth_agent.conditions import Finding
from berth_agent.health import catalogue
from berth_agent.health.faults import Fault, mark
from berth_agent.inventory.interface import label_value
from berth_agent.inventory.plugins import MAX_MESSAGE, checked, in_thread
from berth_agent.readings import CardSample, NodeFacts, Reading
from berth_agent.vendor import FaultListener, Inventory, released
from berth_api import allocation, links, names
from berth_api.device import DeviceInfo, Link, LinkType, Topology
from berth_api.names import GPU, GPU_MEMORY_RATIO
from berth_api.plugins import in_one_line

MAX_FILES: Final = 16
MAX_BYTES: Final = 2**20
"""Bytes of a file. A device takes about 600."""
MAX_CARDS: Final = 64
"""GPUs of a node; the operator reads no more."""
WHOLE: Final = 100
_ID: Final = "GPU-"
"""How the ids of all GPUs begin (`device_ids`)."""
_CONDITION: Final = f"{names.INVENTORY_READ}.xpu"
_DRIVER: Final = Finding(
    type=names.DRIVER_LOADED, ok=True, reason="NotNeeded", message="another program lists the node's GPUs"
)

_Number = Annotated[str, Field(pattern=r"^(-1|[0-9]{1,4})?$")]
_Text = Annotated[str, Field(max_length=1024)]


class _Form(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class _P2pLink(_Form):
    peer_minor: _Text
    """`1,2,3`"""
    type: LinkType


class _Topology(_Form):
    p2p_links: Annotated[tuple[_P2pLink, ...] | None, Field(alias="p2pLinks", max_length=MAX_CARDS)] = None
    node_id: Annotated[_Number, Field(alias="nodeID")] = ""
    pcie_id: Annotated[str, Field(alias="pcieID", max_length=64)] = ""
    bus_id: Annotated[str, Field(alias="busID", max_length=64)] = ""


class _Status(_Form):
    healthy: bool
    err_code: _Text = ""
    err_message: _Text = ""


class _Entry(_Form):
    """A device as Koordinator's `XPUDeviceInfo` has it."""

    vendor: Annotated[str, Field(min_length=1, max_length=63)]
    model: Annotated[str, Field(max_length=256)] = ""
    uuid: Annotated[str, Field(min_length=1, max_length=120)]
    minor: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,4})$")]
    resources: Annotated[dict[Annotated[str, Field(max_length=128)], _Text] | None, Field(max_length=16)] = None
    topology: _Topology | None = None
    status: _Status | None = None


_FILE: Final = TypeAdapter(Annotated[tuple[_Entry, ...], Field(max_length=MAX_CARDS)])


class DeviceInfosError(Exception):
    """The files cannot be used.

    Args:
        reason: for the condition of the Device.
        message: what is wrong, with the file and the field.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGpus:
    """What the files list."""

    vendor: str = ""
    cards: tuple[DeviceInfo, ...] = ()
    finding: Finding | None = None
    """How the reading went; None if there never was a file."""


NOTHING: Final = ListedGpus()
Stamps = Mapping[str, tuple[int, ...]]
"""File -> what changes if it is written again."""


class DeviceInfos:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: Stamps | None = {}
        self._good: Stamps = {}
        """The files of the last good reading."""
        self._listed = NOTHING

    def read(self) -> ListedGpus:
        """Return what the files list; the same object while no file changes. The finding reports each failure."""
        try:
            stamps = _stamps(self._folder)
            if stamps != self._stamps:
                self._listed = self._current(stamps)
                self._stamps = self._good = stamps
        except DeviceInfosError as error:
            # Read again each time: the cause may end without a trace in the stamps.
            self._stamps = None
            kept = "the GPUs of the last good reading stay listed" if self._listed.cards else "no GPU is listed"
            message = f"{str(error)[:MAX_MESSAGE]}; {kept}"
            finding = Finding(type=_CONDITION, ok=False, reason=error.reason, message=message)
            self._listed = replace(self._listed, finding=finding)
        return self._listed

    def _current(self, stamps: Stamps) -> ListedGpus:
        entries = [entry for name in sorted(stamps) for entry in _entries(self._folder / name)]
        vendor, cards = gpus(entries)
        gone = sorted(self._good.keys() - stamps.keys())
        if gone and {card.id for card in self._listed.cards} - {card.id for card in cards}:
            raise DeviceInfosError("FileVanished", f"{', '.join(gone)} is gone")
        finding = Finding(type=_CONDITION, ok=True, reason="InventoryRead", message=", ".join(sorted(stamps)))
        return ListedGpus(vendor=vendor, cards=cards, finding=finding if stamps else None)


def _stamps(folder: Path) -> Stamps:
    """Return the files of the folder, without hidden files; none if there is no folder.

    Raises:
        DeviceInfosError: there are too many, or the folder cannot be read.
    """
    stamps: dict[str, tuple[int, ...]] = {}
    try:
        for entry in _files(folder):
            with contextlib.suppress(FileNotFoundError):  # it was removed just now
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    stamps[entry.name] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
    except OSError as error:
        raise DeviceInfosError("ReadFailed", in_one_line(error)) from error
    return stamps


def _files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = list(itertools.islice((entry for entry in entries if entry.name[0] != "."), MAX_FILES + 1))
    except FileNotFoundError:
        return []
    if len(found) > MAX_FILES:
        raise DeviceInfosError("TooManyFiles", f"{folder} has more than {MAX_FILES} entries")
    return found


def _entries(path: Path) -> tuple[_Entry, ...]:
    try:
        return _FILE.validate_json(files.read(path, limit=MAX_BYTES))
    except OSError as error:
        raise DeviceInfosError("ReadFailed", in_one_line(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise DeviceInfosError("Malformed", f"{path.name}{where}: {first['msg']}") from error


def gpus(entries: Sequence[_Entry]) -> tuple[str, tuple[DeviceInfo, ...]]:
    """Return the vendor and the GPUs of all files, by minor.

    Raises:
        DeviceInfosError: they contradict each other, or cannot be published.
    """
    vendors = sorted({entry.vendor for entry in entries})
    if len(vendors) > 1:
        raise DeviceInfosError("SecondVendor", f"devices of {' and '.join(vendors)}; allowed is one vendor")
    for name, values in (("minor", [entry.minor for entry in entries]), ("uuid", [entry.uuid for entry in entries])):
        value, count = next(iter(Counter(values).most_common(1)), ("", 0))
        if count > 1:
            raise DeviceInfosError("Contradiction", f"{name} {value} is listed {count} times")
    if len(entries) > MAX_CARDS:
        raise DeviceInfosError("TooManyDevices", f"{len(entries)} devices; allowed are {MAX_CARDS}")
    if vendors and label_value(vendors[0]) != vendors[0]:
        raise DeviceInfosError("Malformed", f"vendor {vendors[0]!r} is no value of a label")
    minors = {int(entry.minor) for entry in entries}
    try:
        cards = [_card(entry, minors) for entry in sorted(entries, key=lambda entry: int(entry.minor))]
        return next(iter(vendors), ""), checked(GPU, cards)
    except ValueError as error:
        raise DeviceInfosError("Malformed", in_one_line(error)) from error


def _card(entry: _Entry, minors: set[int]) -> DeviceInfo:
    minor, place = int(entry.minor), entry.topology or _Topology()
    card_id = entry.uuid if entry.uuid.startswith(_ID) else _ID + entry.uuid
    amounts = {
        allocation.long(allocation.short(name), names.PREFIX): amount
        for name, amount in (entry.resources or {}).items()
    }
    known = DeviceInfo(
        type=GPU,
        minor=minor,
        id=card_id,
        health=True,
        model=entry.model,
        resources={names.PREFIX + GPU_MEMORY_RATIO: WHOLE, **amounts},
        topology=Topology(node_id=int(place.node_id or -1), pcie_id=place.pcie_id, bus_id=place.bus_id),
        links=_links(place.p2p_links or (), minor, minors),
    )
    if entry.status is None or entry.status.healthy:
        return known
    message = ": ".join(filter(None, (entry.status.err_code, entry.status.err_message)))
    return mark(known, [Fault(kind=catalogue.REPORTED, message=message or "no reason is reported")])


def _links(listed: Sequence[_P2pLink], minor: int, minors: set[int]) -> list[Link]:
    """Return the best link to each other card. Cards that no file lists are left out: they may have failed."""
    best: dict[int, str] = {}
    for p2p in listed:
        link_type = links.known(p2p.type)
        for text in p2p.peer_minor.split(","):
            peer = int(text) if text.strip().isdecimal() and len(text) <= len("65535") else minor
            if peer in minors and peer != minor:
                best[peer] = max(best.get(peer, link_type), link_type, key=lambda name: links.score(name, 1))
    return [Link(minor=peer, type=link_type) for peer, link_type in sorted(best.items())]


class InventoryWithDeviceInfos:
    """An inventory of this node, with the GPUs of the files if it has no other GPUs.

    Args:
        inner: the inventory.
        reader: of the files.
        timeout: seconds of one reading.
    """

    def __init__(self, inner: Inventory, reader: DeviceInfos, *, timeout: float) -> None:
        self._inner, self._reader, self._timeout = inner, reader, timeout
        self._call: Future[ListedGpus | BaseException] | None = None
        self._last = NOTHING
        self._joined: tuple[Reading, ListedGpus, Reading] | None = None

    async def read(self) -> Mapping[str, Reading]:
        """Read the cards and the files."""
        readings, listed = await asyncio.gather(self._inner.read(), self._listed())
        return {node: self._with(reading, listed) for node, reading in readings.items()}

    async def _listed(self) -> ListedGpus:
        known = self._call
        call = self._call = known or in_thread(self._reader.read)
        if known is None:
            # Once: each wait leaves a callback at the call for as long as it hangs.
            await asyncio.wait([asyncio.wrap_future(call)], timeout=self._timeout)
        if call.done():
            self._call = None
            result = call.result()
            if isinstance(result, BaseException):
                raise result
            self._last = result
            return result
        message = f"no answer within {self._timeout:g} s; the GPUs of the last good reading, if any, stay listed"
        return replace(self._last, finding=Finding(type=_CONDITION, ok=False, reason="ReadTimedOut", message=message))

    def _with(self, reading: Reading, listed: ListedGpus) -> Reading:
        known = self._joined
        # Equal inputs give the same object as before, which the publisher need not compare.
        if known is None or known[0] is not reading or known[1] != listed:
            known = self._joined = (reading, listed, joined(reading, listed))
        return known[2]

    async def sample(self) -> Mapping[str, CardSample]:
        """Return the measurements of the inventory. The files have none."""
        return await self._inner.sample()

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return the numbered events of the inventory."""
        return self._inner.xids()

    def listen(self, listener: FaultListener) -> None:
        """Pass the fault events of the inventory on. A fault in a file is seen by the next reading."""
        self._inner.listen(listener)

    def released(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the inventory has no card open."""
        return released(self._inner)

    def close(self) -> None:
        """Close the hardware without waiting for it."""
        self._inner.close()


def joined(reading: Reading, listed: ListedGpus) -> Reading:
    """Return a reading with the GPUs of the files. A node that has other GPUs keeps only these."""
    if listed.finding is None:
        return reading
    if any(device.type == GPU for device in reading.spec.devices):
        finding = listed.finding
        if listed.cards:
            message = f"files list GPUs of {listed.vendor}, too; only the node's other GPUs are listed"
            finding = replace(finding, ok=False, reason="SecondVendor", message=message)
        return replace(reading, findings=(*reading.findings, finding))
    if not listed.cards:
        return replace(reading, findings=(*reading.findings, listed.finding))
    models = {card.model for card in listed.cards}
    labels = {
        names.VENDOR_LABEL: listed.vendor,
        names.MODEL_LABEL: label_value(models.pop()) if len(models) == 1 else "",
    }
    read = Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead")
    return replace(
        reading,
        spec=reading.spec.model_copy(update={"devices": [*listed.cards, *reading.spec.devices]}),
        findings=(_DRIVER, read, listed.finding),
        labels={key: value for key, value in labels.items() if value},
        facts=NodeFacts(machine=reading.facts.machine if reading.facts else ""),
        offered=False,
    )
