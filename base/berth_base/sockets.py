"""Where servers listen: an unspecified address means all interfaces, by IPv4 and IPv6, as for kube-scheduler."""

import ipaddress
import os
import socket
from typing import Final

from berth_base.start import StartError

BACKLOG: Final = 128
"""Connections that the kernel keeps for us."""


def is_unspecified(host: str) -> bool:
    """Return whether a host is 0.0.0.0 or ::, and no other address or name."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host and port; at 0.0.0.0 and ::, on all interfaces by IPv4 and IPv6.

    One socket has both, so port 0 is the same port for both. Its IPv4 clients have addresses such as ::ffff:10.0.0.1.
    Where the kernel has no IPv6 (`ipv6.disable=1`), it has IPv4 only.

    Raises:
        OSError: the host and port cannot be listened on.
    """
    if not is_unspecified(host):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)


def listener_of(option: str, host: str, port: int) -> socket.socket:
    """Return such a socket for an option of a program.

    Raises:
        StartError: the host and port cannot be listened on; the text begins with the option.
    """
    try:
        return listener(host, port)
    except socket.gaierror as error:
        raise StartError(f"{option} on {host}: {(error.strerror or str(error)).lower()}") from error
    except OSError as error:
        # The text of the error repeats the address.
        problem = os.strerror(error.errno) if error.errno else str(error)
        raise StartError(f"{option} on {host}: {problem.lower()}") from error
