"""What must survive the agent: allocations that kubelet has not reported, and what pods had at the last look.

One file, written in one step: the new one is complete before it takes the old one's name. It is not forced to the
disk, since after a crash of the machine nothing in it holds any more, and its boot id shows that.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from berth_agent.kubelet.admission.mirror import Holding, PendingAllocation
from berth_agent.kubelet.admission.snapshot import ContainerKey
from berth_agent.kubelet.admission.units import Units

VERSION: Final = 1

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _DamagedError(ValueError):
    """The file is not one that this version wrote in this boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointData:
    """What a checkpoint holds."""

    pending: tuple[PendingAllocation, ...] = ()
    holdings: tuple[Holding, ...] = ()
    units: Units = field(default_factory=Units)
    """Which cards their ids lie on: a card that fails now may never report it to this run."""


class Checkpoint:
    """The file of one agent."""

    def __init__(self, *, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._last = b""

    def load(self) -> CheckpointData:
        """Return the data of the last run; empty, with a log line, if the file cannot be used."""
        try:
            return _saved(self._payload(self._path.read_bytes()))
        except FileNotFoundError:
            _log.info("no checkpoint, starting empty", path=str(self._path))
        except (_DamagedError, OSError) as error:
            _log.warning("checkpoint rejected, starting empty", path=str(self._path), reason=str(error))
        return CheckpointData()

    def save(self, *, pending: Iterable[PendingAllocation], holdings: Iterable[Holding], units: Units) -> None:
        """Write it where it changed.

        Raises:
            OSError: it cannot be written.
        """
        payload = {
            "bootID": self._boot_id,
            "promises": [_pending_entry(allocation) for allocation in pending],
            "holdings": [_holding_entry(holding) for holding in holdings],
            "minors": dict(units.minors),
            "cards": sorted(units.cards),
            "parents": dict(units.parents),
        }
        text = orjson.dumps({"version": VERSION, "checksum": _checksum(payload), "payload": payload})
        if text == self._last:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(text)
        fresh.replace(self._path)
        self._last = text

    def _payload(self, text: bytes) -> Mapping[str, Any]:
        try:
            document = orjson.loads(text)
            version, checksum, payload = document["version"], document["checksum"], document["payload"]
        except (orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise _DamagedError(f"not a checkpoint: {error}") from error
        if version != VERSION:
            raise _DamagedError(f"version {version}; this agent knows {VERSION}")
        if checksum != _checksum(payload):
            raise _DamagedError("its checksum is wrong")
        if payload["bootID"] != self._boot_id:
            raise _DamagedError("it is of another boot")
        checked: Mapping[str, Any] = payload
        return checked


def _checksum(payload: Any) -> str:
    return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _pending_entry(allocation: PendingAllocation) -> dict[str, Any]:
    where = {"uid": allocation.key.uid, "container": allocation.key.container}
    return {
        **where,
        "resource": allocation.resource,
        "ids": sorted(allocation.ids),
        "silent": allocation.never_reported,
    }


def _holding_entry(holding: Holding) -> dict[str, Any]:
    where = {"uid": holding.uid, "namespace": holding.namespace, "pod": holding.pod, "container": holding.container}
    return {**where, "ids": list(holding.ids)}


def _saved(payload: Mapping[str, Any]) -> CheckpointData:
    return CheckpointData(
        pending=tuple(_pending_allocation(entry) for entry in payload["promises"]),
        holdings=tuple(Holding(**{**entry, "ids": tuple(entry["ids"])}) for entry in payload["holdings"]),
        # Earlier agents wrote no parents; those of instances that are there come with the first reading.
        units=Units(minors=payload["minors"], cards=frozenset(payload["cards"]), parents=payload.get("parents", {})),
    )


def _pending_allocation(entry: Mapping[str, Any]) -> PendingAllocation:
    key = ContainerKey(uid=entry["uid"], container=entry["container"])
    # The clock of another run says nothing: it is as if it were given when this one begins.
    ids, never_reported = frozenset(entry["ids"]), entry["silent"]
    return PendingAllocation(key=key, resource=entry["resource"], ids=ids, never_reported=never_reported, at=0.0)
