"""A wall around the code of plug-ins: whatever goes wrong in it comes out as one error, which says whose it is.

`contained(plugin, owner)` gives the same plug-in behind the wall. Plug-ins get there when they are loaded, so that no
other is ever asked. What they answer is looked at, too: a mask of another shape would be an error of somebody else, and
a device that is not free would be booked twice.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.plugins import in_one_line
from berth_api.request import Part
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import AllocationPolicy, Allocator, DevicePlugin, PluginFailedError, Score
from berth_operator.core.values.request import PodRequest

BEST: Final = 100.0
"""The highest score."""


def contained(plugin: DevicePlugin, owner: str) -> DevicePlugin:
    """Return a plug-in that raises nothing but PluginFailedError; `owner` is whose it is, in words."""
    wall = _Wall(type=plugin.kind.name, owner=owner)
    return replace(
        plugin,
        allocator=None if plugin.allocator is None else _Allocator(plugin.allocator, wall),
        score=None if plugin.score is None else _Score(plugin.score, wall),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wall:
    type: str
    owner: str

    @contextmanager
    def around(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever a stranger's code does wrong is told in the same way.
            raise PluginFailedError(self.type, f"{self.owner} failed in {call}: {in_one_line(error)}") from error


class _Allocator:
    """An allocator behind the wall."""

    def __init__(self, own: Allocator, wall: _Wall) -> None:
        self._own, self._wall = own, wall

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        with self._wall.around("passes"):
            return _mask(self._own.passes(fleet, request, part, rows), fleet.present[rows])

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        with self._wall.around("could_pass"):
            return _mask(self._own.could_pass(fleet, request, part), fleet.present[ALL])

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        with self._wall.around("reasons"):
            told = self._own.reasons(fleet, request, part, rejected)
            return iter([(str(reason), _mask(rows, rejected)) for reason, rows in told])

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
        with self._wall.around("choose"):
            grants = tuple(self._own.choose(fleet, row, request, part, policy, near=near))
            _check_devices(grants, part)
            return tuple(_checked(fleet, row, each) for each in grants)


class _Score:
    """A score behind the wall."""

    def __init__(self, own: Score, wall: _Wall) -> None:
        self._own, self._wall = own, wall
        self.NAME = wall.type

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        with self._wall.around("score"):
            found = self._own.score(fleet, request, fits)
            return None if found is None else _scores(np.asarray(found, np.float64), fits)


def _mask(found: object, like: Mask) -> Mask:
    if not isinstance(found, np.ndarray) or found.dtype != np.bool_ or found.shape != like.shape:
        raise TypeError(f"it gave {found!r}; allowed is a mask of shape {like.shape}")
    return found


def _scores(found: npt.NDArray[np.float64], fits: Mask) -> npt.NDArray[np.float64]:
    if found.shape != fits.shape:
        raise ValueError(f"it gave scores of shape {found.shape}; allowed is {fits.shape}")
    if not np.all((found[fits] >= 0.0) & (found[fits] <= BEST)):
        raise ValueError(f"it gave scores {found[fits].tolist()}; allowed are 0 to {BEST:g}")
    # Where the pod does not fit anything is allowed, such as no number, which would be taken for the best of all.
    return np.where(fits, found, 0.0)


def _check_devices(grants: Sequence[Grant], part: Part) -> None:
    """Check that these are as many devices of the type as the part wants.

    Raises:
        ValueError: they are not.
    """
    minors = [each.minor for each in grants if each.type == part.type]
    enough = bool(minors) if part.every else len(minors) == part.count
    if not enough or len(minors) < len(grants) or len(set(minors)) < len(minors):
        wanted = "every one" if part.every else f"{part.count} different ones"
        raise ValueError(f"it gave {[(each.type, each.minor) for each in grants]}; wanted are {wanted} of {part.type}")


def _checked(fleet: Fleet, row: int, grant: Grant) -> Grant:
    """Return a grant with its device's id, by which it is charged from here on.

    Raises:
        ValueError: the device has another id, cannot be handed out, or has not free what is given of it.
    """
    cards = fleet.cards[grant.type]
    slot = next((each for each in cards.slots(row) if cards.minor[row, each] == grant.minor), None)
    if slot is None or not cards.healthy[row, slot]:
        raise ValueError(
            f"it gave {grant.type} {grant.minor}, which {fleet.names[row]} has not, or not as a healthy one"
        )
    for resource, amount in grant.amounts:
        free = int(cards.free[cards.index[resource], row, slot])
        if not 0 < amount <= free:
            raise ValueError(f"it gave {amount} of {resource} of {grant.type} {grant.minor}, which has {free} free")
    name = cards.ids[row][grant.minor]
    if grant.id not in ("", name):
        raise ValueError(f"it gave {grant.type} {grant.minor} as {grant.id}; on {fleet.names[row]} that is {name}")
    return replace(grant, id=name)
