"""What a pod requests: of each node resource, and of the cards of each type."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from demo.audit import quantity

Amounts = dict[str, Fraction]

ALIASES: Final = ("kubernetes.io/", "koordinator.sh/")
WHOLE_CARDS: Final = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
PERCENT: Final = 100
INSTANCES: Final = "nvidia.com/mig-"
"""Prefix of the resources of MIG instances."""
SLICES: Final = "nvidia.com/gpu.shared"
EXTRAS: Final = {"gpu.shared", "gpu-core", "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"}
"""What may be combined with gpu-memory or gpu-memory-ratio."""
MEASURES: Final = (*WHOLE_CARDS, "gpu", "gpu-memory", "gpu-memory-ratio")
"""Each request for GPUs names exactly one of these."""
GPU: Final = EXTRAS | set(MEASURES)
TYPES: Final = {**dict.fromkeys((*GPU, SLICES), "gpu"), "rdma": "rdma", "fpga": "fpga"}
"""Resource without alias -> type of device; those of MIG instances come on top."""


class Form(enum.StrEnum):
    """The form in which a card is allocated."""

    CARD = "card"
    """The whole card or a share of its amounts."""
    SLICE = "slice"
    INSTANCE = "instance"
    PLUGIN_UNIT = "plugin unit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A number of cards of one type, and how much of each."""

    type: str
    count: int
    each: Mapping[str, int]
    form: Form = Form.CARD
    what: str
    """The resource, of MIG instances; else the type."""

    def on(self, memory: int) -> dict[str, int]:
        """Return the charge of a card with that much memory; memory and its ratio follow from each other."""
        charged = dict(self.each)
        if "gpu-memory-ratio" in charged and memory:
            charged.setdefault("gpu-memory", charged["gpu-memory-ratio"] * memory // PERCENT)
        elif "gpu-memory" in charged and memory:
            charged["gpu-memory-ratio"] = charged["gpu-memory"] * PERCENT // memory
        return charged


def type_of(resource: str) -> str:
    """Return the type of device that a resource stands for; empty if none."""
    return "gpu" if resource.startswith(INSTANCES) else TYPES.get(resource, "")


def short(resource: str) -> str:
    """Return the name of a resource without either of the two equivalent prefixes."""
    for prefix in ALIASES:
        resource = resource.removeprefix(prefix)
    return resource


def of_container(container: Mapping[str, Any]) -> Amounts:
    """Return what one container requests; a limit is also a request."""
    resources = container.get("resources") or {}
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {short(name): quantity.exact(value) for name, value in stated.items()}


def total(spec: Mapping[str, Any]) -> Amounts:
    """Return the maximum that the pod needs of its node at any time, by Kubernetes' rules."""
    sidecars: Amounts = {}
    starting: list[Amounts] = []
    for container in spec.get("initContainers") or ():
        needs = _sum([sidecars, of_container(container)])
        starting.append(needs)
        if container.get("restartPolicy") == "Always":
            sidecars = needs
    running = _sum([sidecars, *(of_container(container) for container in spec["containers"])])
    peak = {
        name: max(amounts.get(name, Fraction()) for amounts in (running, *starting))
        for name in _names(running, *starting)
    }
    overhead = {short(name): quantity.exact(value) for name, value in (spec.get("overhead") or {}).items()}
    return _sum([{**peak, **of_container(spec)}, overhead])


def cards(spec: Mapping[str, Any]) -> list[Request]:
    """Return the pod's requests for devices; raise ValueError if they are invalid."""
    requested = {name: -(-amount // 1) for name, amount in total(spec).items() if type_of(name) and amount}
    gpus = {name: amount for name, amount in requested.items() if type_of(name) == "gpu"}
    simple = [_percent(name, amount) for name, amount in requested.items() if type_of(name) != "gpu"]
    return (_gpus(gpus) if gpus else []) + simple


def _gpus(requested: Mapping[str, int]) -> list[Request]:
    if all(name.startswith(INSTANCES) for name in requested):
        return [
            Request(type="gpu", count=count, each={name: 1}, form=Form.INSTANCE, what=name)
            for name, count in requested.items()
        ]
    if requested.keys() == {SLICES}:
        return [Request(type="gpu", count=requested[SLICES], each={}, form=Form.SLICE, what="gpu")]
    return [_cards(requested)]


def _cards(requested: Mapping[str, int]) -> Request:
    measures = [name for name in MEASURES if name in requested]
    extras = requested.keys() - set(measures)
    if len(measures) != 1 or (extras and measures[0] not in ("gpu-memory", "gpu-memory-ratio")):
        raise ValueError(f"{', '.join(sorted(requested))} cannot be combined")
    (measure,) = measures
    if measure in WHOLE_CARDS:
        form = Form.PLUGIN_UNIT if measure == WHOLE_CARDS[0] else Form.CARD
        amounts = {"gpu-core": PERCENT, "gpu-memory-ratio": PERCENT}
        return Request(type="gpu", count=requested[measure], each=amounts, form=form, what="gpu")
    if measure == "gpu":
        part = _percent("gpu", requested["gpu"])
        amounts = dict.fromkeys(("gpu-core", "gpu-memory-ratio"), part.each["gpu"])
        return Request(type="gpu", count=part.count, each=amounts, what="gpu")
    count = requested.get("gpu.shared") or _percent(measure, requested.get("gpu-memory-ratio", 1)).count
    return Request(
        type="gpu",
        count=count,
        each={name: amount // count for name, amount in requested.items() if name != "gpu.shared"},
        what="gpu",
    )


def _percent(name: str, amount: int) -> Request:
    """Return a request in hundredths: up to 100 is a share of one card, more are whole cards."""
    if amount > PERCENT and amount % PERCENT:
        raise ValueError(f"{name} {amount} is neither part of a card nor whole cards")
    count = max(1, amount // PERCENT)
    return Request(type=TYPES[name], count=count, each={name: amount // count}, what=TYPES[name])


def _sum(lists: Iterable[Amounts]) -> Amounts:
    parts = list(lists)
    return {name: sum((amounts.get(name, Fraction()) for amounts in parts), Fraction()) for name in _names(*parts)}


def _names(*lists: Amounts) -> set[str]:
    return {name for amounts in lists for name in amounts}
