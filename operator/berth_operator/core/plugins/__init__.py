"""The interfaces of plug-ins: allocators, scores and device types that are not built in."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.request import Kind, Kinds, Part
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest


class AllocationPolicy(Protocol):
    """What allocators read of a `Policy`."""

    @property
    def card_strategy(self) -> str:
        """Return the name of the strategy by which the cards of a node are chosen."""

    @property
    def spreads_cards(self) -> bool:
        """Return whether the emptiest cards are taken first."""


class Allocator(Protocol):
    """What every allocator module offers."""

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        """Return which of the rows can allocate the part now; the result for a row depends on that row alone."""

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        """Return the rows that could allocate the part if all their cards were free."""

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        """Return what is missing and the rows where it is, the first reason first; every rejected row has one."""

    def choose(
        self,
        fleet: Fleet,
        row: int,
        request: PodRequest,
        part: Part,
        policy: AllocationPolicy,
        *,
        near: Collection[int] = (),
    ) -> tuple[Grant, ...]:
        """Return the cards for the part, on a row that passes; `near` are PCIe switches that are preferred."""


class Score(Protocol):
    """What every score module offers."""

    NAME: str

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        """Return each row's score, 0 to 100, or None where all are equal; rows that do not fit may hold any number."""


class Chooser(Protocol):
    """What chooses the cards of a node. One that is a score, too, may choose as it scored."""

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Return the cards for every part of the request; the row has passed every filter."""


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
    allocator: Allocator | None = None
    """What chooses its devices; by default the allocator of NICs and FPGAs."""
    score: Score | None = None
    """Which nodes are preferred for pods that request it."""


NO_PLUGINS: Final[Mapping[str, DevicePlugin]] = {}
"""By the name of the device type."""
SCORE_WEIGHT: Final = 10.0
"""How much a plug-in's score counts: as much as the strategies for cards."""


def kinds_of(plugins: Mapping[str, DevicePlugin]) -> Kinds:
    """Return the device types that there are with these plug-ins."""
    return Kinds(tuple(plugin.kind for plugin in plugins.values()))
