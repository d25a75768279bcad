"""Objects that cannot be read, and what is logged about them."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import structlog

Object = Mapping[str, Any]

MAX_ERROR: Final = 300
"""Characters of an error that are logged: it may quote an object."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class UnreadableObjects:
    """The objects of a kind whose last version could not be read. Each version is logged once."""

    def __init__(self, kind: str) -> None:
        """Create an empty collection; `kind` is logged."""
        self._kind = kind
        self._versions: dict[str, str] = {}
        """Key of an object -> its resourceVersion."""

    def put(self, key: str, raw: Object, error: Exception) -> None:
        """Add an object that raised one of `READING_ERRORS` when it was read."""
        metadata = raw["metadata"]
        version = str(metadata.get("resourceVersion") or "")
        if self._versions.get(key) != version:
            self._versions[key] = version
            log.warning(
                "object cannot be read",
                kind=self._kind,
                namespace=metadata.get("namespace") or "",
                name=metadata["name"],
                version=version,
                # Only the text of our own errors says what is wrong.
                error=(str(error) if isinstance(error, ValueError) else repr(error))[:MAX_ERROR],
                # It may be a defect of Berth.
                exc_info=error,
            )

    def discard(self, key: str) -> None:
        """Remove an object that was read, or deleted."""
        self._versions.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Remove all other objects: a complete list has not shown them."""
        self._versions = {key: version for key, version in self._versions.items() if key in keys}

    def __contains__(self, key: str) -> bool:
        return key in self._versions
