"""The users' free JSON that the API server sends is decoded, whatever Go's parser lets them write."""

from typing import Any

import orjson
import pytest

from berth_api.values.decoding import MAX_DEPTH, loads
from berth_client import reflector


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'["\ud800", "\uDFFFx", "\ud83d\ude00", "\\ud800"]', ["\ufffd", "\ufffdx", "\U0001f600", "\\ud800"]),
        (b'{"a": "\xff", "b": [1]}', {"a": "\ufffd", "b": [1]}),
        (b'{"a": ' + b"[" * 3000 + b'"]\\""' + b"]" * 3000 + b', "b": {"c": 1}}', {"b": {"c": 1}}),
        (b'{"b": 1, "a": ' + b'{"a":' * 3000 + rb'"\ud800"' + b"}" * 3000 + b"}", {"b": 1}),
    ],
)
def test_what_go_reads_is_read(text: bytes, value: Any) -> None:
    read = loads(text)
    deep = read.pop("a") if isinstance(read, dict) and isinstance(read["a"], list | dict) else None
    assert read == value
    depth = 1
    while deep is not None:
        deep, depth = deep[0] if isinstance(deep, list) else deep["a"], depth + 1
    assert depth in {1, MAX_DEPTH}
    orjson.dumps(read)


@pytest.mark.parametrize("text", [b"", b"{", b"}", b'"\\ud800', b"[" * 3000, b"]" * 3000, b"[1,]", b"1e400"])
def test_what_is_not_json_is_an_error(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(text)


def test_an_event_of_a_claim_with_deep_parameters_does_not_end_the_watch() -> None:
    deep = b'{"v":' + b"[" * 3000 + b"]" * 3000 + b"}"
    line = b'{"type":"ADDED","object":{"spec":%s,"metadata":{"resourceVersion":"7"}}}' % deep
    event_type, obj, version = reflector._parse(line)
    assert (event_type, version, obj["metadata"]) == ("ADDED", "7", {"resourceVersion": "7"})
