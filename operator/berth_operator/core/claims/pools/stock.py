"""The free devices of a node, and what taking one of them costs later requests.

    cost = free devices that it strands, each by its size     of those that take from the same counters
         + what is left of it                                 if it is shared by capacity
         + its size                                           if it is given as a whole, by its largest capacity

All terms are in devices. A MIG instance on a partly used GPU strands less than an instance that breaks up a whole GPU.
The best place of an instance is the one that leaves the most other places. A share goes to the fullest device on which
it fits. For a whole device, the smallest one is taken.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import Device, PoolID
from berth_operator.core.claims.pools.counter_sets import Amounts, CounterSet
from berth_operator.core.claims.pools.counters import Counters
from berth_operator.core.claims.pools.pools import NodePools

Mask = npt.NDArray[np.bool_]

MAX_COMPARED: Final = 128
"""Devices of a set that are compared each with each; a GPU has a few dozen possible MIG instances."""
TOLERANCE: Final = 1e-9
"""The fraction of a counter within which two amounts are equal."""


class _SetStock:
    """What is left of one set of counters, and which devices are free."""

    def __init__(self, of_set: CounterSet, counters: Counters, allocated: Allocated) -> None:
        self._set = of_set
        self._left: Amounts = (
            np.array([counters.left[counter] for counter in of_set.counters], np.float64) / of_set.totals
        )
        taken = [allocated.include(device.id) or allocated.exclude(device.id) for device in of_set.rows]
        self._free: Mask = ~np.array(taken, np.bool_) & (not counters.exceeded)
        self._costs: Amounts | None = None

    def cost(self, device: Device) -> float:
        """Return what taking a device would strand, without the device itself; infinite for an unavailable device."""
        if self._costs is None:
            free = self._free & (self._set.needs <= self._left + TOLERANCE).all(axis=1)
            self._costs = np.where(free, self._stranded(free), np.inf)
        return float(self._costs[self._set.rows[device]])

    def _stranded(self, free: Mask) -> Amounts:
        """Return what each device would strand of the free devices; in large sets, the device's own size."""
        needs, sizes = self._set.needs, self._set.sizes
        if len(needs) > MAX_COMPARED:
            return sizes
        # [taken, other, counter]: both of them take more than there is.
        excluded = np.asarray((needs[:, np.newaxis] + needs[np.newaxis] > self._left + TOLERANCE).any(axis=2))
        np.fill_diagonal(excluded, val=False)
        stranded: Amounts = excluded @ (sizes * free)
        return stranded

    def take(self, device: Device, sign: int) -> None:
        """Take a device (sign 1), or give it back (sign -1)."""
        row = self._set.rows[device]
        self._left = self._left - sign * self._set.needs[row]
        self._free[row] = sign < 0
        self._costs = None


class Stock:
    """The free devices of a node, while some are taken."""

    def __init__(self, pools: NodePools, allocated: Allocated) -> None:
        self._pools = pools
        self._allocated = allocated
        self._counters: dict[PoolID, Counters] = {}
        self._sets: dict[tuple[PoolID, str], _SetStock] = {}

    def cost(self, device: Device, scale: Mapping[str, int]) -> float:
        """Return the cost of taking a device; infinite if its counters have not enough left.

        `scale` has the amount of each capacity that counts as one device: `scale_of`.
        """
        if not device.shareable:
            return self._stranded(device) if device.consumes else _size(device, scale)
        shared = self._allocated.is_shared(device.id)
        stranded = 0.0 if shared or not device.consumes else self._stranded(device)
        return stranded + self._left(device)

    def take(self, device: Device, sign: int = 1) -> None:
        """Take a device's consumption from the counters, or give it back (sign -1)."""
        for of_set in self._of(device):
            of_set.take(device, sign)

    def _stranded(self, device: Device) -> float:
        return sum(of_set.cost(device) for of_set in self._of(device))

    def _of(self, device: Device) -> Iterator[_SetStock]:
        """Yield the free counters of the sets from which a device consumes; none if the feature is off."""
        pool = self._pools.by_id[device.pool]
        for name in dict.fromkeys(counter.set for counter, _ in device.consumes) if pool.counters else ():
            known = self._sets.get((pool.id, name))
            if known is None:
                counters = self._counters.get(pool.id) or Counters.of(pool, self._allocated)
                known = _SetStock(pool.counter_sets[name], counters, self._allocated)
                self._counters[pool.id], self._sets[pool.id, name] = counters, known
            yield known

    def _left(self, device: Device) -> float:
        """Return the free part of a shared device, which is the free part of its scarcest capacity."""
        if not device.capacity:
            return 0.0 if self._allocated.is_shared(device.id) else 1.0
        held = self._allocated.capacity.get(device.id, {})
        parts = ((capacity.value.amount, held.get(name, 0)) for name, capacity in device.capacity.items())
        return min((1.0 - used / total for total, used in parts if total > 0), default=0.0)


def scale_of(devices: Sequence[Device]) -> dict[str, int]:
    """Return the largest amount of each capacity that one of the devices has."""
    scale: dict[str, int] = {}
    for device in devices:
        for name, capacity in device.capacity.items():
            scale[name] = max(scale.get(name, 1), capacity.value.amount)
    return scale


def _size(device: Device, scale: Mapping[str, int]) -> float:
    return max((capacity.value.amount / scale[name] for name, capacity in device.capacity.items()), default=1.0)
