"""Events about devices that failed or recovered, on their Device and on the Node.

One Event lists all devices of a node that changed at once. Its name is derived from the change and from the ten minutes
in which the change began. So neither another leader nor a flapping device repeats the Event.
"""

import hashlib
from collections.abc import Iterator, Mapping
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
    """Yield the Events about what a Device reports since it was read before; `before` is None the first time."""
    earlier, current = _failed(before), _failed(after)
    failed = {card: each for card, each in current.items() if _kinds(each) - _kinds(earlier.get(card, ()))}
    if before is None:
        failed = {card: each for card, each in failed.items() if _is_recent(each, now)}
    if failed:
        note = f"{len(failed)} device(s) failed and are not allocated: {_listed(after, failed)}; see {RUNBOOK}"
        yield from _events(after, "Warning", "DeviceUnhealthy", note, failed)
    healthy = {(card.type, card.id) for card in after.inventory.cards if card.healthy}
    if recovered := {card: each for card, each in earlier.items() if card in healthy}:
        note = f"{len(recovered)} device(s) are healthy again: {_listed(after, recovered)}"
        yield from _events(after, "Normal", "DeviceHealthy", note, recovered)


def _failed(record: DeviceRecord | None) -> dict[_Card, tuple[Fault, ...]]:
    """Return the unhealthy devices, without those that a person cordoned."""
    reported = () if record is None else record.faults
    failed = ((card, tuple(each for each in found if each.kind != faults.CORDONED)) for card, found in reported)
    return {card: found for card, found in failed if found}


def _kinds(found: tuple[Fault, ...]) -> set[str]:
    return {each.kind for each in found}


def _is_recent(found: tuple[Fault, ...], now: datetime) -> bool:
    try:
        return any(now - times.parse(each.since) < RECENT for each in found)
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
    since = max(each.since[:MINUTES] for found in cards.values() for each in found)
    what = [f"{card}{sorted(_kinds(found))}" for card, found in sorted(cards.items())]
    for subject in (_device(record), _node(record)):
        digest = hashlib.sha256("|".join([record.uid, subject.kind, reason, since, *what]).encode()).hexdigest()[:16]
        yield Event(
            subject=subject,
            name=event_name(record.name, digest),
            type=kind,
            reason=reason,
            action="ReadingDevices",
            note=note,
        )


def _device(record: DeviceRecord) -> Subject:
    return Subject(
        namespace=NAMESPACE,
        name=record.name,
        uid=record.uid,
        controller=names.OPERATOR,
        kind="Device",
        api_version=names.API_VERSION,
    )


def _node(record: DeviceRecord) -> Subject:
    # As kubelet does: `kubectl describe node` looks for the name, too, and the Node may not have been read yet.
    return Subject(
        namespace=NAMESPACE, name=record.name, uid=record.name, controller=names.OPERATOR, kind="Node", api_version="v1"
    )
