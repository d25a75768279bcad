"""Registration with kubelet, and detection of a restarted kubelet."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpc import aio

from berth_agent.kubelet.channel import open_channel, reason
from berth_agent.kubelet_api.deviceplugin_pb2 import DevicePluginOptions, Empty, RegisterRequest
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import DevicePluginStub, RegistrationStub

API: Final = "v1beta1"
PATIENCE: Final = 5.0
"""Seconds within which a call must be answered."""

MAX_CRASHES: Final = 5
CRASH_WINDOW: Final = 3600.0
"""Seconds within which so many crashes are tolerated."""


FIRST_SILENCE: Final = 5.0
LAST_SILENCE: Final = 300.0
"""Seconds after which a resource that kubelet does not watch is registered again; they double each time."""


class ServingError(Exception):
    """A socket cannot be served, or kubelet does not take the registration."""


class CrashLoopError(Exception):
    """The plugin's sockets break again and again; a new process may do better."""


async def check(socket: Path) -> None:
    """Check that a plugin answers at its socket.

    Raises:
        ServingError: it does not.
    """
    try:
        async with open_channel(socket) as channel:
            await DevicePluginStub(channel).GetDevicePluginOptions(Empty(), timeout=PATIENCE)
    except aio.AioRpcError as error:
        raise ServingError(f"{socket} does not answer: {reason(error)}") from error


async def register(kubelet: Path, *, resource: str, endpoint: str, options: DevicePluginOptions) -> None:
    """Register a resource and its socket with kubelet.

    It does not wait for a kubelet that is not there: the caller tries again, and checks for a new one meanwhile.

    Raises:
        ServingError: kubelet does not answer, or refuses.
    """
    request = RegisterRequest(version=API, endpoint=endpoint, resource_name=resource, options=options)
    try:
        async with open_channel(kubelet) as channel:
            await RegistrationStub(channel).Register(request, timeout=PATIENCE)
    except aio.AioRpcError as error:
        raise ServingError(f"kubelet did not register {resource} at {kubelet}: {reason(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketIdentity:
    """Identifies the file at a path: a socket that was created again is another one."""

    inode: int
    changed: int
    """Nanoseconds since the epoch."""

    @property
    def age(self) -> float:
        """Seconds since it was made, by the wall clock: negative if that was set back."""
        return time.time() - self.changed / 1e9


def identity(path: Path) -> SocketIdentity | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # An inode's number may be given again at once.
    return SocketIdentity(inode=status.st_ino, changed=status.st_ctime_ns)


class CrashCounter:
    """Counts how often sockets broke that the agent did not remove."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def count(self, now: float, *, what: str) -> None:
        """Count one, at a time in seconds.

        Raises:
            CrashLoopError: they are too many.
        """
        self._times = [*(time for time in self._times if time > now - CRASH_WINDOW), now]
        if len(self._times) > MAX_CRASHES:
            raise CrashLoopError(f"{what} broke {len(self._times)} times within {CRASH_WINDOW / 60:g} minutes")


class WatchTracker:
    """Tracks whether kubelet watches a registered resource: it may stop without a restart.

    Kubelet drops a plugin whose stream fails, or that it cannot reach, and never retries by itself.
    """

    def __init__(self) -> None:
        self._streams = 0
        self._since = 0.0
        """When the last stream began, or none was there any more."""
        self._patience = FIRST_SILENCE

    @property
    def is_there(self) -> bool:
        """Whether a stream is open."""
        return self._streams > 0

    def registered(self, now: float) -> None:
        """Record a registration: kubelet is expected to open a stream."""
        self._since = now

    def stream_started(self, now: float) -> None:
        """Record that a stream began."""
        self._streams += 1
        self._since = now

    def stream_ended(self, now: float) -> None:
        """Record that a stream ended; one that lasted resets the back-off."""
        self._streams -= 1
        if now - self._since > self._patience:
            self._patience = FIRST_SILENCE
        self._since = now

    def is_overdue(self, now: float) -> bool:
        """Return whether the resource must be registered again."""
        return not self._streams and now - self._since >= self._patience

    def back_off(self) -> None:
        """Wait twice as long before the next registration."""
        self._patience = min(2 * self._patience, LAST_SILENCE)
