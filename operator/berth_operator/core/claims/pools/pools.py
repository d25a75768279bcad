"""Resource pools as a node sees them: the newest slices for the node, and whether they can be used."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final, Self, TypeVar

from berth_operator.core.claims.matching.selected import Selected
from berth_operator.core.claims.objects import features as gates
from berth_operator.core.claims.objects.features import Features
from berth_operator.core.claims.objects.nodes import TargetNode
from berth_operator.core.claims.objects.slices import CounterID, Device, PoolID, Slice
from berth_operator.core.claims.pools import counter_sets
from berth_operator.core.claims.pools.counter_sets import CounterSet

K = TypeVar("K")

MAX_SELECTORS: Final = 32
"""Selections of devices that the claims of a pod may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceIndex:
    """All slices of a cluster, by what finds them for a node."""

    by_node: dict[str, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    of_many: list[Slice] = field(default_factory=list)
    """Those without a node's name."""
    by_pool: dict[PoolID, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    selected: Selected = field(default_factory=Selected)

    @classmethod
    def of(cls, slices: Iterable[Slice], selected: Selected | None = None) -> Self:
        """Return the index of slices. `selected` has the known matches of their devices."""
        index = cls(selected=Selected() if selected is None else selected)
        for slice_ in slices:
            index.put(slice_)
        return index

    def put(self, slice_: Slice) -> None:
        """Add a slice."""
        self.selected.put(slice_.devices)
        self.by_pool[slice_.pool].append(slice_)
        (self.by_node[slice_.nodes.name] if slice_.nodes.name else self.of_many).append(slice_)

    def remove(self, slice_: Slice) -> None:
        """Remove a slice that was put."""
        self.selected.forget(slice_.devices)
        _remove(self.by_pool, slice_.pool, slice_)
        if slice_.nodes.name:
            _remove(self.by_node, slice_.nodes.name, slice_)
        else:
            self.of_many.remove(slice_)


def _remove(index: dict[K, list[Slice]], key: K, slice_: Slice) -> None:
    index[key].remove(slice_)
    if not index[key]:
        del index[key]


# Without slots, for the cached property.
@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """A pool as a node sees it."""

    id: PoolID
    incomplete: bool = False
    """Whether slices are missing, as while a driver replaces them."""
    invalid: str = ""
    """Why its slices contradict each other, if they do."""
    devices: tuple[Device, ...] = ()
    """Those of slices for the node, in the order of the slices' names."""
    elsewhere: tuple[Device, ...] = ()
    """Those of its other slices, as far as they take counters."""
    counters: dict[CounterID, int] = field(default_factory=dict)
    """Totals, in billionths."""

    @property
    def usable(self) -> bool:
        """Return whether its devices may be allocated."""
        return not self.incomplete and not self.invalid

    @cached_property
    def counter_sets(self) -> Mapping[str, CounterSet]:
        """Return the sets that its devices for the node take from, by name."""
        return counter_sets.of_pool(self.devices, self.counters)

    @cached_property
    def is_of_one_node(self) -> bool:
        """Return whether allocations on other nodes change nothing here."""
        names = {device.nodes.name for device in self.devices}
        return not self.elsewhere and len(names) == 1 and "" not in names

    @property
    def has_binding_conditions(self) -> bool:
        """Return whether an allocation of some device must be confirmed before the pod is bound."""
        return any(device.binding_conditions for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodePools:
    """The pools of a node, in the order in which devices are tried: pools with binding conditions come last."""

    node: TargetNode
    pools: tuple[Pool, ...]
    by_id: dict[PoolID, Pool]
    devices: tuple[Device, ...]
    """Those of all pools that can be used."""
    invalid: bool
    """Whether a pool is invalid."""
    selected: Selected
    """The known matches of all nodes."""


def gather(index: SliceIndex, node: TargetNode, features: Features = gates.ALL) -> NodePools:
    """Return the pools of a node; valid until slices or the node's labels change."""
    # The slices for the node by pool, of the highest generation among these.
    newest: dict[PoolID, list[Slice]] = {}
    for slice_ in chain(index.by_node.get(node.name, ()), index.of_many):
        # Without a slice that is not supported, its pool is incomplete: none of its devices is allocated.
        if slice_.has_groups or (not features.partitionable_devices and (slice_.own_nodes or slice_.counter_sets)):
            continue
        if slice_.own_nodes and not slice_.nodes:
            is_for_node = any(device.nodes.match(node) for device in slice_.devices)
        else:
            is_for_node = slice_.nodes.match(node)
        if is_for_node:
            known = newest.setdefault(slice_.pool, [])
            if known and slice_.generation > known[0].generation:
                known.clear()
            if not known or slice_.generation == known[0].generation:
                known.append(slice_)
    current = filter(None, (_pool(slices, index, features) for slices in newest.values()))
    pools = tuple(sorted(current, key=lambda pool: (pool.has_binding_conditions, pool.id)))
    return NodePools(
        node=node,
        pools=pools,
        by_id={pool.id: pool for pool in pools},
        devices=tuple(chain.from_iterable(pool.devices for pool in pools if pool.usable)),
        invalid=any(pool.invalid for pool in pools),
        selected=index.selected,
    )


def _pool(slices: Sequence[Slice], index: SliceIndex, features: Features) -> Pool | None:
    """Return the pool of these slices; None if others show that they are out of date."""
    first = slices[0]
    if len(slices) == first.count:
        return _built(slices, (), features)
    # The others are not for this node.
    everywhere = index.by_pool[first.pool]
    if any(slice_.generation > first.generation for slice_ in everywhere):
        return None
    current = [slice_ for slice_ in everywhere if slice_.generation == first.generation and not slice_.has_groups]
    if len(current) != first.count:
        return Pool(id=first.pool, incomplete=True)
    names = {slice_.name for slice_ in slices}
    return _built(slices, [slice_ for slice_ in current if slice_.name not in names], features)


def _built(slices: Sequence[Slice], others: Sequence[Slice], features: Features) -> Pool:
    ordered = sorted(slices, key=lambda slice_: slice_.name)
    if not features.partitionable_devices:
        devices = tuple(_devices(ordered))
        return Pool(id=slices[0].pool, invalid=_twice(devices), devices=devices)
    devices = tuple(_devices(slice_ for slice_ in ordered if not slice_.counter_sets))
    elsewhere = tuple(_devices(slice_ for slice_ in others if not slice_.counter_sets))
    sets = [named for slice_ in (*ordered, *others) for named in slice_.counter_sets]
    invalid = _twice(devices)
    if not invalid and (set_name := _repeated(name for name, _ in sets)):
        invalid = f"duplicate counter set name {set_name}"
    if invalid := invalid or _unknown_counter(dict(sets), (*devices, *elsewhere)):
        return Pool(id=slices[0].pool, invalid=invalid)
    return Pool(
        id=slices[0].pool,
        devices=devices,
        elsewhere=tuple(device for device in elsewhere if device.consumes),
        counters={CounterID(name, counter): total for name, group in sets for counter, total in group.items()},
    )


def _devices(slices: Iterable[Slice]) -> Iterator[Device]:
    return chain.from_iterable(slice_.devices for slice_ in slices)


def _twice(devices: Sequence[Device]) -> str:
    name = _repeated(device.id.device for device in devices)
    return f"duplicate device name {name}" if name else ""


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _unknown_counter(sets: Mapping[str, Mapping[str, int]], devices: Iterable[Device]) -> str:
    for device in devices:
        for name in device.consumes_sets:
            if name not in sets:
                return f"counter set {name} not found"
        for (name, counter), _ in device.consumes:
            if counter not in sets[name]:
                return f"counter {counter} not found in counter set {name}"
    return ""
