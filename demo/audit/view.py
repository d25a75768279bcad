"""Pods, nodes and Devices as the API server gives them, reduced to what the audit reads."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Self

from demo.audit import quantity, requests
from demo.audit.requests import Form

Manifest = Mapping[str, Any]

ALLOCATION: Final = "scheduling.koordinator.sh/device-allocated"
OVER: Final = ("Succeeded", "Failed")
SLICE_MARK: Final = "::"
"""Between a card's id and the number of a slice."""
SHARED: Final = ("gpu-core", "gpu-memory", "gpu-memory-ratio")
"""What is charged of each slice."""
PERCENTAGES: Final = ("gpu-core", "gpu-memory-ratio", "rdma", "fpga")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One card: its node, type and minor."""

    node: str
    type: str
    minor: int

    def __str__(self) -> str:
        return f"card {self.node}/{self.type} {self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a Device lists about one card."""

    id: str
    model: str
    offers: Mapping[str, int]
    slices: int = 1
    """The number of its time slices."""
    slice_resource: str = ""
    """The only resource that requests its slices; empty if both do."""
    divided: bool = False
    """Whether its instances are allocated, not the card."""
    mig_single: bool = False
    """Whether each of them is a GPU, whatever its profile."""
    instances: Mapping[str, str] = field(default_factory=dict)
    """UUID -> resource."""

    @classmethod
    def read(cls, raw: Manifest, strategy: str) -> Self:
        """Read an entry of a Device's `spec.devices`, under its `spec.migStrategy`."""
        offers = {requests.short(name): quantity.whole(value) for name, value in (raw.get("resources") or {}).items()}
        mig = raw.get("mig") or {}
        return cls(
            id=raw["id"],
            model=raw.get("model", ""),
            offers=offers,
            slices=raw.get("replicas", 1),
            slice_resource=raw.get("replicaResource", ""),
            divided=bool(mig.get("enabled")) and strategy != "none",
            mig_single=strategy == "single",
            instances=dict(chain.from_iterable(map(_offered, mig.get("instances") or ()))),
        )

    def form(self, requested: Form) -> Form | None:
        """Return the form in which a request gets the card; None if it does not."""
        if self.divided:
            return Form.INSTANCE if requested is (Form.PLUGIN_UNIT if self.mig_single else Form.INSTANCE) else None
        if requested in (Form.PLUGIN_UNIT, Form.SLICE) and self.slices > 1:
            other_resource = requests.SLICES if requested is Form.PLUGIN_UNIT else requests.WHOLE_CARDS[0]
            return Form.SLICE if self.slice_resource != other_resource else None
        return Form.CARD if requested in (Form.PLUGIN_UNIT, Form.CARD) else None

    def names(self, grant: "Grant") -> bool:
        """Return whether the id of a grant belongs to this card."""
        if grant.form is Form.INSTANCE:
            return self.instances.get(grant.id) == grant.instance
        if grant.form is Form.SLICE:
            return grant.id in {f"{self.id}{SLICE_MARK}{number}" for number in range(self.slices)}
        return grant.id == self.id

    def expected(self, grant: "Grant", request: requests.Request) -> dict[str, int]:
        """Return the amounts that the grant must have for the request."""
        if grant.form is Form.INSTANCE:
            return {grant.instance: 1}
        if grant.form is Form.SLICE:
            return {requests.SLICES: 1, **{name: self.offers.get(name, 0) // self.slices for name in SHARED}}
        return request.on(self.offers.get("gpu-memory", 0))

    def limit(self, resource: str) -> int:
        """Return how much of a resource all holders together may have: of a percentage never more than 100."""
        if resource == requests.SLICES:
            return self.slices
        if resource.startswith(requests.INSTANCES):
            return list(self.instances.values()).count(resource)
        offered = self.offers.get(resource, 0)
        return min(offered, requests.PERCENT) if resource in PERCENTAGES else offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A pod's part of one card, from its annotation."""

    type: str
    minor: int
    id: str
    amounts: Mapping[str, int]

    @property
    def form(self) -> Form:
        """The form in which the card is allocated."""
        if self.instance:
            return Form.INSTANCE
        return Form.SLICE if requests.SLICES in self.amounts else Form.CARD

    @property
    def instance(self) -> str:
        """The resource of the MIG instance; empty if there is none."""
        return next((name for name in self.amounts if name.startswith(requests.INSTANCES)), "")

    @property
    def name(self) -> str:
        """What no other pod may hold: the card, or the part of it with its own name."""
        card = f"{self.type} {self.minor}"
        return card if self.form is Form.CARD else f"{self.form} {self.id} of {card}"

    @property
    def seen(self) -> str:
        """The id by which a container sees it: a slice is seen as its card."""
        return self.id.partition(SLICE_MARK)[0]

    @property
    def whole(self) -> bool:
        """Whether no other pod may hold the card."""
        return self.amounts.get("gpu-memory-ratio", self.amounts.get(self.type, 0)) >= requests.PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod."""

    name: str
    """`namespace/name`."""
    scheduler: str
    node: str
    """Empty while it waits."""
    over: bool
    spec: Manifest
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @classmethod
    def read(cls, raw: Manifest) -> Self:
        """Read a pod."""
        metadata, spec = raw["metadata"], raw["spec"]
        return cls(
            name=f"{metadata.get('namespace', 'default')}/{metadata['name']}",
            scheduler=spec.get("schedulerName", "default-scheduler"),
            node=spec.get("nodeName") or "",
            over=(raw.get("status") or {}).get("phase") in OVER,
            spec=spec,
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
        )

    def __str__(self) -> str:
        return f"pod {self.name}"


def grants(annotation: str) -> list[Grant]:
    """Parse an allocation; raise ValueError or TypeError if it is invalid."""
    body = _checked(json.loads(annotation), dict)
    return [_grant(kind, entry) for kind, entries in body.items() for entry in _checked(entries, list)]


def cards(device: Manifest) -> Iterable[tuple[Key, Card]]:
    """Return the cards of one Device; raise ValueError if one cannot be parsed."""
    for raw in device["spec"].get("devices") or ():
        key = Key(node=device["metadata"]["name"], type=raw["type"], minor=raw["minor"])
        yield key, Card.read(raw, device["spec"].get("migStrategy", "mixed"))


def _resource(profile: str) -> str:
    """Return the resource of a profile: a resource's name cannot have a `+`."""
    return requests.INSTANCES + profile.replace("+", ".")


def _offered(instance: Manifest) -> Iterator[tuple[str, str]]:
    """Yield what of an instance can be allocated, with its resource: the instance, or its time slices."""
    replica_resource, slices = instance.get("replicaResource", ""), instance.get("replicas", 1)
    if replica_resource == requests.SLICES:
        return
    resource = replica_resource if replica_resource.startswith(requests.INSTANCES) else _resource(instance["profile"])
    for number in range(slices):
        yield f"{instance['id']}{SLICE_MARK}{number}" if slices > 1 else instance["id"], resource


def _grant(kind: str, raw: object) -> Grant:
    entry: dict[str, Any] = _checked(raw, dict)
    minor, resources = entry.get("minor"), _checked(entry.get("resources"), dict)
    if kind not in requests.TYPES.values() or type(minor) is not int or minor < 0:
        raise ValueError(f"{kind} with minor {minor!r} names no card")
    amounts = {requests.short(name): quantity.whole(value) for name, value in resources.items()}
    if any(amount < 0 for amount in amounts.values()):
        raise ValueError(f"{kind} {minor} with a negative amount")
    return Grant(type=kind, minor=minor, id=str(entry.get("id", "")), amounts=amounts)


def _checked(value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} where a JSON {'list' if kind is list else 'object'} is wanted")
    return value
