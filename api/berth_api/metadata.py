"""All labels and annotations of `berth.dev/` that Berth reads or writes, and the values that they may have.

Other names and values have no effect. Berth refuses them on its pods. On other objects it only reports them, because an
earlier or later version may read them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from berth_api import links, names
from berth_api.values import spelling

Place = Literal["label", "annotation"]
LABEL: Final = "label"
ANNOTATION: Final = "annotation"
LONGEST: Final = 63
"""How much of a value messages show: all of a label's, but an annotation's may be long."""
PLACES: Final[tuple[Place, ...]] = (LABEL, ANNOTATION)
NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
POD: Final = "Pod"
DEVICE: Final = "Device"
PREFIX: Final = f"{names.GROUP}/"
SIMILAR: Final = 0.6
"""The least similarity for a suggestion among a few allowed values: `denied` for `deny`."""


@dataclass(frozen=True, slots=True)
class Key:
    """A label or annotation."""

    place: Place
    name: str
    kinds: tuple[str, ...]
    """The kinds of objects that have it."""
    values: tuple[str, ...] = ()
    """The allowed values; empty if they are no closed set."""
    form: str = field(default="", kw_only=True)
    """What the values look like otherwise, in Markdown."""
    by_berth: bool = field(default=False, kw_only=True)
    """Whether Berth writes it. Otherwise people and their programs write it."""

    @property
    def allowed(self) -> str:
        """Return the allowed values as messages list them."""
        return f"allowed {'are' if len(self.values) > 1 else 'is'} {', '.join(self.values)}"


_BOOLEAN: Final = ("true", "false")
_ISOLATION: Final = ("mps", "hami-core", "required", "none")
_NUMBER: Final = "a whole number"
_DEVICES: Final = "minors of GPUs, types with minors, UUIDs and PCI addresses, joined by commas, such as `0,rdma/1`"
_LISTED_DEVICE: Final = ("entry of a Device",)
_LEASE: Final = (names.LEADER_LEASE,)
TABLE: Final = (
    Key(
        LABEL,
        names.CARDS_KEY,
        (NODE,),
        (names.CARDS_BY_NAME, names.CARDS_BY_CLAIMS, names.CARDS_BY_SHARES, names.CARDS_BY_CLAIMS_AND_NAME),
    ),
    Key(LABEL, names.PARTITIONS_KEY, (NODE,), (names.PARTITIONS_ON_ALL,)),
    Key(LABEL, names.ISOLATION_KEY, (NODE,), ("mps",)),
    Key(LABEL, names.MANAGED, (NODE,), _BOOLEAN, by_berth=True),
    Key(LABEL, f"{names.MODEL_PREFIX}<model>", (NODE,), form=_NUMBER, by_berth=True),
    Key(LABEL, names.ROUTING, (NAMESPACE,), ("own", "words", "devices", "disabled")),
    Key(LABEL, names.ISOLATION_KEY, (NAMESPACE,), _ISOLATION),
    Key(LABEL, names.UNLIMITED_SHARES, (NAMESPACE,), ("allow", "warn", "deny")),
    Key(ANNOTATION, names.CONTROLLER_GANGS, (NAMESPACE,), _BOOLEAN),
    Key(ANNOTATION, names.MODEL_GLOBS, (POD,), form="globs of models, joined by commas, such as `*A100*, !*40GB*`"),
    Key(ANNOTATION, names.MIN_GPU_MEMORY, (POD,), form="a quantity above 0, such as `20Gi`"),
    Key(ANNOTATION, names.GPU_TOPOLOGY, (POD,), (*links.LEVELS, "pcie", "numa")),
    Key(ANNOTATION, names.GPU_TOPOLOGY_POLICY, (POD,), ("required", "preferred")),
    Key(ANNOTATION, names.GPU_SUBDEVICES, (POD,), ("last", "equal", "never", "only")),
    Key(ANNOTATION, names.MIXED_GPUS, (POD,), _BOOLEAN),
    Key(ANNOTATION, names.ISOLATION_KEY, (POD,), _ISOLATION),
    Key(ANNOTATION, names.MOVABLE, (POD, NAMESPACE), _BOOLEAN),
    Key(ANNOTATION, names.POD_GROUP, (POD,), form="the name of an object of Kubernetes"),
    Key(ANNOTATION, names.POD_GROUP_MIN_MEMBER, (POD,), form=f"{_NUMBER} from 1 to 2147483647"),
    Key(ANNOTATION, names.EPOCH, (POD, "Binding"), form=_NUMBER, by_berth=True),
    Key(ANNOTATION, names.ORIGINAL_RESOURCES, (POD,), form="JSON", by_berth=True),
    Key(ANNOTATION, names.WORKLOAD, (POD,), form="the name of a Workload", by_berth=True),
    Key(ANNOTATION, names.POD_SET, (POD,), form="the name of a pod set", by_berth=True),
    Key(ANNOTATION, names.BOUND_WITH, (POD,), form="two numbers and ends of UIDs", by_berth=True),
    *(
        Key(ANNOTATION, f"<container>{suffix}", (POD,), form=form, by_berth=True)
        for suffix, form in (
            (names.VISIBLE_SUFFIX, "UUIDs, joined by commas"),
            (names.BY_CLASS_SUFFIX, "resources, joined by commas"),
            (f"{names.LIMIT_PREFIX.format('memory')}<i>", "bytes"),
            (f"{names.LIMIT_PREFIX.format('sm')}<i>", f"{_NUMBER} from 1 to 100"),
            (names.MPS_MEMORY_SUFFIX, "MiB of each card, such as `0=4096M,1=4096M`"),
            (names.MPS_THREADS_SUFFIX, f"{_NUMBER} from 1 to 100"),
        )
    ),
    Key(LABEL, names.FENCED_BY, (POD, "Binding", "ResourceClaim"), form="the name of a LeaderLease", by_berth=True),
    Key(ANNOTATION, names.CORDONED_DEVICES, (DEVICE,), form=_DEVICES),
    Key(ANNOTATION, names.RECOVERED_DEVICES, (DEVICE,), form=_DEVICES),
    Key(ANNOTATION, names.RESERVED_MINORS, (DEVICE,), form="types with ids and minors", by_berth=True),
    Key(LABEL, names.DEVICE_MODEL, _LISTED_DEVICE, form="text", by_berth=True),
    Key(LABEL, names.DEVICE_NUMA_NODE, _LISTED_DEVICE, form=_NUMBER, by_berth=True),
    Key(LABEL, names.DEVICE_PCIE_SWITCH, _LISTED_DEVICE, form="text", by_berth=True),
    Key(LABEL, names.DEVICE_UUID, _LISTED_DEVICE, form="a UUID or a PCI address", by_berth=True),
    Key(LABEL, names.DEVICE_PARTITION, _LISTED_DEVICE, form="a mode, such as `cpx_nps4`", by_berth=True),
    Key(LABEL, names.DEVICE_RDMA, _LISTED_DEVICE, form="a name, such as `mlx5_0`", by_berth=True),
    Key(LABEL, names.DEVICE_LINK_LAYER, _LISTED_DEVICE, ("InfiniBand", "Ethernet"), by_berth=True),
    Key(LABEL, names.NODE_LABEL, ("GpuPod",), form="the name of a Node, truncated", by_berth=True),
    Key(LABEL, names.OWN_POOL, ("DeviceTaintRule",), form="a hash of the installation's name", by_berth=True),
    Key(ANNOTATION, names.DRAINED, _LEASE, form=_NUMBER, by_berth=True),
    Key(ANNOTATION, names.HINDRANCE, _LEASE, form="text", by_berth=True),
    Key(ANNOTATION, names.EARLIER_STATES, _LEASE, form=_NUMBER, by_berth=True),
    Key(ANNOTATION, names.LOST_PLACES, _LEASE, form="JSON", by_berth=True),
    Key(ANNOTATION, names.VISIBILITY_ADDRESS, _LEASE, form="`host:port`", by_berth=True),
)


def of(kind: str, place: Place) -> dict[str, Key]:
    """Return the labels or annotations of a kind of objects, by name."""
    return _OF.get((kind, place), {})


def unknown(kind: str, place: Place, written: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name of `berth.dev/` that a kind of objects does not have, and what may be meant."""
    known = of(kind, place)
    return ((name, _meant(kind, name)) for name in written if name.startswith(PREFIX) and name not in known)


