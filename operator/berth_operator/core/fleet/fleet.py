"""The Fleet: all nodes and cards as columns, and what is charged to them.

Decisions read only the Fleet. Nodes, Devices, charges and nominations arrive in any order, so a node's row exists while
any of them exists. Changing the Fleet is arithmetic in memory, without I/O.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from berth_api.allocation import REPLICAS, Grant, partitions
from berth_api.names import CARDS_BY_CLAIMS, CARDS_BY_SHARES, CARDS_KEY, GPU
from berth_api.request import BUILT_IN, NVIDIA_GPU, DeviceRequest, Kinds
from berth_api.request.isolation import MPS
from berth_api.request.model import NO_ALIASES, ModelAliases, ModelConstraint
from berth_api.resources import CPU, MEMORY, PODS
from berth_api.values.caching import SizedCache
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.fleet.arrays import columns
from berth_operator.core.fleet.arrays.column_cache import ALL, ColumnCache, Rows, pick
from berth_operator.core.fleet.arrays.columns import sealed
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.copy_on_write import CopyOnWrite
from berth_operator.core.fleet.arrays.intern_table import InternTable
from berth_operator.core.fleet.arrays.keyed_masks import KeyedMasks
from berth_operator.core.fleet.arrays.prepared import Prepared
from berth_operator.core.fleet.claims.store import Claims, claim_uid
from berth_operator.core.fleet.namespaces import NamespaceLimits, Namespaces
from berth_operator.core.fleet.nodes.cards import RESOURCES, Cards, Column, Indices, Mask
from berth_operator.core.fleet.nodes.images import Images
from berth_operator.core.fleet.nodes.labels import Labels
from berth_operator.core.fleet.nodes.node_columns import NodeColumns, node_columns
from berth_operator.core.fleet.pods.affinity_index import AffinityIndex
from berth_operator.core.fleet.pods.placed_pods import PlacedPodsCache
from berth_operator.core.fleet.pods.pod_mix import PodMix
from berth_operator.core.fleet.pods.ports import Ports
from berth_operator.core.fleet.storage.volumes import Volumes
from berth_operator.core.values import releases
from berth_operator.core.values.affinity import NO_IDENTITY
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.gpu_metrics import Values
from berth_operator.core.values.inventory import ANY_VENDOR, NO_DEVICE, DeviceInventory, NodeInfo
from berth_operator.core.values.request import Taint
from berth_operator.core.values.vendors import gives_shares

ROWS: Final = 16
"""The initial number of rows."""
MAX_MODEL_MASKS: Final = 2**22
"""Bytes of the cache of the models that users' constraints accept."""
SPARE_RESOURCES: Final = 32
"""Number of spare resource columns after which columns of resources that no node offers any more are dropped."""

_Accepting = tuple[tuple[tuple[ModelConstraint, ...], int], npt.NDArray[np.float64]]
_NOTHING_ACCEPTED: Final[_Accepting] = (((), 0), np.zeros((0, 0)))
_EVERYWHERE: Final = (CPU, MEMORY, PODS)
"""The resources that every node has."""
_OF_DEVICES: Final = (
    "has_device",
    "vendor",
    "without_shares",
    "partitions",
    "partitions_only",
    "mig_single",
    "kubelet_chooses",
    "one_replica",
)


def _cards(rows: int, kinds: Kinds) -> dict[str, Cards]:
    """Return empty columns for the cards of each device type."""
    added = {kind.name: Cards(kind.name, rows, kind.all_counted) for kind in kinds.added}
    return {name: Cards(name, rows) for name in RESOURCES} | added


