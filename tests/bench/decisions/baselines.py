"""Placement policies from the literature to compare Berth with: scores that know the free thousandths of every card.

FGD's simulator calls each of them a scoring plug-in. As in Go, whole numbers are truncated. A score remembers the card
that it chose for each row, so that the placement is the scored one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.names import GPU, GPU_CORE
from berth_api.request.model import ModelConstraint
from berth_api.resources import CPU
from berth_operator.core.allocators import grants
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from tests.bench.decisions.openb import SHARES, Task

Amounts = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

MAX_CPU: Final = 128_000
MAX_CARDS: Final = 8_000
"""The largest node, by which scores are divided."""
WHOLE: Final = 1000
TYPICAL: Final = 0.95
"""Share of all tasks that the typical classes make up."""


# --- what all baselines read ------------------------------------------------------------------------------------


def free(fleet: Fleet) -> Whole:
    """Return the free thousandths of each card; -1 where there is none."""
    cards = fleet.cards[GPU]
    index = cards.index[GPU_CORE]
    return np.where(cards.present, SHARES * (cards.total[index] - cards.used[index]), -1)


def amounts_of(request: PodRequest) -> tuple[int, int, int]:
    """Return the cpu, the number of cards and the thousandths of each card that a pod requests."""
    cpu = dict(request.resources).get(CPU, 0)
    if not request.devices:
        return cpu, 0, 0
    part = request.devices.parts[0]
    return cpu, part.count, SHARES * dict(part.amounts)[GPU_CORE]


def tightest(left: Whole, milli: int, count: int) -> npt.NDArray[np.intp]:
    """Return for each row its slots: those that fit first, and among these the fullest first."""
    return np.argsort(np.where(left >= milli, left, 2 * WHOLE), axis=1, kind="stable")[:, : max(count, 1)]


class Baseline:
    """A score and the cards that it chooses: the tightest by default."""

    NAME = ""

    def __init__(self) -> None:
        self.slots = np.zeros((0, 1), np.intp)

    def score(self, fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts:
        """Return the score of each row. Of equal rows the first wins, whatever Berth's own rule for equal rows is."""
        left = free(fleet)
        self.slots = tightest(left, *amounts_of(request)[:0:-1])
        return self.rate(fleet, request, fits, left) - np.linspace(0.0, 1e-6, len(left))

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        """Return the score of each row by the capacity left on its cards."""
        raise NotImplementedError

    def choose(self, fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
        """Return the cards that the score chose."""
        if not request.devices:
            return ()
        (part,) = request.devices.parts
        return grants.of_slots(fleet.cards[GPU], row, part, self.slots[row][: part.count].tolist())


def whole(amounts: Amounts) -> Amounts:
    """Truncate toward zero."""
    truncated: Amounts = np.trunc(amounts)
    return truncated


# --- the baselines ----------------------------------------------------------------------------------------------


class Random(Baseline):
    """Any node and any card of it."""

    NAME = "random"

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fleet, fits
        _, count, milli = amounts_of(request)
        if count == 1:
            drawn = np.where(left >= milli, self._rng.random(left.shape), -1.0)
            self.slots = drawn.argmax(axis=1)[:, np.newaxis]
        rated: Amounts = self._rng.random(len(left))
        return rated


class BestFit(Baseline):
    """The node with the least capacity left."""

    NAME = "bestfit"

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        cpu, count, milli = amounts_of(request)
        rest = 0.5 * (fleet.left(CPU) - cpu) / MAX_CPU + 0.5 * (total(left) - milli * count) / MAX_CARDS
        rated = whole(100.0 * (1.0 - rest))
        low, high = rated[fits].min(), rated[fits].max()
        return whole(100.0 * (rated - low) / (high - low)) if high > low else np.zeros_like(rated)


class FirstFit(Baseline):
    """The first node and its first cards."""

    NAME = "firstfit"

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fleet, fits
        self.slots = _by_index(left, amounts_of(request))
        return np.zeros(len(left))


class DotProd(Baseline):
    """The node whose free amounts are least similar to the request."""

    NAME = "dotprod"

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fits
        cpu, count, milli = amounts_of(request)
        product = fleet.left(CPU) / MAX_CPU * cpu / MAX_CPU + total(left) / MAX_CARDS * milli * count / MAX_CARDS
        return whole(100.0 * (1.0 - product / 2.0))


class Packing(Baseline):
    """Cards in use first, then nodes in use, then empty nodes."""

    NAME = "packing"

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fleet, fits
        _, count, milli = amounts_of(request)
        if not count:
            return np.zeros(len(left))
        present = left >= 0
        number, idle = present.sum(axis=1), ((left == WHOLE) | ~present).all(axis=1)
        chosen = np.take_along_axis(left, tightest(left, milli, count), axis=1)
        opened = (chosen == WHOLE).sum(axis=1)
        shared = np.maximum(100 - (chosen * 100 // WHOLE).sum(axis=1) // 10, 50)
        used = np.where(opened > 0, np.maximum(50 - opened, 33), shared)
        rated: Amounts = np.where(idle, np.maximum(33 - number, number), used).astype(np.float64)
        return rated


class Clustering(Baseline):
    """Pods of one size together."""

    NAME = "clustering"

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, Whole] = {}
        self._seen = 0

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fits
        kind = self._kind(*amounts_of(request)[1:])
        if not kind:
            return np.zeros(len(left))
        held = self._held(fleet)
        others = np.sum([count for each, count in held.items() if each != kind], axis=0)
        same, other = held[kind] > 0, others > 0
        rated = np.where(same, np.where(other, 50.0, 75.0), np.where(other, 0.0, 25.0))
        return rated + whole(25.0 * (MAX_CARDS - total(left)) / MAX_CARDS)

    def _held(self, fleet: Fleet) -> dict[str, Whole]:
        """Return the number of pods of each kind on each row; charges are only added, so count the new ones."""
        if not self._counts:
            self._counts = {kind: np.zeros(len(fleet.names), np.int64) for kind in ("share", "1", "2", "4", "8")}
        for charge in list(fleet.charges.values())[self._seen :]:
            amounts = [SHARES * dict(grant.amounts)[GPU_CORE] for grant in charge.grants]
            if amounts:
                self._counts[self._kind(len(amounts), amounts[0])][fleet.rows[charge.node]] += 1
        self._seen = len(fleet.charges)
        return self._counts

    @staticmethod
    def _kind(count: int, milli: int) -> str:
        return ("share" if milli < WHOLE else str(count)) if count else ""


def total(left: Whole) -> Whole:
    """Return the free thousandths of each row."""
    summed: Whole = np.maximum(left, 0).sum(axis=1)
    return summed


# --- FGD --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Typical pods with the same cards: how often they occur, by the cpu that they request."""

    cards: int
    milli: int
    model: ModelConstraint
    cpus: npt.NDArray[np.int64]
    """Ascending."""
    often: Amounts
    """Share of all pods that request at most this much cpu; starts with 0 for none."""


def typical(tasks: Iterable[Task]) -> list[Kind]:
    """Return the most frequent classes that make up 95 % of the tasks."""
    counts = Counter((task.request.model, task.cards, task.milli, task.cpu) for task in tasks)
    kept: Counter[tuple[ModelConstraint, int, int, int]] = Counter()
    for common, count in counts.most_common():
        kept[common] = count
        if kept.total() >= TYPICAL * counts.total():
            break
    return [_kind(each, kept) for each in dict.fromkeys(key[:3] for key in kept if key[1])]


def _kind(cards: tuple[ModelConstraint, int, int], kept: Counter[tuple[ModelConstraint, int, int, int]]) -> Kind:
    by_cpu = sorted((key[3], count / kept.total()) for key, count in kept.items() if key[:3] == cards)
    model, number, milli = cards
    often = np.concatenate([[0.0], np.cumsum([count for _, count in by_cpu])])
    return Kind(cards=number, milli=milli, model=model, cpus=np.array([cpu for cpu, _ in by_cpu]), often=often)


def fragments(cpu: Whole, left: Whole, accepts: npt.NDArray[np.bool_], kinds: Sequence[Kind]) -> Amounts:
    """Return the thousandths of cards that a typical pod cannot use, for states of nodes.

    `cpu` and `left` (…, slots) are the free amounts; `accepts` (…, kinds) is whether a kind takes the node's model. A
    kind that does not fit cannot use any card; one that fits can use all cards with enough free capacity.
    """
    rest = np.maximum(left, 0).sum(axis=-1)
    lost: Amounts = rest.astype(np.float64)
    for index, kind in enumerate(kinds):
        large_enough = left >= kind.milli
        often = kind.often[np.searchsorted(kind.cpus, cpu, side="right")]
        usable = np.where(accepts[..., index] & (large_enough.sum(axis=-1) >= kind.cards), often, 0.0)
        lost -= usable * np.where(large_enough, left, 0).sum(axis=-1)
    return lost


@dataclass(slots=True)
class _Known:
    """FGD's results for one class of pods, and the states of the nodes that they are for."""

    cpu: Whole
    left: Whole
    rated: Amounts
    slots: npt.NDArray[np.intp]


class Fgd(Baseline):
    """Fragmentation gradient descent: the node and card on which fragmentation grows least.

    The results for a class are kept, and computed again only for rows that have changed.
    """

    NAME = "fgd"

    def __init__(self, kinds: Sequence[Kind]) -> None:
        super().__init__()
        self._kinds = kinds
        self._known: dict[tuple[int, int, int], _Known] = {}

    def rate(self, fleet: Fleet, request: PodRequest, fits: Mask, left: Whole) -> Amounts:
        del fits
        cpu, requested = fleet.left(CPU), amounts_of(request)
        known = self._known.get(requested)
        if known is None or known.left.shape != left.shape:
            rows = len(cpu)
            known = _Known(np.full(rows, -1), np.full_like(left, -2), np.zeros(rows), np.zeros((rows, 1), np.intp))
            self._known[requested] = known
        changed = np.flatnonzero((known.cpu != cpu) | (known.left != left).any(axis=1))
        known.rated[changed], known.slots[changed, 0] = self._rate(
            fleet, changed, cpu[changed], left[changed], requested
        )
        known.cpu, known.left = cpu, left
        self.slots = known.slots if _is_share(requested) else _by_index(left, requested)
        return known.rated

    def _rate(
        self, fleet: Fleet, rows: npt.NDArray[np.intp], cpu: Whole, left: Whole, requested: tuple[int, int, int]
    ) -> tuple[Amounts, npt.NDArray[np.intp]]:
        accepts = self._accepted(fleet, rows)
        after, possible = _placements(left, requested)
        before = fragments(cpu, left, accepts, self._kinds)
        more = fragments((cpu - requested[0])[:, np.newaxis], after, accepts[:, np.newaxis], self._kinds)
        gain = (before[:, np.newaxis] - more) / WHOLE
        rated = np.where(possible, np.trunc(100.0 / (1.0 + np.exp(-gain))), -1.0)
        best = rated.argmax(axis=1)
        return np.take_along_axis(rated, best[:, np.newaxis], axis=1)[:, 0], best

    def _accepted(self, fleet: Fleet, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Return for each row and kind whether it takes the node's model; all cards of a node have one model."""
        model = fleet.cards[GPU].model[rows, 0]
        return np.stack([fleet.accepted_models(kind.model)[model] for kind in self._kinds], axis=-1)


def _placements(left: Whole, requested: tuple[int, int, int]) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Return what is left after each placement of a pod, shape (rows, placements, slots), and which are possible."""
    _, count, milli = requested
    rows, slots = left.shape
    if _is_share(requested):
        return left[:, np.newaxis, :] - milli * np.eye(slots, dtype=np.int64), left >= milli
    large_enough = left >= milli
    taken = large_enough & (np.cumsum(large_enough, axis=1) <= count)
    after = np.broadcast_to((left - milli * taken)[:, np.newaxis, :], (rows, 1, slots))
    return after, np.ones((rows, 1), np.bool_)


def _is_share(requested: tuple[int, int, int]) -> bool:
    return requested[1] == 1 and requested[2] < WHOLE


def _by_index(left: Whole, requested: tuple[int, int, int]) -> npt.NDArray[np.intp]:
    """Return for each row the slots that fit, lowest index first."""
    return np.argsort(left < requested[2], axis=1, kind="stable")


# --- by name ----------------------------------------------------------------------------------------------------

Maker = Callable[[Iterable[Task], int], Baseline]
_MAKERS: Final[Mapping[str, Maker]] = {
    "random": lambda _tasks, seed: Random(seed),
    "firstfit": lambda _tasks, _seed: FirstFit(),
    "bestfit": lambda _tasks, _seed: BestFit(),
    "dotprod": lambda _tasks, _seed: DotProd(),
    "packing": lambda _tasks, _seed: Packing(),
    "clustering": lambda _tasks, _seed: Clustering(),
    "fgd": lambda tasks, _seed: Fgd(typical(tasks)),
}
NAMES: Final = tuple(_MAKERS)


def policy(name: str, tasks: Iterable[Task], seed: int) -> Policy:
    """Return a policy that considers only one of these scores."""
    baseline = _MAKERS[name](tasks, seed)
    return Policy(weights=(), own_scores=((baseline, 1.0),), own_cards=baseline)
