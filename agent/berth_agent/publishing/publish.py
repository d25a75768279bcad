"""Update the Device of each node to the newest Reading. Only changes are written.

Every write is a server-side apply as `berth-agent` without force. So the server keeps fields that other managers own.
If another manager took a field, the write is a conflict, which is logged and tried again, never forced. A failed write
is tried again at the next call, so there is no queue here.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import structlog
from pydantic import BaseModel

from berth_agent.cluster import DEVICES, list_metadata
from berth_agent.conditions import keep_card_times, keep_times
from berth_agent.publishing.node_cache import NodeCache, only
from berth_agent.readings import NodeUse, Reading
from berth_api import names
from berth_api.device import Condition, Device, DeviceInfo, DeviceSpec
from berth_client.client import ApiClient
from berth_client.errors import CallError

KIND: Final = "Device"

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Known:
    """What the API server has, as far as known."""

    cards: list[DeviceInfo] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    boot_id: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    reading: Reading | None = None
    """The reading that was published in full."""
    device: dict[str, Any] = field(default_factory=dict)
    """The object as last applied; empty before the first time."""
    generation: int = 0
    use: NodeUse | None = None
    """What pods hold; None if no agent has published it yet."""

    def is_current(self, reading: Reading, owner: Mapping[str, Any]) -> bool:
        """Return whether nothing is left to write."""
        return self.reading == reading and self.device["metadata"]["ownerReferences"] == [owner]

    def stands(self, metadata: Mapping[str, Any] | None) -> bool:
        """Return whether the server's object still matches what was applied."""
        if metadata is None:
            return False
        mine: dict[str, dict[str, str]] = self.device.get("metadata", {})
        same = all(mine.get(part, {}).items() <= metadata.get(part, {}).items() for part in ("labels", "annotations"))
        return same and self.generation == int(metadata["generation"])


class PublishedDevice(NamedTuple):
    """What a Device contained before this agent wrote to it."""

    spec: DeviceSpec
    annotations: Mapping[str, str]
    use: NodeUse


