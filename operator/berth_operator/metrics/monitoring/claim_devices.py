"""Devices of ResourceSlices, by driver: allocated to ResourceClaims, or free."""

from collections import Counter
from collections.abc import Iterator, Mapping

from berth_operator.core.fleet.claims.store import Claims
from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import Family, Values
from berth_operator.metrics.monitoring.bounds import OTHER, frequent


class ClaimDeviceCount:
    """Counts devices slice by slice, so that the loop can do other work in between."""

    def __init__(self) -> None:
        self._devices: Counter[str] = Counter()
        """Driver -> devices."""
        self._allocated: Counter[str] = Counter()

    def count(self, claims: Claims) -> Iterator[None]:
        """Count the devices of the newest slices of each pool; yields after each, and tolerates changes in between."""
        for slice_ in tuple(claims.slices.values()):
            newest = max((other.generation for other in claims.in_pool(slice_.pool)), default=slice_.generation)
            if slice_.generation == newest:
                held = claims.supply.holdings.allocated
                self._devices[slice_.pool.driver] += len(slice_.devices)
                self._allocated[slice_.pool.driver] += sum(held.include(device.id) for device in slice_.devices)
            yield

    def values(self) -> Mapping[Family, Values]:
        """Return the gauges: of the drivers with the most devices, and of all other drivers together."""
        kept, shown = frequent(self._devices), Counter[tuple[str, ...]]()
        for driver, devices in self._devices.items():
            label, allocated = driver if driver in kept else OTHER, self._allocated[driver]
            shown[label, "allocated"] += allocated
            shown[label, "free"] += devices - allocated
        return {gauges.CLAIM_DEVICES: shown}
