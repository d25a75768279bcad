"""VolumeClaims, volumes and their provisioners, as the API server shows them and as decisions have assigned them.

    pod -> claim -> volume -> nodes from which it can be reached
             |
             +----> class: which volumes fit, which driver provisions new ones, and for which nodes

A claim with binding mode Immediate is bound before its pod is scheduled. The decision binds a claim with
WaitForFirstConsumer. The pod's charge *promises* the volume, or the node for which a volume is provisioned. So the next
decision sees the promise before the API server shows it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.columns import all_read_only, read_only
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.keyed_masks import KeyedMasks
from berth_operator.core.fleet.storage.attached_volumes import Attached
from berth_operator.core.values.mounts import Attachable, Disk, Mounts, PodVolumes, Use
from berth_operator.core.values.storage import MIGRATED, Attachment, Capacity, StorageClass, Terms, Volume, VolumeClaim

Counts = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

NO_LIMIT: Final = 2**62

K = TypeVar("K")


class Promises:
    """What charges promise: name -> value, kept while at least one charge promises it. All promise the same value."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def put(self, name: str, value: str, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a promise."""
        self._values[name] = value
        self._holders[name] += sign
        if not self._holders[name]:
            del self._holders[name], self._values[name]

    def get(self, name: str) -> str | None:
        """Return the promised value; None if there is none."""
        return self._values.get(name)

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(self, _values=self._values.copy(), _holders=self._holders.copy())


