"""The controller of a pod, to show who owns the pod, and for Events about all pods of a controller."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A pod's controller; empty if it has none."""

    kind: str = ""
    name: str = ""
    api_version: str = ""
    uid: str = ""


NO_OWNER: Final = Owner()


def bounded(name: str, size: int) -> str:
    """Return a name that any author of a pod may choose, cut after a number of bytes."""
    return name.encode()[:size].decode(errors="ignore")
