"""The devices and capacity that allocated claims already hold."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from berth_operator.core.claims.objects.fields import Field
from berth_operator.core.claims.objects.slices import DeviceID


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The devices of allocated claims, except devices with admin access."""

    devices: AbstractSet[DeviceID] = frozenset()
    """Held by one claim alone."""
    withheld: AbstractSet[DeviceID] = frozenset()
    """Given to no claim for another reason. What they share by counters is not given either: it may be of one card."""
    shared: AbstractSet[DeviceID] = frozenset()
    """Held by shares."""
    capacity: Mapping[DeviceID, Mapping[str, int]] = field(default_factory=dict)
    """What shares hold in sum, in billionths, by the capacity's name in the slice."""

    def exclude(self, device: DeviceID) -> bool:
        """Return whether no further claim gets any of the device."""
        return device in self.devices or device in self.withheld

    def include(self, device: DeviceID) -> bool:
        """Return whether a claim holds the device, or a share of it."""
        return device in self.devices or self.is_shared(device)

    def is_shared(self, device: DeviceID) -> bool:
        """Return whether shares of the device are held."""
        return device in self.shared or device in self.capacity


NOTHING_ALLOCATED: Final = Allocated()


def of_claims(allocations: Iterable[Mapping[str, Any]]) -> Allocated:
    """Return what the `status.allocation` of claims holds; raise FieldError."""
    devices: set[DeviceID] = set()
    shared: set[DeviceID] = set()
    capacity: dict[DeviceID, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for allocation in allocations:
        for result in Field(allocation, "status.allocation").at("devices").at("results").items():
            device = DeviceID(*(result.at(key).text() for key in ("driver", "pool", "device")))
            if result.at("adminAccess").boolean():
                continue
            if not result.at("shareID").text():
                devices.add(device)
                continue
            shared.add(device)
            for name, amount in result.at("consumedCapacity").entries():
                capacity[device][name] += amount.quantity().amount
    return Allocated(devices=devices, shared=shared, capacity=capacity)
