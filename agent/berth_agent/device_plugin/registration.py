"""How a plugin makes itself known to kubelet, and how it sees that kubelet is a new one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpc import aio

from berth_agent.kubelet.deviceplugin_pb2 import DevicePluginOptions, Empty, RegisterRequest
from berth_agent.kubelet.deviceplugin_pb2_grpc import DevicePluginStub, RegistrationStub

API: Final = "v1beta1"
PATIENCE: Final = 5.0
"""Seconds that the other side may take to answer."""
OPTIONS: Final = DevicePluginOptions(get_preferred_allocation_available=True)

MAX_CRASHES: Final = 5
CRASH_WINDOW: Final = 3600.0
"""Seconds within which so many are borne."""


class ServingError(Exception):
    """A socket cannot be served, or kubelet does not take the registration."""


class CrashLoopError(Exception):
    """The plugin's sockets break again and again; a new process may do better."""


async def check(socket: Path) -> None:
    """See that a plugin answers at its socket.

    Raises:
        ServingError: it does not.
    """
    try:
        async with aio.insecure_channel(f"unix:{socket}") as channel:
            await DevicePluginStub(channel).GetDevicePluginOptions(Empty(), timeout=PATIENCE, wait_for_ready=True)
    except aio.AioRpcError as error:
        raise ServingError(f"{socket} does not answer: {error.details()}") from error


async def register(kubelet: Path, *, resource: str, endpoint: str) -> None:
    """Tell kubelet which socket offers a resource.

    Raises:
        ServingError: kubelet does not answer, or refuses.
    """
    request = RegisterRequest(version=API, endpoint=endpoint, resource_name=resource, options=OPTIONS)
    try:
        async with aio.insecure_channel(f"unix:{kubelet}") as channel:
            await RegistrationStub(channel).Register(request, timeout=PATIENCE, wait_for_ready=True)
    except aio.AioRpcError as error:
        raise ServingError(f"kubelet did not register {resource} at {kubelet}: {error.details()}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which file stands at a path: a socket that was made anew is another one."""

    inode: int
    changed: int


def identity(path: Path) -> Identity | None:
    """Tell which file is there, if any."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # An inode's number may be given again at once.
    return Identity(inode=status.st_ino, changed=status.st_ctime_ns)


class Crashes:
    """Counts how often sockets broke that nobody took away on purpose."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def count(self, now: float, *, what: str) -> None:
        """Count one, at a time in seconds.

        Raises:
            CrashLoopError: they are too many.
        """
        self._times = [*(each for each in self._times if each > now - CRASH_WINDOW), now]
        if len(self._times) > MAX_CRASHES:
            raise CrashLoopError(f"{what} broke {len(self._times)} times within {CRASH_WINDOW / 60:g} minutes")
