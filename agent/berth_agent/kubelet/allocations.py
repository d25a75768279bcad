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

from google.protobuf.message import DecodeError

from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse

CHECKPOINT: Final = "kubelet_internal_checkpoint"
"""The file name of the checkpoint in kubelet's folder of device plugins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The units of one resource that a container has."""

    pod: str
    """UID."""
    container: str
    ids: frozenset[str]
    cdi_devices: tuple[str, ...]
    """The names of CDI devices in the answer to Allocate: `berth.dev/rdma=<name>`."""

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any]) -> Self:
        """Return an entry of the checkpoint. Its units are grouped by their NUMA nodes.

        Raises:
            ValueError: the entry has another form than this program knows.
        """
        try:
            pod, container, resource = entry["PodUID"], entry["ContainerName"], entry["ResourceName"]
            ids = frozenset(unit for units in entry["DeviceIDs"].values() for unit in units)
            devices = ContainerAllocateResponse.FromString(_answer(entry)).cdi_devices
        except (KeyError, TypeError, AttributeError, binascii.Error, DecodeError) as error:
            raise ValueError(f"an unknown form: {error!r}") from error
        if not all(isinstance(text, str) for text in (pod, container, resource, *ids)):
            raise ValueError("an unknown form: a name or an id is no text")
        return cls(pod=pod, container=container, ids=ids, cdi_devices=tuple(device.name for device in devices))


def read(checkpoint: bytes, resource: str) -> tuple[list[Allocation], list[str]]:
    """Return the allocations of a resource, and what is wrong with entries that cannot be read.

    One odd entry hides no other. Entries of other resources are skipped, whatever their form is.

    Raises:
        ValueError: the checkpoint has another form than this program knows.
    """
    allocations, problems = [], []
    for entry in _entries(checkpoint):
        if isinstance(entry, dict) and isinstance(name := entry.get("ResourceName"), str) and name != resource:
            continue
        try:
            allocations.append(Allocation.of_entry(entry))
        except ValueError as error:
            problems.append(str(error))
    return allocations, problems


def healthy(checkpoint: bytes, resource: str) -> frozenset[str]:
    """Return the units of a resource that kubelet may give, held or not.

    Raises:
        ValueError: the checkpoint has another form than this program knows.
    """
    try:
        units = (json.loads(checkpoint)["Data"].get("RegisteredDevices") or {}).get(resource) or ()
        return frozenset(unit for unit in units if isinstance(unit, str))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"an unknown form: {error!r}") from error


def answers(checkpoint: bytes) -> list[bytes]:
    """Return the answers to Allocate for all containers and resources, each a serialized ContainerAllocateResponse.

    Raises:
        ValueError: the checkpoint, or one of its entries, has another form than this program knows.
    """
    try:
        return [_answer(entry) for entry in _entries(checkpoint)]
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"an unknown form: {error!r}") from error


def _entries(checkpoint: bytes) -> list[Any]:
    try:
        return list(json.loads(checkpoint)["Data"]["PodDeviceEntries"] or ())
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"an unknown form: {error!r}") from error


def _answer(entry: Mapping[str, Any]) -> bytes:
    return base64.b64decode(entry["AllocResp"] or "", validate=True)