class Publisher:
    """Owner of this agent's Devices."""

    def __init__(self, *, client: ApiClient, nodes: NodeCache, concurrency: int) -> None:
        self._client = client
        self._nodes = nodes
        self._gate = asyncio.Semaphore(concurrency)
        self._known: dict[str, _Known] = {}
        self._present: dict[str, dict[str, Any]] = {}
        self._failures: dict[str, str] = {}

    async def resync(self, readings: Mapping[str, Reading]) -> None:
        """List the API server's objects, and forget changed or incomplete ones. The next publish repairs them.

        Raises:
            CallError: the list could not be read.
        """
        self._present = await list_metadata(self._client, DEVICES, only=only(readings))
        # Of a definition without some of our fields: apply the object again, in case it has them now.
        are_complete = not self._client.schemas.is_outdated(KIND)
        self._known = {
            name: known
            for name, known in self._known.items()
            if are_complete and name in readings and known.stands(self._present.get(name))
        }

    async def read_published(self, name: str) -> PublishedDevice:
        """Return what the Device of a node contained before this agent wrote to it; nothing if there is no Device.

        Raises:
            CallError: the Device could not be read.
        """
        async with self._gate:
            known = self._known[name] = await self._read_known(name)
        spec = DeviceSpec(boot_id=known.boot_id, devices=known.cards)
        return PublishedDevice(spec, known.annotations, known.use or NodeUse())

    def annotations(self, name: str) -> Mapping[str, str]:
        """Return the annotations of a Device at the last look."""
        annotations: dict[str, str] = self._present.get(name, {}).get("annotations", {})
        return annotations

    async def remove_annotation(self, name: str, annotation: str) -> None:
        """Remove an annotation that was acted on, unless the Device changed since the last list.

        Raises:
            CallError: it changed, or could not be written.
        """
        metadata = self._present[name]
        body = {"resourceVersion": metadata["resourceVersion"], "annotations": {annotation: None}}
        changed = await self._client.merge_patch(f"{DEVICES}/{name}", {"metadata": body})
        self._present[name] = changed["metadata"]

    async def publish(self, readings: Mapping[str, Reading]) -> None:
        """Write what the readings changed. A node that has no Node object yet is left for later."""
        due = []
        for name, reading in readings.items():
            owner, known = self._nodes.owner_reference(name), self._known.get(name)
            if owner is not None and (known is None or not known.is_current(reading, owner)):
                due.append(self._publish(name, reading))
        await asyncio.gather(*due)

    async def _publish(self, name: str, reading: Reading) -> None:
        """Write one Device and its status; a failure is logged once, not at each try."""
        try:
            async with self._gate:
                known = self._known.setdefault(name, await self._read_known(name))
                cards = keep_card_times(reading.spec.devices, known.cards)
                owner = self._nodes.owner_reference(name)
                body = device_body(name, reading=reading, cards=cards, owner=owner)
                # A write that fails, or is cancelled, may have been done: until the server has answered, nothing of it
                # is known, so that an earlier reading is written again, too.
                published, known.reading = known.reading, None
                if body != known.device:
                    known.device = {}
                    applied = await self._client.apply(f"{DEVICES}/{name}", body, names.AGENT)
                    known.device, known.cards, known.generation = body, cards, applied["metadata"]["generation"]
                    healthy = sum(card.health for card in cards)
                    _log.info("Device published", node=name, devices=len(cards), healthy=healthy)
                fresh = keep_times([finding.condition() for finding in reading.findings], known.conditions)
                use = reading.use or known.use
                if published is None or fresh != known.conditions or use != known.use:
                    status = status_body(name, conditions=fresh, use=use)
                    await self._client.apply(f"{DEVICES}/{name}/status", status, names.AGENT)
                    known.conditions, known.use = fresh, use
                    for condition in fresh:
                        if condition.status != "True":
                            _log.warning(condition.type, node=name, reason=condition.reason, message=condition.message)
                known.reading = reading
        except CallError as error:
            if self._failures.get(name) == str(error):
                return
            self._failures[name] = str(error)
            if error.status == HTTPStatus.CONFLICT:
                _log.error("another manager owns a field of the Device; left to it", node=name, conflict=str(error))
            else:
                _log.warning("Device not published, will try again", node=name, error=str(error))
        else:
            self._failures.pop(name, None)

    async def _read_known(self, name: str) -> _Known:
        """Read what an earlier run left: the times of its conditions are kept."""
        if name in self._known:
            return self._known[name]
        if name not in self._present:
            return _Known()
        try:
            obj = await self._client.get(f"{DEVICES}/{name}")
        except CallError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return _Known()
            raise
        device = Device.model_validate(obj)
        status, use = device.status, None
        if status.boot_id:
            use = NodeUse(
                held=tuple(status.held),
                boot_id=status.boot_id,
                withheld=tuple(status.withheld),
                foreign=tuple(status.foreign),
                claimed=tuple(status.claimed),
                exceeding=tuple(status.exceeding),
                unheld=tuple(status.unheld),
            )
        return _Known(
            cards=device.spec.devices,
            conditions=status.conditions,
            boot_id=device.spec.boot_id,
            annotations=obj["metadata"].get("annotations", {}),
            use=use,
        )


def device_body(
    name: str, *, reading: Reading, cards: list[DeviceInfo], owner: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Compose what we apply to a Device: only fields that were set, so that we own no others.

    Empty labels and annotations stay out: the server drops them, and would see a change in each apply that brings them
    again.
    """
    spec = reading.spec.model_copy(update={"devices": cards})
    labels = {"labels": dict(reading.labels)} if reading.labels else {}
    annotations = {"annotations": dict(reading.annotations)} if reading.annotations else {}
    return {
        "apiVersion": names.API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, **labels, **annotations, "ownerReferences": [owner] if owner else []},
        "spec": spec.model_dump(by_alias=True, exclude_unset=True),
    }


def status_body(name: str, *, conditions: list[Condition], use: NodeUse | None = None) -> dict[str, Any]:
    """Compose the applied status of a Device: our own conditions, and what pods hold if it is known."""
    status: dict[str, Any] = {
        "conditions": [condition.model_dump(by_alias=True, exclude_unset=True) for condition in conditions]
    }
    if use:
        status |= {
            "bootID": use.boot_id,
            "held": _dumped(use.held),
            "withheld": list(use.withheld),
            "foreign": _dumped(use.foreign),
        }
        # A definition of the version before does not have these fields, and most nodes do not need them.
        rare = {"claimed": use.claimed, "exceeding": use.exceeding, "unheld": use.unheld}
        status |= {name: _dumped(entries) for name, entries in rare.items() if entries}
    return {"apiVersion": names.API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": status}


def _dumped(entries: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [entry.model_dump(by_alias=True) for entry in entries]
