"""The interface through which the device plugin requests the units that a container gets."""

from collections.abc import Sequence
from typing import Protocol

from berth_agent.vendor import RefusedError


class AllocationRefusedError(RefusedError):
    """A container must not have these units. Kubelet shows the text on the pod that it refuses."""


class Chooser(Protocol):
    """Decides for the device plugin."""

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """Return the units that the next container of this resource and size should get; empty for no preference."""
        ...

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Admit units for a container.

        Raises:
            AllocationRefusedError: no pod is to have them.
        """
        ...

    def withheld(self) -> frozenset[str]:
        """Return the ids of the cards that kubelet must not hand out."""
        ...


class NoPreference:
    """Prefers nothing and admits everything, as a device plugin without a scheduler."""

    async def prefer(
        self,
        resource: str,  # noqa: ARG002
        available: Sequence[str],  # noqa: ARG002
        must_include: Sequence[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> list[str]:
        """Return no preference."""
        return []

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Admit them."""

    def withheld(self) -> frozenset[str]:
        """Withhold nothing."""
        return frozenset()
