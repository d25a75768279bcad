"""The cards of one type as columns: arrays of shape (nodes, slots), one slot a card.

A slot belongs to one minor of one node for as long as the card exists or something is charged to it: a card that
fails or vanishes keeps what its pods hold, so that nothing is handed out twice when it comes back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from berth_api.allocation import Grant
from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from berth_api.request import CARD, NPU_CORE, NPU_CPU, NPU_DVPP
from berth_operator.core.copies import with_own

Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

RESOURCES: Final = {
    GPU: (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, NPU_CPU, NPU_DVPP),
    RDMA: (RDMA,),
    FPGA: (FPGA,),
}
"""Device type -> what is counted on each card."""

EMPTY: Final = -1
"""The minor of a slot that holds no card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """One card as its Device tells."""

    type: str
    minor: int
    id: str
    model: str = ""
    healthy: bool = True
    """Also false for cards that cannot be handed out: in MIG mode, or contradicting the rest of the Device."""
    amounts: tuple[tuple[str, int], ...] = ()
    """(resource, what the whole card offers)."""


class Cards:
    """All cards of one type."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind = kind
        self.resources = RESOURCES[kind]
        self.index = {name: i for i, name in enumerate(self.resources)}
        self.minor = np.full((rows, 1), EMPTY, np.int32)
        self.present = np.zeros((rows, 1), np.bool_)
        self.healthy = np.zeros((rows, 1), np.bool_)
        self.model = np.zeros((rows, 1), np.int32)
        self.users = np.zeros((rows, 1), np.int32)
        self.total = np.zeros((len(self.resources), rows, 1), np.int64)
        self.used = np.zeros((len(self.resources), rows, 1), np.int64)
        self.unknown = np.zeros(rows, np.int32)
        """Pods of the node that may hold any of its cards."""
        self.ids: list[dict[int, str]] = [{} for _ in range(rows)]
        """Per node: minor -> id."""

    @property
    def free(self) -> Column:
        """What is left of each card, negative where more is charged than there is."""
        return self.total - self.used

    def grow(self, rows: int, slots: int) -> None:
        """Make room, keeping what is there."""
        rows, slots = max(rows, self.minor.shape[0]), max(slots, self.minor.shape[1])
        more = ((0, rows - self.minor.shape[0]), (0, slots - self.minor.shape[1]))
        self.minor = np.pad(self.minor, more, constant_values=EMPTY)
        for name in ("present", "healthy", "model", "users"):
            setattr(self, name, np.pad(getattr(self, name), more))
        self.total = np.pad(self.total, ((0, 0), *more))
        self.used = np.pad(self.used, ((0, 0), *more))
        self.unknown = np.pad(self.unknown, more[0])
        self.ids += [{} for _ in range(rows - len(self.ids))]

    def excerpt(self, rows: Indices) -> Self:
        """Give cards that can be charged without these: a copy of these rows, in this order, each as often as named."""
        by_row = {
            name: getattr(self, name)[rows] for name in ("minor", "present", "healthy", "model", "users", "unknown")
        }
        return with_own(
            self,
            total=self.total.take(rows, axis=1),
            used=self.used.take(rows, axis=1),
            ids=list(map(self.ids.__getitem__, rows.tolist())),
            **by_row,
        )

    def put(self, row: int, cards: Iterable[tuple[CardInfo, int]]) -> None:
        """Replace a node's inventory by (card, model id); what is charged stays."""
        self.clear(row)
        for card, model in cards:
            slot = self._slot_for(row, card.minor)
            self.present[row, slot] = True
            self.healthy[row, slot] = card.healthy
            self.model[row, slot] = model
            self.ids[row][card.minor] = card.id
            for name, amount in card.amounts:
                if name in self.index:
                    self.total[self.index[name], row, slot] = amount

    def clear(self, row: int) -> None:
        """Forget a node's inventory, but not what is charged."""
        self.present[row] = self.healthy[row] = False
        self.total[:, row] = 0
        self.ids[row] = {}
        self.minor[row, self.users[row] == 0] = EMPTY

    def charge(self, row: int, grant: Grant, sign: int) -> None:
        """Add (sign 1) or take back (sign -1) a pod's part of a card."""
        slot = self._slot_for(row, grant.minor)
        for name, amount in grant.amounts:
            if name in self.index:
                self.used[self.index[name], row, slot] += sign * amount
        self.users[row, slot] += sign
        if not self.users[row, slot] and not self.present[row, slot]:
            self.minor[row, slot] = EMPTY

    def completed(self, row: int, grant: Grant) -> Grant:
        """Fill in what a grant leaves out: memory from ratio or ratio from memory, by that card's memory."""
        amounts = dict(grant.amounts)
        if self.kind != GPU or (GPU_MEMORY in amounts) == (GPU_MEMORY_RATIO in amounts):
            return grant
        slot = self._slot_of(row, grant.minor)
        memory = 0 if slot is None else int(self.total[self.index[GPU_MEMORY], row, slot])
        if not memory:
            return grant
        if GPU_MEMORY in amounts:
            amounts[GPU_MEMORY_RATIO] = amounts[GPU_MEMORY] * CARD // memory
        else:
            amounts[GPU_MEMORY] = amounts[GPU_MEMORY_RATIO] * memory // CARD
        return Grant(type=grant.type, minor=grant.minor, amounts=tuple(sorted(amounts.items())), id=grant.id)

    def slots(self, row: int) -> Iterator[int]:
        """Give the node's slots in use, by minor."""
        used = np.flatnonzero(self.minor[row] != EMPTY)
        return iter(used[np.argsort(self.minor[row, used])].tolist())

    def _slot_of(self, row: int, minor: int) -> int | None:
        # For eight slots a list is several times as fast as an array expression.
        minors = self.minor[row].tolist()
        return minors.index(minor) if minor in minors else None

    def _slot_for(self, row: int, minor: int) -> int:
        found = self._slot_of(row, minor)
        if found is not None:
            return found
        free = np.flatnonzero(self.minor[row] == EMPTY)
        if not free.size:
            free = np.array([self.minor.shape[1]])
            self.grow(self.minor.shape[0], self.minor.shape[1] * 2)
        slot = int(free[0])
        self.minor[row, slot] = minor
        return slot
