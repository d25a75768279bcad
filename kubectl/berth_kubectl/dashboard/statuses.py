"""Answers to failed requests, as Kubernetes' Status documents."""

from http import HTTPStatus
from typing import Final

import orjson

UNREACHABLE: Final = "Unreachable"
"""The reason if the API server or `kubectl proxy` does not answer."""


def status(code: HTTPStatus, reason: str, message: str) -> bytes:
    """Return a Status document."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": int(code),
    }
    return orjson.dumps(body)
