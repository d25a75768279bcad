"""Keep `kubectl proxy` running while the dashboard runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from berth_kubectl.dashboard.relay import Relay
from berth_kubectl.errors import ReadError
from berth_kubectl.transport.proxy import Proxy

POLL: Final = 0.25
"""Seconds after which the end of the proxy is noticed."""
LONGEST_PAUSE: Final = 15.0
"""Seconds before another attempt to start it."""


def supervise(
    open_proxy: Callable[[], AbstractContextManager[Proxy]],
    relay: Relay,
    *,
    started: Callable[[], None],
    wait: Callable[[float], bool],
) -> None:
    """Run a proxy, and another one if it ends; call `started` once the first one runs.

    `wait` waits for some seconds, or less, and returns whether to end.

    Raises:
        ReadError: the first one did not start.
    """
    failures, first, stopped = 0, True, False
    while not stopped:
        try:
            with open_proxy() as running:
                relay.use(running)
                if first:
                    started()
                failures, first = 0, False
                while not running.has_ended() and not (stopped := wait(POLL)):
                    pass
        except ReadError:
            if first:
                raise
            failures += 1
        finally:
            relay.use(None)
        stopped = stopped or wait(min(2.0**failures, LONGEST_PAUSE))
