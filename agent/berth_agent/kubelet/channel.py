"""gRPC channels to kubelet's Unix sockets."""

from pathlib import Path
from typing import Final

from grpc import aio

MAX_MESSAGE: Final = 16 * 2**20
"""Bytes of one message: kubelet's own limit."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    # Else channels to one socket share a connection, and the pause after a failed attempt to connect.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(socket: Path) -> aio.Channel:
    """Return a channel of its own to a Unix socket; it connects with the first call."""
    return aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


def reason(error: aio.AioRpcError) -> str:
    """Return why a call failed: the other side's message, or the name of the status code if there is none."""
    return error.details() or error.code().name
