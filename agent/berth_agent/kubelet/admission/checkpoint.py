"""The state that must survive the agent: allocations that kubelet has not reported, and what pods last held.

The state is one file, replaced atomically: the new file is complete before it takes the old one's name. It is not
synced to the disk. After a crash of the machine, nothing in it is valid any more, and its boot id shows this. Only root
can read the file. A file that cannot be used is kept under another name.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.kubelet.admission.mirror import Holding, PendingAllocation
from berth_agent.kubelet.admission.snapshot import ContainerKey
from berth_agent.kubelet.admission.units import Units

VERSION: Final = 1
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
DRAFT: Final = ".new"
ASIDE: Final = ".rejected"

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _DamagedError(ValueError):
    """The file is not one that this version wrote."""


class _OtherBootError(ValueError):
    """The file is of another boot, so that nothing in it holds any more."""


class _Entry(BaseModel):
    """A part of the payload; JSON has the types that are declared, and no others."""

    model_config = ConfigDict(strict=True, extra="forbid")


class _Pending(_Entry):
    uid: str
    container: str
    resource: str
    ids: list[str]
    silent: bool


class _Held(_Entry):
    uid: str
    namespace: str
    pod: str
    container: str
    ids: list[str]


class _Payload(_Entry):
    bootID: str  # noqa: N815 - as in the file
    promises: list[_Pending]
    holdings: list[_Held]
    minors: dict[str, int]
    cards: list[str]
    parents: dict[str, str]


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
        self._written: FileIdentity | None = None
        """The file as it was written."""

    def load(self) -> CheckpointData:
        """Return the data of the last run; empty, with a log line, if the file cannot be used."""
        try:
            payload = self._payload(files.read(self._path))
        except FileNotFoundError:
            _log.info("no checkpoint, starting empty", path=str(self._path))
            return CheckpointData()
        except _OtherBootError as error:
            _log.warning("checkpoint rejected, starting empty", path=str(self._path), reason=str(error))
            return CheckpointData()
        except (_DamagedError, OSError) as error:
            kept = self._set_aside()
            _log.warning("checkpoint rejected, starting empty", path=str(self._path), reason=str(error), kept_as=kept)
            return CheckpointData()
        return CheckpointData(
            pending=tuple(
                PendingAllocation(
                    key=ContainerKey(uid=entry.uid, container=entry.container),
                    resource=entry.resource,
                    ids=frozenset(entry.ids),
                    never_reported=entry.silent,
                    # The clock of another run says nothing: it is as if it were given when this one begins.
                    at=0.0,
                )
                for entry in payload.promises
            ),
            holdings=tuple(
                Holding(
                    uid=entry.uid,
                    namespace=entry.namespace,
                    pod=entry.pod,
                    container=entry.container,
                    ids=tuple(entry.ids),
                )
                for entry in payload.holdings
            ),
            units=Units(minors=payload.minors, cards=frozenset(payload.cards), parents=payload.parents),
        )

    def _set_aside(self) -> str:
        """Keep a file that cannot be used under another name, in place of an earlier one; return the name."""
        aside = self._path.with_suffix(ASIDE)
        try:
            self._path.replace(aside)
        except OSError as error:
            return f"not kept: {error}"
        return str(aside)

    def is_changed(self) -> bool:
        """Return whether another program removed or changed the file since it was written."""
        try:
            return bool(self._last) and files.identity(self._path) != self._written
        except OSError:
            return True

    def save(self, *, pending: Iterable[PendingAllocation], holdings: Iterable[Holding], units: Units) -> None:
        """Write it where it changed, also if another program removed or changed it.

        Raises:
            OSError: it cannot be written.
        """
        payload = {
            "bootID": self._boot_id,
            "promises": [
                {
                    "uid": allocation.key.uid,
                    "container": allocation.key.container,
                    "resource": allocation.resource,
                    "ids": sorted(allocation.ids),
                    "silent": allocation.never_reported,
                }
                for allocation in pending
            ],
            "holdings": [
                {
                    "uid": holding.uid,
                    "namespace": holding.namespace,
                    "pod": holding.pod,
                    "container": holding.container,
                    "ids": list(holding.ids),
                }
                for holding in holdings
            ],
            "minors": dict(units.minors),
            "cards": sorted(units.cards),
            "parents": dict(units.parents),
        }
        text = orjson.dumps({"version": VERSION, "checksum": _checksum(payload), "payload": payload})
        if text == self._last and not self.is_changed():
            return
        folder = self._path.parent
        own = {self._path.with_suffix(suffix).name for suffix in (self._path.suffix, DRAFT, ASIDE)}
        if files.is_own_folder(folder, own):
            # It has only files of ours, or is not there yet: it is closed to others.
            files.make_folder(folder, mode=FOLDER_MODE, parents=True)
        self._written = files.write(self._path, text, mode=MODE, draft=self._path.with_suffix(DRAFT).name)
        self._last = text

    def _payload(self, text: bytes) -> _Payload:
        try:
            document = orjson.loads(text)
            version, checksum, payload = document["version"], document["checksum"], document["payload"]
        except (orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise _DamagedError(f"not a checkpoint: {error}") from error
        if version != VERSION:
            raise _DamagedError(f"version {version}; this agent knows {VERSION}")
        if checksum != _checksum(payload):
            raise _DamagedError("its checksum is wrong")
        try:
            checked = _Payload.model_validate(payload)
        except ValidationError as error:
            first = error.errors()[0]
            raise _DamagedError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        if checked.bootID != self._boot_id:
            raise _OtherBootError("it is of another boot")
        return checked


def _checksum(payload: Any) -> str:
    return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).hexdigest()
