"""Allow only the browser that opened the printed address. It gets a cookie in exchange for the address's token."""

import hmac
import secrets
import threading
from collections.abc import Sequence
from typing import Final

BYTES: Final = 32
"""Random bytes of a token and of a cookie."""


class Login:
    """The token of the address, which is valid once, and the cookie that it is exchanged for."""

    def __init__(self, port: int) -> None:
        """Create both; cookies are sent to every port of a host, so the cookie's name has the port."""
        self.token = secrets.token_urlsafe(BYTES)
        self._name = f"berth-{port}"
        self._secret = secrets.token_urlsafe(BYTES)
        self._used = False
        self._lock = threading.Lock()

    @property
    def cookie(self) -> str:
        """Return the value of the header `Set-Cookie`."""
        return f"{self._name}={self._secret}; HttpOnly; SameSite=Strict; Path=/"

    def exchange(self, token: str) -> bool:
        """Return whether a token is valid, and make it invalid."""
        with self._lock:
            valid = not self._used and _are_equal(token, self.token)
            self._used = self._used or valid
            return valid

    def is_valid(self, headers: Sequence[str]) -> bool:
        """Return whether the headers `Cookie` of a request have the cookie.

        Servers on other ports may have set a cookie of the same name, so any of several is enough.
        """
        pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
        return any(name == self._name and _are_equal(value, self._secret) for name, _, value in pairs)


def _are_equal(given: str, secret: str) -> bool:
    """Return whether two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(), secret.encode())
