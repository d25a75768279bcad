"""The driver's sockets: one for its services, and one by which kubelet finds them.

Both have new names at each start. kubelet waits longer and longer before it tries a registration socket again that did
not answer, so the name of a dead socket must not return. Sockets of agents that were killed are removed.
"""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog
from grpc import aio

from berth_agent import files
from berth_agent.dra.service import DriverRegistration, DriverService
from berth_agent.files import FileIdentity
from berth_agent.kubelet.device_plugin.registration import ServingError
from berth_agent.kubelet_api.registration_pb2_grpc import add_RegistrationServicer_to_server
from berth_api.names import DRA_DRIVER

FOLDER_MODE: Final = 0o750
"""The mode with which kubelet creates its own folders of sockets."""
MAX_PATH: Final = 107
"""Bytes of a socket's path."""
MAX_RECEIVED: Final = 2**21
"""Bytes of a call."""
GRACE: Final = 2.0
"""Seconds that calls under way get at the end; kubelet repeats calls that break."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class DriverSockets:
    """The sockets of one start."""

    def __init__(self, kubelet: Path, service: DriverService) -> None:
        start = uuid.uuid4().hex[:8]
        self._services_folder = kubelet / "plugins" / DRA_DRIVER
        self._registry = kubelet / "plugins_registry"
        self._service_path = self._services_folder / f"dra-{start}.sock"
        self._registration_path = self._registry / f"{DRA_DRIVER}-{start}-reg.sock"
        self._service = service
        self.registration: Final = DriverRegistration(endpoint=str(self._service_path))
        self._servers: list[aio.Server] = []
        self._bound: dict[Path, FileIdentity | None] = {}

    async def start(self) -> None:
        """Serve; kubelet finds the driver by itself.

        Raises:
            ServingError: a socket cannot be served.
        """
        try:
            files.make_folder(self._services_folder, mode=FOLDER_MODE, parents=True)
            self._registry.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._remove_dead()
            services = aio.server(options=[("grpc.max_receive_message_length", MAX_RECEIVED)])
            self._service.add_to(services)
            await self._serve(services, self._service_path)
            # kubelet calls the service as soon as it sees this one.
            registering = aio.server()
            add_RegistrationServicer_to_server(self.registration, registering)
            await self._serve(registering, self._registration_path)
        except (RuntimeError, OSError) as error:
            raise ServingError(f"the sockets of {DRA_DRIVER} below {self._registry.parent}: {error}") from error

    @property
    def broken(self) -> bool:
        """Whether a socket is gone, or another's."""
        return any(files.identity(path) != identity for path, identity in self._bound.items())

    async def stop(self) -> None:
        """Remove the sockets, the registration first, and finish the calls under way."""
        for path, identity in reversed(self._bound.items()):
            if files.identity(path) == identity:
                path.unlink(missing_ok=True)
        self._bound.clear()
        self._service.end()
        await asyncio.gather(*(server.stop(GRACE) for server in self._servers))

    async def _serve(self, server: aio.Server, path: Path) -> None:
        # When gRPC stops, it removes whatever is at the path that it bound. kubelet ignores names with a dot.
        draft = path.with_name(f".{path.name}")
        if len(str(draft)) > MAX_PATH:
            raise OSError(f"the path {draft} has more than {MAX_PATH} bytes, which no socket may have")
        self._servers.append(server)
        server.add_insecure_port(f"unix:{draft}")
        await server.start()
        draft.rename(path)
        self._bound[path] = files.identity(path)

    def _remove_dead(self) -> None:
        for path in self._earlier():
            # If the queue of a live socket is full, connect would wait.
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError, BlockingIOError):
                probe.settimeout(0)
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                    _log.info("socket of an earlier agent removed", path=str(path))

    def _earlier(self) -> Iterator[Path]:
        for hidden in (".", ""):
            yield from self._registry.glob(f"{hidden}{DRA_DRIVER}-*reg.sock")
            yield from self._services_folder.glob(f"{hidden}dra-*.sock")
