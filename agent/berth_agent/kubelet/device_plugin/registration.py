"""Registration with kubelet, and detection of a restarted kubelet."""

from pathlib import Path
from typing import Final

from grpc import aio

from berth_agent.kubelet.channel import open_channel, reason
from berth_agent.kubelet_api.deviceplugin_pb2 import DevicePluginOptions, Empty, RegisterRequest
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import DevicePluginStub, RegistrationStub
from berth_api.values.backoff import ExponentialBackoff

API: Final = "v1beta1"
PATIENCE: Final = 5.0
"""Seconds within which a call must be answered."""

MAX_CRASHES: Final = 5
CRASH_WINDOW: Final = 3600.0
"""Seconds within which so many crashes are tolerated."""


SILENCE: Final = ExponentialBackoff(first=5.0, longest=300.0)
"""Until a resource that kubelet does not watch is registered again."""


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
        self._started = 0
        """Streams that began, ever."""
        self._is_open = False
        """Whether the last of them is open. Kubelet keeps the stream of an earlier registration, too, and ignores that
        the plugin is there if the last one has ended."""
        self._since = 0.0
        """When the last stream began, or none was there any more."""
        self._patience = SILENCE.first

    @property
    def is_there(self) -> bool:
        """Whether the stream of the last registration is open."""
        return self._is_open

    def registered(self, now: float) -> None:
        """Record a registration: kubelet is expected to open a stream."""
        self._since = now

    def stream_started(self, now: float) -> int:
        """Record that a stream began; return its number."""
        self._started += 1
        self._is_open, self._since = True, now
        return self._started

    def stream_ended(self, stream: int, now: float) -> None:
        """Record that a stream ended; one that lasted resets the back-off."""
        if stream != self._started:
            return
        self._is_open = False
        if now - self._since > self._patience:
            self._patience = SILENCE.first
        self._since = now

    def is_overdue(self, now: float) -> bool:
        """Return whether the resource must be registered again."""
        return not self._is_open and now - self._since >= self._patience

    def back_off(self) -> None:
        """Wait twice as long before the next registration."""
        self._patience = SILENCE.following(self._patience)
