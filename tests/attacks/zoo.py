"""Hostile objects that the API server accepts. Each of them once cost the operator memory or time.

To add an attack, add a row. Unit tests, `make bench-hostile` and its CI counterpart read these tables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_api import names
from tests.objects.builders import A100, NVIDIA, device, entry, pod

Raw = dict[str, Any]

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
LARGE: Final = 900_000
"""Bytes: nearly what etcd takes."""


@dataclass(frozen=True, kw_only=True)
class HostilePod:
    """Fields of a pod, made new for each number, so that no two are of one class."""

    fields: Callable[[int], Raw]
    refused: str = ""
    """What the error of the pod says; empty if the pod is accepted."""
    fits: bool = True
    """Whether a node could take it, if it is not refused."""


def _text(number: int, size: int = LARGE) -> str:
    return f"{number:08d}" + "x" * size


def _names(prefix: str, number: int, count: int) -> Iterator[str]:
    return (f"{prefix}-{number}-{place}" for place in range(count))


def _tolerations(number: int, count: int) -> Raw:
    return {"tolerations": [{"key": each, "operator": "Exists"} for each in _names("taint", number, count)]}


def _labels(number: int, count: int) -> Raw:
    return {"labels": dict.fromkeys(_names("label", number, count), "x" * 60)}


def _pod_term(number: int, place: int, *, everywhere: bool) -> Raw:
    expressions = [{"key": f"key-{number}-{place}", "operator": "DoesNotExist"}]
    selector: Raw = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": "kubernetes.io/hostname"}
    return {**selector, "namespaceSelector": {}} if everywhere else selector


def _pod_terms(number: int, count: int, kind: str = "podAffinity", *, everywhere: bool = True) -> Raw:
    terms = [_pod_term(number, place, everywhere=everywhere) for place in range(count)]
    return {"affinity": {kind: {PREFERRED: [{"weight": 1, "podAffinityTerm": each} for each in terms]}}}


def _required_terms(number: int, count: int, kind: str) -> Raw:
    return {"affinity": {kind: {REQUIRED: [_pod_term(number, place, everywhere=True) for place in range(count)]}}}


def _values(number: int, count: int) -> Raw:
    expression = {"key": "app", "operator": "NotIn", "values": list(_names("value", number, count))}
    term = {"labelSelector": {"matchExpressions": [expression]}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def _spread(number: int, count: int) -> Raw:
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": f"zone-{number}-{place}",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {},
            }
            for place in range(count)
        ]
    }


def _node_keys(number: int, count: int) -> Raw:
    expressions = [{"key": each, "operator": "DoesNotExist"} for each in _names("key", number, count)]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}}


def _node_terms(number: int, count: int) -> Raw:
    terms = [{"matchExpressions": [{"key": each, "operator": "DoesNotExist"}]} for each in _names("k", number, count)]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def _containers(number: int, count: int) -> Raw:
    return {"containers": [{"name": each, "image": "x" * 200} for each in _names("c", number, count)]}


def _resources(number: int, count: int) -> Raw:
    requests = dict.fromkeys((f"example.com/{each}" for each in _names("r", number, count)), "1")
    return {"requests": requests}


def _ports(number: int, count: int) -> Raw:
    ports = [{"containerPort": 1 + place, "hostPort": 1 + (number + place) % 65000} for place in range(count)]
    return {"containers": [{"name": "main", "ports": ports}]}


def _annotations(name: str, number: int, size: int = 200_000) -> Raw:
    return {"annotations": {name: _text(number, size)}}


def _selector(number: int, count: int) -> Raw:
    expression = {"key": "model", "operator": "NotIn", "values": list(_names("v", number, count))}
    hint = {"gpu": {"selector": {"matchExpressions": [expression]}}}
    return {"requests": {NVIDIA: 1}, "annotations": {names.ALLOCATE_HINT: orjson.dumps(hint).decode()}}


PODS: Final[Mapping[str, HostilePod]] = {
    "a large annotation that scheduling does not read": HostilePod(
        fields=lambda number: _annotations("example.com/notes", number)
    ),
    "a large field that scheduling does not read": HostilePod(
        fields=lambda number: {"hostAliases": [{"ip": "127.0.0.1", "hostnames": [_text(number)]}]}
    ),
    "slashes where a LimitRange names resources": HostilePod(
        fields=lambda _: {"annotations": {"kubernetes.io/limit-ranger": 200_000 * "/", names.MODEL_GLOBS: ","}},
        refused="names no model",
    ),
    "large labels": HostilePod(fields=lambda number: _labels(number, 10_000), refused="metadata.labels: 10000 labels"),
    "labels at the limit": HostilePod(fields=lambda number: _labels(number, 100)),
    "a large image": HostilePod(
        fields=lambda number: {"containers": [{"name": "main", "image": _text(number)}]},
        refused="the parts that scheduling reads: 900",
    ),
    "many containers": HostilePod(
        fields=lambda number: _containers(number, 3000), refused="spec.containers: 3000 containers"
    ),
    "containers at the limit": HostilePod(fields=lambda number: _containers(number, 100)),
    "many tolerations": HostilePod(
        fields=lambda number: _tolerations(number, 20_000), refused="spec.tolerations: 20000 tolerations"
    ),
    "tolerations at the limit": HostilePod(fields=lambda number: _tolerations(number, 128)),
    "many terms of pod affinity": HostilePod(fields=lambda number: _pod_terms(number, 3000), refused="3000 terms"),
    "terms of pod affinity at the limit": HostilePod(fields=lambda number: _pod_terms(number, 32)),
    "terms of pod anti-affinity at the limit": HostilePod(
        fields=lambda number: _pod_terms(number, 32, "podAntiAffinity")
    ),
    "required anti-affinity to everything": HostilePod(
        fields=lambda number: _required_terms(number, 32, "podAntiAffinity"), fits=False
    ),
    "many values in a selector of pods": HostilePod(
        fields=lambda number: _values(number, 20_000), refused="labels and values; allowed are at most 256"
    ),
    "values in a selector of pods at the limit": HostilePod(fields=lambda number: _values(number, 255)),
    "many spread constraints": HostilePod(fields=lambda number: _spread(number, 5000), refused="5000 terms"),
    "spread constraints at the limit": HostilePod(fields=lambda number: _spread(number, 32)),
    "many requirements on nodes": HostilePod(
        fields=lambda number: _node_keys(number, 10_000), refused="10000 requirements"
    ),
    "requirements on nodes at the limit": HostilePod(fields=lambda number: _node_keys(number, 128)),
    "many terms of node affinity": HostilePod(
        fields=lambda number: _node_terms(number, 10_000), refused="10000 requirements"
    ),
    "terms of node affinity at the limit": HostilePod(fields=lambda number: _node_terms(number, 128)),
    "many extended resources": HostilePod(
        fields=lambda number: _resources(number, 10_000), refused="spec.containers[].resources: 10000 names"
    ),
    "extended resources at the limit": HostilePod(fields=lambda number: _resources(number, 60), fits=False),
    "many host ports": HostilePod(fields=lambda number: _ports(number, 10_000), refused="10000 ports"),
    "host ports at the limit": HostilePod(fields=lambda number: _ports(number, 128)),
    "many values in a selector of cards": HostilePod(
        fields=lambda number: _selector(number, 10_000), refused=f"annotation {names.ALLOCATE_HINT}: "
    ),
    "values in a selector of cards at the limit": HostilePod(fields=lambda number: _selector(number, 400)),
    "a large name of a group": HostilePod(
        fields=lambda number: {
            "annotations": {names.POD_GROUP: _text(number, 200_000), names.POD_GROUP_MIN_MEMBER: "1"}
        },
        refused=f"annotation {names.POD_GROUP}: 200008 characters; allowed are at most 253",
    ),
    "a large model": HostilePod(
        fields=lambda number: _annotations(names.MODEL_GLOBS, number), refused=f"annotation {names.MODEL_GLOBS}: 2000"
    ),
}


def hostile_pod(kind: str, number: int = 0, **more: Any) -> Raw:
    """Return a pod of one row of the table; `more` are further fields."""
    return pod(f"hostile-{number}", uid=f"uid-{kind}-{number}", **{**PODS[kind].fields(number), **more})


# --- Devices ------------------------------------------------------------------------------------------------------


def _ring(minor: int, cards: int, links: int) -> list[Raw]:
    """Return NVLinks to the next cards of a ring, in both directions."""
    steps = [step for half in range(1, links // 2 + 2) for step in (half, -half)][:links]
    return [{"minor": (minor + step) % cards, "type": "NVLink", "count": 1} for step in steps]


def _scattered(minor: int, cards: int, links: int) -> list[Raw]:
    """Return NVLinks without any order, so that there are very many groups of linked cards."""
    others = {(minor + (place * place * 7 + place * (minor % 13) + 1)) % cards for place in range(links * 2)}
    return [{"minor": other, "type": "NVLink", "count": 1} for other in sorted(others - {minor})[:links]]


def linked(links: Callable[[int, int, int], list[Raw]], name: str = "node", cards: int = 256, count: int = 63) -> Raw:
    """Return a Device with this many cards and NVLinks of each."""
    return device(name, *(entry(minor, links=links(minor, cards, count)) for minor in range(cards)))


def _unlike(name: str, number: int) -> Raw:
    """Return a Device on which no two cards have labels, switches or models in common."""
    entries = (
        entry(
            minor,
            model=f"{A100} {number} {minor}",
            labels={f"label-{place}": f"{number}-{minor}-{place}" for place in range(20)},
            topology={"pcieID": f"{number}:{minor}", "nodeID": minor % 8},
        )
        for minor in range(256)
    )
    return device(name, *entries, generation=number + 1)


def _profiles(name: str, number: int) -> Raw:
    """Return a Device with another MIG profile on each instance."""

    def instance(minor: int, place: int) -> Raw:
        profile = f"1g.{1 + minor}gb.x{number}.y{place}"
        return {
            "id": f"MIG-{number}-{minor}-{place}",
            "profile": profile,
            "gpuInstance": place,
            "computeInstance": 0,
            "memory": "1Gi",
        }

    entries = (
        entry(minor, mig={"enabled": True, "instances": [instance(minor, place) for place in range(16)]})
        for minor in range(256)
    )
    return device(name, *entries, generation=number + 1)


DEVICES: Final[Mapping[str, Callable[[str, int], Raw]]] = {
    "256 cards in a ring of 63 NVLinks": lambda name, _: linked(_ring, name),
    "256 cards with 63 scattered NVLinks": lambda name, _: linked(_scattered, name),
    "64 cards in a ring of 31 NVLinks": lambda name, _: linked(_ring, name, cards=64, count=31),
    "64 cards with 40 scattered NVLinks": lambda name, _: linked(_scattered, name, cards=64, count=40),
    "64 cards with NVLinks to all others": lambda name, _: linked(_ring, name, cards=64, count=63),
    "256 cards that have nothing in common": _unlike,
    "256 cards with 4,096 MIG profiles": _profiles,
}
"""Name -> Device of a node, by the node's name and a number: another number is another Device."""
