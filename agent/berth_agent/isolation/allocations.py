"""kubelet's checkpoint of device plugins: which container has which units, and what Allocate answered for them.

PodResources lists neither init containers that end nor the answers. Kubelet writes the checkpoint before it starts a
container.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

CHECKPOINT: Final = "kubelet_internal_checkpoint"
"""The file name of the checkpoint in kubelet's folder of device plugins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The units of one resource that a container has."""

    pod: str
    """UID."""
    container: str
    resource: str
    ids: frozenset[str]
    answer: bytes
    """The ContainerAllocateResponse, serialized."""

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> Self:
        """Return an entry of the checkpoint. Its units are grouped by their NUMA nodes."""
        return cls(
            pod=entry["PodUID"],
            container=entry["ContainerName"],
            resource=entry["ResourceName"],
            ids=frozenset(unit for units in entry["DeviceIDs"].values() for unit in units),
            answer=base64.b64decode(entry["AllocResp"] or "", validate=True),
        )


def read(checkpoint: bytes) -> list[Allocation]:
    """Return all allocations in a checkpoint.

    Raises:
        ValueError: the checkpoint has another form than this program knows.
    """
    try:
        return [Allocation.of_entry(entry) for entry in json.loads(checkpoint)["Data"]["PodDeviceEntries"] or ()]
    except (KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise ValueError(f"an unknown form: {error!r}") from error
