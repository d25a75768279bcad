"""Annotations of the Device with which people cordon single devices or mark them as recovered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth_agent.conditions import Finding
from berth_api import names
from berth_api.device import DeviceInfo
from berth_api.names import GPU

Key = tuple[str, int]
"""Type and minor of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevices:
    """The devices that an annotation names, and what in it names none."""

    devices: frozenset[Key] = frozenset()
    problems: tuple[str, ...] = ()


def read(text: str, devices: Iterable[DeviceInfo]) -> NamedDevices:
    """Read a list such as `0, rdma/1, GPU-5f1c…`: minors of GPUs, types with minors, ids; commas between them."""
    entries = [entry for entry in map(str.strip, text.split(",")) if entry]
    known = _names(devices) if entries else {}
    matched = {known[entry.lower()] for entry in entries if entry.lower() in known}
    return NamedDevices(
        devices=frozenset(matched), problems=tuple(entry for entry in entries if entry.lower() not in known)
    )


def _names(devices: Iterable[DeviceInfo]) -> dict[str, Key]:
    names_of: dict[str, Key] = {}
    for device in devices:
        key = (device.type, device.minor)
        names_of |= {f"{device.type}/{device.minor}": key, device.id.lower(): key}
        if device.type == GPU:
            names_of[str(device.minor)] = key
    return names_of


def findings(named: Mapping[str, NamedDevices]) -> tuple[Finding, ...]:
    """Return a condition of the Device where annotations name what there is not; by the names of the annotations."""
    problems_found = [_problem(annotation, devices) for annotation, devices in named.items() if devices.problems]
    if not problems_found:
        return ()
    return (
        Finding(type=names.ANNOTATIONS_READ, ok=False, reason="NoSuchDevice", message="; ".join(problems_found)[:1024]),
    )


def _problem(annotation: str, named: NamedDevices) -> str:
    stray = ", ".join(f'"{entry}"' for entry in named.problems[:8])
    return (
        f"metadata.annotations.{annotation}: no device of this node is {stray}; allowed are minors of GPUs (0), "
        "types with minors (rdma/1) and ids (a UUID, or a PCI address), with commas between them"
    )
