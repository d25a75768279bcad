"""The number of volumes of each driver on each node. A volume counts once per node, however many pods use it there.

A volume counts while a pod on the node uses it, and while a VolumeAttachment exists, which starts and ends a little
later.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.columns import all_read_only, read_only
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.copy_on_write import CopyOnWrite
from berth_operator.core.values.mounts import Attachable

Counts = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Holders:
    """The pods and attachments of one volume: row -> number."""

    pods: Counter[int] = field(default_factory=Counter)
    attachments: Counter[int] = field(default_factory=Counter)

    def hold(self, row: int) -> bool:
        """Return whether the volume is on a row."""
        return bool(self.pods[row] or self.attachments[row])

    def copy(self) -> "Holders":
        """Return an independent copy."""
        return Holders(pods=self.pods.copy(), attachments=self.attachments.copy())


class Attached:
    """The volumes of all nodes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._counts: dict[str, Counts] = {}
        """Driver -> volumes on each row."""
        self._shown: dict[str, Counts] = {}
        self._holders: CopyOnWrite[Attachable, Holders] = CopyOnWrite()

    def use(self, row: int, volume: Attachable, number: int) -> None:
        """Add `number` pods of a row that use a volume; a negative number removes pods."""
        holders = self._holders.own(volume, Holders)
        self._change(row, volume, holders, holders.pods, number)

    def attach(self, row: int, volume: Attachable, number: int) -> None:
        """Add `number` attachments of a volume to a row; a negative number removes attachments."""
        holders = self._holders.own(volume, Holders)
        self._change(row, volume, holders, holders.attachments, number)

    def counts(self, driver: str) -> Counts:
        """Return the number of a driver's volumes on each row; read-only."""
        counts = self._shown.get(driver)
        return np.zeros(self._rows, np.int64) if counts is None else counts

    def used(self, volume: Attachable) -> list[int]:
        """Return the rows with pods that use a volume."""
        holders = self._holders.get(volume)
        return [row for row, number in holders.pods.items() if number] if holders else []

    def copy(self) -> Self:
        """Return an independent copy."""
        counts = {driver: values.copy() for driver, values in self._counts.items()}
        return with_own(
            self,
            _counts=counts,
            _shown=all_read_only(counts),
            _holders=self._holders.copy(),
        )

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._counts = {driver: np.pad(each, (0, rows - self._rows)) for driver, each in self._counts.items()}
        self._shown, self._rows = all_read_only(self._counts), rows

    def _change(self, row: int, volume: Attachable, holders: Holders, counter: Counter[int], number: int) -> None:
        before = holders.hold(row)
        counter[row] += number
        change = holders.hold(row) - before
        for counts in (holders.pods, holders.attachments):
            if not counts[row]:
                del counts[row]
        if not holders.pods and not holders.attachments:
            self._holders.drop(volume)
        if change:
            self._of_driver(volume.driver)[row] += change

    def _of_driver(self, driver: str) -> Counts:
        if driver not in self._counts:
            self._counts[driver] = np.zeros(self._rows, np.int64)
            self._shown[driver] = read_only(self._counts[driver])
        return self._counts[driver]