class Disks:
    """Disks named in pod specs: the rows where pods use them, and the rows where pods may write to them."""

    def __init__(self) -> None:
        self._all: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._writers: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)

    def place(self, row: int, disk: Disk, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a pod with the disk on a row."""
        for users in (self._all,) if disk.read_only else (self._all, self._writers):
            counter = users[disk.kind, disk.id]
            counter[row] += sign
            if not counter[row]:
                del counter[row]
            if not counter:
                del users[disk.kind, disk.id]

    def conflicts(self, disk: Disk) -> list[int]:
        """Return the rows where a pod with the disk would conflict with another pod."""
        users = self._writers if disk.read_only else self._all
        return list(users.get((disk.kind, disk.id), ()))

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(
            self,
            _all=defaultdict(Counter, _copied(self._all)),
            _writers=defaultdict(Counter, _copied(self._writers)),
        )


class Volumes:
    """All claims, volumes, classes, capacities and attachments, and the pods that use them on each row."""

    def __init__(self, rows: int, row_of: Mapping[str, int]) -> None:
        self.claims: dict[str, VolumeClaim] = {}
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.capacities: dict[str, dict[str, Capacity]] = {}
        """Class -> key -> capacity."""
        self.tracked: set[str] = set()
        """Drivers that report their capacity."""
        self.required: set[str] = set()
        """Drivers whose volumes are used only on nodes that have the driver."""
        self.drivers: KeyedMasks[str] = KeyedMasks(rows)
        """The rows that have each driver."""
        self.attached = Attached(rows)
        self.disks = Disks()
        self.users: Counter[str] = Counter()
        """Claim -> number of placed pods that use it; without generic ephemeral volumes."""
        self.rows_by_terms: dict[Terms, Rows] = {}
        """Cached results of `matching_rows` for the labels' version `rows_by_terms_version`."""
        self.rows_by_terms_version = -1
        self._rows, self._row_of = rows, row_of
        self._promised, self._selected = Promises(), Promises()
        self._of_class: defaultdict[str, dict[str, Volume]] = defaultdict(dict)
        self._wanting: defaultdict[str, set[str]] = defaultdict(set)
        """Volume -> claims that name it."""
        self._uses: defaultdict[str, dict[Use, Counter[int]]] = defaultdict(dict)
        """Claim -> use -> row -> number of pods."""
        self._counted: dict[Use, Attachable | None] = {}
        """Use -> the volume that it counts as for the node's limit."""
        self._limits: dict[str, Counts] = {}
        self._shown_limits: dict[str, Counts] = {}
        """Driver -> the maximum number of its volumes on each row."""
        self._drivers_of: dict[str, Mapping[str, int | None]] = {}
        """Node -> driver -> the maximum number of its volumes; None for no limit."""
        self._attachments: dict[str, Attachment] = {}
        self._attachments_of: defaultdict[str, set[str]] = defaultdict(set)
        """Volume or node ("volume x", "node x") -> attachments."""
        self._attached_as: dict[str, tuple[int, Attachable]] = {}

    # --- what the API server shows ----------------------------------------------------------------------------

    def put_claim(self, claim: VolumeClaim) -> None:
        """Add or replace a claim."""
        self._drop_claim(claim.key)
        self.claims[claim.key] = claim
        if claim.volume:
            self._wanting[claim.volume].add(claim.key)
        self._recount(claim.key)

    def remove_claim(self, key: str) -> None:
        """Remove a claim."""
        self._drop_claim(key)
        self._recount(key)

    def put_volume(self, volume: Volume) -> None:
        """Add or replace a volume."""
        self._drop_volume(volume.name)
        self.volumes[volume.name] = volume
        self._of_class[volume.storage_class][volume.name] = volume
        self._recount_volume(volume.name)

    def remove_volume(self, name: str) -> None:
        """Remove a volume."""
        self._drop_volume(name)
        self._recount_volume(name)

    def put_class(self, storage_class: StorageClass) -> None:
        """Add or replace a storage class."""
        self.classes[storage_class.name] = storage_class
        self._recount(*self._uses)

    def remove_class(self, name: str) -> None:
        """Remove a storage class."""
        self.classes.pop(name, None)
        self._recount(*self._uses)

    def put_capacity(self, capacity: Capacity) -> None:
        """Add or replace a capacity; its class never changes."""
        self.capacities.setdefault(capacity.storage_class, {})[capacity.key] = capacity

    def remove_capacity(self, key: str) -> None:
        """Remove a capacity."""
        for capacities in self.capacities.values():
            capacities.pop(key, None)
        self.capacities = {name: capacities for name, capacities in self.capacities.items() if capacities}

    def put_drivers(self, node: str, drivers: Mapping[str, int | None]) -> None:
        """Set the drivers of a node, each with the maximum number of its volumes there; None for no limit."""
        self._drivers_of[node] = drivers
        if not drivers:
            del self._drivers_of[node]
        if (row := self._row_of.get(node)) is not None:
            self._set_drivers(row, drivers)

    def put_attachment(self, attachment: Attachment) -> None:
        """Add an attachment; its content never changes."""
        self._attachments[attachment.name] = attachment
        for key in (f"node {attachment.node}", f"volume {attachment.volume}"):
            self._attachments_of[key].add(attachment.name)
        self._reattach(attachment.name)

    def remove_attachment(self, name: str) -> Attachment | None:
        """Remove and return an attachment; None if it is unknown."""
        attachment = self._attachments.pop(name, None)
        if attachment is not None:
            self._detach(name)
            for key in (f"node {attachment.node}", f"volume {attachment.volume}"):
                _discard(self._attachments_of, key, name)
        return attachment

    # --- rows and pods ----------------------------------------------------------------------------------------

    def enter(self, row: int, node: str) -> None:
        """Assign a row to a node."""
        self._set_drivers(row, self._drivers_of.get(node, {}))
        self._reattach(*self._attachments_of.get(f"node {node}", ()))

    def leave(self, row: int, node: str) -> None:
        """Free the row of a node."""
        self._set_drivers(row, {})
        for name in self._attachments_of.get(f"node {node}", ()):
            self._detach(name)

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        more = (0, rows - self._rows)
        self._limits = {name: np.pad(each, more, constant_values=NO_LIMIT) for name, each in self._limits.items()}
        self._shown_limits = all_read_only(self._limits)
        self.attached.grow(rows)
        self.drivers.grow(rows)
        self._rows = rows

    def copy(self, row_of: Mapping[str, int]) -> Self:
        """Return an independent copy on other rows, which can be charged. Data from the API server is shared."""
        limits = {driver: column.copy() for driver, column in self._limits.items()}
        return with_own(
            self,
            attached=self.attached.copy(),
            drivers=self.drivers.copy(),
            disks=self.disks.copy(),
            users=self.users.copy(),
            rows_by_terms=self.rows_by_terms.copy(),
            _row_of=row_of,
            _promised=self._promised.copy(),
            _selected=self._selected.copy(),
            _uses=defaultdict(dict, {claim: _copied(uses) for claim, uses in self._uses.items()}),
            _counted=self._counted.copy(),
            _attached_as=self._attached_as.copy(),
            _limits=limits,
            _shown_limits=all_read_only(limits),
        )

    def charge(self, row: int, node: str, mounts: Mounts, chosen: PodVolumes, sign: int) -> None:
        """Charge (sign 1) or release (sign -1) a pod's volumes and what the decision assigned to its claims."""
        for use in mounts.claims:
            self._place(row, use, sign)
        for disk in mounts.disks:
            self.disks.place(row, disk, sign)
        for attachable in mounts.attachables:
            self.attached.use(row, attachable, sign)
        for claim, volume in chosen.bindings:
            self._promised.put(volume, claim, sign)
        for claim in chosen.provisions:
            self._selected.put(claim, node, sign)

    # --- what filters ask -------------------------------------------------------------------------------------

    def is_delayed(self, claim: VolumeClaim) -> bool:
        """Return whether an unbound claim waits for its first consumer; a claim that names a volume does not."""
        storage_class = self.classes.get(claim.storage_class)
        return not claim.volume and storage_class is not None and storage_class.delayed

    def candidates(self, claim: VolumeClaim) -> Iterable[Volume]:
        """Return the volumes that fit a claim, the smallest first; only the volume reserved for it if there is one."""
        fitting = [volume for volume in self._of_class.get(claim.storage_class, {}).values() if _holds(volume, claim)]
        own = [volume for volume in fitting if self._is_for(volume, claim)]
        free = own or [volume for volume in fitting if self._is_free(volume) and _suits(volume, claim)]
        return sorted(free, key=lambda volume: (volume.size, volume.name))

    def is_of_class(self, claim: str, storage_class: str) -> bool:
        """Return whether a claim (namespace/name) exists and is of a storage class."""
        known_claim = self.claims.get(claim)
        return known_claim is not None and known_claim.storage_class == storage_class

    def may_serve(self, volume: Volume, claim: str) -> bool:
        """Return whether a change of a volume may affect a claim (namespace/name)."""
        known_claim = self.claims.get(claim)
        if known_claim is None:
            return False
        return (
            volume.name == known_claim.volume
            or volume.claim == claim
            or volume.storage_class == known_claim.storage_class
        )

    def selected_node(self, claim: VolumeClaim) -> str | None:
        """Return the node on which a volume is or will be provisioned; None if there is none."""
        return self._selected.get(claim.key) or claim.selected_node

    def attachments(self) -> Iterable[Attachment]:
        """Return all attachments."""
        return self._attachments.values()

    def rows_using(self, claim: str) -> set[int]:
        """Return the rows with pods that use a claim."""
        return {row for rows in self._uses.get(claim, {}).values() for row in rows}

    def limits(self, driver: str) -> Counts | None:
        """Return the maximum number of a driver's volumes on each row, read-only; None if no row has a limit."""
        return self._shown_limits.get(driver)

    def attachable(self, use: Use) -> Attachable | None:
        """Return the volume that a use of a claim counts as for the node's limit; None if it does not count."""
        claim = self.claims.get(use.claim)
        if claim is None or (use.owner and claim.owner != use.owner):
            return None
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return volume.attachable
        storage_class = self.classes.get(claim.storage_class)
        driver = MIGRATED.get(storage_class.provisioner, storage_class.provisioner) if storage_class else ""
        # No driver has volume handles of this form.
        return Attachable(driver=driver, handle=f"for claim {claim.key}") if driver else None

    def _is_for(self, volume: Volume, claim: VolumeClaim) -> bool:
        promised = self._promised.get(volume.name)
        return volume.is_for(claim) if promised is None else promised == claim.key

    def _is_free(self, volume: Volume) -> bool:
        return volume.available and not volume.claim and self._promised.get(volume.name) is None

    # --- counting ---------------------------------------------------------------------------------------------

    def _place(self, row: int, use: Use, sign: int) -> None:
        uses = self._uses[use.claim]
        if use not in uses:
            uses[use] = Counter()
            self._counted[use] = self.attachable(use)
        uses[use][row] += sign
        if (counted := self._counted[use]) is not None:
            self.attached.use(row, counted, sign)
        if not use.owner:
            self.users[use.claim] += sign
        if not uses[use][row]:
            del uses[use][row]
        if not uses[use]:
            del uses[use], self._counted[use]
        if not uses:
            del self._uses[use.claim]
        if not self.users[use.claim]:
            del self.users[use.claim]

    def _recount(self, *claims: str) -> None:
        """Count the uses of claims again, because their volumes may have changed."""
        for claim in claims:
            for use, rows in self._uses.get(claim, {}).items():
                before, after = self._counted[use], self.attachable(use)
                self._counted[use] = after
                for row, number in rows.items() if before != after else ():
                    if before is not None:
                        self.attached.use(row, before, -number)
                    if after is not None:
                        self.attached.use(row, after, number)

    def _recount_volume(self, name: str) -> None:
        self._recount(*self._wanting.get(name, ()))
        self._reattach(*self._attachments_of.get(f"volume {name}", ()))

    def _drop_claim(self, key: str) -> None:
        dropped = self.claims.pop(key, None)
        if dropped is not None and dropped.volume:
            _discard(self._wanting, dropped.volume, key)

    def _drop_volume(self, name: str) -> None:
        dropped = self.volumes.pop(name, None)
        if dropped is not None:
            del self._of_class[dropped.storage_class][name]

    def _reattach(self, *names: str) -> None:
        for name in names:
            self._detach(name)
            attachment = self._attachments[name]
            row, volume = self._row_of.get(attachment.node), self.volumes.get(attachment.volume)
            if row is None or volume is None or not volume.csi or volume.attachable is None:
                continue
            held = Attachable(driver=attachment.driver, handle=volume.attachable.handle)
            self._attached_as[name] = (row, held)
            self.attached.attach(row, held, 1)

    def _detach(self, name: str) -> None:
        if (attached_as := self._attached_as.pop(name, None)) is not None:
            self.attached.attach(*attached_as, -1)

    def _set_drivers(self, row: int, drivers: Mapping[str, int | None]) -> None:
        self.drivers.put(row, tuple(drivers))
        limits = {name: limit for name, limit in drivers.items() if limit is not None}
        for driver in limits:
            if driver not in self._limits:
                self._limits[driver] = np.full(self._rows, NO_LIMIT, np.int64)
                self._shown_limits[driver] = read_only(self._limits[driver])
        for driver, column in self._limits.items():
            column[row] = limits.get(driver, NO_LIMIT)


def _holds(volume: Volume, claim: VolumeClaim) -> bool:
    """Return whether a volume fits a claim by what even a volume reserved for the claim must meet."""
    return (
        volume.claim in ("", claim.key)  # first, because it excludes most volumes
        and volume.size >= claim.size
        and volume.volume_mode == claim.volume_mode
        and volume.attributes_class == claim.attributes_class
        and not volume.deleting
    )


def _suits(volume: Volume, claim: VolumeClaim) -> bool:
    """Return whether a volume that is not reserved may be bound to a claim."""
    return claim.modes <= volume.modes and claim.selector.matches(dict(volume.labels))


def _copied(counters: Mapping[K, Counter[int]]) -> dict[K, Counter[int]]:
    return {key: counter.copy() for key, counter in counters.items()}


def _discard(sets: dict[str, set[str]], key: str, name: str) -> None:
    """Remove a name from the set of a key, and the set if it is empty."""
    sets[key].discard(name)
    if not sets[key]:
        del sets[key]
