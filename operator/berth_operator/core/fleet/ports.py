"""Host ports in use, as columns: for each port and address, how many pods of each node listen there.

A pod that listens on all addresses (0.0.0.0) excludes all others from its port, and the other way round; two addresses
of one port, and two protocols, do not mind each other. As in kube-scheduler, every other address is just a text.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.copies import with_own
from berth_operator.core.values.request import HostPort

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]

ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - compared, not listened on


class Ports:
    """The host ports of all nodes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._used: dict[tuple[str, int], dict[str, Counts]] = {}
        """(protocol, port) -> address -> pods on each row; only those that some pod uses."""

    def charge(self, row: int, ports: Iterable[HostPort], sign: int) -> None:
        """Add (sign 1) or take back (sign -1) a pod's ports."""
        for port in ports:
            addresses = self._used.setdefault((port.protocol, port.port), {})
            counts = addresses.setdefault(port.address, np.zeros(self._rows, np.int32))
            counts[row] += sign
            if not counts.any():
                del addresses[port.address]
            if not addresses:
                del self._used[port.protocol, port.port]

    def taken(self, port: HostPort) -> Mask:
        """Return the rows where a pod could not listen."""
        addresses = self._used.get((port.protocol, port.port), {})
        compared = addresses if port.address == ALL_ADDRESSES else {ALL_ADDRESSES, port.address} & addresses.keys()
        return reduce(np.logical_or, (addresses[each] > 0 for each in compared), np.zeros(self._rows, np.bool_))

    def copy(self) -> Self:
        """Return ports that can change without these."""
        used = {
            port: {address: counts.copy() for address, counts in addresses.items()}
            for port, addresses in self._used.items()
        }
        return with_own(self, _used=used)

    def grow(self, rows: int) -> None:
        """Make room for more nodes."""
        for addresses in self._used.values():
            for address, counts in addresses.items():
                addresses[address] = np.pad(counts, (0, rows - self._rows))
        self._rows = rows
