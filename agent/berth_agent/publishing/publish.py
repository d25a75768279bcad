"""Update the Device of each node to the newest Reading. Only changes are written.

Every write is a server-side apply as `berth-agent`, by force: the agent alone knows the devices of its node, and a
field that another manager froze would be wrong after the next fault. Labels and annotations of people, and conditions
of other types, stay as they are. If another client changes what the agent published, the agent writes it again, less
and less often if this goes on (`take_backs`). There is no queue: a failed write is tried again at the next call, or
after a pause if it was refused for good.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple

import orjson
import structlog
from prometheus_client import Counter
from pydantic import BaseModel

from berth_agent.cluster import DEVICES, ClientOf, list_metadata
from berth_agent.conditions import keep_card_times, keep_times
from berth_agent.publishing.node_cache import NodeCache, only
from berth_agent.publishing.take_backs import TakeBacks
from berth_agent.readings import NodeUse, Reading
from berth_api import names
from berth_api.device import DESCRIBED, REPORTED, Condition, Device, DeviceInfo, DeviceSpec
from berth_api.objects import ownership
from berth_api.objects.ownership import Fields, Path
from berth_client.client import ApiClient
from berth_client.errors import CallError
from berth_client.objects import Object
from berth_client.refusals import Pauses, is_for_good

KIND: Final = "Device"
OURS: Final = frozenset({names.AGENT, names.OPERATOR})
"""The field managers of Berth that write Devices."""
FROZEN_SECONDS: Final = 30.0
"""Seconds for which a part of a Device is refused for good until the Device counts as frozen. An upgrade may change the
policies of the API server before or after the agents."""
UNKNOWN: Final = "unknown"
"""The manager of a field that was removed: no manager owns it."""
TAKE_BACKS: Final = Counter(
    "berth_device_take_backs_total",
    "Times that the agent wrote its Device again because another client had changed it, by field manager",
    ["manager"],
    registry=None,
)

Part = Literal["spec", "status"]
"""What of a Device is written with one request."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Seen(NamedTuple):
    """What an object shows of the fields that the agent writes."""

    applied: tuple[int, int] = (0, 0)
    """Digests of the fields, without and with those of the status, that have the values which the agent applied."""
    foreign: Path | None = None
    """The first field of another manager among those that the agent alone writes; None if there is none."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """What the API server has, as far as known."""

    cards: list[DeviceInfo] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    boot_id: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    reading: Reading | None = None
    """The reading that was published in full; None if a write after it has no answer, or failed."""
    unanswered: set[Part] = field(default_factory=set)
    """The parts whose last write was not accepted, so that it is not known what of it was done."""
    device: dict[str, Any] = field(default_factory=dict)
    """The object as last applied; empty before the first time."""
    owners: Sequence[Mapping[str, Any]] | None = None
    """The Device's references to its Node; None if there is no Device."""
    applied: tuple[int, int] = (0, 0)
    """As in `_Seen`, after the last writes."""
    seen: _Seen | None = None
    """What the API server showed last; None if it need not be compared."""
    retake_at: float | None = None
    """When foreign values are replaced, by the monotonic clock; None if none are known."""
    use: NodeUse | None = None
    """What pods hold; None if no agent has published it yet."""

    @property
    def is_doubtful(self) -> bool:
        """Return whether another client may have changed what the agent published."""
        return self.seen is not None and self.seen != _Seen(self.applied)

    @property
    def needs_look(self) -> bool:
        """Return whether that is so, and neither a write is under way nor a wait for the next one."""
        return self.is_doubtful and self.reading is not None and self.retake_at is None

    def forget(self, seen: _Seen | None) -> None:
        """Forget what was changed, so that it is written again; `seen` is None if the Device is gone."""
        if seen is None:
            self.device, self.applied = {}, (0, 0)
            return
        is_of_status = seen.foreign is not None and seen.foreign[0] == "f:status"
        if seen.applied[1] != self.applied[1] or is_of_status:
            self.applied = (self.applied[0], 0)
        if seen.applied[0] != self.applied[0] or (seen.foreign is not None and not is_of_status):
            self.device = {}


class PublishedDevice(NamedTuple):
    """What a Device contained before this agent wrote to it."""

    spec: DeviceSpec
    annotations: Mapping[str, str]
    use: NodeUse


