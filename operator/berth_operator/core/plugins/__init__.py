"""The interfaces of plug-ins: allocators, scores and device types that are not built in."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.request import BUILT_IN, GpuVendor, Kind, Kinds, Part
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest


class AllocationPolicy(Protocol):
    """What allocators read of a `Policy`."""

    @property
    def card_strategy(self) -> str:
        """Return the name of the strategy that chooses the cards of a node."""

    @property
    def spreads_cards(self) -> bool:
        """Return whether the emptiest cards are taken first."""

    def loads(self, fleet: Fleet, row: int, part: Part) -> tuple[int, ...]:
        """Return how loaded the card in each slot of a row is for a part; empty if that does not matter."""


class Allocator(Protocol):
    """The interface of allocators."""

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        """Return which of the rows can allocate the part now; the result for a row depends only on that row."""

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        """Return the rows that could allocate the part if all their cards were free."""

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        """Return reasons, the most important first, each with the rows it is true for.

        Every rejected row has at least one reason.
        """

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
        """Return the cards for the part, on a row that passes; the PCIe switches in `near` are preferred."""


class Score(Protocol):
    """The interface of scores."""

    NAME: str

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        """Return each row's score, 0 to 100, or None if all are equal; rows that do not fit may have any number."""


class Chooser(Protocol):
    """The interface for choosing the cards of a node. A score may implement it, to choose the cards that it scored."""

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Return the cards for every part of the request; the row has passed every filter."""


class PluginFailedError(Exception):
    """A plug-in raised an exception or returned an invalid value; the message names the plug-in and the problem.

    It does not mean that the pod does not fit. The pod's status reports the failure, and the pod is retried later.
    """

    def __init__(self, device_type: str, problem: str) -> None:
        """Set the problem, and `device_type`, the plug-in's device type."""
        super().__init__(problem)
        self.device_type = device_type


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DevicePlugin:
    """A device type that another distribution provides with an entry point of the group `berth.device_allocators`.

    The Fleet keeps its devices and their charges as for the built-in device types.
    """

    kind: Kind
    """The device type's name, how pods request it, and what is counted."""
    allocator: Allocator | None = None
    """Chooses the devices; None for the allocator of NICs and FPGAs."""
    score: Score | None = None
    """Scores nodes for pods that request the device type; None if all nodes are equal."""


NO_PLUGINS: Final[Mapping[str, DevicePlugin]] = {}
"""Device type -> plug-in."""
USUAL_UNITS: Final[Mapping[str, int]] = {}
NO_NICS: Final[Mapping[str, int]] = {}
NO_GPUS: Final[Mapping[str, GpuVendor]] = {}
SCORE_WEIGHT: Final = 10.0
"""The weight of a plug-in's score: the same as the card strategies have."""


def kinds_of(
    plugins: Mapping[str, DevicePlugin],
    units: Mapping[str, int] = USUAL_UNITS,
    nics: Mapping[str, int] = NO_NICS,
    gpus: Mapping[str, GpuVendor] = NO_GPUS,
    gpu_vendors: frozenset[str] = BUILT_IN.gpu_vendors,
) -> Kinds:
    """Return the built-in device types and the plug-ins' types, and the meaning of resources."""
    return Kinds(tuple(plugin.kind for plugin in plugins.values()), units, nics, gpus, gpu_vendors)
