"""Protobuf's wire format and the API server's envelope around it: change fields, and keep all other bytes.

JSON does not preserve what users write as free JSON (`RawExtension`). The API server compacts and escapes it, and a
parser changes its numbers. In protobuf, these bytes are passed through. Unknown fields are kept unchanged.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"k8s\0"
"""The first bytes of an object in the API server's protobuf."""
MAX_BYTES: Final = 8 << 20
"""Maximum bytes of a message that is read. etcd keeps no object of more than 1.5 MiB."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT: Final = 10
"""Bytes of a varint at most."""
_RAW: Final = 2
"""The field of the envelope (`runtime.Unknown`) that has the object."""
_ENCODING: Final = 3


class WireError(ValueError):
    """Bytes are not a message, or not one in the envelope of the API server."""


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a message."""

    number: int
    raw: bytes
    """All of its bytes: tag, length and value."""
    value: bytes
    """The value of a field of type bytes, string or message; empty for numbers."""


def fields(message: bytes) -> list[WireField]:
    """Return the fields of a message in their order; raise WireError."""
    if len(message) > MAX_BYTES:
        raise WireError(f"a message of {len(message)} bytes; allowed are {MAX_BYTES}")
    found, start = [], 0
    while start < len(message):
        tag, place = _varint(message, start)
        number, kind = tag >> 3, tag & 7
        value = b""
        if kind == _VARINT:
            _, end = _varint(message, place)
        elif kind == _BYTES:
            length, place = _varint(message, place)
            end = place + length
            value = message[place:end]
        elif kind in _FIXED:
            end = place + _FIXED[kind]
        else:
            raise WireError(f"byte {start}: a field of wire type {kind}, which proto2 and proto3 messages do not have")
        if number == 0 or end > len(message):
            raise WireError(f"byte {start}: the field {number} has no number or ends after the message")
        found.append(WireField(number, message[start:end], value))
        start = end
    return found


def values(message: bytes, *path: int) -> list[bytes]:
    """Return the values at a path of field numbers, in their order; raise WireError."""
    parts = [message]
    for number in path:
        parts = [field.value for part in parts for field in fields(part) if field.number == number]
    return parts


def encoded(number: int, value: bytes) -> bytes:
    """Return a field of type bytes, string or message."""
    return _encoded_varint(number << 3 | _BYTES) + _encoded_varint(len(value)) + value


def texts(number: int, listed: Iterable[str]) -> bytes:
    """Return a repeated field of type string."""
    return b"".join(encoded(number, text.encode()) for text in listed)


def without(message: bytes, numbers: Collection[int]) -> bytes:
    """Return a message without some fields; raise WireError."""
    return b"".join(field.raw for field in fields(message) if field.number not in numbers)


def opened(envelope: bytes) -> bytes:
    """Return the object in an envelope; raise WireError."""
    parts = _parts(envelope)
    if any(field.value for field in parts if field.number == _ENCODING):
        raise WireError("the object is compressed")
    return b"".join(field.value for field in parts if field.number == _RAW)


def enclosed(envelope: bytes, message: bytes) -> bytes:
    """Return an envelope with another object; raise WireError."""
    _parts(envelope)
    return MAGIC + without(envelope[len(MAGIC) :], {_RAW}) + encoded(_RAW, message)


def _parts(envelope: bytes) -> list[WireField]:
    if not envelope.startswith(MAGIC):
        raise WireError(f"it begins with {envelope[: len(MAGIC)]!r} instead of {MAGIC!r}")
    return fields(envelope[len(MAGIC) :])


def _varint(message: bytes, start: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = 0
    for place, byte in enumerate(message[start : start + _MAX_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that the number goes on
            return number, start + place + 1
    raise WireError(f"byte {start}: a number without an end")


def _encoded_varint(number: int) -> bytes:
    encoded_bytes = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded_bytes.append(number & 0x7F | 0x80)
        number >>= 7
    encoded_bytes.append(number)
    return bytes(encoded_bytes)