class Publisher:
    """Owner of this agent's Devices."""

    def __init__(self, *, client: ApiClient, client_of: ClientOf, nodes: NodeCache, concurrency: int) -> None:
        self._client, self._client_of = client, client_of
        self._nodes = nodes
        self._gate = asyncio.Semaphore(concurrency)
        self._known: dict[str, _Known] = {}
        self._present: dict[str, dict[str, Any]] = {}
        self._failures: dict[tuple[str, Part | None], str] = {}
        """(Node, part of its Device, or None if the Device could not be read) -> the last failure."""
        self._refused: dict[tuple[str, Part | None], float] = {}
        """The same key -> since when the API server refuses it for good."""
        self._take_backs: dict[str, TakeBacks] = {}
        self._pauses: Pauses[tuple[str, Part | None]] = Pauses(clock=lambda: asyncio.get_running_loop().time())

    async def resync(self, readings: Mapping[str, Reading]) -> None:
        """List the API server's objects. The next publish repairs those that were changed or are incomplete.

        Raises:
            CallError: the list could not be read.
        """
        self._present = await list_metadata(self._client, DEVICES, only=only(readings))
        # Of a definition without some of our fields: apply the object again, in case it has them now.
        are_complete = not self._client.schemas.is_outdated(KIND)
        self._known = {name: known for name, known in self._known.items() if are_complete and name in readings}
        self._take_backs = {name: counts for name, counts in self._take_backs.items() if name in readings}
        self._refused = {key: since for key, since in self._refused.items() if key[0] in readings}
        self._failures = {key: text for key, text in self._failures.items() if key[0] in readings}
        for name in self._known:
            metadata = self._present.get(name)
            self.see(name, None if metadata is None else {"metadata": metadata})

    def see(self, name: str, device: Object | None) -> bool:
        """Take a Device as the API server shows it, None if it is gone; return whether `publish` should look at it now.

        It may be older than the last write, so `publish` reads the Device before it acts.
        """
        known = self._known.get(name)
        if known is None:
            return False
        known.seen = _Seen() if device is None else _seen(device)
        if not known.is_doubtful:
            # The client that changed it has put it back.
            known.retake_at = None
        return known.needs_look

    def forget(self) -> None:
        """Forget what was written, so that the next publish writes it again; the API server's state was restored."""
        self._known.clear()

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
        changed = await self._client_of(name).merge_patch(f"{DEVICES}/{name}", {"metadata": body})
        self._present[name] = changed["metadata"]

    async def publish(self, readings: Mapping[str, Reading]) -> None:
        """Write what the readings or other clients changed. A node that has no Node object yet is left for later."""
        now, due = asyncio.get_running_loop().time(), []
        for name, reading in readings.items():
            owner, known = self._nodes.owner_reference(name), self._known.get(name)
            if owner is None or (known is not None and now < (known.retake_at or now)):
                continue
            is_refused = (name, None) in self._refused
            if known is None or known.is_doubtful or known.reading != reading or is_refused:
                due.append(self._publish(name, reading, owner))
        await asyncio.gather(*due)
        # Changes that came during these writes.
        changed = [name for name in readings if name in self._known and self._known[name].needs_look]
        owners = ((name, self._nodes.owner_reference(name)) for name in changed)
        await asyncio.gather(*(self._publish(name, readings[name], owner) for name, owner in owners if owner))

    def is_frozen(self, name: str) -> bool:
        """Return whether the API server has refused for `FROZEN_SECONDS` what is to be published of a node.

        The Device then shows an earlier state: cards that have failed since may be healthy there.
        """
        before = asyncio.get_running_loop().time() - FROZEN_SECONDS
        keys: tuple[Part | None, ...] = (None, "spec", "status")
        return any(self._refused.get((name, part), before + 1) <= before for part in keys)

    async def _publish(self, name: str, reading: Reading, owner: Mapping[str, Any]) -> None:
        """Write one Device and its status; a failure is logged once, not at each try."""
        if self._pauses.refusal((name, None)) is not None:
            return
        try:
            async with self._gate:
                known = self._known.setdefault(name, await self._read_known(name))
                if known.is_doubtful and not await self._may_write(name, known):
                    self._succeeded((name, None))
                    return
                known.reading = None
                is_written = await self._try(
                    "spec", name, known, lambda: self._publish_spec(name, known, reading, owner)
                )
                if known.owners is not None:
                    is_written &= await self._try(
                        "status", name, known, lambda: self._publish_status(name, known, reading)
                    )
                if is_written:
                    known.reading = reading
        except CallError as error:
            self._failed((name, None), error)
        else:
            self._succeeded((name, None))

    async def _try(self, part: Part, name: str, known: _Known, write: Callable[[], Awaitable[None]]) -> bool:
        """Write a part of a Device, unless it was refused recently; return whether the API server has it.

        Raises:
            CallError: the API server did not answer.
        """
        if self._pauses.refusal((name, part)) is not None:
            return False
        try:
            await write()
        except CallError as error:
            # The owners that were applied may be those of a Device that is gone.
            known.seen = _Seen()
            if not error.status:
                raise
            self._failed((name, part), error)
            return False
        self._succeeded((name, part))
        return True

    async def _publish_spec(self, name: str, known: _Known, reading: Reading, owner: Mapping[str, Any]) -> None:
        cards = keep_card_times(reading.spec.devices, known.cards)
        owners = [owner] if known.owners is None else known.owners
        body = device_body(name, reading=reading, cards=cards, owners=owners)
        if "spec" not in known.unanswered and body == known.device:
            return
        # A write that fails, or is cancelled, may have been done: until the server has answered, nothing of it is
        # known, so that an earlier reading is written again, too.
        known.unanswered.add("spec")
        device = await self._apply(f"{DEVICES}/{name}", body)
        known.unanswered.discard("spec")
        known.device, known.cards, known.owners = body, cards, _owners(name, device)
        known.applied = (_digest(ownership.applied(device, names.AGENT).main), known.applied[1])
        healthy = sum(card.health for card in cards)
        _log.info("Device published", node=name, devices=len(cards), healthy=healthy)

    async def _publish_status(self, name: str, known: _Known, reading: Reading) -> None:
        fresh = keep_times([finding.condition() for finding in reading.findings], known.conditions)
        use = reading.use or known.use
        is_known = "status" not in known.unanswered and known.applied[1]
        if is_known and fresh == known.conditions and use == known.use:
            return
        known.unanswered.add("status")
        device = await self._apply(f"{DEVICES}/{name}/status", status_body(name, conditions=fresh, use=use))
        known.unanswered.discard("status")
        known.conditions, known.use = fresh, use
        known.applied = (known.applied[0], _digest(ownership.applied(device, names.AGENT).status))
        for condition in fresh:
            if condition.status != "True":
                _log.warning(condition.type, node=name, reason=condition.reason, message=condition.message)

    def _failed(self, key: tuple[str, Part | None], error: CallError) -> None:
        name, part = key
        self._pauses.failed(key, error)
        if is_for_good(error):
            self._refused.setdefault(key, asyncio.get_running_loop().time())
        if self._failures.get(key) != str(error):
            self._failures[key] = str(error)
            _log.warning("Device not published, will try again", node=name, part=part, error=str(error))

    def _succeeded(self, key: tuple[str, Part | None]) -> None:
        self._pauses.end(key)
        self._failures.pop(key, None)
        self._refused.pop(key, None)

    async def _may_write(self, name: str, known: _Known) -> bool:
        """Read a Device that may have been changed; return whether it may be written now.

        Forget what was changed, so that it is written again.
        """
        device = await self._get(name)
        seen = _Seen() if device is None else _seen(device)
        known.owners = None if device is None else _owners(name, device)
        known.seen = None
        if known.unanswered:
            # A write of our own was not accepted: no change is certainly another client's.
            known.forget(None if device is None else seen)
            return True
        if seen == _Seen(known.applied):
            known.retake_at = None
            return True
        now, take_backs = asyncio.get_running_loop().time(), self._take_backs.setdefault(name, TakeBacks())
        manager = (device and ownership.last_writer(device, seen.foreign, but=OURS)) or UNKNOWN
        field_name = ownership.text(seen.foreign) if seen.foreign else ""
        if known.retake_at is None:
            wait = take_backs.wait(manager, now)
            known.retake_at = now + wait
            log = _log.bind(node=name, manager=manager, field=field_name)
            log.warning("another client changed the Device, writing it again", in_seconds=round(wait))
        if now < known.retake_at:
            known.seen = seen
            return False
        known.retake_at = None
        take_backs.record(manager, now)
        TAKE_BACKS.labels(take_backs.counted_as(manager)).inc()
        known.forget(None if device is None else seen)
        return True

    async def _apply(self, path: str, body: Mapping[str, Any]) -> Object:
        """Apply our fields, and remove those of other managers among the fields that are ours alone."""
        name = body["metadata"]["name"]
        client = self._client_of(name)
        try:
            device = await client.apply(path, body, names.AGENT, force=True)
        except CallError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            shown = await self._get(name)
            if shown is None or not ownership.last_writer(shown, None, but=OURS):
                raise
            # Another manager applied an item that we remove, and what it still owns of the item lacks required fields.
            await client.merge_patch(path, _whole_lists(shown, body))
            device = await client.apply(path, body, names.AGENT, force=True)
        surplus = _surplus(device, body)
        return await client.merge_patch(path, surplus) if surplus else device

    async def _get(self, name: str) -> Object | None:
        try:
            return await self._client.get(f"{DEVICES}/{name}")
        except CallError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _read_known(self, name: str) -> _Known:
        """Read what an earlier run left: the times of its conditions are kept."""
        if name in self._known:
            return self._known[name]
        if name not in self._present:
            return _Known()
        if (obj := await self._get(name)) is None:
            return _Known()
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
                uncertain=tuple(status.uncertain),
                running=tuple(status.running),
                stopped=tuple(status.stopped),
            )
        return _Known(
            cards=device.spec.devices,
            conditions=status.conditions,
            boot_id=device.spec.boot_id,
            annotations=obj["metadata"].get("annotations", {}),
            owners=_owners(name, obj),
            use=use,
        )


