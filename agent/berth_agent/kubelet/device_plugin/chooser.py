"""Who decides which units a container gets: the seam between the plugin and the mirror of kubelet's admission."""

from collections.abc import Sequence
from typing import Protocol


class RefusedError(Exception):
    """A container must not have these units; kubelet shows the text on the pod that it refuses."""


class Chooser(Protocol):
    """Decides for the device plugin."""

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """Give the units that the next container of this resource and size should get; none where it has no say."""
        ...

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container have units.

        Raises:
            RefusedError: no pod is to have them.
        """
        ...

    def withheld(self) -> frozenset[str]:
        """Return the ids of the cards that kubelet must not hand out."""
        ...


class NoPreference:
    """Chooses nothing and lets everything pass, as a device plugin that knows no scheduler."""

    async def prefer(
        self,
        resource: str,  # noqa: ARG002
        available: Sequence[str],  # noqa: ARG002
        must_include: Sequence[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> list[str]:
        """Have no say."""
        return []

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Let them pass."""

    def withheld(self) -> frozenset[str]:
        """Withhold nothing."""
        return frozenset()
