"""The cards of one type as columns: arrays of shape (nodes, slots), with one slot for each card.

A device is identified by its id, not by its minor, because drivers renumber cards. A slot belongs to one card as long
as the Device lists the card or something is charged to it. Charges of a failed card stay. If the Device no longer lists
a card, the card's charges stay in a slot of their own. So nothing is allocated twice if the card returns, or if a new
card gets its minor.
"""

import math
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from berth_api import allocation
from berth_api.allocation import EXCLUSIVES, FUNCTIONS, MAX_MINOR, REPLICA_MARK, REPLICAS, Function, Grant, mig
from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from berth_api.request import CARD, NPU_CORE, NPU_CPU, NPU_DVPP, NVIDIA_GPU, NVIDIA_SHARED, WHOLE_CARD
from berth_api.values.caching import HashedTuple
from berth_api.values.selectors import Requirement
from berth_operator.core.fleet.arrays import columns
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.intern_table import InternTable
from berth_operator.core.fleet.nodes.card_columns import (
    EMPTY,
    NEVER,
    UNMEASURED,
    CardColumns,
    axis_of_rows,
    card_columns,
    excerpt,
    grown,
)
from berth_operator.core.values.gpu_metrics import Quantity, Values, bounded
from berth_operator.core.values.inventory import CardInfo, Links

V = TypeVar("V")
Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

RESOURCES: Final = {
    GPU: (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, NPU_CORE, NPU_CPU, NPU_DVPP),
    RDMA: (RDMA,),
    FPGA: (FPGA,),
}
"""Device type -> the resources of each card. Resources that only some cards have are added when one is first seen."""
SHARED: Final = (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO)
"""The resources that the replicas of a GPU share equally."""
_WHOLE: Final = {GPU: (GPU_CORE, GPU_MEMORY_RATIO)}
REPLICA_NAMES: Final = ("", NVIDIA_GPU, NVIDIA_SHARED)
"""Resource names under which kubelet counts the replicas of a card. With the empty name, pods may use either name."""
_STAND_INS: Final = 2**31 - 1 - MAX_MINOR
"""How many stand-in minors fit into a column above all real minors."""
_MIG_ID: Final = "MIG-"
"""The prefix of the driver's UUIDs of MIG instances."""
_NOT_SUBDEVICES: Final = frozenset({FUNCTIONS, *EXCLUSIVES})
"""Resources that are counted by name, but are not subdevices."""
_BY_ROW: Final = ("ids", "places", "instances", "taken", "instances_of_gang")
_NAMED: Final = _NOT_SUBDEVICES | {REPLICAS}


def is_listed(grant: Grant) -> bool:
    """Return whether the Device lists the card of a charged grant."""
    return grant.minor <= MAX_MINOR


def card_id(grant: Grant) -> str:
    """Return the id of a grant's card, if the grant names it."""
    return grant.parent or grant.visible


def shown_minors(grants: Iterable[Grant]) -> Mapping[tuple[str, int], int]:
    """Return (type, minor) of each grant's card -> the minor to show to users: -1, -2 and so on for unlisted cards."""
    cards = sorted({(grant.type, grant.minor) for grant in grants})
    absent = [card for card in cards if card[1] > MAX_MINOR]
    return {card: card[1] for card in cards} | {card: -1 - number for number, card in enumerate(absent)}


def is_unlocated(grant: Grant) -> bool:
    """Return whether a charged grant is of a MIG instance whose card is not known: the Device no longer lists it."""
    if is_listed(grant) or grant.parent:
        return False
    return grant.id.startswith(_MIG_ID) or any(mig.is_resource(name) for name, _ in grant.amounts)


def _stand_in(name: str) -> int:
    """Return the stand-in minor of a card that the Device does not list: above all real minors, equal for equal ids.

    If two ids have the same stand-in, their charges share a slot. That does no harm, because it is never allocated.
    """
    return MAX_MINOR + 1 + zlib.crc32(name.encode()) % _STAND_INS


def is_counted(device_type: str, name: str) -> bool:
    """Return whether a resource is counted on cards of this type; for plug-ins' types every resource is."""
    return device_type not in RESOURCES or name in RESOURCES[device_type] or _has_a_name(name)


