"""Host ports in use, as columns: for each port and address, the number of pods on each node that listen there.

A pod that listens on all addresses (0.0.0.0) conflicts with every other pod on the port. Different addresses of a port
do not conflict, nor do different protocols. As in kube-scheduler, addresses are compared as text.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.values.request import HostPort

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]

ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on


class Ports:
    """The host ports of all nodes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._used: dict[tuple[str, int], dict[str, Counts]] = {}
        """(protocol, port) -> address -> number of pods on each row; only for ports in use."""

    def charge(self, row: int, ports: Iterable[HostPort], sign: int) -> None:
        """Charge (sign 1) or release (sign -1) a pod's ports."""
        for port in ports:
            addresses = self._used.setdefault((port.protocol, port.port), {})
            counts = addresses.setdefault(port.address, np.zeros(self._rows, np.int32))
            counts[row] += sign
            if not counts.any():
                del addresses[port.address]
            if not addresses:
                del self._used[port.protocol, port.port]

    def taken(self, port: HostPort) -> Mask:
        """Return the rows where the port is in use."""
        addresses = self._used.get((port.protocol, port.port), {})
        compared = addresses if port.address == ALL_ADDRESSES else {ALL_ADDRESSES, port.address} & addresses.keys()
        return reduce(np.logical_or, (addresses[address] > 0 for address in compared), np.zeros(self._rows, np.bool_))

    def copy(self) -> Self:
        """Return an independent copy."""
        used = {
            port: {address: counts.copy() for address, counts in addresses.items()}
            for port, addresses in self._used.items()
        }
        return with_own(self, _used=used)

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        for addresses in self._used.values():
            for address, counts in addresses.items():
                addresses[address] = np.pad(counts, (0, rows - self._rows))
        self._rows = rows
