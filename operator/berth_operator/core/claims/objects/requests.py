"""ResourceClaims and DeviceClasses: which devices are requested."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.fields import Field
from berth_operator.core.claims.objects.slices import DeviceTaint

ALL: Final = "All"
EXACT: Final = "ExactCount"
EXISTS: Final = "Exists"
EQUAL: Final = "Equal"

Object = Mapping[str, Any]


class DeviceToleration(NamedTuple):
    """A toleration of device taints."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Return whether it tolerates a taint; an empty key or effect means any."""
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == EXISTS or (self.operator in ("", EQUAL) and self.value == taint.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for devices of one class, or a subrequest. The first possible subrequest is taken."""

    name: str
    parent: str = ""
    """The request that it is a subrequest of, if any."""
    device_class: str
    mode: str = EXACT
    count: int = 1
    admin: bool | None = None
    """`adminAccess`; None if it is absent."""
    selectors: tuple[str | None, ...] = ()
    """CEL expressions; None for a selector of another type."""
    tolerations: tuple[DeviceToleration, ...] = ()
    raw_tolerations: tuple[Object, ...] = ()
    capacity: Mapping[str, ExactQuantity]
    names_capacity: bool = False
    """Whether `capacity` is set, even if it is empty."""
    derived: bool = False
    """Whether it has derived attributes, which are alpha."""

    @property
    def summed_count(self) -> int:
        """Return `count` for sums of 64 bits: at most 2**31 - 1. The API server accepts up to 2**63 - 1."""
        return min(self.count, 2**31 - 1)

    @property
    def full_name(self) -> str:
        """Return its name in results: `request` or `request/subrequest`."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names with which constraints and configurations refer to it."""
        return (self.parent, self.full_name) if self.parent else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """A claim's request: itself, or its subrequests in order of preference."""

    name: str
    choices: tuple[Request, ...]
    prioritized: bool
    """Whether it has subrequests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Devices of the requests have the same value of an attribute, or different ones."""

    attribute: str
    """Its qualified name; empty if the constraint is of another type."""
    distinct: bool = False
    requests: frozenset[str] = frozenset()
    """Names of requests or subrequests; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration for the driver."""

    requests: tuple[str, ...] = ()
    raw: Object
    """Without `requests`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceClaim:
    """The spec of a ResourceClaim, which cannot change."""

    namespace: str
    name: str
    uid: str = ""
    """Empty if it does not exist yet."""
    requests: tuple[Alternatives, ...]
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Config, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str | None, ...] = ()
    config: tuple[Config, ...] = ()


def read_claim(raw: Object) -> ResourceClaim:
    """Read a ResourceClaim of `resource.k8s.io/v1`.

    Raises:
        FieldError: a field cannot be read.
    """
    metadata, devices = Field(raw, "").at("metadata"), Field(raw, "").at("spec").at("devices")
    return ResourceClaim(
        namespace=metadata.at("namespace").text(),
        name=metadata.at("name").text(),
        uid=metadata.at("uid").text(),
        requests=tuple(map(_alternatives, devices.at("requests").items())),
        constraints=tuple(map(_constraint, devices.at("constraints").items())),
        config=tuple(map(_config, devices.at("config").items())),
    )


def read_class(raw: Object) -> DeviceClass:
    """Read a DeviceClass of `resource.k8s.io/v1`; raises as `read_claim`."""
    spec = Field(raw, "").at("spec")
    return DeviceClass(
        name=Field(raw, "").at("metadata").at("name").text(),
        selectors=tuple(_selectors(spec)),
        config=tuple(map(_config, spec.at("config").items())),
    )


def _alternatives(item: Field) -> Alternatives:
    name, listed = item.at("name").text(), tuple(item.at("firstAvailable").items())
    choices = tuple(_request(choice, choice.at("name").text(), parent=name) for choice in listed)
    return Alternatives(name=name, choices=choices or (_request(item.at("exactly"), name),), prioritized=bool(choices))


def _request(item: Field, name: str, *, parent: str = "") -> Request:
    tolerations = tuple(item.at("tolerations").items())
    capacity, admin = item.at("capacity"), item.at("adminAccess")
    return Request(
        name=name,
        parent=parent,
        device_class=item.at("deviceClassName").text(),
        mode=item.at("allocationMode").text(EXACT),
        count=item.at("count").integer(1),
        admin=None if admin.value is None else admin.boolean(),
        selectors=tuple(_selectors(item)),
        tolerations=tuple(
            DeviceToleration(*(toleration.at(key).text() for key in ("key", "operator", "value", "effect")))
            for toleration in tolerations
        ),
        raw_tolerations=tuple(toleration.value for toleration in tolerations),
        capacity={key: entry.quantity() for key, entry in capacity.at("requests").entries()},
        names_capacity=capacity.value is not None,
        derived=bool(item.at("derivedAttributes").value),
    )


def _selectors(owner: Field) -> Iterator[str | None]:
    for item in owner.at("selectors").items():
        cel = item.at("cel")
        yield None if cel.value is None else cel.at("expression").text()


def _constraint(item: Field) -> Constraint:
    match, distinct = item.at("matchAttribute").text(), item.at("distinctAttribute").text()
    return Constraint(
        attribute=match or distinct,
        distinct=bool(distinct) and not match,
        requests=frozenset(item.at("requests").texts()),
    )


def _config(item: Field) -> Config:
    raw = {key: entry.value for key, entry in item.entries() if key != "requests"}
    return Config(requests=item.at("requests").texts(), raw=raw)
