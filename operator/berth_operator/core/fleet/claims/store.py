"""ResourceSlices, DeviceClasses, ResourceClaims and DeviceTaintRules, as the API server shows them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar

from berth_operator.core.claims.objects.requests import DeviceClass
from berth_operator.core.claims.objects.slices import Device, DeviceID, PoolID, Slice, SliceOwner
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.objects.taint_rules import TaintRule
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.claims.matching import card_ids
from berth_operator.core.fleet.claims.supply import Supply

K = TypeVar("K")

EVERY_DRIVER: Final = "*"
CHARGE_MARK: Final = "//resourceclaim/"
"""The mark in the UIDs of charges for claims."""
MAX_SLICES: Final = 128
"""ResourceSlices of a driver that are used on a node; a slice has up to 128 devices. A node with 16 cards in partitions
has 16 (Berth's driver, NVIDIA's) or 32 (with a slice of counters for each card), and twice as many for a moment."""


def claim_uid(node: str, uid: str) -> str:
    """Return the UID of the charge for a claim on a node; no pod has a UID of this form."""
    return f"{node}{CHARGE_MARK}{uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPools:
    """The pools that no other scheduler serves, so that Berth gives their devices, by name and to claims."""

    drivers: frozenset[str] = frozenset()
    """All pools of these drivers; `*` for all drivers."""
    pools: frozenset[PoolID] = frozenset()

    def __bool__(self) -> bool:
        """Return whether there may be such a pool."""
        return bool(self.drivers or self.pools)

    def include(self, pool: PoolID) -> bool:
        """Return whether a pool is Berth's."""
        return self.include_all(pool.driver) or pool in self.pools

    def include_all(self, driver: str) -> bool:
        """Return whether all pools of a driver are Berth's."""
        return not self.drivers.isdisjoint((driver, EVERY_DRIVER))


NO_POOLS: Final = OwnPools()