def wrong(kind: str, place: Place, written: Mapping[str, str]) -> Iterator[Key]:
    """Yield each label or annotation whose value is not one of a closed set."""
    for name in written:
        key = of(kind, place).get(name)
        if key and key.values and written[name] not in key.values:
            yield key


def without_effect(kind: str, place: Place, written: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name of `berth.dev/` that has no effect, or not with its value, and the message about it."""
    for name, meant in unknown(kind, place, written):
        yield name, f"{place} {name}={written[name]:.{LONGEST}} has no effect: {meant}"
    for key in wrong(kind, place, written):
        nearest = spelling.closest(written[key.name], key.values, SIMILAR)
        question = f"; did you mean {nearest}?" if nearest else ""
        yield key.name, f"{place} {key.name}={written[key.name]:.{LONGEST}} has no effect: {key.allowed}{question}"


def _meant(kind: str, name: str) -> str:
    same_name = [key for key in TABLE if key.name == name and not key.by_berth]
    for key in same_name:
        if kind in key.kinds:
            return f"did you mean the {key.place} of this name?"
    if same_name:
        article = {LABEL: "a", ANNOTATION: "an"}
        other_kinds = (f"{article[key.place]} {key.place} of {other}s" for key in same_name for other in key.kinds)
        return f"it is {', '.join(other_kinds)}"
    known = [key.name.removeprefix(PREFIX) for key in TABLE if kind in key.kinds and not key.by_berth]
    return spelling.question(name.removeprefix(PREFIX), known, PREFIX)


_OF: Final = {
    (kind, place): {key.name: key for key in TABLE if kind in key.kinds and key.place == place}
    for kind in {kind for key in TABLE for kind in key.kinds}
    for place in PLACES
}
