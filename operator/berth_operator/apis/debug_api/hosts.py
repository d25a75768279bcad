"""The Host headers that a server without authentication accepts.

With DNS rebinding, a website's DNS resolves its name to 127.0.0.1. A browser then sends the website's requests to a
port that the user forwards. These requests carry the website's name in the Host header.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

_LOCAL_NAME: Final = "localhost"


def is_local(host: str, address: str) -> bool:
    """Return whether a Host header names this machine: by loopback, or by the address that the server listens on."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == _LOCAL_NAME:
            return True
        named = ipaddress.ip_address(name)
        return named.is_loopback or named == ipaddress.ip_address(address)
    except ValueError:
        return False