class Claims:
    """All slices, classes, claims and taint rules, by what they are looked up by."""

    def __init__(self) -> None:
        self.slices: dict[str, Slice] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[str, ClaimState] = {}
        """namespace/name -> claim."""
        self.rules: dict[str, TaintRule] = {}
        self.own: OwnPools = NO_POOLS
        self.writer = ""
        """The prefix of the field managers of our own writes; empty where nothing is written."""
        self.supply = Supply(NO_POOLS.include)
        # The values of these are replaced, never modified, so that copies can share them.
        self._by_pool: dict[PoolID, Mapping[str, Slice]] = {}
        self._by_name: dict[PoolID, Mapping[str, Device]] = {}
        """Pool -> name -> device, of the newest generation that has the device. It is computed on demand."""
        self._on_node: dict[str, Mapping[str, Slice]] = {}
        """Node -> name -> slice, for slices with devices of this node alone. Kept slices are included."""
        self.anywhere: dict[str, Mapping[str, Slice]] = {}
        """Id of a card, in lower case -> name -> slice, for slices that list the card for many nodes. Kept slices are
        included."""
        self._by_uid: dict[str, str] = {}
        """UID -> namespace/name."""
        self._of_pod: dict[str, frozenset[str]] = {}
        """UID of a pod -> claims that are reserved for it."""
        self.departed: set[str] = set()
        """UIDs of pods that have left their nodes, for which claims are still reserved."""
        self._extended: dict[str, frozenset[str]] = {}
        """UID of a pod -> claims that were made for its extended resources."""
        self._held_on: dict[str, frozenset[str]] = {}
        """Node -> claims with devices there."""
        self._holders: dict[DeviceID, frozenset[str]] = {}
        """Device that one claim alone may hold -> the claims that hold it."""
        self._own_pods: set[str] = set()
        """UIDs of Berth's pods with claims: no other scheduler reserves a claim for them."""
        self._foreign: dict[PoolID, frozenset[str]] = {}
        """Pool -> claims with its devices that were allocated by another scheduler."""
        self._doubled: dict[DeviceID, frozenset[str]] = {}
        """What several claims hold, of `_holders`."""
        self._left: dict[str, tuple[float, Slice]] = {}
        """Name -> (until when, slice) for slices that are kept of pools that lost slices, as during a driver's upgrade.

        Slices that cannot be read are kept, too, until they can be read.
        """
        self._surplus: dict[str, SliceOwner] = {}
        """Name -> owner, for slices beyond `MAX_SLICES`, which are not used."""
        self._surplus_of: Counter[SliceOwner] = Counter()
        """Number of these slices by owner."""

    # --- what the API server shows ----------------------------------------------------------------------------

    def put_slice(self, slice_: Slice) -> set[str]:
        """Add or replace a slice; return the nodes that get other devices from it, or from the slices of its pool."""
        known = self.slices.get(slice_.name)
        nodes = self._forget(slice_.name) | self._nodes_listed_by(slice_)
        self.slices[slice_.name] = slice_
        self.supply.put_slice(slice_, self._rules())
        self._by_name.pop(slice_.pool, None)
        _put(self._by_pool, slice_.pool, slice_)
        self._put_on_nodes(slice_)
        if self._left and self._is_complete(slice_.pool):
            nodes |= self._forget(*self._gone_from(slice_.pool))
        is_as_complete = known is not None and _part_of(known) == _part_of(slice_)
        if slice_.counter_sets or (not is_as_complete and self._may_complete(slice_)):
            # The devices that consume them, and those that a complete pool alone gives, are in other slices.
            nodes |= self._nodes_of_pool(slice_.pool)
        return nodes

    def remove_slice(self, name: str, until: float) -> set[str]:
        """Remove a slice; return the nodes that get other devices without it.

        If the slice's pool is not complete without it, its devices are kept until a time, because slices of a pool are
        deleted one by one.
        """
        if (slice_ := self.slices.get(name)) is None:
            return self._forget(name)
        nodes = self._forget(name)
        if not self._is_complete(slice_.pool):
            self._left[name] = until, slice_
            self._put_on_nodes(slice_)
        elif all(other.generation <= slice_.generation for other in self.in_pool(slice_.pool)):
            # It was one too many.
            nodes |= self._nodes_of_pool(slice_.pool)
        return nodes

    def put_unknown(self, slice_: Slice) -> set[str]:
        """Keep the cards that an unreadable slice may list until the slice is read or removed; return their nodes."""
        nodes = self._forget(slice_.name) | nodes_of(slice_)
        self._left[slice_.name] = math.inf, slice_
        self._put_on_nodes(slice_)
        return nodes

    def is_surplus(self, name: str, owner: SliceOwner) -> bool:
        """Return whether a node has `MAX_SLICES` of a driver without this slice. Kept slices count."""
        known = self._on_node.get(owner.node, {})
        if name in known or len(known) < MAX_SLICES:
            return False
        return sum(slice_.pool.driver == owner.driver for slice_ in known.values()) >= MAX_SLICES

    def put_surplus(self, name: str, owner: SliceOwner) -> bool:
        """Record a slice that is not used; return whether it is the first of its owner."""
        if name not in self._surplus:
            self._surplus[name] = owner
            self._surplus_of[owner] += 1
            return self._surplus_of[owner] == 1
        return False

    def remove_surplus(self, name: str) -> SliceOwner | None:
        """Forget a slice that was not used; return its owner if it was the last one of it."""
        if (owner := self._surplus.pop(name, None)) is None:
            return None
        self._surplus_of -= Counter((owner,))
        return None if owner in self._surplus_of else owner

    def expire(self, now: float) -> set[str]:
        """Forget the slices that were kept until now, unless a claim holds devices of the pool; return their nodes."""
        over = {name: slice_.pool for name, (until, slice_) in self._left.items() if until <= now}
        held = {device[:2] for claim in self.claims.values() for device in claim.devices} if over else set()
        return self._forget(*(name for name, pool in over.items() if pool not in held))

    def _forget(self, *names: str) -> set[str]:
        """Remove listed or kept slices; return the nodes for which they list devices."""
        nodes: set[str] = set()
        for name in names:
            _, slice_ = self._left.pop(name, (0.0, None))
            if (listed := self.slices.pop(name, None)) is not None:
                slice_ = listed
                self.supply.remove_slice(name)
                _drop(self._by_pool, listed.pool, name)
            if slice_ is not None:
                self._by_name.pop(slice_.pool, None)
                for node in nodes_of(slice_):
                    _drop(self._on_node, node, name)
                for card in _ids_for_many(slice_):
                    _drop(self.anywhere, card, name)
                nodes |= self._nodes_listed_by(slice_)
        return nodes

    def _nodes_listed_by(self, slice_: Slice) -> set[str]:
        """Return the nodes whose cards a slice lists, as far as that is known."""
        return nodes_of(slice_) | self.supply.nodes_with(_ids_for_many(slice_))

    def _put_on_nodes(self, slice_: Slice) -> None:
        for node in nodes_of(slice_):
            _put(self._on_node, node, slice_)
        for card in _ids_for_many(slice_):
            _put(self.anywhere, card, slice_)

    def _gone_from(self, pool: PoolID) -> list[str]:
        """Return the kept slices of a pool, without existing slices that cannot be read."""
        return [name for name, (until, device) in self._left.items() if device.pool == pool and until < math.inf]

    def _is_complete(self, pool: PoolID) -> bool:
        """Return whether all slices of a pool's newest generation are there."""
        newest = max((slice_.generation for slice_ in self.in_pool(pool)), default=0)
        counts = [slice_.count for slice_ in self.in_pool(pool) if slice_.generation == newest]
        return bool(counts) and len(counts) == counts[0]

    def _may_complete(self, slice_: Slice) -> bool:
        """Return whether a slice's pool is complete, counting first: a pool of thousands of slices gets them singly."""
        return len(self.in_pool(slice_.pool)) >= slice_.count and self._is_complete(slice_.pool)

    def _nodes_of_pool(self, pool: PoolID) -> set[str]:
        return set().union(*map(nodes_of, self.in_pool(pool)))

    def put_claim(self, claim: ClaimState) -> ClaimState | None:
        """Add or replace a claim; return the previous claim."""
        departed = self.departed
        before = self.remove_claim(claim.key)
        if before is not None and (before.uid, before.allocation) == (claim.uid, claim.allocation):
            # Anyone who may write a claim can change its managedFields later.
            claim = replace(claim, writers=before.writers)
        elif self._is_for_own_pods(claim):
            claim = self._as_own(claim)
        self.claims[claim.key] = claim
        self.supply.put_claim(claim)
        self._by_uid[claim.uid] = claim.key
        for pod in claim.reserved_for:
            self._of_pod[pod] = self._of_pod.get(pod, frozenset()) | {claim.key}
        if claim.extended:
            self._extended[claim.owner] = self._extended.get(claim.owner, frozenset()) | {claim.key}
        for node in claim.nodes:
            self._held_on[node] = self._held_on.get(node, frozenset()) | {claim.key}
        for device in claim.held.devices:
            self._holders[device] = self._holders.get(device, frozenset()) | {claim.key}
            self._note_doubled(device)
        for pool in self._foreign_pools(claim):
            self._foreign[pool] = self._foreign.get(pool, frozenset()) | {claim.key}
        self.departed = departed & self._of_pod.keys()
        return before

    def remove_claim(self, key: str) -> ClaimState | None:
        """Remove and return a claim (namespace/name); None if there was none."""
        claim = self.claims.pop(key, None)
        if claim is not None:
            self.supply.remove_claim(key)
            self._by_uid.pop(claim.uid, None)
            for pod in claim.reserved_for:
                _discard(self._of_pod, pod, key)
            self.departed = self.departed & self._of_pod.keys()
            if claim.extended:
                _discard(self._extended, claim.owner, key)
            for node in claim.nodes:
                _discard(self._held_on, node, key)
            for device in claim.held.devices:
                _discard(self._holders, device, key)
                self._note_doubled(device)
            for pool in self._foreign_pools(claim):
                _discard(self._foreign, pool, key)
        return claim

    def _note_doubled(self, device: DeviceID) -> None:
        holders = self.holders(device)
        if len(holders) > 1:
            self._doubled[device] = holders
        else:
            self._doubled.pop(device, None)

    def _foreign_pools(self, claim: ClaimState) -> set[PoolID]:
        """Return the pools of a claim's devices if another scheduler allocated them; not if the writer is unknown."""
        if not self.writer or not claim.writers or any(writer.startswith(self.writer) for writer in claim.writers):
            return set()
        return {device.in_pool for device in claim.devices}

    def put_own_pod(self, uid: str) -> set[PoolID]:
        """Record one of Berth's pods with claims; return the pools that are served because of it.

        A claim that is reserved for Berth's pods alone counts as allocated by Berth, whatever its managedFields say:
        managedFields can be forged, reservations cannot.
        """
        self._own_pods.add(uid)
        own = [claim for claim in self.of_pod(uid) if self._foreign_pools(claim) and self._is_for_own_pods(claim)]
        pools = {pool for claim in own for pool in self._foreign_pools(claim)}
        for claim in own:
            for pool in self._foreign_pools(claim):
                _discard(self._foreign, pool, claim.key)
            self.claims[claim.key] = self._as_own(claim)
        return {pool for pool in pools if self.serves(pool)}

    def remove_own_pod(self, uid: str) -> None:
        """Forget a pod that put_own_pod recorded. Its claims stay as recorded."""
        self._own_pods.discard(uid)

    def _is_for_own_pods(self, claim: ClaimState) -> bool:
        return bool(claim.reserved_for) and claim.reserved_for <= self._own_pods

    def _as_own(self, claim: ClaimState) -> ClaimState:
        return replace(claim, writers=frozenset({self.writer}))

    def put_class(self, device_class: DeviceClass) -> None:
        """Add or replace a DeviceClass."""
        self.classes[device_class.name] = device_class
        self.supply.changed()

    def remove_class(self, name: str) -> None:
        """Remove a DeviceClass, if it is there."""
        self.classes.pop(name, None)
        self.supply.changed()

    def put_rule(self, rule: TaintRule) -> TaintRule | None:
        """Add or replace a DeviceTaintRule; return the previous rule."""
        before = self.rules.get(rule.name)
        self.rules[rule.name] = rule
        self._taint_again(before, rule)
        return before

    def remove_rule(self, name: str) -> TaintRule | None:
        """Remove and return a DeviceTaintRule; None if there was none."""
        rule = self.rules.pop(name, None)
        self._taint_again(rule)
        return rule

    def set_own(self, own: OwnPools) -> None:
        """Set the pools that no other scheduler serves."""
        self.own = own
        self.served_changed()

    def served_changed(self) -> None:
        """Compute again which devices may be allocated, after Berth began or ceased to serve a pool."""
        self.supply.set_own(self.serves)

    def _taint_again(self, *rules: TaintRule | None) -> None:
        """Apply the taints of all rules to the slices that some rules are for."""
        changed = [rule for rule in rules if rule is not None]
        for slice_ in self.slices.values():
            if any(rule.is_for(slice_.pool) for rule in changed):
                self.supply.put_slice(slice_, self._rules())

    def _rules(self) -> list[TaintRule]:
        return [rule for _, rule in sorted(self.rules.items())]

    # --- queries ----------------------------------------------------------------------------------------------

    def by_uid(self, uid: str) -> ClaimState | None:
        """Return a claim by its UID."""
        key = self._by_uid.get(uid)
        return None if key is None else self.claims[key]

    def of_pod(self, uid: str) -> list[ClaimState]:
        """Return the claims that are reserved for a pod, by key."""
        if uid not in self._of_pod:
            return []
        return [self.claims[key] for key in sorted(self._of_pod[uid])]

    def own_consumers(self, claim: ClaimState) -> frozenset[str]:
        """Return the UIDs of Berth's pods, waiting or placed, that a claim is reserved for."""
        return claim.reserved_for & self._own_pods

    def pod_left(self, uid: str) -> list[ClaimState]:
        """Record that a pod has left its node; return the claims that are still reserved for it."""
        if claims := self.of_pod(uid):
            self.departed.add(uid)
        return claims

    def left_behind(self) -> list[ClaimState]:
        """Return the claims that are about to be deallocated, because all pods that they are reserved for have left."""
        claims = {claim.key: claim for uid in self.departed for claim in self.of_pod(uid)}
        return [claim for claim in claims.values() if claim.reserved_for <= self.departed]

    def extended_of(self, uid: str) -> frozenset[str]:
        """Return the claims that were made for a pod's extended resources: of attempts to bind it."""
        return self._extended.get(uid, frozenset())

    def held_on(self, node: str) -> list[ClaimState]:
        """Return the claims whose allocation names a node, by key."""
        return [self.claims[key] for key in sorted(self._held_on.get(node, ()))]

    def holders(self, device: DeviceID) -> frozenset[str]:
        """Return the claims that hold a device which only one may hold."""
        return self._holders.get(device, frozenset())

    @property
    def doubled(self) -> Mapping[DeviceID, frozenset[str]]:
        """Return the devices that only one claim may hold and several hold, with these claims."""
        return self._doubled

    def foreign(self, pool: PoolID) -> frozenset[str]:
        """Return the claims with which another scheduler has allocated devices of a pool."""
        return self._foreign.get(pool, frozenset())

    def serves(self, pool: PoolID) -> bool:
        """Return whether a pool is Berth's, and no other scheduler has allocated its devices."""
        return self.own.include(pool) and pool not in self._foreign

    def in_pool(self, pool: PoolID) -> Collection[Slice]:
        """Return the slices of a pool, of all generations."""
        return self._by_pool.get(pool, {}).values()

    def listed_in(self, pool: PoolID) -> list[Slice]:
        """Return the slices of a pool, of all generations, those that are kept before those that exist."""
        return [*(slice_ for _, slice_ in self._left.values() if slice_.pool == pool), *self.in_pool(pool)]

    def device(self, name: DeviceID) -> Device | None:
        """Return a device of the newest generation that has it; None if no slice lists it, or listed it recently."""
        pool = PoolID(name.driver, name.pool)
        if pool not in self._by_name:
            newest_last = sorted(self.listed_in(pool), key=lambda slice_: slice_.generation)
            found = {device.id.device: device for slice_ in newest_last for device in slice_.devices}
            if not found:
                return None
            self._by_name[pool] = found
        return self._by_name[pool].get(name.device)

    def devices_on(self, node: str) -> Iterator[Device]:
        """Yield the devices that slices list, or did until recently, for this node alone, in the order of slices."""
        for _, slice_ in sorted(self._on_node.get(node, {}).items()):
            yield from (device for device in slice_.devices if device.nodes.name == node)

    def nodes_of_pool(self, driver: str, pool: str) -> set[str]:
        """Return the nodes with devices of a driver and pool; an empty driver or pool stands for all."""
        return {
            node
            for node, slices in self._on_node.items()
            if any(driver in ("", slice_.pool.driver) and pool in ("", slice_.pool.pool) for slice_ in slices.values())
        }

    def nodes(self) -> Iterable[str]:
        """Return the nodes for which slices list devices, or listed them recently."""
        return self._on_node.keys()

    def surplus_drivers(self, node: str) -> list[str]:
        """Return the drivers with more slices for a node than are used, sorted."""
        return sorted(owner.driver for owner in self._surplus_of if owner.node == node)

    def rules_on(self, pool: PoolID) -> list[TaintRule]:
        """Return the rules for devices of a pool, by name."""
        return [rule for _, rule in sorted(self.rules.items()) if rule.is_for(pool)]

    # --- what-ifs ---------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """Return an independent copy."""
        parts = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | set)}
        return with_own(self, supply=self.supply.copy(), **parts)

    def what_if(self) -> Self:
        """Return a copy in which claims may hold other devices. It ends before any object changes.

        Copying all indices takes four times as long.
        """
        departed, claims = self.departed.copy(), self.claims.copy()
        return with_own(self, supply=self.supply.what_if(), departed=departed, claims=claims)


def nodes_of(slice_: Slice) -> set[str]:
    """Return the nodes to which alone devices of a slice belong."""
    return {device.nodes.name for device in slice_.devices if device.nodes.name}


def _part_of(slice_: Slice) -> tuple[PoolID, int, int]:
    """Return what of a slice decides whether its pool is complete."""
    return slice_.pool, slice_.generation, slice_.count


def _ids_for_many(slice_: Slice) -> set[str]:
    """Return the ids of the cards that a slice lists for many nodes."""
    return {card for device in slice_.devices if not device.nodes.name for card in card_ids(device)}


def _put(index: dict[K, Mapping[str, Slice]], key: K, slice_: Slice) -> None:
    index[key] = {**index.get(key, {}), slice_.name: slice_}


def _drop(index: dict[K, Mapping[str, Slice]], key: K, name: str) -> None:
    index[key] = {other: slice_ for other, slice_ in index[key].items() if other != name}
    if not index[key]:
        del index[key]


def _discard(index: dict[K, frozenset[str]], key: K, name: str) -> None:
    index[key] -= {name}
    if not index[key]:
        del index[key]
