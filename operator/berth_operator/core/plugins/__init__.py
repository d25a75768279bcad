"""What scores and choosers of cards look like, and types of devices that are not built in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.request import Kind
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.values.request import PodRequest

if TYPE_CHECKING:
    from berth_operator.core.allocators import Allocator
    from berth_operator.core.fleet.fleet import Fleet


class Score(Protocol):
    """What every score module offers."""

    NAME: str

    def score(self, fleet: "Fleet", request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        """Give each row's score, 0 to 100, or None where all are equal; rows that do not fit may hold any number."""


class Chooser(Protocol):
    """What chooses the cards of a node. One that is a score, too, may choose as it scored."""

    def choose(self, fleet: "Fleet", row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Give the cards for every part of the request; the row has passed every filter."""


class PluginFailedError(Exception):
    """A plug-in's code raised something, or answered what is not allowed; the text says whose it is and what.

    That is no answer to whether a pod fits. Who decides tells the pod, and decides it again after a while.
    """

    def __init__(self, kind: str, problem: str) -> None:
        """`kind` is the type of its devices."""
        super().__init__(problem)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DevicePlugin:
    """A type of devices that another distribution brings: what an entry point of `berth.device_allocators` names.

    What its devices are and who holds how much of them is kept in the Fleet like that of all others.
    """

    kind: Kind
    """How it is called, requested and counted."""
    allocator: "Allocator | None" = None
    """What chooses its devices; without one, what chooses NICs and FPGAs."""
    score: Score | None = None
    """Which nodes are preferred for pods that request it."""


NO_PLUGINS: Final[Mapping[str, DevicePlugin]] = {}
SCORE_WEIGHT: Final = 10.0
"""How much a plug-in's score counts: as much as the strategies for cards."""
