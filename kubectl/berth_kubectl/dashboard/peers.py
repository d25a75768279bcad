"""Which user a connection on loopback comes from, on Linux.

Other users of the machine can connect, too, and could learn the token from the list of processes while the browser
starts, or the cookie by a server on another port: browsers send cookies to all ports of a host.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TABLE: Final = Path("/proc/net/tcp")
ROOT: Final = 0
"""Root is allowed: it can read everything anyway, and some forward ports as root."""
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Columns of the table."""


def is_allowed(client: tuple[str, int], server: tuple[str, int], table: Path = TABLE) -> bool:
    """Return whether a connection is of this user or root; also if the system does not show whose it is."""
    try:
        with table.open() as lines:
            user = owner(lines, client, server)
    except OSError:
        return True
    return user in (None, ROOT, os.getuid())


def owner(lines: Iterable[str], client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user id of the client's end of a connection; None if the table does not have it."""
    ends = _hexadecimal(*client), _hexadecimal(*server)
    for line in lines:
        columns = line.split()
        if len(columns) > _USER and (columns[_LOCAL], columns[_REMOTE]) == ends:
            return int(columns[_USER])
    return None


def _hexadecimal(address: str, port: int) -> str:
    """Return an address as the table has it, in the machine's byte order."""
    number = int.from_bytes(bytes(map(int, address.split("."))), sys.byteorder)
    return f"{number:08X}:{port:04X}"
