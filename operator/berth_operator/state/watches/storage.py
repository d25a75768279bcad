"""Apply API events of VolumeClaims, volumes and their provisioners to the Fleet's volumes, and wake pods."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from berth_api.values import keys
from berth_client.reflector import Source
from berth_operator.core.decision.gang import Gang
from berth_operator.core.filters import Filter
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.queue.queue import NOT_CONCERNED, Parked
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.storage import Volume
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import volumes
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]

_STORAGE: Final = "/apis/storage.k8s.io/v1"


class Storage:
    """Applies the API events about storage."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.volumes, self._waker = cluster, cluster.fleet.volumes, cluster.waker
        self.on_claim: Callable[[str], None] = lambda _key: None
        """Called with each claim (namespace/name) that changed, or whose volume changed."""

    def put_claim(self, raw: Object) -> None:
        """Add or update a PersistentVolumeClaim."""
        claim = volumes.claim(raw)
        known = self.volumes.claims.get(claim.key)
        self.volumes.put_claim(claim)
        if known != claim:
            self._changed(Change.VOLUME_CLAIM, lambda key: key == claim.key)
        self.on_claim(claim.key)

    def remove_claim(self, key: str) -> None:
        """Remove a PersistentVolumeClaim (namespace/name)."""
        self._waker.record_change()
        self.volumes.remove_claim(key)
        self.on_claim(key)

    def put_volume(self, raw: Object) -> None:
        """Add or update a PersistentVolume."""
        volume = volumes.volume(raw)
        known = self.volumes.volumes.get(volume.name)
        self.volumes.put_volume(volume)
        if known != volume:
            self._changed(Change.VOLUME, lambda claim: self.volumes.may_serve(volume, claim))
        self._notify_claims(known, volume)

    def remove_volume(self, name: str) -> None:
        """Remove a PersistentVolume."""
        self._waker.record_change()
        known = self.volumes.volumes.get(name)
        self.volumes.remove_volume(name)
        self._notify_claims(known, None)

    def put_class(self, raw: Object) -> None:
        """Add or update a StorageClass."""
        storage_class = volumes.storage_class(raw)
        if self.volumes.classes.get(storage_class.name) != storage_class:
            self.volumes.put_class(storage_class)
            self._changed(Change.STORAGE_CLASS, lambda claim: self.volumes.is_of_class(claim, storage_class.name))

    def put_capacity(self, raw: Object) -> None:
        """Add or update a CSIStorageCapacity."""
        capacity = volumes.capacity(raw)
        known = self.volumes.capacities.get(capacity.storage_class, {}).get(capacity.key)
        self.volumes.put_capacity(capacity)
        if known is None or (capacity.limit or 0) > (known.limit or 0):
            name = capacity.storage_class
            self._changed(Change.STORAGE_CAPACITY, lambda claim: self.volumes.is_of_class(claim, name))

    def put_driver(self, raw: Object) -> None:
        """Add or update a CSIDriver."""
        self._set_driver(
            keys.name_of(raw), tracked=volumes.tracks_capacity(raw), required=volumes.is_required_on_nodes(raw)
        )

    def remove_driver(self, name: str) -> None:
        """Remove a CSIDriver."""
        self._set_driver(name, tracked=False, required=False)

    def _set_driver(self, name: str, *, tracked: bool, required: bool) -> None:
        """Set whether a driver tracks capacity and must be on the nodes of its pods; wake the pods that this helps."""
        for drivers, on, change in (
            (self.volumes.tracked, tracked, Change.STORAGE_CAPACITY),
            (self.volumes.required, required, Change.VOLUME_LIMITS),
        ):
            if on:
                drivers.add(name)
            elif name in drivers:
                drivers.discard(name)
                self._waker.changed(change)

    def put_limits(self, raw: Object) -> None:
        """Add or update a CSINode."""
        self.volumes.put_drivers(keys.name_of(raw), volumes.drivers(raw))
        self._wake_for_limits(keys.name_of(raw))

    def remove_limits(self, node: str) -> None:
        """Remove a CSINode; its node then has no drivers, and no volume limits."""
        self.volumes.put_drivers(node, {})
        self._wake_for_limits(node)

    def put_attachment(self, raw: Object) -> None:
        """Add or update a VolumeAttachment."""
        if (attachment := volumes.attachment(raw)) is not None:
            self.volumes.put_attachment(attachment)

    def remove_attachment(self, name: str) -> None:
        """Remove a VolumeAttachment."""
        if (attachment := self.volumes.remove_attachment(name)) is not None:
            self._wake_for_limits(attachment.node)

    def _wake_for_limits(self, node: str) -> None:
        """Wake the pods that need more volumes on this node."""
        self._waker.happened(ClusterEvent(change=Change.VOLUME_LIMITS, node=node))

    def _changed(self, change: Change, concerns: Callable[[str], bool]) -> None:
        """Wake the pods that use a claim (namespace/name) which a change concerns."""

        def hint(parked: Parked[PendingPod | Gang]) -> Sequence[Filter] | None:
            used = (use.claim for request in parked.requests for use in request.mounts.claims)
            return None if any(map(concerns, used)) else NOT_CONCERNED

        self._waker.changed_for(change, hint)

    def _notify_claims(self, *versions: Volume | None) -> None:
        for key in {version.claim for version in versions if version is not None and version.claim}:
            self.on_claim(key)


def sources(storage: Storage) -> dict[str, tuple[Source, Table]]:
    """Return {name of the kind: (source, table)} for storage."""
    fleet, to = storage.volumes, storage
    return {
        "claims": _source("/api/v1/persistentvolumeclaims", to.put_claim, to.remove_claim, key=keys.of),
        "volumes": _source("/api/v1/persistentvolumes", to.put_volume, to.remove_volume),
        "storage classes": _source(f"{_STORAGE}/storageclasses", to.put_class, fleet.remove_class),
        "storage capacities": _source(
            f"{_STORAGE}/csistoragecapacities", to.put_capacity, fleet.remove_capacity, key=keys.of
        ),
        "storage drivers": _source(f"{_STORAGE}/csidrivers", to.put_driver, to.remove_driver),
        "volume limits": _source(f"{_STORAGE}/csinodes", to.put_limits, to.remove_limits),
        "volume attachments": _source(f"{_STORAGE}/volumeattachments", to.put_attachment, to.remove_attachment),
    }


def _source(
    path: str,
    put: Callable[[Object], None],
    remove: Callable[[str], None],
    *,
    key: Callable[[Mapping[str, Any]], str] = keys.name_of,
) -> tuple[Source, Table]:
    return Source(path=path), Table(kind=path.rpartition("/")[2], key=key, put=put, remove=remove)
