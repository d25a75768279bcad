"""Apply API events of ResourceSlices, DeviceClasses, ResourceClaims and DeviceTaintRules to the Fleet's claims."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from berth_api import names
from berth_api.values import keys
from berth_client.objects import without_managed_fields
from berth_client.reflector import Source
from berth_operator.core.claims.objects import requests, slices, status, taint_rules
from berth_operator.core.claims.objects.fields import FieldError
from berth_operator.core.claims.objects.slices import Slice, SliceOwner
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.objects.taint_rules import TaintRule
from berth_operator.core.fleet.claims import store
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]
V = TypeVar("V")

_GROUP: Final = "/apis/resource.k8s.io"
_V1: Final = f"{_GROUP}/v1"

KEPT_SECONDS: Final = 600.0
"""Seconds for which the cards of a slice are kept after its pool lost the slice. If a driver does not answer for 30 s,
for example during an upgrade, kubelet deletes its slices. Once it is back, kube-scheduler allocates its cards again."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ResourceClaims:
    """Applies the API events about claims and the devices that they may get."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._claims = cluster, cluster.fleet.claims
        self._classes: dict[str, tuple[str, str]] = {}
        """Name of a DeviceClass -> the extended resource that it names, or an empty text, and when it was created."""

    def put_slice(self, raw: Object) -> None:
        """Add or update a ResourceSlice.

        One that cannot be read, and never could, lists a device that may be any card of the driver's type. One that is
        beyond the slices of its driver that are used on its node is not read.
        """
        name, owner = keys.name_of(raw), slices.owner(raw)
        if self._claims.is_surplus(name, owner):
            self._put_surplus(name, owner)
            return
        self._remove_surplus(name)
        before = self._claims.slices.get(keys.name_of(raw))
        if (slice_ := _read(_as_counted, raw)) is not None:
            self._slices_changed(self._claims.put_slice(slice_), before, slice_)
        elif before is None and (unknown := _read(slices.read_unknown, raw)) is not None:
            self._cluster.node_devices_changed(self._claims.put_unknown(unknown))

    def remove_slice(self, name: str) -> None:
        """Remove a ResourceSlice."""
        self._remove_surplus(name)
        before = self._claims.slices.get(name)
        self._slices_changed(self._claims.remove_slice(name, self._cluster.clock() + KEPT_SECONDS), before)

    def _put_surplus(self, name: str, owner: SliceOwner) -> None:
        if self._claims.put_surplus(name, owner):
            log.warning(
                "too many ResourceSlices, further ones are not used",
                node=owner.node,
                driver=owner.driver,
                used=store.MAX_SLICES,
            )
            self._cluster.node_devices_changed({owner.node})

    def _remove_surplus(self, name: str) -> None:
        if (owner := self._claims.remove_surplus(name)) is not None:
            self._cluster.node_devices_changed({owner.node})

    def put_class(self, raw: Object) -> None:
        """Add or update a DeviceClass."""
        created = raw["metadata"].get("creationTimestamp") or ""
        self._classes[keys.name_of(raw)] = raw["spec"].get("extendedResourceName") or "", created
        self._cluster.set_device_classes(self._classes)
        if (device_class := _read(requests.read_class, raw)) is not None:
            self._claims.put_class(device_class)
            self._cluster.device_class_changed(device_class.name)

    def remove_class(self, name: str) -> None:
        """Remove a DeviceClass."""
        self._classes.pop(name, None)
        self._cluster.set_device_classes(self._classes)
        self._claims.remove_class(name)
        self._cluster.waker.record_change()

    def put_claim(self, raw: Object) -> None:
        """Add or update a ResourceClaim."""
        state = self._claims.claims.get(keys.of(raw))
        known = state.claim if state is not None else None
        if (claim := _read(lambda obj: status.read(obj, known), raw)) is not None:
            with self._noting_served(claim.key, claim):
                before = self._claims.put_claim(claim)
                self._cluster.claim_tracker.claim_changed(before, claim)
            self._claim_changed(before, claim)

    def remove_claim(self, key: str) -> None:
        """Remove a ResourceClaim (namespace/name)."""
        with self._noting_served(key, None):
            before = self._claims.remove_claim(key)
            self._cluster.claim_tracker.claim_changed(before, None)
        self._claim_changed(before, None)

    def put_rule(self, raw: Object) -> None:
        """Add or update a DeviceTaintRule. Rules with Berth's taint are for other schedulers and do not count."""
        if (rule := _read(taint_rules.read, raw)) is None:
            return
        if rule.taint.key == names.OWN_POOL:
            self.remove_rule(rule.name)
        else:
            self._rules_changed(self._claims.put_rule(rule), rule)

    def remove_rule(self, name: str) -> None:
        """Remove a DeviceTaintRule."""
        self._rules_changed(self._claims.remove_rule(name))

    @contextmanager
    def _noting_served(self, key: str, after: ClaimState | None) -> Iterator[None]:
        """Return a context for the change of a claim, after which Berth may begin or cease to serve pools."""
        versions = (self._claims.claims.get(key), after)
        pools = {device.in_pool for claim in versions if claim for device in claim.devices}
        served = {pool: self._claims.serves(pool) for pool in pools}
        yield
        flipped = {pool for pool in pools if self._claims.serves(pool) != served[pool]}
        if flipped:
            self._cluster.served_changed(flipped)

    def _slices_changed(self, nodes: set[str], *versions: Slice | None) -> None:
        self._cluster.node_devices_changed(nodes)
        if any(version is not None and not version.nodes.name for version in versions):
            self._cluster.claim_devices_changed()

    def _rules_changed(self, *versions: TaintRule | None) -> None:
        rules = [version for version in versions if version is not None and version.selects]
        if len(set(rules)) == len(rules):
            nodes = (self._claims.nodes_of_pool(rule.driver, rule.pool) for rule in rules)
            self._cluster.node_devices_changed(set().union(*nodes))
            self._cluster.claim_devices_changed()

    def _claim_changed(self, before: ClaimState | None, after: ClaimState | None) -> None:
        """Wake the pods that a change of a claim may help: its own, and others if it had devices that are free now."""
        if after is not None and before != after:
            self._cluster.waker.claim_changed(after.key)
        if before is not None and before.allocation and (after is None or after.allocation != before.allocation):
            # An allocation names one node also if other nodes can reach some of its devices.
            is_wide = self._claims.supply.is_wide(before.devices)
            for node in (not is_wide and sorted(before.nodes)) or ("",):
                self._cluster.claim_devices_changed(node=node)


