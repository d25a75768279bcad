"""Decode the API server's JSON, including anything that users write as free JSON.

The API server checks free JSON with Go's parser and sends it as it was written. `RawExtension` is free JSON, for
example the parameters for drivers in ResourceClaims. Go accepts JSON that orjson refuses: lone surrogates, bytes that
are not UTF-8, and a depth of up to 10,000. Without the changes here, one object of any user would end all lists and
watches of its kind.
"""

import re
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 200
"""Objects and arrays in each other that are kept; orjson reads 1,024 and writes 254. No field of use is as deep."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def loads(text: bytes) -> Any:
    """Return the value of JSON. Input that Go reads and orjson rejects is replaced as Go does.

    Values below MAX_DEPTH are replaced by null.

    Raises:
        orjson.JSONDecodeError: it is not JSON for Go either.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_replaced(text.decode(errors="replace").encode()))


def _replaced(text: bytes) -> bytes:
    parts: list[bytes] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in b"[{":
            if depth == MAX_DEPTH:
                parts += (text[start : token.start()], b"null")
            depth += 1
        elif first in b"]}":
            depth -= 1
            if depth == MAX_DEPTH:
                start = token.end()
        elif depth <= MAX_DEPTH and b"\\u" in token[0]:
            parts += (text[start : token.start()], _ESCAPE.sub(_escape, token[0]))
            start = token.end()
    if depth <= MAX_DEPTH:
        parts.append(text[start:])
    return b"".join(parts)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if match[1] else match[0]