class Fleet(NodeColumns):
    """All nodes and cards. The columns of nodes, like all arrays that its methods return, are read-only."""

    device_classes: Mapping[str, str] = MappingProxyType({})
    """Extended resource -> the DeviceClass that provides it where no device plugin does; replaced, never modified."""
    model_aliases: ModelAliases = NO_ALIASES
    """Other names of GPU models."""
    kubernetes: int = releases.NEWEST
    """The API server's minor version."""

    def __init__(self, rows: int = ROWS, kinds: Kinds = BUILT_IN) -> None:
        self.rows: dict[str, int] = {}
        """Node name -> row."""
        self.names: list[str] = [""] * rows
        self.labels = Labels(rows)
        self.resources: dict[str, int] = {name: index for index, name in enumerate(_EVERYWHERE)}
        """Resource name -> index of its column, for the resources that some node offers."""
        self._own = node_columns(rows, len(self.resources))
        columns.show(self._own, self)
        self.kinds, self.cards = kinds, _cards(rows, kinds)
        self.intern_table = InternTable()
        self.charges: dict[str, Charge] = {}
        """Pod UID -> its charge."""
        self.nominees: dict[str, Charge] = {}
        """Pod UID -> what a nominated pod will use of its node once its victims are gone."""
        self._nominees_on: CopyOnWrite[str, dict[str, Charge]] = CopyOnWrite()
        self._nominee_priorities: Counter[int] = Counter()
        self.leaving: set[str] = set()
        """UIDs of placed pods that are being deleted, even if the API server does not show it yet."""
        self.overdue: set[str] = set()
        """UIDs of charges of pods that were deleted so long ago that they may never leave."""
        self.undeletable: set[str] = set()
        """UIDs of pods that the API server has recently refused to delete."""
        self.rejecting: dict[str, Mapping[str, str]] = {}
        """Controller (`lost_places.preemptor_of_pod`) whose pods kubelets have rejected -> node to which none of them
        is bound now -> its kubelet's last reason. The inner mappings are replaced, never modified."""
        self.mps_pods_placed = 0
        """The sum of `mps_pods`. Filters check it first, because it is 0 in most fleets."""
        self.priorities: Counter[int] = Counter()
        """Priority -> number of placed pods."""
        self.placed_pods = PlacedPodsCache()
        self.affinity_index = AffinityIndex(rows)
        self.ports = Ports(rows)
        self.images = Images(rows)
        self.volumes = Volumes(rows, self.rows)
        self.claims = Claims()
        self.namespaces = Namespaces()
        self.column_cache = ColumnCache(self.static_key, self.dynamic_key)
        self.prepared = Prepared()
        self.pod_mix = PodMix()
        """The pods' typical requests. Charges do not change it."""
        self._on_node: CopyOnWrite[str, dict[str, Charge]] = CopyOnWrite()
        # UID of a charged pod -> (type, minor) of its grants without an id -> id of the card that this was.
        self._frozen: dict[str, Mapping[tuple[str, int], str]] = {}
        self._slices_apart_for = ""
        self._free_rows = list(range(rows - 1, -1, -1))
        self._vendors: dict[str, int] = {ANY_VENDOR: 0}
        self._accepting = _NOTHING_ACCEPTED
        self._model_masks: SizedCache[ModelConstraint, Mask] = SizedCache(MAX_MODEL_MASKS)
        self._taints: KeyedMasks[Taint] = KeyedMasks(rows)
        self._features: KeyedMasks[str] = KeyedMasks(rows)

    # --- nodes ------------------------------------------------------------------------------------------------

    def put_node(self, node: NodeInfo) -> None:
        """Add or replace a Node."""
        row, own = self._row(node.name), self._own
        self.column_cache.alter(row)
        self.labels.put(row, node.labels)
        self.claims.supply.node_changed(node.name)
        own.present[row], own.ready[row], own.cordoned[row] = True, node.ready, node.cordoned
        own.unreachable[row] = node.unreachable
        own.cards_by_claim[row] = node.labels.get(CARDS_KEY) in (CARDS_BY_CLAIMS, CARDS_BY_SHARES)
        self._set_node_policy(row, partitions_only=partitions.partitions_only(node.labels))
        self.images.put(row, node.images)
        self._features.put(row, node.features)
        self._taints.put(row, node.taints)
        self._set_allocatable(row, node.allocatable)

    def remove_node(self, name: str) -> None:
        """Remove a Node; its Device and its pods' charges stay until they are removed themselves."""
        if (row := self.rows.get(name)) is not None:
            self.column_cache.alter(row)
            self._own.present[row] = False
            self._own.allocatable[:, row] = 0
            self._set_node_policy(row, partitions_only=False)
            self._drop_if_empty(name)

    def set_fresh(self, name: str, *, fresh: bool, foreign: bool = False) -> None:
        """Set whether the node's agent is alive, and whether its Device has foreign values; ignore unknown nodes."""
        if (row := self.rows.get(name)) is not None:
            self.column_cache.alter(row)
            self._own.fresh[row], self._own.foreign[row] = fresh and not foreign, fresh and foreign

    def set_agent(self, name: str, *, has_agent: bool) -> bool:
        """Set whether an agent's Lease or pod is on a node, unless it is unknown; return whether that has changed."""
        row = self.rows.get(name)
        if row is None or bool(self.has_agent[row]) == has_agent:
            return False
        self.column_cache.alter(row)
        self._own.has_agent[row] = has_agent
        return True

    def set_starting(self, name: str, *, starting: bool, used: bool = False) -> None:
        """Set whether a node is new and its agent may not have reported all devices yet; ignore unknown nodes.

        `used`: whether pods hold or have held its devices.
        """
        if (row := self.rows.get(name)) is not None:
            self._own.starting[row], self._own.was_used[row] = starting, used

    def set_heard(self, name: str, heard: int) -> bool:
        """Set when the agent of a known node was last heard, for reasons; return whether that has changed."""
        row = self.rows[name]
        before, self._own.heard[row] = int(self.heard[row]), heard
        return before != heard

    # --- devices ----------------------------------------------------------------------------------------------

    def put_device(self, name: str, inventory: DeviceInventory) -> None:
        """Add a Device or replace its inventory; charges to its cards stay."""
        row = self._row(name)
        self._own.has_device[row] = True
        self._put_inventory(name, inventory)
        self.prepared.clear()

    def remove_device(self, name: str) -> None:
        """Remove a Device. Its pods' charges stay, so that nothing is allocated twice if the Device returns."""
        if (row := self.rows.get(name)) is not None:
            self._own.has_device[row] = False
            self._put_inventory(name, NO_DEVICE)
            self.prepared.clear()
            self._drop_if_empty(name)

    def withhold(self, name: str, minors: Collection[int]) -> None:
        """Set which GPUs of a node kubelet cannot allocate now; a new inventory clears them."""
        if (row := self.rows.get(name)) is not None:
            self.column_cache.alter(row)
            self.cards[GPU].withhold(row, minors)

    def set_health(self, name: str, cards: Collection[tuple[str, int]], *, healthy: bool) -> None:
        """Set whether failed cards (type, minor) of a node are healthy, for a what-if."""
        row = self.rows[name]
        self.column_cache.alter(row)
        for device_type, of_type in self.cards.items():
            of_type.set_health(row, [minor for named, minor in cards if named == device_type], healthy=healthy)
        self.prepared.clear()

    def set_refused(self, name: str, types: Collection[str]) -> None:
        """Set the device types whose resources a policy refuses on a Node, with reasons. Ignore unknown nodes."""
        if (row := self.rows.get(name)) is not None:
            for kind in self.kinds.added:
                self.cards[kind.name].refuse(row, refused=kind.name in types)

    # --- what was measured ------------------------------------------------------------------------------------

    def measure(self, row: int, slot: int, values: Values, at: float) -> bool:
        """Set the measurement of a GPU at a time; return whether more of its memory may be free than before.

        Decisions see it after `measured`.
        """
        return self.cards[GPU].measure(row, slot, values, at)

    def expire_measurements(self, before: float) -> list[str]:
        """Forget measurements made before a time; return the nodes where more memory may be free as a result."""
        return [self.names[row] for row in self.cards[GPU].expire(before).tolist()]

    def measured(self) -> None:
        """Apply new and expired measurements to decisions."""
        self.prepared.clear()

    def _put_inventory(self, name: str, inventory: DeviceInventory) -> None:
        """Replace a node's cards, and move charges and nominations to the slots that the cards have now."""
        row = self.rows[name]
        self.column_cache.alter(row)
        charges = tuple(self.on_node(name))
        nominees = tuple(self.nominees_on(name))
        for pod in (*charges, *nominees):
            self._apply_grants(pod.grants, row, -1)
            self.namespaces.count(pod, -1, self._card_memory)
        self._set_device_columns(row, inventory)
        for device_type, cards in self.cards.items():
            cards.put(row, [card for card in inventory.cards if card.type == device_type], self.intern_table)
        for pod in map(self.resolve_charge, charges):
            self._apply_grants(pod.grants, row, 1)
            self.namespaces.count(pod, 1, self._card_memory)
            self.charges[pod.uid] = self._pods_of(name)[pod.uid] = pod
            self.placed_pods.moved(pod.uid)
        for pod in map(self.resolve_charge, nominees):
            self._apply_grants(pod.grants, row, 1)
            self.namespaces.count(pod, 1, self._card_memory)
            self.nominees[pod.uid] = self._nominees_of(name)[pod.uid] = pod

    def _set_device_columns(self, row: int, inventory: DeviceInventory) -> None:
        own = self._own
        own.vendor[row] = self._intern(inventory.vendor)
        own.without_shares[row] = not gives_shares(inventory.vendor, self.kinds)
        own.partitions[row] = self.intern_table.tables.number(inventory.partitions)
        own.device_decides[row] = inventory.partitions_only is not None
        own.partitions_only[row] = (
            own.node_partitions_only[row] if inventory.partitions_only is None else inventory.partitions_only
        )
        own.mig_single[row] = inventory.mig_single
        own.kubelet_chooses[row] = inventory.kubelet_chooses
        own.one_replica[row] = inventory.one_replica

    def _set_node_policy(self, row: int, *, partitions_only: bool) -> None:
        self._own.node_partitions_only[row] = partitions_only
        if not self._own.device_decides[row]:
            self._own.partitions_only[row] = partitions_only

    # --- charges ----------------------------------------------------------------------------------------------

    def charge(self, charge: Charge) -> None:
        """Charge a pod to its node, in place of its previous charge."""
        self._release(charge.uid)
        if self.nominees:
            self.withdraw(charge.uid)
        row = self._row(charge.node)
        charge = self.resolve_charge(charge)
        self._apply(charge, row, 1)
        self.charges[charge.uid] = charge
        self.priorities[charge.priority] += 1
        self.placed_pods.moved(charge.uid)
        self._pods_of(charge.node)[charge.uid] = charge

    def release(self, uid: str) -> Charge | None:
        """Remove and return a pod's charge; None if there was none."""
        self._frozen.pop(uid, None)
        return self._release(uid)

    def resolve_charge(self, charge: Charge) -> Charge:
        """Return a charge with each grant on the card that has its id now."""
        grants = self.resolve_grants(charge.uid, charge.node, charge.grants)
        return charge if grants is charge.grants else replace(charge, grants=grants)

    def resolve_grants(self, uid: str, node: str, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Return a pod's grants, each on the card that has its id now; the same tuple if nothing changed."""
        if not grants or (row := self.rows.get(node)) is None:
            return grants
        completed = tuple(
            self.cards[grant.type].completed(row, grant if grant.id else self._with_id(uid, row, grant))
            for grant in grants
        )
        return grants if completed == grants else completed

    def _with_id(self, uid: str, row: int, grant: Grant) -> Grant:
        """Return a grant with the id of the card that it was of when the grant was first seen."""
        key = (grant.type, grant.minor)
        name = self._frozen.get(uid, {}).get(key) or self.cards[grant.type].named(row, grant)
        if not name:
            return grant
        # A new value, because copies share the old one.
        self._frozen[uid] = {**self._frozen.get(uid, {}), key: name}
        return replace(grant, id=name)

    def _release(self, uid: str) -> Charge | None:
        charge = self.charges.pop(uid, None)
        if charge is not None:
            self._apply(charge, self.rows[charge.node], -1)
            self.placed_pods.moved(uid)
            self.priorities[charge.priority] -= 1
            if not self.priorities[charge.priority]:
                del self.priorities[charge.priority]
            del self._pods_of(charge.node)[uid]
            self._drop_if_empty(charge.node)
        return charge

    def freed_with(self, charge: Charge) -> Charge:
        """Return what one pod frees if it leaves: its charge, and the cards of claims that it alone uses."""
        departed = self.claims.departed
        own = (claim for claim in self.claims.of_pod(charge.uid) if claim.reserved_for - departed == {charge.uid})
        held = [of_claim for claim in own for of_claim in self._charges_of(claim)]
        if not held:
            return charge
        grants, unknown = (
            chain.from_iterable(of_claim.grants for of_claim in held),
            chain(*(of_claim.unknown for of_claim in held)),
        )
        return replace(charge, grants=(*charge.grants, *grants), unknown=(*charge.unknown, *unknown))

    def grants_held(self, charge: Charge) -> Iterator[Grant]:
        """Yield the grants of a placed pod, then the grants of the claims on its node that are reserved for it."""
        yield from charge.grants
        for claim in self.claims.of_pod(charge.uid):
            if (of_claim := self.charges.get(claim_uid(charge.node, claim.uid))) is not None:
                yield from of_claim.grants

    def left_behind(self) -> list[Charge]:
        """Return the charge of claims that are about to be deallocated."""
        return [charge for claim in self.claims.left_behind() for charge in self._charges_of(claim)]

    def _charges_of(self, claim: ClaimState) -> list[Charge]:
        known = (self.charges.get(claim_uid(node, claim.uid)) for node in claim.nodes)
        return [charge for charge in known if charge is not None]

    def claimed_devices(self, uid: str) -> int:
        """Return the number of devices of a pod's claims, which other pods may use as well."""
        return sum(len(claim.devices) for claim in self.claims.of_pod(uid))

    def refresh(self, shown: Charge) -> None:
        """Set a placed pod's start, end and owner, which are shown, not compared. What it uses is unchanged."""
        uid = shown.uid
        charge = replace(self.charges[uid], started=shown.started, ends=shown.ends, owner=shown.owner)
        self.charges[uid] = self._pods_of(charge.node)[uid] = charge
        self.placed_pods.moved(uid)

    def _pods_of(self, node: str) -> dict[str, Charge]:
        return self._on_node.own(node, dict)

    def on_node(self, name: str) -> Iterable[Charge]:
        """Return the charges of a node's pods."""
        return self._on_node.get(name, {}).values()

    def grant_of_device(self, node: str, device_type: str, minor: int, name: str) -> Grant:
        """Return the grant for a device that kubelet allocated by its id."""
        return self.cards[device_type].grant_of_device(self.rows.get(node), minor, name)

    def equivalence_key(self, node: str, grant: Grant) -> Hashable:
        """Return a key that is equal for grants of a known node that can replace each other."""
        return grant.type, self.cards[grant.type].equivalence_key(self.rows[node], grant)

    # --- nominees ---------------------------------------------------------------------------------------------

    def nominate(self, charge: Charge) -> None:
        """Reserve for a pod its capacity on its nominated node, in place of its previous nomination.

        The reserved capacity is not free for other pods. But a nomination is not a charge: the pod holds nothing yet
        and cannot be a victim.
        """
        self.withdraw(charge.uid)
        row = self._row(charge.node)
        charge = self.resolve_charge(charge)
        self._apply(charge, row, 1)
        self.nominees[charge.uid] = self._nominees_of(charge.node)[charge.uid] = charge
        self._nominee_priorities[charge.priority] += 1

    def withdraw(self, uid: str) -> Charge | None:
        """Remove and return a pod's nomination; None if there was none."""
        charge = self.nominees.pop(uid, None)
        if charge is not None:
            self._apply(charge, self.rows[charge.node], -1)
            del self._nominees_of(charge.node)[uid]
            self._nominee_priorities[charge.priority] -= 1
            if not self._nominee_priorities[charge.priority]:
                del self._nominee_priorities[charge.priority]
            self._drop_if_empty(charge.node)
        return charge

    def _nominees_of(self, node: str) -> dict[str, Charge]:
        return self._nominees_on.own(node, dict)

    def nominees_on(self, name: str) -> Iterable[Charge]:
        """Return what nominated pods will use of a node."""
        return self._nominees_on.get(name, {}).values()

    @contextmanager
    def without(self, nominees: Iterable[Charge]) -> Iterator[None]:
        """Return a context in which these pods are not nominated."""
        withdrawn = [nominee for nominee in nominees if self.withdraw(nominee.uid)]
        try:
            yield
        finally:
            for nominee in withdrawn:
                self.nominate(nominee)

    def lower_priority_nominees(self, uid: str, priority: int) -> list[Charge]:
        """Return the nominees that a pod may ignore: itself and nominees of lower priority."""
        # Hundreds of places may be promised, and every decision asks this.
        if uid not in self.nominees and not any(nominated < priority for nominated in self._nominee_priorities):
            return []
        return [nominee for nominee in self.nominees.values() if nominee.uid == uid or nominee.priority < priority]

    @contextmanager
    def slices_apart(self, gang: str, held: Iterable[str]) -> Iterator[None]:
        """Return a context in which a card or MIG instance whose slice a member of a gang has gives no other slice.

        Slices that pods request by their own name do not count.

        Args:
            gang: `Membership.key`. Members that are charged or nominated in the context count.
            held: the UIDs of the members that are charged already.
        """
        cards = self.cards[GPU]
        if self._slices_apart_for == gang or not (REPLICAS in cards.index or cards.sliced_instances.any()):
            yield
            return
        self._slices_apart_for = gang
        for charge in (self.charges[uid] for uid in held if uid in self.charges):
            self._count_of_gang(charge, self.rows[charge.node], 1)
        try:
            yield
        finally:
            self._slices_apart_for = ""
            for row in self.cards[GPU].forget_gang():
                self.column_cache.move(row)

    def mark_leaving(self, uid: str) -> None:
        """Record that a placed pod is being deleted, before the API server shows it."""
        self.leaving.add(uid)

    def unmark_leaving(self, uid: str) -> None:
        """Record that a placed pod was deleted, or could not be deleted."""
        self.leaving.discard(uid)

    def is_leaving(self, charge: Charge) -> bool:
        """Return whether a placed pod is being deleted."""
        return charge.terminating or charge.uid in self.leaving

    def set_kubernetes(self, minor: int) -> None:
        """Set the API server's minor version, before there are pods."""
        self.kubernetes = minor
        self.affinity_index.by_labels = minor >= releases.NAMESPACES_BY_LABELS

    def set_model_aliases(self, aliases: ModelAliases) -> None:
        """Set other names of GPU models."""
        if aliases != self.model_aliases:
            self.model_aliases = aliases
            self._accepting = _NOTHING_ACCEPTED
            # A new value, because copies share the old one.
            self._model_masks = SizedCache(MAX_MODEL_MASKS)
            # A new cache, because single rows are cached by their fingerprints, which say nothing of aliases.
            self.column_cache = ColumnCache(self.static_key, self.dynamic_key)
            # Points count the changes of the cache.
            self.prepared.clear()

    def set_namespace_limits(self, limits: NamespaceLimits) -> None:
        """Set what the pods of namespaces may hold of GPUs."""
        if limits != self.namespaces.limits:
            charges = (*self.charges.values(), *self.nominees.values())
            self.namespaces.set_limits(limits, charges, self._card_memory)

    def _card_memory(self, node: str, minor: int) -> int:
        return self.cards[GPU].memory(self.rows[node], minor)

    def set_device_classes(self, classes: Mapping[str, str]) -> None:
        """Set which DeviceClass provides each extended resource that no device plugin does."""
        self.device_classes = classes

    # --- what-ifs ---------------------------------------------------------------------------------------------

    def copy(self, *, until_changes: bool = False) -> Self:
        """Return an independent copy for what-ifs, which can be charged and released.

        With `until_changes`, the copy must end before ResourceClaims, or the devices that they may get, change.
        """
        plain = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | list | set)}
        rows = self.rows.copy()
        deep = {
            "rows": rows,
            "placed_pods": self.placed_pods.copy(),
            "cards": {device_type: cards.copy(self.cards_by_claim) for device_type, cards in self.cards.items()},
            "intern_table": self.intern_table.copy(),
            "labels": self.labels.copy(),
            "affinity_index": self.affinity_index.copy(),
            "ports": self.ports.copy(),
            "_model_masks": SizedCache[ModelConstraint, Mask](MAX_MODEL_MASKS),
            "images": self.images.copy(),
            "volumes": self.volumes.copy(rows),
            "claims": self.claims.what_if() if until_changes else self.claims.copy(),
            "namespaces": self.namespaces.copy(),
            "_taints": self._taints.copy(),
            "_features": self._features.copy(),
        }
        return self._copied(columns.each_by(self._own, np.copy), **{**plain, **deep})

    def excerpt(self, rows: Indices, *, with_cards: bool = True) -> Self:
        """Return copies of these rows, in this order, to evaluate many what-ifs at once; rows may be repeated.

        Only columns of resources and devices are copied, so nothing else of the excerpt may be used.
        """
        cards = self.cards if with_cards else {}
        return self._copied(
            columns.each_by(self._own, lambda values: values.take(rows, -1)),
            names=list(map(self.names.__getitem__, rows.tolist())),
            cards={device_type: of_type.excerpt(rows, self.cards_by_claim) for device_type, of_type in cards.items()},
        )

    def _copied(self, own: NodeColumns, **parts: object) -> Self:
        """Return a shallow copy with these columns and attributes replaced. All others are shared."""
        copied = with_own(self, _own=own, **parts)
        columns.show(own, copied)
        copied.column_cache = ColumnCache(copied.static_key, copied.dynamic_key)
        copied.prepared = Prepared()
        return copied

    def move_requested(self, rows: Indices, amounts: Column, sign: int) -> None:
        """Charge (sign 1) or release (sign -1) the requests of one pod per row: shape (resources, rows)."""
        self.column_cache.forget()
        self.prepared.clear()
        # Resources that were added after `amounts` was computed have no line in it.
        self._own.requested[: len(amounts), rows] += sign * amounts

    def make_room(self) -> None:
        """Make room for one more node, so that arrays that were computed before it is added keep their shape."""
        if not self._free_rows:
            self._grow()

    def put_like(self, node: NodeInfo, like: str) -> None:
        """Add a node to a copy of the Fleet, with another node's Device, a live agent and unused cards."""
        self.put_node(node)
        own, row, other = self._own, self.rows[node.name], self.rows[like]
        for name in (*_OF_DEVICES, "device_decides"):
            getattr(own, name)[row] = getattr(own, name)[other]
        own.fresh[row] = own.has_device[row]
        for cards in self.cards.values():
            cards.put_like(row, other, self.intern_table)
        self.column_cache.alter(row)
        self.prepared.clear()

    def node_info(self, name: str) -> NodeInfo:
        """Return a Node as it was added, without its images."""
        row = self.rows[name]
        return NodeInfo(
            name=name,
            labels=self.labels[row],
            allocatable={resource: int(self.allocatable[index, row]) for resource, index in self.resources.items()},
            taints=tuple(taint for taint, mask in self._taints.masks.items() if mask[row]),
            cordoned=bool(self.cordoned[row]),
            ready=bool(self.ready[row]),
            unreachable=bool(self.unreachable[row]),
            features=tuple(feature for feature, mask in self._features.masks.items() if mask[row]),
        )

    def move_grants(self, row: int, grants: Iterable[Grant], sign: int) -> None:
        """Charge (sign 1) or release (sign -1) grants of placed pods in a what-if, without the rest of the pods."""
        self.column_cache.move(row)
        self._apply_grants(grants, row, sign)

    def set_card_use(self, device_type: str, row: int, slot: int, used: Column, users: int) -> None:
        """Set the amounts that pods use of a card in a what-if: shape (resources,), and the number of these pods."""
        self.column_cache.forget()
        self.prepared.clear()
        self.cards[device_type].set_use(row, slot, used, users)

    # --- rows that look the same ------------------------------------------------------------------------------

    def static_key(self, row: int) -> Hashable:
        """Return everything that columns may read of a row, except its charges."""
        flags = tuple(getattr(self, name)[row].item() for name in ("present", "has_agent", "fresh", *_OF_DEVICES))
        return flags, self.allocatable[:, row].tobytes(), *(cards.static_key(row) for cards in self.cards.values())

    def dynamic_key(self, row: int) -> bytes:
        """Return everything that columns may read of a row's charges."""
        held = [cards.dynamic_key(row) for cards in self.cards.values()]
        return b"".join([self.requested[:, row].tobytes(), self.nonzero_requested[:, row].tobytes(), *held])

    def _apply(self, charge: Charge, row: int, sign: int) -> None:
        self.column_cache.move(row)
        self.namespaces.count(charge, sign, self._card_memory)
        for name, amount in charge.resources:
            if (index := self.resources.get(name)) is not None:
                self._own.requested[index, row] += sign * amount
        self._apply_grants(charge.grants, row, sign)
        if self._slices_apart_for and charge.gang is not None and charge.gang.key == self._slices_apart_for:
            self._count_of_gang(charge, row, sign)
        if GPU in charge.unknown or any(grant.type == GPU for grant in charge.grants):
            self._count_holder(row, sign, by_mps=charge.isolation == MPS)
        if charge.unknown:
            # Claims get no device of these types meanwhile.
            self.claims.supply.node_changed(self.names[row])
        for device_type in charge.unknown:
            self.cards[device_type].charge_unknown(row, sign)
        self._own.nonzero_requested[0, row] += sign * charge.nonzero_requested[0]
        self._own.nonzero_requested[1, row] += sign * charge.nonzero_requested[1]
        self.ports.charge(row, charge.ports, sign)
        if charge.claims:
            self.claims.supply.assume(charge.claims.allocations, sign)
        if charge.mounts:
            self.volumes.charge(row, charge.node, charge.mounts, charge.volumes, sign)
        if charge.identity is not NO_IDENTITY:
            self.affinity_index.place(row, charge.identity, charge.affinity, terminating=charge.terminating, sign=sign)

    def _count_of_gang(self, charge: Charge, row: int, sign: int) -> None:
        self.column_cache.move(row)
        as_cards = NVIDIA_GPU in dict(charge.plugin_requests)
        self.cards[GPU].count_of_gang(row, charge.grants, sign, as_cards=as_cards)

    def _count_holder(self, row: int, sign: int, *, by_mps: bool) -> None:
        (self._own.mps_pods if by_mps else self._own.other_gpu_pods)[row] += sign
        self.mps_pods_placed += sign * by_mps

    def _apply_grants(self, grants: Iterable[Grant], row: int, sign: int) -> None:
        if grants:
            self.claims.supply.node_changed(self.names[row])
        for grant in grants:
            self.cards[grant.type].charge(row, grant, sign)
            if grant.functions:
                self.cards[grant.type].find_spare(row, self.intern_table)

    # --- what filters ask -------------------------------------------------------------------------------------

    def left(self, name: str, rows: Rows = ALL) -> Column:
        """Return the free amount of a resource on each row; 0 if the resource is unknown."""
        index = self.resources.get(name)
        if index is None:
            return np.zeros_like(self.vendor[rows], np.int64)
        return pick(self.allocatable[index], rows) - pick(self.requested[index], rows)

    def total(self, name: str) -> Column:
        """Return each row's allocatable amount of a resource."""
        index = self.resources.get(name)
        return np.zeros(len(self.names), np.int64) if index is None else self.allocatable[index]

    def taints(self) -> Mapping[Taint, Mask]:
        """Return each taint in the fleet with the rows that have it."""
        return self._taints.masks

    def tainted(self, taint: Taint) -> list[str]:
        """Return the names of the nodes that have a taint."""
        rows = self._taints.masks.get(taint)
        return [] if rows is None else [self.names[row] for row in np.flatnonzero(rows).tolist()]

    def declaring(self, feature: str) -> Mask:
        """Return the rows whose kubelet declares a feature."""
        mask = self._features.masks.get(feature)
        return np.zeros(len(self.names), np.bool_) if mask is None else mask

    def accepting(self, constraints: tuple[ModelConstraint, ...]) -> npt.NDArray[np.float64]:
        """Return 1 where a constraint accepts a model, else 0: shape (constraints, models)."""
        if self._accepting[0] != (constraints, self.models):
            accepted = [self.accepted_models(constraint) for constraint in constraints]
            matrix = np.array(accepted, np.float64).reshape(len(constraints), self.models)
            self._accepting = ((constraints, self.models), sealed(matrix))
        return self._accepting[1]

    def named(self, name: str) -> Mask:
        """Return a mask of the row of the node with this name; empty if there is none."""
        mask = np.zeros(len(self.names), np.bool_)
        if (row := self.rows.get(name)) is not None:
            mask[row] = True
        return mask

    def of_vendor(self, vendor: str, rows: Rows = ALL) -> Mask:
        """Return the rows whose Device is of this vendor."""
        matching: Mask = self.vendor[rows] == self._vendors.get(vendor, -1)
        return matching

    def suits_vendor(self, devices: DeviceRequest, rows: Rows = ALL) -> Mask:
        """Return the rows whose Device is of a vendor that may serve a request."""
        if devices.vendor:
            return self.of_vendor(devices.vendor, rows)
        without_shares: Mask = self.without_shares[rows]
        if any(part.type == GPU for part in devices.parts):
            return ~without_shares
        return np.ones_like(without_shares)

    def vendors_of(self, rows: Mask) -> Iterator[str]:
        """Yield the vendors of the Devices of these rows."""
        numbers = set(np.unique(self.vendor[rows]).tolist()) if rows.any() else ()
        return (vendor for vendor, number in self._vendors.items() if number in numbers)

    @property
    def models(self) -> int:
        """Return the number of card models that were seen."""
        return len(self.intern_table.models)

    def accepted_models(self, constraint: ModelConstraint) -> Mask:
        """Return, for each model number, whether the constraint accepts the model."""
        mask = self._model_masks.get(constraint)
        if mask is None or len(mask) != self.models:
            accepted = (constraint.accepts(model, self.model_aliases) for model in self.intern_table.models)
            mask = np.fromiter(accepted, np.bool_, self.models)
            self._model_masks.put(constraint, sealed(mask))
        return mask

    # --- rows -------------------------------------------------------------------------------------------------

    def _row(self, name: str) -> int:
        if name in self.rows:
            return self.rows[name]
        self.make_room()
        row = self.rows[name] = self._free_rows.pop()
        self.column_cache.alter(row)
        self.names[row] = name
        self.volumes.enter(row, name)
        # Nothing is allocated until the lifecycle controller has seen that the agent is alive.
        self._own.fresh[row], self._own.foreign[row], self._own.heard[row] = False, False, 0
        self._own.starting[row] = self._own.was_used[row] = self._own.has_agent[row] = False
        self.set_refused(name, ())
        return row

    def _drop_if_empty(self, name: str) -> None:
        row = self.rows[name]
        if self.present[row] or self.has_device[row] or self._on_node.get(name) or self._nominees_on.get(name):
            return
        self._on_node.drop(name)
        self._nominees_on.drop(name)
        del self.rows[name]
        self.claims.supply.forget_node(name)
        self.volumes.leave(row, name)
        self.names[row] = ""
        self.labels.put(row, {})
        self.images.put(row, ())
        self._taints.put(row, ())
        self._features.put(row, ())
        self._free_rows.append(row)

    def _grow(self) -> None:
        old = len(self.names)
        self.column_cache.forget()
        self.prepared.clear()
        self.names += [""] * old
        self.labels.grow(2 * old)
        self._own = columns.each_by(self._own, lambda values: np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, old)]))
        columns.show(self._own, self)
        for masks in (self._taints, self._features):
            masks.grow(2 * old)
        for cards in self.cards.values():
            cards.grow(2 * old, 1)
        self.affinity_index.grow(2 * old)
        self.ports.grow(2 * old)
        self.images.grow(2 * old)
        self.volumes.grow(2 * old)
        self._free_rows = list(range(2 * old - 1, old - 1, -1))

    def _set_allocatable(self, row: int, amounts: Mapping[str, int]) -> None:
        # First: it may put other arrays in place of these.
        if not amounts.keys() <= self.resources.keys():
            if len(self.requested) + len(amounts) > SPARE_RESOURCES:
                self._drop_unused_resources()
            self._add_resources(amounts.keys() - self.resources.keys())
        self._own.allocatable[:, row] = 0
        for name, amount in amounts.items():
            self._own.allocatable[self.resources[name], row] = amount

    def _add_resources(self, names: Collection[str]) -> None:
        """Add columns for resources that no node offers yet, and charge the requests of placed and nominated pods.

        Other resources have no columns, because pods that name their node may request any resource.
        """
        first = len(self.requested)
        # A new dict, because excerpts share the old one.
        self.resources = self.resources | {name: first + number for number, name in enumerate(sorted(names))}
        self._own.allocatable = np.pad(self._own.allocatable, ((0, len(names)), (0, 0)))
        self._own.requested = np.pad(self._own.requested, ((0, len(names)), (0, 0)))
        columns.show(self._own, self)
        for charge in chain(self.charges.values(), self.nominees.values()):
            for name, amount in charge.resources:
                if name in names:
                    self._own.requested[self.resources[name], self.rows[charge.node]] += amount
        # They know resources by their indices.
        self.column_cache = ColumnCache(self.static_key, self.dynamic_key)
        self.prepared.clear()
        self.placed_pods = PlacedPodsCache()

    def _drop_unused_resources(self) -> None:
        """Drop the columns of resources that no node offers any more."""
        used: Mask = np.any(self.allocatable, axis=1)
        used[: len(_EVERYWHERE)] = True
        kept = [name for name, index in self.resources.items() if used[index]]
        self._own.allocatable, self._own.requested = self._own.allocatable[used], self._own.requested[used]
        columns.show(self._own, self)
        self.resources = {name: index for index, name in enumerate(kept)}

    def _intern(self, vendor: str) -> int:
        return self._vendors.setdefault(vendor, len(self._vendors))
