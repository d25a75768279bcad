"""Protobuf's wire format: fields are changed, and all other bytes are passed through."""

import random

import pytest

from berth_client import wire
from berth_client.wire import WireError

# 1: varint 150, 2: "testing", 3: fixed64, 4: fixed32, 15: bytes that are a message
MESSAGE = b"\x08\x96\x01" + b"\x12\x07testing" + b"\x19" + b"12345678" + b"\x25" + b"1234" + b"\x7a\x09\x12\x07testing"


def test_fields_are_read_with_all_of_their_bytes() -> None:
    fields = wire.fields(MESSAGE)
    assert [field.number for field in fields] == [1, 2, 3, 4, 15]
    assert b"".join(field.raw for field in fields) == MESSAGE
    assert wire.values(MESSAGE, 15, 2) == [b"testing"]
    assert wire.values(MESSAGE, 2) == [b"testing"]
    assert wire.values(MESSAGE, 9, 9) == []


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 300_000])
@pytest.mark.parametrize("number", [1, 15, 16, 2047])
def test_what_is_encoded_is_read(number: int, length: int) -> None:
    value = b"x" * length
    assert wire.values(wire.encoded(number, value), number) == [value]


def test_an_object_is_exchanged_in_its_envelope() -> None:
    envelope = wire.MAGIC + wire.encoded(1, b"kind") + wire.encoded(2, b"old") + wire.texts(3, [""]) + b"\xf8\x01\x05"
    changed = wire.enclosed(envelope, b"new")
    assert (wire.opened(envelope), wire.opened(changed)) == (b"old", b"new")
    assert wire.values(changed[4:], 1) == [b"kind"]
    assert b"\xf8\x01\x05" in changed


@pytest.mark.parametrize(
    "damaged",
    [
        MESSAGE[:-1],
        b"\x08",
        b"\x08" + b"\xff" * 10,
        b"\x00\x00",
        b"\x0b",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x19123",
        b"\x08" + b"\x80" * 9_000_000,
    ],
)
def test_what_is_no_message_is_an_error(damaged: bytes) -> None:
    with pytest.raises(WireError):
        wire.fields(damaged)


@pytest.mark.parametrize(
    "envelope", [b"", b'{"kind": "Status"}', wire.MAGIC + b"\x08", wire.MAGIC + wire.encoded(3, b"gzip")]
)
def test_what_is_no_envelope_is_an_error(envelope: bytes) -> None:
    with pytest.raises(WireError):
        wire.opened(envelope)


def test_damaged_bytes_are_read_as_they_are_or_not_at_all() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        damaged = bytearray(MESSAGE)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            fields = wire.fields(bytes(damaged))
        except WireError:
            continue
        assert b"".join(field.raw for field in fields) == damaged
