"""Pods, nodes and Devices as the API server gives them, reduced to what the audit reads."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from demo.audit import asked, quantity

Manifest = Mapping[str, Any]

ALLOCATION: Final = "scheduling.koordinator.sh/device-allocated"
OVER: Final = ("Succeeded", "Failed")
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
    """What a Device tells of one card."""

    id: str
    model: str
    offers: Mapping[str, int]

    @classmethod
    def read(cls, raw: Manifest) -> Self:
        """Read an entry of a Device's `spec.devices`."""
        offers = {asked.short(name): quantity.whole(value) for name, value in (raw.get("resources") or {}).items()}
        return cls(id=raw["id"], model=raw.get("model", ""), offers=offers)

    def limit(self, resource: str) -> int:
        """Return how much of a resource all holders together may have: of a percentage never more than 100."""
        offered = self.offers.get(resource, 0)
        return min(offered, asked.PERCENT) if resource in PERCENTAGES else offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A pod's part of one card, as its annotation tells."""

    type: str
    minor: int
    id: str
    amounts: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Whether nobody else may hold the card."""
        return self.amounts.get("gpu-memory-ratio", self.amounts.get(self.type, 0)) >= asked.PERCENT


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
    """Read an allocation; raise ValueError or TypeError where it is none."""
    body = _checked(json.loads(annotation), dict)
    return [_grant(kind, entry) for kind, entries in body.items() for entry in _checked(entries, list)]


def cards(device: Manifest) -> Iterable[tuple[Key, Card]]:
    """Give the cards of one Device; raise ValueError where one cannot be read."""
    for raw in device["spec"].get("devices") or ():
        key = Key(node=device["metadata"]["name"], type=raw["type"], minor=raw["minor"])
        yield key, Card.read(raw)


def _grant(kind: str, raw: object) -> Grant:
    entry: dict[str, Any] = _checked(raw, dict)
    minor, resources = entry.get("minor"), _checked(entry.get("resources"), dict)
    if kind not in asked.TYPES.values() or type(minor) is not int or minor < 0:
        raise ValueError(f"{kind} with minor {minor!r} names no card")
    amounts = {asked.short(name): quantity.whole(value) for name, value in resources.items()}
    if any(amount < 0 for amount in amounts.values()):
        raise ValueError(f"{kind} {minor} with a negative amount")
    return Grant(type=kind, minor=minor, id=str(entry.get("id", "")), amounts=amounts)


def _checked(value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} where a JSON {'list' if kind is list else 'object'} is wanted")
    return value
