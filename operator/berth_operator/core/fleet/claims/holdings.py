"""The devices that all claims hold: claims that are allocated, and claims whose allocation is assumed."""

from typing import Self

from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.fleet.arrays.copies import with_own


class Holdings:
    """Sums over claims, kept as claims come and go, because a cluster has many and a decision concerns few."""

    def __init__(self) -> None:
        self._devices: dict[DeviceID, int] = {}
        self._shared: dict[DeviceID, int] = {}
        self._capacity: dict[DeviceID, dict[str, int]] = {}

    def add(self, held: Allocated, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) what one claim holds."""
        for device in held.devices:
            _count(self._devices, device, sign)
        for device in held.shared:
            _count(self._shared, device, sign)
        for device, amounts in held.capacity.items():
            # A new dict, because copies share the old one.
            total = dict(self._capacity.get(device, {}))
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + sign * amount
            self._capacity[device] = total
            if device not in self._shared:
                del self._capacity[device]

    def hold(self, device: DeviceID) -> bool:
        """Return whether one claim has a device for itself."""
        return device in self._devices

    @property
    def allocated(self) -> Allocated:
        """Return a view of everything that is held."""
        return Allocated(devices=self._devices.keys(), shared=self._shared.keys(), capacity=self._capacity)

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(self, **{name: value.copy() for name, value in vars(self).items()})


def _count(counts: dict[DeviceID, int], device: DeviceID, sign: int) -> None:
    counts[device] = counts.get(device, 0) + sign
    if not counts[device]:
        del counts[device]
