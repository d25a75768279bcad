"""ResourceSlices: devices of a pool, and the counters that they share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from berth_operator.core.claims.objects import capacity, nodes
from berth_operator.core.claims.objects.capacity import DeviceCapacity
from berth_operator.core.claims.objects.fields import Field
from berth_operator.core.claims.objects.nodes import Nodes
from berth_operator.core.claims.selectors import DeviceView, Version, parse_version
from berth_operator.core.claims.selectors.version import VersionError

TYPES: Final = ("int", "bool", "string", "version")
"""The types of attributes."""
LISTS: Final = ("ints", "bools", "strings", "versions")
"""Alpha types. No selector sees an attribute of such a type, and no constraint holds between two."""


class PoolID(NamedTuple):
    """The driver, and the pool's name among its pools."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class SliceOwner(NamedTuple):
    """The node that a slice names, and the driver."""

    node: str
    driver: str


class DeviceID(NamedTuple):
    """The identity of a device in the cluster."""

    driver: str
    pool: str
    device: str

    @property
    def in_pool(self) -> PoolID:
        """Return its pool."""
        return PoolID(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class Attribute(NamedTuple):
    """An attribute; two are equal if type and value are."""

    type: str
    """One of TYPES or LISTS, or empty for a type that is not known."""
    value: bool | int | str | None

    @property
    def comparable(self) -> bool:
        """Return whether constraints can compare it."""
        return self.type in TYPES


PREVENTING: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep requests and pods away; others are for information."""


class CounterID(NamedTuple):
    """A counter of a pool."""

    set: str
    counter: str


class DeviceTaint(NamedTuple):
    """A device taint."""

    key: str
    value: str
    effect: str


# Compared and hashed by identity: each device is parsed once, and is a key of what a search remembers.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """A device of a slice."""

    id: DeviceID
    pool: PoolID
    view: DeviceView
    attributes: Mapping[str, Attribute]
    """Attributes by qualified name. Names without a domain have the driver's domain."""
    capacity: Mapping[str, DeviceCapacity]
    """Capacities by the name in the slice."""
    consumes: tuple[tuple[CounterID, int], ...]
    """What it takes of counters, in billionths."""
    consumes_sets: tuple[str, ...]
    taints: tuple[DeviceTaint, ...]
    nodes: Nodes
    """Its own with per-device node selection, else the slice's."""
    own_nodes: bool
    binds_to_node: bool
    binding_conditions: tuple[str, ...]
    binding_failure_conditions: tuple[str, ...]
    shareable: bool
    """Whether it allows multiple allocations."""
    compares_capacity: bool
    """Whether its capacities decide even about a request that names none: it is shared, or they have policies."""
    unsupported: str
    """What selectors cannot evaluate of it, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """A ResourceSlice."""

    name: str
    pool: PoolID
    generation: int
    count: int
    """How many slices of this generation the pool has."""
    nodes: Nodes
    own_nodes: bool
    """Whether each device names its nodes."""
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Mapping[str, int]], ...]
    """Shared counters by set and name, in billionths."""
    has_groups: bool
    """Whether a device declares compatibility groups, which are alpha and not supported."""


def read(raw: Mapping[str, Any]) -> Slice:
    """Read a ResourceSlice of `resource.k8s.io/v1`.

    Raises:
        FieldError: a field cannot be read.
    """
    slice_ = Field(raw, "")
    spec = slice_.at("spec")
    pool = PoolID(spec.at("driver").text(), spec.at("pool").at("name").text())
    own_nodes, of_slice = spec.at("perDeviceNodeSelection").boolean(), nodes.read(spec)
    devices = tuple(_device(item, pool, None if own_nodes else of_slice) for item in spec.at("devices").items())
    counter_sets = []
    for counter_set in spec.at("sharedCounters").items():
        counters = {name: entry.at("value").quantity().amount for name, entry in counter_set.at("counters").entries()}
        counter_sets.append((counter_set.at("name").text(), counters))
    return Slice(
        name=slice_.at("metadata").at("name").text(),
        pool=pool,
        generation=spec.at("pool").at("generation").integer(),
        count=spec.at("pool").at("resourceSliceCount").integer(),
        nodes=of_slice,
        own_nodes=own_nodes,
        devices=devices,
        counter_sets=tuple(counter_sets),
        has_groups=any(
            consumption.at("compatibilityGroups").value
            for item in spec.at("devices").items()
            for consumption in item.at("consumesCounters").items()
        ),
    )


def owner(raw: Mapping[str, Any]) -> SliceOwner:
    """Return the node and the driver of a ResourceSlice that may be unreadable; empty texts for what it lacks."""
    spec = raw.get("spec") or {}
    node, driver = spec.get("nodeName"), spec.get("driver")
    return SliceOwner(node if isinstance(node, str) else "", driver if isinstance(driver, str) else "")


def read_unknown(raw: Mapping[str, Any]) -> Slice:
    """Read only the pool and node of a ResourceSlice. The slice lists one unknown device.

    Raises:
        FieldError: these fields cannot be read either.
    """
    spec = Field(raw, "").at("spec")
    pool = {"name": spec.at("pool").at("name").text()}
    where = {"driver": spec.at("driver").text(), "nodeName": spec.at("nodeName").text()}
    return read({"metadata": raw["metadata"], "spec": {**where, "pool": pool, "devices": [{"name": ""}]}})


def _device(item: Field, pool: PoolID, of_slice: Nodes | None) -> Device:
    # Of two with the same name the one that is written with its domain is last and counts.
    entries = sorted(item.at("attributes").entries(), key=lambda named: "/" in named[0])
    attributes = {_qualified(name, pool.driver): _attribute(entry) for name, entry in entries}
    capacities = {name: capacity.read(entry) for name, entry in item.at("capacity").entries()}
    visible, unsupported = _visible(attributes)
    shareable = item.at("allowMultipleAllocations").boolean()
    consumes, consumes_sets = [], []
    for consumption in item.at("consumesCounters").items():
        consumes_sets.append(consumption.at("counterSet").text())
        for counter, entry in consumption.at("counters").entries():
            consumes.append((CounterID(consumes_sets[-1], counter), entry.at("value").quantity().amount))
    taints = item.at("taints").items()
    return Device(
        id=DeviceID(*pool, item.at("name").text()),
        pool=pool,
        view=DeviceView(
            pool.driver,
            visible,
            {_qualified(name, pool.driver): entry.value.decimal() for name, entry in capacities.items()},
            shareable,
        ),
        attributes=attributes,
        capacity=capacities,
        consumes=tuple(consumes),
        consumes_sets=tuple(consumes_sets),
        taints=tuple(DeviceTaint(*(taint.at(key).text() for key in ("key", "value", "effect"))) for taint in taints),
        nodes=nodes.read(item) if of_slice is None else of_slice,
        own_nodes=of_slice is None,
        binds_to_node=item.at("bindsToNode").boolean(),
        binding_conditions=item.at("bindingConditions").texts(),
        binding_failure_conditions=item.at("bindingFailureConditions").texts(),
        shareable=shareable,
        compares_capacity=shareable
        or any(entry.policy is not None or entry.value.amount < 0 for entry in capacities.values()),
        unsupported=unsupported,
    )


def _attribute(entry: Field) -> Attribute:
    kind = next((kind for kind in (*TYPES, *LISTS) if entry.at(kind).value is not None), "")
    value = entry.at(kind)
    match kind:
        case "int":
            return Attribute(kind, value.integer())
        case "bool":
            return Attribute(kind, value.boolean())
        case "string" | "version":
            return Attribute(kind, value.text())
    return Attribute(kind, None)


def _visible(attributes: Mapping[str, Attribute]) -> tuple[dict[str, bool | int | str | Version], str]:
    """Return what selectors see of attributes, and why they can see nothing, if so."""
    visible: dict[str, bool | int | str | Version] = {}
    for name, (kind, value) in attributes.items():
        if kind == "version":
            try:
                visible[name] = parse_version(str(value))
            except VersionError as error:
                return {}, f"attribute {name}: parse semantic version: {error}"
        elif kind not in LISTS:
            if value is None:
                return {}, f"attribute {name}: unsupported attribute value"
            visible[name] = value
    return visible, ""


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"
