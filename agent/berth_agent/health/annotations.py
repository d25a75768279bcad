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
    """Read a list such as `0, rdma/1, GPU-5f1c…`: minors of GPUs, types with minors, and ids, separated by commas."""
    entries = [entry for entry in map(str.strip, text.split(",")) if entry]
    known: dict[str, Key] = {}
    for device in devices if entries else ():
        key = (device.type, device.minor)
        known |= {f"{device.type}/{device.minor}": key, device.id.lower(): key}
        if device.type == GPU:
            known[str(device.minor)] = key
    matched = {known[entry.lower()] for entry in entries if entry.lower() in known}
    return NamedDevices(
        devices=frozenset(matched), problems=tuple(entry for entry in entries if entry.lower() not in known)
    )


def findings(named: Mapping[str, NamedDevices]) -> tuple[Finding, ...]:
    """Return a condition of the Device where annotations name what there is not; by the names of the annotations."""
    problems = []
    for annotation, devices in named.items():
        if devices.problems:
            stray = ", ".join(f'"{entry}"' for entry in devices.problems[:8])
            problems.append(
                f"metadata.annotations.{annotation}: no device of this node is {stray}; allowed are minors of GPUs "
                "(0), types with minors (rdma/1) and ids (a UUID, or a PCI address), with commas between them"
            )
    if not problems:
        return ()
    message = "; ".join(problems)[:1024]
    return (Finding(type=names.ANNOTATIONS_READ, ok=False, reason="NoSuchDevice", message=message),)
