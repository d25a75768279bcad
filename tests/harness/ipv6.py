"""Whether this machine has IPv6."""

import socket

import pytest


def _has_loopback() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_loopback(), reason="::1 cannot be listened on: this machine has no IPv6")
