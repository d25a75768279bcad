"""Counters that partitions of a device share: how much each pool has left of them."""

from dataclasses import dataclass

from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import CounterID, Device
from berth_operator.core.claims.pools.pools import Pool


@dataclass(slots=True)
class Counters:
    """What is left of a pool's counters, in billionths, while devices are chosen."""

    left: dict[CounterID, int]
    exceeded: bool
    """Whether devices held already take more of some counter than there is: then nothing more of the pool fits."""

    @classmethod
    def of(cls, pool: Pool, allocated: Allocated) -> "Counters":
        """Return what allocated claims and withheld devices leave of a pool's counters.

        Together, the withheld devices of a card would take more than there is. They use up their counters, but exceed
        none.
        """
        left, withheld = dict(pool.counters), set[CounterID]()
        for devices in (pool.devices, pool.elsewhere):
            for device in devices:
                if device.consumes and allocated.include(device.id):
                    for counter, amount in device.consumes:
                        left[counter] -= amount
                elif device.consumes and device.id in allocated.withheld:
                    withheld.update(counter for counter, amount in device.consumes if amount)
        exceeded = any(amount < 0 for amount in left.values())
        return cls(left | {counter: min(left[counter], 0) for counter in withheld}, exceeded=exceeded)

    def reserve(self, device: Device) -> bool:
        """Reserve the counters that a device consumes; return whether there are enough. If not, reserve nothing."""
        if self.exceeded:
            return False
        for counter, amount in device.consumes:
            self.left[counter] -= amount
        if any(self.left[counter] < 0 for counter, _ in device.consumes):
            self.release(device)
            return False
        return True

    def release(self, device: Device) -> None:
        """Undo `reserve`."""
        for counter, amount in device.consumes:
            self.left[counter] += amount