def sources(to: ResourceClaims) -> dict[str, tuple[Source, Table]]:
    """Return {name of the kind: (source, table)} for what the API server serves of dynamic resource allocation."""
    return {
        "resource slices": _source(f"{_V1}/resourceslices", to.put_slice, to.remove_slice),
        "device classes": (
            Source(
                path=f"{_V1}/deviceclasses",
                optional=True,
                transform=lambda raw: _without_parameters(without_managed_fields(raw)),
            ),
            Table(kind="deviceclasses", key=keys.name_of, put=to.put_class, remove=to.remove_class),
        ),
        "resource claims": (
            Source(
                path=f"{_V1}/resourceclaims",
                optional=True,
                transform=lambda raw: _without_parameters(status.with_writers(raw)),
            ),
            Table(kind="resourceclaims", key=keys.of, put=to.put_claim, remove=to.remove_claim),
        ),
        # One of the two is served, or none; a server with both shows the same objects by both.
        "device taint rules": _source(f"{_V1}/devicetaintrules", to.put_rule, to.remove_rule),
        "device taint rules of v1beta2": _source(f"{_GROUP}/v1beta2/devicetaintrules", to.put_rule, to.remove_rule),
    }


def _read(read: Callable[[Mapping[str, Any]], V], raw: Object) -> V | None:
    """Return an object as a value; None if it cannot be read, so that the known value stays."""
    try:
        return read(raw)
    except FieldError as error:
        log.warning("change ignored", kind=raw.get("kind"), name=keys.name_of(raw), error=str(error))
        return None


def _as_counted(raw: Mapping[str, Any]) -> Slice:
    """Return a slice as it is counted: Berth counts the cards itself that pods have by name, as it may free them.

    Raises:
        FieldError: a field cannot be read.
    """
    slice_ = slices.read(raw)
    if slice_.pool.driver != names.DRA_DRIVER:
        return slice_
    devices = []
    for device in slice_.devices:
        taints = tuple(taint for taint in device.taints if taint.key != names.HELD_BY_NAME)
        devices.append(replace(device, taints=taints) if taints != device.taints else device)
    return replace(slice_, devices=tuple(devices))


def _without_parameters(raw: Object) -> Object:
    """Remove the parameters for drivers from a claim or class, and return it.

    Parameters may take 10 KiB for each of 32 configurations, nested thousands deep. They are written as they are stored
    (`binding.prebind.parameters`).
    """
    spec, allocation = raw["spec"], (raw.get("status") or {}).get("allocation") or {}
    for owner in (spec, spec.get("devices") or {}, allocation.get("devices") or {}):
        for config in owner.get("config") or ():
            (config.get("opaque") or {}).pop("parameters", None)
    return raw


def _source(path: str, put: Callable[[Object], None], remove: Callable[[str], None]) -> tuple[Source, Table]:
    kind = path.rpartition("/")[2]
    return Source(path=path, optional=True), Table(kind=kind, key=keys.name_of, put=put, remove=remove)
