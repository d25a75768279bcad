"""Numbers for the devices that slices list, so that facts about devices can be kept in arrays."""

from typing import Final

from berth_operator.core.claims.bounds.changes import ChangeLog
from berth_operator.core.claims.objects.slices import Device

FIRST: Final = 256
"""Devices for which there is space initially. The space is doubled when it is used up."""


class DeviceNumbers:
    """Numbers from 0. Numbers of removed devices are assigned again."""

    def __init__(self) -> None:
        self.numbers: dict[Device, int] = {}
        self.by_number: list[Device | None] = []
        self.changes: ChangeLog[int] = ChangeLog()
        """The numbers that another device has, or none any more."""
        self.capacity = FIRST
        """No number is as high."""
        self._free: list[int] = []

    def add(self, device: Device) -> int:
        """Return the number of a device, which it gets if it has none."""
        number = self.numbers.get(device)
        if number is None:
            number = self._free.pop() if self._free else len(self.by_number)
            self.by_number[number : number + 1] = [device]
            self.numbers[device] = number
            self.changes.note(number)
            while self.capacity <= number:
                self.capacity *= 2
        return number

    def remove(self, device: Device) -> None:
        """Free the number of a device, if it has one."""
        if (number := self.numbers.pop(device, None)) is not None:
            self.by_number[number] = None
            self._free.append(number)
            self.changes.note(number)
