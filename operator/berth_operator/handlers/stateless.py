"""kopf without a memory: handlers that only look at what is there need no copies of what was there before.

By itself kopf copies each object several times an event, to compare it with its last handled state and to leave out
its own notes. We have neither.
"""

from typing import Any

import kopf

ESSENCE = kopf.BodyEssence({})


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last handled state."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing to compare."""
        return ESSENCE

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Keeps no progress of handlers: `on.event` handlers have none."""

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
