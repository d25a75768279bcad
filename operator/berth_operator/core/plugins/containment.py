"""Error containment for plug-ins: every failure in a plug-in's code raises PluginFailedError, which names the plug-in.

`contained(plugin, owner)` wraps a plug-in when it is loaded, so no plug-in is called without the checks. Return values
are validated, too. Otherwise a mask of the wrong shape would fail later in Berth's own code, and a device that is not
free would be allocated twice.
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
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import AllocationPolicy, Allocator, DevicePlugin, PluginFailedError, Score
from berth_operator.core.values.request import PodRequest

BEST: Final = 100.0
"""The highest score."""


def contained(plugin: DevicePlugin, owner: str) -> DevicePlugin:
    """Return a plug-in that raises only PluginFailedError; `owner` names the plug-in in the message."""
    guard = _Guard(type=plugin.kind.name, owner=owner)
    return replace(
        plugin,
        allocator=None if plugin.allocator is None else _Allocator(plugin.allocator, guard),
        score=None if plugin.score is None else _Score(plugin.score, guard),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guard:
    type: str
    owner: str

    @contextmanager
    def around(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # A third-party plug-in may raise anything.
            raise PluginFailedError(self.type, f"{self.owner} failed in {call}: {in_one_line(error)}") from error


class _Allocator:
    """An allocator whose failures raise PluginFailedError."""

    def __init__(self, own: Allocator, guard: _Guard) -> None:
        self._own, self._guard = own, guard

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        with self._guard.around("passes"):
            return _mask(self._own.passes(fleet, request, part, rows), fleet.present[rows])

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        with self._guard.around("could_pass"):
            return _mask(self._own.could_pass(fleet, request, part), fleet.present[ALL])

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        with self._guard.around("reasons"):
            reasons = self._own.reasons(fleet, request, part, rejected)
            return iter([(str(reason), _mask(rows, rejected)) for reason, rows in reasons])

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
        with self._guard.around("choose"):
            grants = tuple(self._own.choose(fleet, row, request, part, policy, near=near))
            _check_devices(grants, part)
            return tuple(_checked(fleet, row, each) for each in grants)


class _Score:
    """A score whose failures raise PluginFailedError."""

    def __init__(self, own: Score, guard: _Guard) -> None:
        self._own, self._guard = own, guard
        self.NAME = guard.type

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
        with self._guard.around("score"):
            scores = self._own.score(fleet, request, fits)
            return None if scores is None else _scores(np.asarray(scores, np.float64), fits)


def _mask(mask: object, like: Mask) -> Mask:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != like.shape:
        raise TypeError(f"it returned {mask!r}; allowed is a mask of shape {like.shape}")
    return mask


def _scores(scores: npt.NDArray[np.float64], fits: Mask) -> npt.NDArray[np.float64]:
    if scores.shape != fits.shape:
        raise ValueError(f"it returned scores of shape {scores.shape}; allowed is {fits.shape}")
    if not np.all((scores[fits] >= 0.0) & (scores[fits] <= BEST)):
        raise ValueError(f"it returned scores {scores[fits].tolist()}; allowed are 0 to {BEST:g}")
    # Rows that do not fit may hold any value; a NaN there would win the comparison of scores.
    return np.where(fits, scores, 0.0)


def _check_devices(grants: Sequence[Grant], part: Part) -> None:
    """Check that the grants are for as many different devices of the part's type as the part requests.

    Raises:
        ValueError: the number or a type is wrong, or a device is repeated.
    """
    minors = [each.minor for each in grants if each.type == part.type]
    enough = bool(minors) if part.every else len(minors) == part.count
    if not enough or len(minors) < len(grants) or len(set(minors)) < len(minors):
        requested = "every one" if part.every else f"{part.count} different ones"
        raise ValueError(
            f"it returned {[(each.type, each.minor) for each in grants]}; requested: {requested} of {part.type}"
        )


def _checked(fleet: Fleet, row: int, grant: Grant) -> Grant:
    """Return a grant with the id of its device. The grant is charged by this id from now on.

    Raises:
        ValueError: the device has another id, cannot be allocated, or has less free than the grant's amount.
    """
    cards = fleet.cards[grant.type]
    slot = next((each for each in cards.slots(row) if cards.minor[row, each] == grant.minor), None)
    if slot is None or not cards.healthy[row, slot]:
        raise ValueError(
            f"it returned {grant.type} {grant.minor}, but node {fleet.names[row]} has no such healthy device"
        )
    for resource, amount in grant.amounts:
        free = int(cards.free[cards.index[resource], row, slot])
        if not 0 < amount <= free:
            raise ValueError(f"it returned {amount} of {resource} of {grant.type} {grant.minor}; it has {free} free")
    name = cards.ids[row][grant.minor]
    if grant.id not in ("", name):
        raise ValueError(
            f"it returned id {grant.id} for {grant.type} {grant.minor}; on node {fleet.names[row]} its id is {name}"
        )
    return replace(grant, id=name)
