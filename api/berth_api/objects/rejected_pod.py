"""Pods that kubelet rejected at admission, as the API server shows them."""

from collections.abc import Mapping
from typing import Any, Final

MESSAGE: Final = "Pod was rejected"
"""How kubelet's message begins. Pods that fail later, or that kubelet evicts, have other messages."""
MAX_REASON: Final = 63
"""Characters of kubelet's reason that are read. It may have the name of a resource."""


def is_rejected(pod: Mapping[str, Any]) -> bool:
    """Return whether kubelet rejected a pod at admission, so that none of its containers has started."""
    status = pod.get("status") or {}
    return status.get("phase") == "Failed" and str(status.get("message") or "").startswith(MESSAGE)


def reason_of(pod: Mapping[str, Any]) -> str:
    """Return kubelet's reason for a rejection, such as `OutOfnvidia.com/gpu`."""
    return str(pod["status"].get("reason") or "Unknown")[:MAX_REASON]
