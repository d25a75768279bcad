"""Which user a connection on loopback comes from, on Linux.

Other users of the machine can connect, too. They could learn the token from the list of processes while the browser
starts. They could also learn the cookie with a server on another port, because browsers send cookies to all ports of a
host.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The second one has IPv6 sockets that are connected to an IPv4 address."""
ROOT: Final = 0
"""Root is allowed: it can read everything anyway, and some programs that forward ports run as root."""
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Columns of the tables."""
Address = tuple[str, int]


def user_of(client: Address, server: Address, tables: Sequence[Path] = TABLES) -> int | None:
    """Return the id of the user whose connection it is; None if the system does not show it."""
    for table in tables:
        try:
            with table.open() as lines:
                user = owner(lines, client, server)
        except OSError:
            continue  # no Linux, or no IPv6
        if user is not None:
            return user
    return None


def allowed(own: int, environment: Mapping[str, str]) -> frozenset[int]:
    """Return the users who may connect: this one, root, and the one who became root by sudo."""
    caller = environment.get("SUDO_UID", "") if own == ROOT else ""
    return frozenset({own, ROOT, *([int(caller)] if caller.isdecimal() else [])})


def owner(lines: Iterable[str], client: Address, server: Address) -> int | None:
    """Return the user id of the client's end of a connection; None if the table does not have it."""
    mapped = f"{0:016X}{_word(bytes((0, 0, 255, 255)))}"  # how IPv4 addresses in IPv6 begin: `::ffff:0:0/96`
    ends = {(_end(client, prefix), _end(server, prefix)) for prefix in ("", mapped)}
    for line in lines:
        columns = line.split()
        if len(columns) > _USER and (columns[_LOCAL], columns[_REMOTE]) in ends:
            return int(columns[_USER])
    return None


def _end(address: Address, prefix: str) -> str:
    """Return an address as the tables have it: words in the machine's byte order."""
    host, port = address
    return f"{prefix}{_word(bytes(map(int, host.split('.'))))}:{port:04X}"


def _word(octets: bytes) -> str:
    return f"{int.from_bytes(octets, sys.byteorder):08X}"