def _has_a_name(name: str) -> bool:
    """Return whether a resource counts named things: instances, replicas, virtual functions, or exclusive policies."""
    return name in _NAMED or mig.is_resource(name)


class Cards(CardColumns):
    """All cards of one type. The columns, like all arrays that its methods return, are read-only."""

    def __init__(self, device_type: str, rows: int, counted: Sequence[str] = ()) -> None:
        self.device_type = device_type
        self.counted = counted or RESOURCES[device_type]
        """The resources of each card, even if the Device does not list them."""
        self.index = {name: i for i, name in enumerate(self.counted)}
        """Resource -> its index in `total` and `used`."""
        self._own = card_columns(rows, len(self.index), metrics=device_type == GPU)
        columns.show(self._own, self)
        self.ids: list[dict[int, str]] = [{} for _ in range(rows)]
        """Per node: minor -> id."""
        self.places: list[dict[str, tuple[int, str]]] = [{} for _ in range(rows)]
        """Per node: id of a card, instance or virtual function -> (minor of the card, resource of an instance)."""
        self.instances: dict[int, dict[int, tuple[tuple[str, str], ...]]] = {}
        """Row -> minor -> (MIG UUID, resource) of each instance; only rows that have some."""
        self.taken: dict[int, tuple[str, ...]] = {}
        """Row -> names of all instances, replicas and virtual functions that pods hold; only rows where they do."""
        self.instances_of_gang: dict[int, tuple[str, ...]] = {}
        """Row -> UUID of the MIG instance of each slice that members of the gang hold whose slices are kept apart."""

    @property
    def free(self) -> Column:
        """The free amount of each card; negative if more is charged than its capacity."""
        return self.total - self.used

    def left(self, index: int, rows: Rows) -> Column:
        """Return the free amount of one resource of each card; negative if more is charged than the card's capacity."""
        return pick(self.total[index], rows) - pick(self.used[index], rows)

    def grow(self, rows: int, slots: int) -> None:
        """Enlarge to at least this number of rows and slots, keeping the contents."""
        self._own = grown(self._own, rows, slots)
        columns.show(self._own, self)
        self.ids += [{} for _ in range(len(self._own.minor) - len(self.ids))]
        self.places += [{} for _ in range(len(self._own.minor) - len(self.places))]

    def resource(self, name: str) -> int:
        """Return a resource's index, adding the resource if it is new."""
        if name not in self.index:
            self._add_resources([name])
        return self.index[name]

    def _add_resources(self, names: Sequence[str]) -> None:
        """Add several resources at once, because each addition copies the columns of all nodes.

        New resources first take the places of resources that no card has any longer, because agents may report new
        names again and again. The key of a row with such resources names them, so cached values of the old name do not
        count.
        """
        renamed = dict(zip(filter(self._is_unused, self.index), names, strict=False))
        more = names[len(renamed) :]
        # A new dict, because copies share the old one.
        ordered = [*(renamed.get(name, name) for name in self.index), *more]
        self.index = {name: place for place, name in enumerate(ordered)}
        if more:
            self._own.total = np.pad(self._own.total, ((0, len(more)), (0, 0), (0, 0)))
            self._own.used = np.pad(self._own.used, ((0, len(more)), (0, 0), (0, 0)))
            columns.show(self._own, self)

    def _is_unused(self, name: str) -> bool:
        """Return whether no card has or had any of a resource that not all cards of the type have."""
        place = self.index[name]
        return name not in self.counted and not (self._own.total[place].any() or self._own.used[place].any())

    def static_key(self, row: int) -> Hashable:
        """Return a key of a row's inventory, without charges; equal rows have equal keys."""
        if not self.present[row].any():
            return ()  # most nodes have no cards of most types
        flags = (self.present, self.healthy, self.withheld, self.announced, self.sliced_instances, self.bar)
        columns = (
            *flags,
            self.replicas_as,
            self.model,
            self.kind,
            self.instance_memory,
            self.numa,
            self.pcie,
            self.labels,
            self.functions,
        )
        values = b"".join(column[row].tobytes() for column in columns)
        return (
            values,
            self.total[:, row].tobytes(),
            int(self.wiring[row]),
            bool(self.mixed[row]),
            repr(self.instances.get(row)),
        )

    def dynamic_key(self, row: int) -> bytes:
        """Return a key of the charges to a row's cards; equal rows have equal keys."""
        if not self.unknown[row] and self.minor.shape[1] == 1 and self.minor[row, 0] == EMPTY:
            return b""  # most nodes have no cards of most types
        named = repr(self.taken[row]).encode() if row in self.taken else b""
        if len(self.index) > (first := len(self.counted)) and self.used[first:, row].any():
            # A resource may have taken the place of another, such as one exclusive policy of another.
            named += repr(list(self.index)[first:]).encode()
        if row in self.instances_of_gang:
            named += repr(self.instances_of_gang[row]).encode()
        columns = (self.used[:, row], self.users[row], self.of_gang[row], self.minor[row], self.spare[row])
        unsure = (self.unknown[row], self.unlocated[row])
        return b"".join([*(column.tobytes() for column in (*columns, *unsure)), named])

    def in_subdevices(self, rows: Rows = ALL) -> Mask:
        """Return the cards whose instances or replicas pods hold."""
        names = self.index.keys() - self.counted - _NOT_SUBDEVICES
        used: Mask = np.zeros_like(self.present[rows])
        for name in names:
            used |= self.used[self.index[name], rows] > 0
        return used

    def excerpt(self, rows: Indices, by_claim: Mask) -> Self:
        """Return an independent copy of these rows, in this order; rows may be repeated.

        `by_claim` are the rows of the original whose cards are given by claims.
        """
        return self._copied(
            excerpt(self._own, rows),
            by_claim[rows],
            ids=list(map(self.ids.__getitem__, rows.tolist())),
            places=list(map(self.places.__getitem__, rows.tolist())),
            instances=_of_rows(self.instances, rows),
            taken=_of_rows(self.taken, rows),
            instances_of_gang=_of_rows(self.instances_of_gang, rows),
        )

    def copy(self, by_claim: Mask) -> Self:
        """Return an independent copy for what-ifs. `by_claim` are the rows whose cards are given by claims."""
        # No value of these is modified.
        plain = {name: getattr(self, name).copy() for name in _BY_ROW}
        return self._copied(columns.each_by(self._own, np.copy), by_claim, **plain)

    def _copied(self, own: CardColumns, by_claim: Mask, **parts: object) -> Self:
        # A what-if assumes that the agents have already reacted, so they withhold only what they give by claims.
        own.withheld = own.withheld & by_claim[:, np.newaxis]
        own.announced = own.healthy & ~own.withheld
        copied = with_own(self, _own=own, **parts)
        columns.show(own, copied)
        return copied

    def put(self, row: int, cards: Iterable[CardInfo], intern_table: InternTable) -> None:
        """Replace a node's inventory; its charges stay."""
        cards = list(cards)
        if not cards and (self._own.minor[row] == EMPTY).all():
            return  # most nodes have cards of one type
        self.clear(row)
        wiring: list[tuple[int, int, Links]] = []
        listed = dict.fromkeys(name for card in cards for name, _ in card.amounts)
        if new := [name for name in listed if name not in self.index and _has_a_name(name)]:
            self._add_resources(new)
        for card in cards:
            slot = self._slot_for(row, card.minor)
            self._describe(row, slot, card, intern_table)
            self.ids[row][card.minor] = card.id
            self._find_places(row, card)
            for name, amount in card.amounts:
                if name in self.counted or _has_a_name(name):
                    index = self.resource(name)  # first: it may put a wider array in place of this one
                    self._own.total[index, row, slot] = amount
            if card.instances:
                self.instances.setdefault(row, {})[card.minor] = card.instances
            wiring.append((slot, card.minor, card.links))
        own, here = self._own, self._own.present[row]
        own.mixed[row] = len({*zip(own.model[row, here].tolist(), own.kind[row, here].tolist(), strict=True)}) > 1
        linked = any(links for _, _, links in wiring)
        self._own.wiring[row] = intern_table.wirings.number(HashedTuple(wiring) if linked else ())
        self.find_spare(row, intern_table)

    def _find_places(self, row: int, card: CardInfo) -> None:
        """Record the card of each id. If two cards without allocations have the same id, record the first."""
        places = self.places[row]
        places.setdefault(card.id, (card.minor, ""))
        for name, resource in card.instances:
            places[name] = (card.minor, resource)
        for name in card.parts:
            places.setdefault(name, (card.minor, ""))
        for _, functions in card.functions:
            for _, bus_id in functions:
                places.setdefault(bus_id, (card.minor, ""))

    def _describe(self, row: int, slot: int, card: CardInfo, intern_table: InternTable) -> None:
        own = self._own
        own.present[row, slot] = True
        own.healthy[row, slot] = own.announced[row, slot] = card.healthy
        own.failed[row, slot] = card.failed
        own.sliced_instances[row, slot] = any(REPLICA_MARK in name for name, _ in card.instances)
        own.replicas_as[row, slot] = REPLICA_NAMES.index(card.replica_resource)
        own.model[row, slot] = intern_table.models.number(card.model)
        own.bar[row, slot] = intern_table.bars.number(card.bar.reason if card.bar else "")
        own.kind[row, slot] = intern_table.kinds.number(_kind(card))
        own.instance_memory[row, slot] = intern_table.instance_memory.number(card.instance_memory)
        if self.device_type == GPU:
            own.facts[:, row, slot] = card.facts
        own.numa[row, slot] = card.numa
        own.pcie[row, slot] = intern_table.switches.number(card.pcie)
        own.labels[row, slot] = intern_table.labels.number(card.labels)
        own.functions[row, slot] = intern_table.functions.number(card.functions)

    def clear(self, row: int) -> None:
        """Remove a node's inventory; its charges stay."""
        own = self._own
        own.present[row] = own.healthy[row] = own.failed[row] = own.withheld[row] = own.announced[row] = False
        own.mixed[row] = False
        own.sliced_instances[row] = False
        own.numa[row] = -1
        own.replicas_as[row] = 0
        own.bar[row] = own.pcie[row] = own.labels[row] = own.functions[row] = own.spare[row] = own.wiring[row] = 0
        own.total[:, row] = 0
        own.facts[:, row] = own.unaccounted[row] = 0
        # Until the next refresh: cards may have other slots.
        own.measured[:, row], own.measured_at[row] = UNMEASURED, NEVER
        # New values, because copies share the old ones.
        self.ids[row], self.places[row] = {}, {}
        self.instances.pop(row, None)
        own.minor[row, own.users[row] == 0] = EMPTY

    def put_like(self, row: int, like: int, intern_table: InternTable) -> None:
        """Copy the cards of another row to a row, unused, for a what-if."""
        own = self._own
        for values in vars(own).values():
            rows = np.moveaxis(values, axis_of_rows(values), 0)
            rows[row] = rows[like]
        own.used[:, row] = own.users[row] = own.unknown[row] = own.unlocated[row] = own.unaccounted[row] = 0
        own.measured[:, row], own.measured_at[row] = UNMEASURED, NEVER
        own.minor[row, ~own.present[row]] = EMPTY
        self.ids[row], self.places[row] = self.ids[like], self.places[like]
        if like in self.instances:
            self.instances[row] = self.instances[like]
        self.taken.pop(row, None)
        self.find_spare(row, intern_table)

    def withhold(self, row: int, minors: Collection[int]) -> None:
        """Set which cards of a node kubelet cannot allocate, until the inventory is replaced."""
        own = self._own
        own.withheld[row] = own.present[row] & np.isin(own.minor[row], tuple(minors))
        own.announced[row] = own.healthy[row] & ~own.withheld[row]

    def set_health(self, row: int, minors: Collection[int], *, healthy: bool) -> None:
        """Set whether failed cards of a node are healthy, for a what-if."""
        own = self._own
        failed = own.failed[row] & np.isin(own.minor[row], tuple(minors))
        own.healthy[row, failed] = healthy
        own.announced[row] = own.healthy[row] & ~own.withheld[row]

    def refuse(self, row: int, *, refused: bool) -> None:
        """Set whether a policy refuses that the operator writes the type's resources to the Node, for reasons."""
        self._own.refused[row] = refused

    def slot_of_card(self, row: int, card_id: str) -> int | None:
        """Return the slot of a card that the Device lists; None for ids of no card, or of a part of a card."""
        minor, _ = self.places[row].get(card_id, (EMPTY, ""))
        return self._slot_of(row, minor) if self.ids[row].get(minor) == card_id else None

    def meeting(self, requirement: Requirement, rows: Rows = ALL) -> Mask:
        """Return the cards whose id meets a requirement: shape of `present[rows]`.

        No column has ids, because every id is different. Only the rows that have one of the values are read.
        """
        mask = np.full_like(pick(self.present, rows), requirement.accepts(""))
        numbers = range(len(self.places))[rows] if isinstance(rows, slice) else rows.tolist()
        for position, row in enumerate(numbers):
            if not self.places[row].keys().isdisjoint(requirement.values):
                for value in requirement.values:
                    if (slot := self.slot_of_card(row, value)) is not None:
                        mask[position, slot] = requirement.accepts(value)
        return mask

    def measure(self, row: int, slot: int, values: Values, at: float) -> bool:
        """Set the measurement of a GPU at a time; return whether more of its memory may be free than before."""
        own = self._own
        memory, used = (int(column[self.index[GPU_MEMORY], row, slot]) for column in (own.total, own.used))
        within = bounded(values, memory)
        free, before = within[Quantity.FREE_MEMORY], int(own.unaccounted[row, slot])
        unaccounted = 0 if math.isnan(free) else max(memory - int(free) - used, 0)
        own.measured[:, row, slot] = [UNMEASURED if math.isnan(value) else value for value in within]
        own.measured_at[row, slot] = at
        own.unaccounted[row, slot] = unaccounted
        return unaccounted < before

    def expire(self, before: float) -> Indices:
        """Forget measurements made before a time; return the rows where more memory may be free as a result."""
        own = self._own
        stale = (own.measured_at < before) & (own.measured_at > NEVER)
        rows: Indices = np.flatnonzero((stale & (own.unaccounted > 0)).any(axis=1))
        own.measured[:, stale], own.measured_at[stale], own.unaccounted[stale] = UNMEASURED, NEVER, 0
        return rows

    def charge(self, row: int, grant: Grant, sign: int) -> None:
        """Charge (sign 1) or release (sign -1) a pod's grant."""
        slot = self._slot_for(row, grant.minor)
        for name, amount in grant.counted:
            if name in self.index or _has_a_name(name):
                index = self.resource(name)
                self._own.used[index, row, slot] += sign * amount
        self._own.users[row, slot] += sign
        if is_unlocated(grant):
            self._own.unlocated[row] += sign
        if handles := grant.handles:
            self.hold(row, handles, sign)
        if not self.users[row, slot] and not self.present[row, slot]:
            self._own.minor[row, slot] = EMPTY

    def count_of_gang(self, row: int, grants: Iterable[Grant], sign: int, *, as_cards: bool) -> None:
        """Count (sign 1) or no longer count (sign -1) the slices that a pod holds, in `of_gang` or `instances_of_gang`.

        Slices that were requested by their own name do not count. `as_cards`: whether it requested `nvidia.com/gpu`.
        """
        for grant in grants:
            if grant.type != self.device_type:
                continue
            instance, mark, _ = grant.id.partition(REPLICA_MARK)
            if as_cards and any(name == REPLICAS for name, _ in grant.amounts):
                self._own.of_gang[row, self._slot_for(row, grant.minor)] += sign
            elif mark and any(mig.is_resource(name) and not mig.is_shared(name) for name, _ in grant.amounts):
                held = [*self.instances_of_gang.pop(row, ())]
                if sign > 0:
                    held.append(instance)
                elif instance in held:
                    held.remove(instance)
                if held:
                    self.instances_of_gang[row] = tuple(sorted(held))

    def forget_gang(self) -> list[int]:
        """Forget which slices members of the gang hold; return the rows where they hold some."""
        rows = np.flatnonzero(self.of_gang.any(axis=1)).tolist()
        self._own.of_gang[rows] = 0
        with_instances = list(self.instances_of_gang)
        self.instances_of_gang = {}
        return [*rows, *with_instances]

    def charge_unknown(self, rows: int | Indices, pods: int | Column) -> None:
        """Add a number of pods that may hold any card of a row; negative numbers remove pods. Rows must not repeat."""
        self._own.unknown[rows] += pods

    def charge_parts(self, rows: Indices, slots: Indices, amounts: Column, amount_columns: Indices, sign: int) -> None:
        """Charge (sign 1) or release (sign -1) many grants at once, except what they hold by name.

        Grant i is of the card in `slots[i]` of `rows[i]` and takes column `amount_columns[i]` of `amounts`: shape
        (resources, columns).
        """
        own = self._own
        where = rows * own.users.shape[1] + slots
        # A pod may have two grants of a card, so plain indexing would lose one. `add.at` is fastest on flat arrays.
        np.add.at(own.users.reshape(-1), where, sign)
        # Resources that were added after `amounts` was computed have no line in it, so `strict` is False.
        for used, taken in zip(own.used, amounts, strict=False):
            if taken.any():
                np.add.at(used.reshape(-1), where, sign * taken[amount_columns])

    def set_use(self, row: int, slot: int, used: Column, users: int) -> None:
        """Set what pods use of a card: shape (resources,), and by how many pods. Names that they hold stay."""
        self._own.used[:, row, slot], self._own.users[row, slot] = used, users

    def hold(self, row: int, handles: Iterable[str], sign: int) -> None:
        """Add (sign 1) or remove (sign -1) names that pods hold, without their amounts."""
        # A new value, because copies share the old one; sorted, so that a release restores the earlier value.
        held = list(self.taken.pop(row, ()))
        for name in handles:
            held.append(name) if sign > 0 else held.remove(name)
        if held:
            self.taken[row] = tuple(sorted(held))

    def find_spare(self, row: int, intern_table: InternTable) -> None:
        """Recompute the groups in which the node's cards have a free virtual function."""
        # For all its cards, because a pod's allocation may name a wrong card for a virtual function.
        for slot in np.flatnonzero(self.functions[row]).tolist():
            groups = range(len(intern_table.functions[self.functions[row, slot]]))
            free = (1 << group for group in groups if any(self.free_functions(row, slot, intern_table, group)))
            self._own.spare[row, slot] = sum(free)

    def free_functions(self, row: int, slot: int, intern_table: InternTable, group: int) -> Iterator[Function]:
        """Yield the free virtual functions of one group of a card."""
        held, minor = set(self.taken.get(row, ())), int(self.minor[row, slot])
        _, functions = intern_table.functions[self.functions[row, slot]][group]
        for number, bus_id in functions:
            function = Function(minor=number, bus_id=bus_id)
            if allocation.handle(self.device_type, minor, function) not in held:
                yield function

    def named(self, row: int, grant: Grant) -> str:
        """Return the card id of a grant without an id, by its virtual functions or else its minor; empty if unknown."""
        places = (self.places[row].get(function.bus_id) for function in grant.functions)
        minor = next((place[0] for place in places if place is not None), grant.minor)
        return self.ids[row].get(minor, "")

    def located(self, row: int, grant: Grant) -> Grant:
        """Return a grant with the minor that its id has now, whatever minor was recorded.

        A grant without an id is returned unchanged. If the Device does not list the id, the grant is located on its
        parent, or else in a slot of its own. An instance gets the resource that its id has now, because a card that is
        partitioned again may reuse an id.
        """
        place = self.places[row].get(grant.id) if grant.id else (grant.minor, "")
        if place is None:
            card = grant.parent or grant.visible
            place = self.places[row].get(card) or (_stand_in(card), "")
        minor, resource = place
        if resource:
            return replace(grant, minor=minor, amounts=((resource, 1),))
        return grant if minor == grant.minor else replace(grant, minor=minor)

    def completed(self, row: int, grant: Grant) -> Grant:
        """Return a grant with its card's current minor and with omitted amounts filled in."""
        return self.filled(row, self.located(row, grant))

    def filled(self, row: int, grant: Grant) -> Grant:
        """Return a grant with both memory and memory ratio, one computed from the other by the card's memory."""
        if self.device_type != GPU:
            return grant
        amounts = dict(grant.amounts)
        if (GPU_MEMORY in amounts) == (GPU_MEMORY_RATIO in amounts):
            return grant
        if not (memory := self.memory(row, grant.minor)):
            return grant
        if GPU_MEMORY in amounts:
            amounts[GPU_MEMORY_RATIO] = amounts[GPU_MEMORY] * CARD // memory
        else:
            amounts[GPU_MEMORY] = amounts[GPU_MEMORY_RATIO] * memory // CARD
        # Not `replace`, which would take longer than the rest of this function.
        named = tuple(sorted(amounts.items()))
        return Grant(
            type=grant.type,
            minor=grant.minor,
            amounts=named,
            id=grant.id,
            functions=grant.functions,
            exclusive=grant.exclusive,
            parent=grant.parent,
        )

    def memory(self, row: int, minor: int) -> int:
        """Return the bytes of memory of the GPU that has a minor; 0 if the Device does not list it."""
        slot = self._slot_of(row, minor)
        return 0 if slot is None else int(self.total[self.index[GPU_MEMORY], row, slot])

    def grant_of_device(self, row: int | None, minor: int, name: str) -> Grant:
        """Return the grant for a device that kubelet allocated by its id: an instance, a replica, or else a card.

        Without an id, it is the card that has the minor now. A device that is not listed counts as a whole card,
        because its free amount is unknown.
        """
        whole = tuple((resource, CARD) for resource in _WHOLE.get(self.device_type, (self.device_type,)))
        grant = Grant(type=self.device_type, minor=minor, amounts=whole, id=name)
        if row is None:
            return grant
        grant = self.located(row, grant)
        slot, card = self._slot_of(row, grant.minor), self.ids[row].get(grant.minor, "")
        if slot is not None and not grant.is_subdevice and grant.visible != name:
            grant = replace(grant, amounts=self.of_replica(row, slot) or whole)
        return self.filled(row, replace(grant, parent=card) if grant.is_subdevice else replace(grant, id=name or card))

    def variant(self, row: int, grant: Grant) -> tuple[int, int] | None:
        """Return the numbers of a grant's model and kind; None if the Device does not list the grant's card."""
        slot = self._slot_of(row, grant.minor)
        if slot is None or not self.present[row, slot]:
            return None
        return int(self.model[row, slot]), int(self.kind[row, slot]) if grant.is_subdevice else 0

    def equivalence_key(self, row: int, grant: Grant) -> Hashable:
        """Return a key that is equal for grants that can replace each other."""
        current = self.completed(row, grant)
        slot = self._slot_of(row, current.minor)
        card = None if slot is None else (int(self.model[row, slot]), self.total[:, row, slot].tobytes())
        # Memory in the grant may be rounded; the card's key has its exact memory.
        return card, tuple(sorted(amount for amount in current.counted if amount[0] != GPU_MEMORY))

    def of_replica(self, row: int, slot: int) -> tuple[tuple[str, int], ...]:
        """Return the amounts of a replica of a card; empty if the card has no replicas."""
        replicas = int(self.total[self.index[REPLICAS], row, slot]) if REPLICAS in self.index else 0
        if not replicas:
            return ()
        shares = [(name, int(self.total[self.index[name], row, slot]) // replicas) for name in SHARED]
        return (*shares, (REPLICAS, 1))

    def slots(self, row: int) -> Iterator[int]:
        """Return the node's slots in use, ordered by minor."""
        used = np.flatnonzero(self.minor[row] != EMPTY)
        return iter(used[np.argsort(self.minor[row, used])].tolist())

    def _slot_of(self, row: int, minor: int) -> int | None:
        # For eight slots a list is several times as fast as an array expression.
        minors = self.minor[row].tolist()
        return minors.index(minor) if minor in minors else None

    def _slot_for(self, row: int, minor: int) -> int:
        slot = self._slot_of(row, minor)
        if slot is None:
            slot = self._slot_of(row, EMPTY)
            if slot is None:
                slot = self.minor.shape[1]
                self.grow(self.minor.shape[0], 2 * slot)
            self._own.minor[row, slot] = minor
        return slot


def _kind(card: CardInfo) -> str:
    """Return a card's kind of subdevices, in words for messages; empty if it has none."""
    if card.instances:
        return ", ".join(sorted({resource for _, resource in card.instances}))
    replicas = dict(card.amounts).get(REPLICAS, 0)
    return f"1/{replicas} slices" if replicas else WHOLE_CARD


def _of_rows(sparse: Mapping[int, V], rows: Indices) -> dict[int, V]:
    """Return the values of these rows by their new row numbers."""
    return {new: sparse[row] for new, row in enumerate(rows.tolist()) if row in sparse} if sparse else {}
