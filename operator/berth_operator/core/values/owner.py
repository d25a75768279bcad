"""The controller of a pod, for people who ask whose it is."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A pod's controller; empty if it has none."""

    kind: str = ""
    name: str = ""


NO_OWNER: Final = Owner()
