"""The socket by which the agent calls the keeper: one JSON object on a line, and one as the answer.

    {"call": "list"}                                                    -> {"cards": […], "problems": […]}
    {"call": "make", "key", "card", "profile", "start", "size"}         -> {"device": "MIG-…"}
    {"call": "destroy", "key"}                                          -> {}
    {"call": "clear", "card"}                                           -> {}

A call that fails is answered `{"error": "…"}`. The kernel says who calls: another user than this process's own is
refused. The folder of the socket belongs to the pod, and only the agent's container mounts it.
"""

import contextlib
import os
import socket
import struct
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.vendor import Placement, RefusedError
from berth_agent.vendors.nvidia.nvml.library import NvmlError
from berth_agent.vendors.nvidia.partitions.keeper import PartitionKeeper

NAME: Final = "partitions.sock"
FOLDER_MODE: Final = 0o700
SOCKET_MODE: Final = 0o600
CHECK_SECONDS: Final = 1.0
"""Seconds between two looks whether the socket is still there."""
MAX_REQUEST: Final = 4096
"""Bytes."""
PATIENCE: Final = 5.0
"""Seconds that a caller has to send its request, and to take the answer."""
DRAIN_SECONDS: Final = 0.2
"""Seconds for each further part of a caller that was answered already."""
MAX_DRAINED: Final = 16
"""Maximum number of these parts."""
_CREDENTIALS: Final = struct.Struct("3i")
"""The kernel's ucred: pid, uid, gid."""

Key = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._/-]{1,200}$")]
Card = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]
Number = Annotated[int, Field(ge=0, le=1 << 16)]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListCards(_Call):
    """List the cards."""

    call: Literal["list"]


class Make(_Call):
    """Make a partition."""

    call: Literal["make"]
    key: Key
    card: Card
    profile: Number
    start: Number
    size: Number


class Destroy(_Call):
    """Destroy a partition."""

    call: Literal["destroy"]
    key: Key


class Clear(_Call):
    """Turn the MIG mode of a card off."""

    call: Literal["clear"]
    card: Card


Call = Annotated[ListCards | Make | Destroy | Clear, Field(discriminator="call")]
_CALL: Final[TypeAdapter[ListCards | Make | Destroy | Clear]] = TypeAdapter(Call)


class PartitionServer:
    """Serves calls one after another."""

    def __init__(self, keeper: PartitionKeeper, *, folder: Path) -> None:
        """Listen.

        Raises:
            OSError: the socket cannot be made.
        """
        self._keeper = keeper
        self._failure = ""
        """The last failure; empty after a success."""
        self._path = folder / NAME
        self._socket, self._bound = self._listen()

    def _listen(self) -> tuple[socket.socket, FileIdentity | None]:
        """Return a socket that listens at the path, and the identity of its file.

        Raises:
            OSError: the socket cannot be made.
        """
        folder = self._path.parent
        files.make_folder(folder, mode=FOLDER_MODE, parents=True)
        begun = folder / f"new-{NAME}"
        for left in (self._path, begun):
            left.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(begun))
            begun.chmod(SOCKET_MODE)
            listening.listen(4)
            listening.settimeout(CHECK_SECONDS)
            # A socket that has its name listens.
            begun.rename(self._path)
        except OSError:
            listening.close()
            raise
        return listening, files.identity(self._path)

    def _accepted(self) -> socket.socket:
        """Wait for a caller. Meanwhile, listen again if another program removed the socket."""
        while True:
            try:
                return self._socket.accept()[0]
            except TimeoutError:
                try:
                    if files.identity(self._path) != self._bound:
                        listening, self._bound = self._listen()
                        self._socket.close()
                        self._socket = listening
                        _log.warning("the socket was removed, listening again", path=str(self._path))
                except OSError as error:
                    if str(error) != self._failure:
                        _log.error("the socket was removed, and cannot be made again", error=str(error))
                    self._failure = str(error)

    def serve_one(self) -> None:
        """Wait for a caller, and answer it."""
        with self._accepted() as connection:
            connection.settimeout(PATIENCE)
            try:
                connection.sendall(orjson.dumps(self._answer(connection)) + b"\n")
                # A close with data that was not read would reset the connection, and the caller would lose the answer.
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(DRAIN_SECONDS)
                for _ in range(MAX_DRAINED):
                    if not connection.recv(MAX_REQUEST):
                        break
            except OSError as error:
                _log.warning("a call broke off", error=str(error))

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.geteuid():
            _log.error("a call of another user was refused", uid=uid)
            return {"error": f"user {uid} may not call"}
        try:
            call = _CALL.validate_python(orjson.loads(_line(connection)))
            answer = self._perform(call)
        except (RefusedError, NvmlError, OSError, ValueError, ValidationError) as error:
            # The agent lists again and again, on nodes without the driver, too.
            if str(error) != self._failure:
                _log.warning("a call failed", error=str(error))
            self._failure = str(error)
            return {"error": str(error)}
        self._failure = ""
        if not isinstance(call, ListCards):
            _log.info("a call succeeded", **call.model_dump(), **answer)
        return answer

    def _perform(self, call: ListCards | Make | Destroy | Clear) -> dict[str, Any]:
        if isinstance(call, Make):
            placement = Placement(profile=call.profile, start=call.start, size=call.size)
            return {"device": self._keeper.make(call.key, card=call.card, placement=placement)}
        if isinstance(call, Destroy):
            self._keeper.destroy(call.key)
            return {}
        if isinstance(call, Clear):
            self._keeper.clear(call.card)
            return {}
        return self._keeper.list()


def _line(connection: socket.socket) -> bytes:
    """Return what a caller sends up to the end of the line.

    Raises:
        OSError: it sent no line in time, or has given up since.
        ValueError: the line is too long.
    """
    received, ends_at = b"", time.monotonic() + PATIENCE
    while not received.endswith(b"\n"):
        connection.settimeout(max(ends_at - time.monotonic(), 0.001))
        part = connection.recv(MAX_REQUEST)
        if not part:
            raise OSError("the caller sent no whole line")
        received += part
        if len(received) > MAX_REQUEST:
            raise ValueError(f"a request has at most {MAX_REQUEST} bytes")
    # It may have waited long for its turn. What it wanted then may be wrong now.
    connection.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK):
            raise OSError("the caller has given up")
    connection.settimeout(PATIENCE)
    return received
