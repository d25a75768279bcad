"""Which devices are close to each other: linked by NVLink, below one PCIe root, or at one NUMA node.

Drivers publish the PCIe root and the NUMA node as standard attributes (`k8s.io/dynamic-resource-allocation/
deviceattribute`). No driver publishes the NVLinks of GPUs for containers. NVIDIA's driver publishes the Fabric Manager
partitions of GPUs for virtual machines, and Berth's agent reports the links of cards.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth_operator.core.claims.objects.slices import Device, DeviceID

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PARTITION: Final = "gpu.nvidia.com/partition{}"
"""The Fabric Manager partition of so many GPUs that a GPU is in."""

Key = Callable[[Device], Hashable]
"""Returns what devices have in common; None for a device for which this is unknown."""
Rank = Callable[[Sequence[Device]], tuple[int, ...]]
"""Returns how a group compares with others of its level; the lowest is the best."""
Place = tuple[Hashable, Hashable, Hashable]
"""The NVLinks, the PCIe root and the NUMA node of a device; None for an unknown value."""

LEVELS: Final = ((0, 1), (0, 2), (0,), (1,), (2,))
"""Which parts of their places close devices have in common, the closest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """What is close on one node, for a number of devices that one request gets."""

    number: int
    links: Mapping[DeviceID, Hashable] = field(default_factory=dict)
    """Equal for devices with NVLinks between all of them, as far as the links are known."""
    picked: Collection[Device] = ()
    """What the pod gets by its other requests, to be close to."""

    def closest(self, devices: Sequence[Device]) -> list[Device]:
        """Return `number` of the devices, close to each other.

        Among equally close sets, the set in the smallest group wins. So pairs and whole groups stay for the requests
        that need them.
        """
        places = {device: self._place(device) for device in devices}
        known = {part for place in places.values() for part, value in enumerate(place) if value is not None}
        levels = [_key(places, level) for level in LEVELS if known.issuperset(level)]
        if not levels:
            return list(devices[: self.number])
        near = {device: self._place(device) for device in self.picked}
        in_use = [set(map(_key(near, level), near)) for level in LEVELS if known.issuperset(level)]
        sizes = [Counter(map(key, devices)) for key in levels]

        def rank(group: Sequence[Device]) -> tuple[int, ...]:
            values = [key(group[0]) for key in levels]
            apart = (value is None or value not in used for value, used in zip(values, in_use, strict=True))
            return (*apart, *(size[value] for value, size in zip(values, sizes, strict=True)))

        return _take(devices, self.number, levels, rank)

    def _place(self, device: Device) -> Place:
        link = self.links.get(device.id)
        if link is None:
            link = _value(device, PARTITION.format(self.number))
        return link, _value(device, PCIE_ROOT), _value(device, NUMA_NODE)


def _key(places: Mapping[Device, Place], level: tuple[int, ...]) -> Key:
    def key(device: Device) -> Hashable:
        place = places[device]
        values = tuple(place[part] for part in level)
        return None if None in values else values

    return key


def groups(devices: Iterable[Device], key: Key) -> list[list[Device]]:
    """Return the devices that have a key in common, in their order. Devices without a key are left out."""
    by_key: dict[Hashable, list[Device]] = {}
    for device in devices:
        if (value := key(device)) is not None:
            by_key.setdefault(value, []).append(device)
    return list(by_key.values())


def _take(devices: Sequence[Device], number: int, levels: Sequence[Key], rank: Rank) -> list[Device]:
    """Return `number` of the devices from the best group that has enough, of the closest level that has one."""
    for depth, key in enumerate(levels):
        if enough := [group for group in groups(devices, key) if len(group) >= number]:
            return _fill(min(enough, key=rank), number, levels[:depth], rank)
    return _fill(devices, number, levels, rank)


def _fill(devices: Sequence[Device], number: int, closer: Sequence[Key], rank: Rank) -> list[Device]:
    """Return `number` of the devices where no group of the closer levels has enough: from the largest of these."""
    if not closer or number >= len(devices):
        return list(devices[:number])
    largest = max(groups(devices, closer[-1]), key=len, default=[])
    if not 0 < len(largest) < number:
        return _fill(devices, number, closer[:-1], rank)
    rest = [device for device in devices if device not in largest]
    return [*largest, *_take(rest, number - len(largest), closer, rank)]


def _value(device: Device, attribute: str) -> Hashable:
    entry = device.attributes.get(attribute)
    return None if entry is None else entry.value
