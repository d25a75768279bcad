"""kopf storages that store nothing, because level-triggered handlers do not need an object's previous state.

By default, kopf copies each object several times per event, to compare it with the last handled state and to remove
kopf's own annotations. Berth's handlers use neither.
"""

from typing import Any

import kopf

ESSENCE = kopf.BodyEssence({})


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores no last handled state."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing to compare."""
        return ESSENCE

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Stores no progress of handlers, since `on.event` handlers have none."""

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Purge nothing."""

    def touch(self, **_: Any) -> None:
        """Touch nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Clear nothing."""
        return essence
