"""Devices, parsed from the API and checked for contradictions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from berth_api import names
from berth_api.allocation import partitions
from berth_api.device import DESCRIBED, REPORTED, Condition, DeviceSpec, DeviceStatus
from berth_api.objects import faults, ownership
from berth_api.objects.faults import Fault
from berth_api.values.caching import compact
from berth_operator.core.values import refused, vendors
from berth_operator.core.values.inventory import DEFAULT_VENDOR, CardInfo, DeviceInventory
from berth_operator.state.objects import cards, kubelet

Object = Mapping[str, Any]

LASTING: Final = frozenset({"UntilReset", "UntilReboot"})
"""Reasons of a card's fault that only a reset or a reboot clears (docs/health.md)."""
UNHEALTHY: Final = "the agent reports it as unhealthy"
_CONDITIONS: Final = TypeAdapter(tuple[Condition, ...])
_WRITTEN: Final = f"{names.RESOURCES_WRITTEN}."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMarks:
    """What is read from a Device's labels and annotations, which can change without its generation."""

    vendor: str = DEFAULT_VENDOR
    table: str | None = None
    """The partition table, as text."""
    partitions_only: bool | None = None
    """Its label for the partition policy; None without a table, where the Node's label counts, as in Koordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A Device as the operator read it."""

    name: str
    uid: str
    generation: int
    inventory: DeviceInventory
    spec_problems: tuple[str, ...]
    """Contradictions in the spec, each with its field; the cards concerned are not allocated."""
    problems: tuple[str, ...] = ()
    """`spec_problems`, `mark_problems` and `report_problems`."""
    mark_problems: tuple[str, ...] = ()
    report_problems: tuple[str, ...] = ()
    marks: DeviceMarks = DeviceMarks()
    agent_report: kubelet.AgentReport = kubelet.NO_REPORT
    report_text: bytes = kubelet.NOTHING
    """The part of the status that `agent_report` was read from."""
    reported: bytes
    """The status as JSON: decisions do not read it, and as objects a large fleet's would take a hundred megabytes."""
    conditions: tuple[Condition, ...]
    """The conditions of the status."""
    driver_version: str = ""
    lost: frozenset[tuple[str, str]] = frozenset()
    """(type, id) of cards of the inventory that only a reset or a reboot brings back."""
    faults: tuple[tuple[tuple[str, str], tuple[Fault, ...]], ...] = ()
    """((type, id), what the agent reports) of each unhealthy card of the inventory."""
    foreign_spec: str = ""
    foreign_report: str = ""
    """A field of the spec, or of the agent's report, whose value is of another field manager, and the manager."""

    @property
    def foreign(self) -> str:
        """Return a field whose value is not the one that the agent published; empty if all are the agent's.

        Until the agent has written it again, it may name cards as free that are broken or held.
        """
        return self.foreign_spec or self.foreign_report

    @property
    def fault_texts(self) -> dict[tuple[str, str], str]:
        """Return the agent's reports of unhealthy cards as texts, and why other cards are not given by name."""
        reported = {card: faults.text(of_card) or UNHEALTHY for card, of_card in self.faults}
        return {(card.type, card.id): card.bar.detail for card in self.inventory.cards if card.bar} | reported

    @property
    def refused(self) -> frozenset[str]:
        """Return the types of plug-ins whose resources a policy keeps off the Node, by the operator's conditions."""
        written = (condition for condition in self.conditions if condition.type.startswith(_WRITTEN))
        return frozenset(
            condition.type.partition(".")[2] for condition in written if condition.reason == refused.REASON
        )

    @property
    def status(self) -> DeviceStatus:
        """Read the status. An unreadable status counts as empty, and is written again."""
        try:
            return DeviceStatus.model_validate_json(self.reported)
        except ValidationError:
            return DeviceStatus()


