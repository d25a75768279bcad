"""Devices from the API, read once at the edge, and checked against themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from berth_api import names, partitions
from berth_api.device import Condition, DeviceInfo, DeviceSpec, DeviceStatus
from berth_operator.core.values.inventory import DEFAULT_VENDOR, CardInfo, DeviceInventory
from berth_operator.state import cards, kubelet

Object = Mapping[str, Any]

LASTING: Final = frozenset({"UntilReset", "UntilReboot"})
"""Reasons by which an agent says of a card's fault that it ends by no other means (docs/agent.md)."""
_CONDITIONS: Final = TypeAdapter(tuple[Condition, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is read of a Device's labels and annotations: they change without its generation."""

    vendor: str = DEFAULT_VENDOR
    table: str | None = None
    """Its partitions, as text."""
    honors: bool | None = None
    """What its label says of its own table; without one its Node's label counts, as in Koordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A Device as the operator read it."""

    name: str
    uid: str
    generation: int
    inventory: DeviceInventory
    spec_problems: tuple[str, ...]
    """What contradicts itself in the spec, each naming the field; those cards are not handed out."""
    problems: tuple[str, ...] = ()
    """That, and what cannot be read of its annotations and of what its agent tells of kubelet."""
    mark_problems: tuple[str, ...] = ()
    report_problems: tuple[str, ...] = ()
    marks: Marks = Marks()
    agent_report: kubelet.AgentReport = kubelet.NO_WORD
    report_text: bytes = kubelet.NOTHING
    """What it was read from."""
    reported: bytes
    """The status as JSON: nobody decides by it, and as objects those of a large fleet take a hundred megabytes."""
    conditions: tuple[Condition, ...]
    """Those of the status."""
    driver_version: str = ""
    lost: frozenset[tuple[str, str]] = frozenset()
    """(type, id) of cards that only a reset or a reboot brings back."""

    @property
    def status(self) -> DeviceStatus:
        """Read the status; one that we cannot read counts as empty, and is written anew."""
        try:
            return DeviceStatus.model_validate_json(self.reported)
        except ValidationError:
            return DeviceStatus()


def record(device: Object, known: DeviceRecord | None = None) -> DeviceRecord:
    """Read a Device; of one whose spec is still the one that is known only the rest is read."""
    metadata, status = device["metadata"], device.get("status") or {}
    told, conditions = orjson.dumps(status), _conditions(status)
    marks = _marks(metadata)
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation")):
        marked = known if known.marks == marks else _marked(known, marks)
        return _with_word(replace(marked, reported=told, conditions=conditions), status)
    spec, unread = _spec(device)
    found, problems = cards.of_spec(spec)
    read = DeviceRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation") or 0,
        inventory=DeviceInventory(cards=found, mig_single=spec.mig_strategy == "single"),
        spec_problems=(*unread, *problems),
        reported=told,
        conditions=conditions,
        driver_version=spec.driver_version,
        lost=frozenset((each.type, each.id) for each in spec.devices if _is_lost(each)),
    )
    return _with_word(_marked(read, marks), status)


def _with_word(read: DeviceRecord, status: Object) -> DeviceRecord:
    """Read what the agent tells of kubelet, if that is not what is known: it changes without the generation."""
    text = kubelet.text(status)
    if text == read.report_text:
        return read
    word, problems = kubelet.word(read.name, status)
    return _with_problems(replace(read, agent_report=word, report_text=text, report_problems=problems))


def _with_problems(read: DeviceRecord) -> DeviceRecord:
    return replace(read, problems=(*read.spec_problems, *read.mark_problems, *read.report_problems))


def _is_lost(device: DeviceInfo) -> bool:
    return not device.health and any(each.reason in LASTING for each in device.conditions)


def _marks(metadata: Object) -> Marks:
    labels = metadata.get("labels") or {}
    table = (metadata.get("annotations") or {}).get(names.PARTITIONS)
    return Marks(
        vendor=labels.get(names.VENDOR_LABEL) or DEFAULT_VENDOR,
        table=table,
        honors=None if table is None else partitions.partitions_only(labels),
    )


def _marked(read: DeviceRecord, marks: Marks) -> DeviceRecord:
    table, problems = _table(marks, read.inventory.cards)
    inventory = replace(read.inventory, vendor=marks.vendor, partitions=table, partitions_only=marks.honors)
    return _with_problems(replace(read, inventory=inventory, marks=marks, mark_problems=problems))


def _table(marks: Marks, found: Sequence[CardInfo]) -> tuple[partitions.Table, tuple[str, ...]]:
    """Return the partitions, and what is wrong with them; who writes a bad table did not want the one built in."""
    if marks.table is None:
        gpus = [card for card in found if card.type == names.GPU] if marks.vendor == DEFAULT_VENDOR else []
        models, minors = {card.model for card in gpus}, [card.minor for card in gpus]
        return partitions.built_in(models, minors), ()
    try:
        return partitions.parse(marks.table), ()
    except partitions.PartitionError as error:
        return (), (f"metadata.annotations.{names.PARTITIONS}: {error}; the node counts as one without partitions",)


def _spec(device: Object) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Read the spec; one that the CRD of another version let through, but that we cannot read, counts as empty."""
    try:
        return DeviceSpec.model_validate(device.get("spec") or {}), ()
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        return DeviceSpec(), (f"spec{place}: {first['msg']}",)


def _conditions(status: Object) -> tuple[Condition, ...]:
    """Read the conditions; where one cannot be read, there are none."""
    try:
        return _CONDITIONS.validate_python(status.get("conditions") or ())
    except ValidationError:
        return ()
