"""What is made or about to be made, in a file that outlives the process. Each change is on the disk when it returns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson
import structlog
from pydantic import TypeAdapter, ValidationError

from berth_agent import files
from berth_agent.turns import ProcessLock
from berth_agent.vendors.nvidia.partitions.plan import Intent

NAME: Final = "partitions.json"
LOCK: Final = "partitions.lock"
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
DRAFT: Final = ".partitions.new"
ASIDE: Final = ".rejected"
MAX_PARTITIONS: Final = 1024
"""More than a node with 64 cards of seven instances can have."""
TURN_PAUSE: Final = 1.0
"""Seconds between two looks whether the process before this one has ended."""

_INTENTS: Final[TypeAdapter[dict[str, Intent]]] = TypeAdapter(dict[str, Intent])
_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def wait_for_turn(folder: Path, *, sleep: Callable[[float], object]) -> ProcessLock:
    """Return the lock of the record, which this process has until it ends: two would overwrite each other's record.

    In an upgrade, the process of the earlier pod may still serve. One that hangs in the driver cannot end; then there
    is no limit of the wait, and the agent's calls fail meanwhile.

    Raises:
        OSError: the file cannot be opened.
    """
    files.make_folder(folder, mode=FOLDER_MODE, parents=True)
    lock = ProcessLock(folder / LOCK)
    if not lock.take():
        _log.warning("another process serves this node's partitions; waiting until it ends", folder=str(folder))
        while not lock.take():
            sleep(TURN_PAUSE)
    return lock


class PartitionRecord(Mapping[str, Intent]):
    """The file, by the key under which a partition was made."""

    def __init__(self, folder: Path) -> None:
        """Read the file.

        A file that is damaged is kept under another name. What it listed counts as foreign, so it is not destroyed.

        Raises:
            OSError: the disk does not say what the file contains.
        """
        self._path = folder / NAME
        files.make_folder(folder, mode=FOLDER_MODE, parents=True)
        self._known = files.identity(self._path)
        """The file as it was read or written."""
        self._intents: dict[str, Intent] = {}
        try:
            content = files.read(self._path)
        except FileNotFoundError:
            return
        try:
            self._intents = _INTENTS.validate_python(orjson.loads(content)["partitions"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            files.write(self._path.with_name(NAME + ASIDE), content, mode=MODE, draft=DRAFT)
            _log.error(
                "the record of partitions is damaged; instances that it listed stay until you destroy them",
                path=str(self._path),
                error=str(error),
                kept_as=NAME + ASIDE,
            )

    def __getitem__(self, key: str) -> Intent:
        """Return what is recorded for a partition."""
        return self._intents[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys."""
        return iter(tuple(self._intents))

    def __len__(self) -> int:
        """Count the partitions."""
        return len(self._intents)

    def put(self, key: str, intent: Intent) -> None:
        """Record a partition.

        Raises:
            OSError: it is not on the disk.
        """
        self._save({**self._intents, key: intent})

    def remove(self, key: str) -> None:
        """Remove a partition.

        Raises:
            OSError: the disk still has it.
        """
        self._save({other: intent for other, intent in self._intents.items() if other != key})

    def restore(self) -> None:
        """Write the file again if another program removed or changed it: without it, the instances would be foreign.

        Raises:
            OSError: it cannot be written.
        """
        if self._intents and files.identity(self._path) != self._known:
            _log.warning("the record of partitions was removed or changed, writing it again", path=str(self._path))
            self._save(self._intents)

    def _save(self, intents: dict[str, Intent]) -> None:
        content = {"version": 1, "partitions": {key: asdict(intent) for key, intent in intents.items()}}
        files.make_folder(self._path.parent, mode=FOLDER_MODE, parents=True)
        self._known = files.write(self._path, orjson.dumps(content), mode=MODE, draft=DRAFT, sync=True)
        self._intents = intents