def record(device: Object, known: DeviceRecord | None = None) -> DeviceRecord:
    """Read a Device; an unchanged spec is taken from `known`.

    A spec that cannot be read, accepted by another version of the CRD, counts as empty, and so do the conditions.
    """
    metadata, status = device["metadata"], device.get("status") or {}
    status_json = compact(orjson.dumps(status))
    try:
        conditions = _CONDITIONS.validate_python(status.get("conditions") or ())
    except ValidationError:
        conditions = ()
    labels = metadata.get("labels") or {}
    table = (metadata.get("annotations") or {}).get(names.PARTITIONS)
    marks = DeviceMarks(
        vendor=labels.get(names.VENDOR_LABEL) or DEFAULT_VENDOR,
        table=table,
        partitions_only=None if table is None else partitions.partitions_only(labels),
    )
    is_same = known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation"))
    # No value of a spec changes without its generation.
    foreign_spec, foreign_report = _foreign(device, has_own_spec=is_same and known is not None and not known.foreign)
    if known is not None and is_same:
        marked = known if known.marks == marks else _marked(known, marks)
        read = replace(
            marked,
            reported=status_json,
            conditions=conditions,
            foreign_spec=foreign_spec,
            foreign_report=foreign_report,
        )
        return _with_report(read, status)
    unread: tuple[str, ...] = ()
    try:
        spec = DeviceSpec.model_validate(device.get("spec") or {})
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        spec, unread = DeviceSpec(), (f"spec{path}: {first['msg']}",)
    card_infos, problems = cards.of_spec(spec)
    known_cards = {(info.type, info.id) for info in card_infos}
    unhealthy = [info for info in spec.devices if not info.health and (info.type, info.id) in known_cards]
    read = DeviceRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation") or 0,
        inventory=DeviceInventory(
            cards=card_infos,
            mig_single=spec.mig_strategy == "single",
            kubelet_chooses=spec.replica_choice == "kubelet",
            one_replica=spec.replica_choice == "one",
        ),
        spec_problems=(*unread, *problems),
        reported=status_json,
        conditions=conditions,
        driver_version=spec.driver_version,
        lost=frozenset(
            (info.type, info.id)
            for info in unhealthy
            if any(condition.reason in LASTING for condition in info.conditions)
        ),
        faults=tuple(((info.type, info.id), faults.of_conditions(info.conditions)) for info in unhealthy),
        foreign_spec=foreign_spec,
        foreign_report=foreign_report,
    )
    return _with_report(_marked(read, marks), status)


def _foreign(device: Object, *, has_own_spec: bool) -> tuple[str, str]:
    """Return a field of the spec and one of the agent's report that other managers wrote; both empty if none did.

    Objects without managed fields, as in snapshots, and Devices that no agent has written, are taken as they are.
    """
    main, status = ownership.applied(device, names.AGENT)
    in_spec = ownership.unowned(device, "spec", main, only=DESCRIBED) if main and not has_own_spec else None
    in_report = ownership.unowned(device, "status", status, only=REPORTED) if main or status else None

    def text(path: ownership.Path | None) -> str:
        if path is None:
            return ""
        return f"field manager {ownership.last_writer(device, path, but=()) or 'unknown'} wrote {ownership.text(path)}"

    return text(in_spec), text(in_report)


def _with_report(read: DeviceRecord, status: Object) -> DeviceRecord:
    """Read the agent's report about kubelet if it has changed, which it can do without the generation."""
    text = kubelet.text(status)
    if text == read.report_text:
        return read
    report, problems = kubelet.agent_report(read.name, status)
    return _with_problems(replace(read, agent_report=report, report_text=text, report_problems=problems))


def _with_problems(read: DeviceRecord) -> DeviceRecord:
    return replace(read, problems=(*read.spec_problems, *read.mark_problems, *read.report_problems))


def _barred(card: CardInfo, vendor: str) -> CardInfo:
    """Return a GPU as one that is given to pods of this scheduler, or not, as its vendor's device plugin allows."""
    if card.bar is not None:
        # By the vendor that the label named before.
        card = replace(card, bar=None, healthy=True)
    bar = vendors.bar(vendor, card.model) if card.type == names.GPU else None
    return replace(card, bar=bar, healthy=False) if bar and card.healthy else card


def _marked(read: DeviceRecord, marks: DeviceMarks) -> DeviceRecord:
    """Apply the marks; an invalid partition table is not replaced by the built-in one."""
    table: partitions.Table = ()
    problems: tuple[str, ...] = ()
    if marks.table is None:
        has_table = marks.vendor == DEFAULT_VENDOR
        gpus = [card for card in read.inventory.cards if card.type == names.GPU] if has_table else []
        table = partitions.built_in({card.model for card in gpus}, [card.minor for card in gpus])
    else:
        try:
            table = partitions.parse(marks.table)
        except partitions.PartitionError as error:
            where = f"metadata.annotations.{names.PARTITIONS}"
            problems = (f"{where}: {error}; the node is treated as having no partitions",)
    inventory = replace(
        read.inventory,
        cards=tuple(_barred(card, marks.vendor) for card in read.inventory.cards),
        vendor=marks.vendor,
        partitions=table,
        partitions_only=marks.partitions_only,
    )
    return _with_problems(replace(read, inventory=inventory, marks=marks, mark_problems=problems))
