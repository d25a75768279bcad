"""Events about devices that failed or recovered, on their Device and on the Node.

One Event lists all devices of a node that changed at once. Its name is derived from the change and from the ten minutes
in which the change began. So neither another leader nor a flapping device repeats the Event.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from berth_api import names
from berth_api.objects import device_text, faults
from berth_api.objects.faults import Fault
from berth_client import times
from berth_operator.binding.reports.events import Event, Subject, event_name
from berth_operator.state.objects.devices import DeviceRecord

NAMESPACE: Final = "default"
"""Where Events are about objects without a namespace."""
RECENT: Final = timedelta(minutes=10)
"""How old a fault may be that a new leader reports: it began while none led."""
SHOWN: Final = 4
"""Devices that a note lists before it counts the others."""
MINUTES: Final = len("2026-01-02T03:0")
"""Characters of a time that are the same for ten minutes."""
RUNBOOK: Final = "docs/runbooks.md#berthgpuunhealthy"

_Card = tuple[str, str]
"""Type and id."""
_Faults = Mapping[_Card, tuple[Fault, ...]]


def of_change(before: DeviceRecord | None, after: DeviceRecord, now: datetime) -> Iterator[Event]:
    """Yield the Events about a Device's changes since its last reading. `before` is None the first time."""
    earlier, current = _failed(before), _failed(after)
    failed = {card: of_card for card, of_card in current.items() if _kinds(of_card) - _kinds(earlier.get(card, ()))}
    if before is None:
        failed = {card: of_card for card, of_card in failed.items() if _is_recent(of_card, now)}
    if failed:
        note = f"{len(failed)} device(s) failed and are not allocated: {_listed(after, failed)}; see {RUNBOOK}"
        yield from _events(after, "Warning", "DeviceUnhealthy", note, failed)
    healthy = {(card.type, card.id) for card in after.inventory.cards if card.healthy}
    if recovered := {card: of_card for card, of_card in earlier.items() if card in healthy}:
        note = f"{len(recovered)} device(s) are healthy again: {_listed(after, recovered)}"
        yield from _events(after, "Normal", "DeviceHealthy", note, recovered)


def _failed(record: DeviceRecord | None) -> dict[_Card, tuple[Fault, ...]]:
    """Return the unhealthy devices, without devices that a person cordoned."""
    reported = () if record is None else record.faults
    failed = ((card, tuple(fault for fault in of_card if fault.kind != faults.CORDONED)) for card, of_card in reported)
    return {card: of_card for card, of_card in failed if of_card}


def _kinds(of_card: tuple[Fault, ...]) -> set[str]:
    return {fault.kind for fault in of_card}


def _is_recent(of_card: tuple[Fault, ...], now: datetime) -> bool:
    try:
        return any(now - times.parse(fault.since) < RECENT for fault in of_card)
    except ValueError:
        return False


def _listed(record: DeviceRecord, cards: _Faults) -> str:
    minors = {(card.type, card.id): card.minor for card in record.inventory.cards}
    shown = [
        f"{device_text.of_device(card[0], minors[card], card[1])} {card[1]} ({faults.text(cards[card])})"
        for card in sorted(cards)[:SHOWN]
        if card in minors
    ]
    more = len(cards) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _events(record: DeviceRecord, kind: str, reason: str, note: str, cards: _Faults) -> Iterator[Event]:
    since = max(fault.since[:MINUTES] for of_card in cards.values() for fault in of_card)
    what = [f"{card}{sorted(_kinds(of_card))}" for card, of_card in sorted(cards.items())]
    about_device = Subject(
        namespace=NAMESPACE,
        name=record.name,
        uid=record.uid,
        controller=names.OPERATOR,
        kind="Device",
        api_version=names.API_VERSION,
    )
    # As kubelet does: `kubectl describe node` looks for the name, too, and the Node may not have been read yet.
    about_node = replace(about_device, uid=record.name, kind="Node", api_version="v1")
    for subject in (about_device, about_node):
        digest = hashlib.sha256("|".join([record.uid, subject.kind, reason, since, *what]).encode()).hexdigest()[:16]
        yield Event(
            subject=subject,
            name=event_name(record.name, digest),
            type=kind,
            reason=reason,
            action="ReadingDevices",
            note=note,
        )