def device_body(
    name: str, *, reading: Reading, cards: list[DeviceInfo], owners: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compose what we apply to a Device: only fields that were set, so that we own no others.

    Fields that are None stay out, too: the API server refuses the whole object for a null.
    Empty labels and annotations stay out: the server drops them, and would see a change in each apply that brings them
    again.
    """
    spec = reading.spec.model_copy(update={"devices": cards})
    labels = {"labels": dict(reading.labels)} if reading.labels else {}
    annotations = {"annotations": dict(reading.annotations)} if reading.annotations else {}
    return {
        "apiVersion": names.API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, **labels, **annotations, "ownerReferences": list(owners)},
        "spec": spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True),
    }


def status_body(name: str, *, conditions: list[Condition], use: NodeUse | None = None) -> dict[str, Any]:
    """Compose the applied status of a Device: our own conditions, and what pods hold if it is known."""
    status: dict[str, Any] = {
        "conditions": [
            condition.model_dump(by_alias=True, exclude_unset=True, exclude_none=True) for condition in conditions
        ]
    }
    if use:
        status |= {
            "bootID": use.boot_id,
            "held": _dumped(use.held),
            "withheld": list(use.withheld),
            "foreign": _dumped(use.foreign),
            "claimed": _dumped(use.claimed),
            "exceeding": _dumped(use.exceeding),
            "unheld": _dumped(use.unheld),
            "uncertain": list(use.uncertain),
            "running": _dumped(use.running),
            "stopped": list(use.stopped),
        }
    return {"apiVersion": names.API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": status}


def _dumped(entries: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [entry.model_dump(by_alias=True, exclude_none=True) for entry in entries]


def _seen(device: Object) -> _Seen:
    """Return what a Device, or its metadata alone, shows of our fields."""
    main, status = ownership.applied(device, names.AGENT)
    digests = _digest(main), _digest(status)
    if "spec" not in device:
        # Another manager may own a field with our value. Before anything is written, the Device is read.
        ours = {"spec": DESCRIBED, "status": REPORTED}
        return _Seen(digests, ownership.owned_by_others(device, but=OURS, only=ours))
    in_spec = ownership.unowned(device, "spec", main, only=DESCRIBED)
    in_status = ownership.unowned(device, "status", status, only=REPORTED)
    return _Seen(digests, in_spec or in_status)


def _digest(fields: Fields) -> int:
    """Return a number for a set of fields; 0 only for the empty one. The sets themselves are large."""
    return hash(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)) or 1 if fields else 0


def _owners(name: str, device: Object) -> list[Mapping[str, Any]]:
    """Return a Device's references to its Node, which we send back unchanged: see `node_cache`."""
    references = device["metadata"].get("ownerReferences") or ()
    return [owner for owner in references if (owner["kind"], owner["name"]) == ("Node", name)]


def _surplus(device: Object, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that removes other managers' fields where all fields are ours; None if there are none."""
    main, status = ownership.applied(device, names.AGENT)
    if "spec" in body:
        part, ours, fields = "spec", DESCRIBED, main
    else:
        part, ours, fields = "status", REPORTED, status
    if ownership.unowned(device, part, fields, only=ours) is None:
        return None
    shown, applied = device[part], body[part]
    removed = {key: applied.get(key) for key in ours if key in shown and applied.get(key) != shown[key]}
    return {"metadata": {"resourceVersion": device["metadata"]["resourceVersion"]}, part: removed}


def _whole_lists(device: Object, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that replaces the lists that we apply; conditions of other managers stay."""
    metadata = {"resourceVersion": device["metadata"]["resourceVersion"]}
    if "spec" in body:
        return {"metadata": metadata, "spec": {"devices": body["spec"]["devices"]}}
    conditions = body["status"]["conditions"]
    ours = ownership.condition_types(ownership.applied(device, names.AGENT).status)
    ours |= {condition["type"] for condition in conditions}
    others = [condition for condition in device["status"].get("conditions") or () if condition["type"] not in ours]
    return {"metadata": metadata, "status": {"conditions": [*others, *conditions]}}
