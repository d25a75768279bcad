"""The values of attributes by device, so that equalities are looked up for all devices at once."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.claims.matching.device_numbers import DeviceNumbers
from berth_operator.core.claims.selectors.equality import Equality

MAX_COLUMNS: Final = 16
"""Attributes that are indexed: for 10,000 devices with a UUID each, one takes two megabytes."""
MISSING: Final = 0
OTHER: Final = -1
"""A value that only an evaluation compares, such as a version."""

UNKNOWN: Final = 0
NO: Final = 1
YES: Final = 2
FAILED: Final = 3
"""The first state for devices for which an evaluation failed. Each reason has one state."""

Numbers = npt.NDArray[np.int32]


class _Column:
    """The value of one attribute for each device, as a number."""

    def __init__(self, domain: str, name: str) -> None:
        self._domain, self._name = domain, name
        self._known: dict[tuple[type, object], int] = {}
        self._seen = 0
        self.numbers: Numbers = np.zeros(0, np.int32)

    def update(self, devices: DeviceNumbers) -> None:
        """Bring the column up to date."""
        if len(self._known) > 2 * len(devices.by_number) + MAX_COLUMNS:
            self._known, self._seen = {}, 0  # most of them are values of devices that are gone
        if len(self.numbers) < devices.capacity:
            self.numbers = np.pad(self.numbers, (0, devices.capacity - len(self.numbers)))
        for number in devices.changes.since(self._seen):
            device = devices.by_number[number]
            if device is None or device.unsupported:
                self.numbers[number] = OTHER
                continue
            view = device.view
            value = view.value["attributes"].get(self._domain, {}).get(self._name) if self._domain else view.driver
            if value is None:
                self.numbers[number] = MISSING
            elif type(value) not in (bool, int, str):
                self.numbers[number] = OTHER
            else:
                self.numbers[number] = self._known.setdefault((type(value), value), len(self._known) + 1)
        self._seen = devices.changes.now

    def equal_to(self, value: bool | int | str) -> int:  # noqa: FBT001 - a value of an attribute
        """Return the number of a value; a number that no device has if the value is unknown."""
        return self._known.get((type(value), value), len(self._known) + 1)


class AttributeIndex:
    """The columns of the attributes that were compared last."""

    def __init__(self, devices: DeviceNumbers) -> None:
        self._devices = devices
        self._columns: dict[tuple[str, str], _Column] = {}

    def states(self, equalities: Sequence[Equality]) -> bytearray:
        """Return for each device whether all equalities hold.

        It is UNKNOWN, NO or YES, or FAILED plus the place of the first equality whose attribute the device lacks,
        unless the equality is optional.
        """
        size = self._devices.capacity
        states = np.full(size, YES, np.uint8)
        differs, other = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        for place, equality in enumerate(equalities):
            path = equality.domain, equality.name
            column = self._columns.pop(path, None) or _Column(*path)
            if len(self._columns) >= MAX_COLUMNS:
                del self._columns[next(iter(self._columns))]
            # The least recently used ones come first.
            self._columns[path] = column
            column.update(self._devices)
            missing = (column.numbers == MISSING) & (not equality.is_optional)
            states[missing & (states == YES)] = FAILED + place
            other |= column.numbers == OTHER
            differs |= (column.numbers != column.equal_to(equality.value)) & ~missing
        states[differs] = NO
        states[other] = UNKNOWN
        return bytearray(states.tobytes())
