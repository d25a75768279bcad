"""Apply API events of Kueue's Workloads, ResourceFlavors and AdmissionChecks to the Workloads of the state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import structlog

from berth_api.values import keys
from berth_client.objects import READING_ERRORS
from berth_client.reflector import Source
from berth_operator.core.claims.objects.fields import Field, FieldError
from berth_operator.core.values.quota_workload import PodSet
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.unreadable import UnreadableObjects
from berth_operator.state.objects import pod_sets, workloads
from berth_operator.state.objects.pod_sets import Templates, UnknownFlavorError
from berth_operator.state.objects.workloads import WorkloadView
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]

API: Final = "/apis/kueue.x-k8s.io/v1beta2"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Pod sets, and the fields that they were read from."""

    fields: tuple[Any, ...]
    pod_sets: tuple[PodSet, ...]


class QuotaObjects:
    """Applies the API events about Workloads with our AdmissionChecks, and about what their pods depend on."""

    def __init__(self, cluster: Cluster, templates: Templates) -> None:
        self._cluster, self._templates = cluster, templates
        cluster.admission_rules.on_classes = self._read_again
        self._raw: dict[str, Object] = {}
        """namespace/name -> unfinished Workload that lists an AdmissionCheck, of whatever controller."""
        self._unreadable = UnreadableObjects("workloads")
        self._read: dict[str, _Read] = {}
        self.views: dict[str, WorkloadView] = {}
        """namespace/name -> Workload with one of our AdmissionChecks."""
        self.checks: dict[str, Object] = {}
        """Name -> AdmissionCheck of our controller."""
        self.on_change: Callable[[str], None] = lambda _key: None
        """Called with a Workload's key after it has changed."""
        self.on_check: Callable[[], None] = lambda: None
        """Called after one of our AdmissionChecks has changed."""

    def put_workload(self, raw: Object) -> None:
        """Add or update a Workload."""
        key = keys.of(raw)
        if raw["status"].get("admissionChecks"):
            self._raw[key] = raw
            self._update(key)
        else:
            # It has finished, or its queue asks for no check any more.
            self.remove_workload(key)

    def remove_workload(self, key: str) -> None:
        """Remove a Workload (namespace/name)."""
        self._raw.pop(key, None)
        self._unreadable.discard(key)
        self._forget(key)

    def put_flavor(self, raw: Object) -> None:
        """Add or update a ResourceFlavor. If it cannot be read, its known values stay."""
        try:
            flavor = pod_sets.read_flavor(raw)
        except FieldError as error:
            log.warning("change ignored", kind="ResourceFlavor", name=keys.name_of(raw), error=str(error))
            return
        if self._templates.flavors.get(keys.name_of(raw)) != flavor:
            self._templates.flavors[keys.name_of(raw)] = flavor
            self._read_again()

    def remove_flavor(self, name: str) -> None:
        """Remove a ResourceFlavor. Workloads to which it was assigned keep the pods that were read with it."""
        self._templates.flavors.pop(name, None)

    def put_check(self, raw: Object) -> None:
        """Add or update an AdmissionCheck. Other controllers' AdmissionChecks are ignored."""
        name = keys.name_of(raw)
        if raw["spec"].get("controllerName") != workloads.CONTROLLER:
            return
        for condition in (raw.get("status") or {}).get("conditions") or ():
            # They are read again to write our condition, where an error would end the operator.
            condition.get("type")
        is_new, self.checks[name] = name not in self.checks, raw
        self.on_check()
        if is_new:
            self._update_all()

    def remove_check(self, name: str) -> None:
        """Remove an AdmissionCheck."""
        if self.checks.pop(name, None) is not None:
            self._update_all()

    def _read_again(self) -> None:
        self._read.clear()
        self._update_all()

    def _update_all(self) -> None:
        for key in tuple(self._raw):
            self._update(key)

    def _update(self, key: str) -> None:
        try:
            view = workloads.read(self._raw[key], self.checks, self._pod_sets)
        except UnknownFlavorError:
            return  # it is read again with the flavor
        except READING_ERRORS as error:
            # Not an error of the flavor or check with which it is read again.
            self._unreadable.put(key, self._raw[key], error)
            return
        self._unreadable.discard(key)
        if view is None:
            self._forget(key)
            return
        self.views[key] = view
        if not view.workload.pod_sets:
            self._read.pop(key, None)
        self._cluster.workloads.put(view.workload)
        self.on_change(key)

    def _pod_sets(self, workload: Field) -> tuple[PodSet, ...]:
        """Return a Workload's pod sets, the same objects as before if nothing that they depend on has changed."""
        raw = workload.value
        key, status = keys.of(raw), raw["status"]
        updates = [update for check in status["admissionChecks"] for update in check.get("podSetUpdates") or ()]
        placed = [update for update in updates if "nodeSelector" in update or "tolerations" in update]
        fields = raw["spec"].get("podSets"), status.get("admission"), status.get("reclaimablePods"), placed
        if key not in self._read or self._read[key].fields != fields:
            self._read[key] = _Read(fields=fields, pod_sets=pod_sets.read(workload, self._templates))
        return self._read[key].pod_sets

    def _forget(self, key: str) -> None:
        self._read.pop(key, None)
        if self.views.pop(key, None) is not None:
            self._cluster.workloads.remove(key)
            self.on_change(key)


def sources(to: QuotaObjects) -> Iterator[tuple[str, tuple[Source, Table]]]:
    """Yield (name of the kind, (source, table)) for what the API server serves of Kueue."""
    workload = Source(path=f"{API}/workloads", optional=True, transform=workloads.transform)
    yield "workloads", (workload, Table(kind="workloads", key=keys.of, put=to.put_workload, remove=to.remove_workload))
    yield "resource flavors", _source(f"{API}/resourceflavors", to.put_flavor, to.remove_flavor)
    yield "admission checks", _source(f"{API}/admissionchecks", to.put_check, to.remove_check)


def _source(path: str, put: Callable[[Object], None], remove: Callable[[str], None]) -> tuple[Source, Table]:
    kind = path.rpartition("/")[2]
    return Source(path=path, optional=True), Table(kind=kind, key=keys.name_of, put=put, remove=remove)
