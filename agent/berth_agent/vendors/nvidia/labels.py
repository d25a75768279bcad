"""Labels of the Device, and of the Node: those of GPU Feature Discovery.

Their keys and values are the same, because workloads select by them.

A node has one product label, even if its cards differ. The label then names the model with the most cards. The Device
lists each card. Three labels are left out: gfd.timestamp, which changes without a reason, gpu.clique and
vgpu.host-driver-*.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from berth_agent.inventory.interface import label_value
from berth_agent.readings import NodeFacts
from berth_api import names
from berth_api.allocation import REPLICAS
from berth_api.device import DeviceInfo, DeviceSpec, MigInstance
from berth_api.resources import quantity

PREFIX: Final = "nvidia.com/"
GPU: Final = "nvidia.com/gpu"
MAX_VALUE: Final = 63

_FAMILIES: Final = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    7: "volta",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_LATER: Final = {(7, 5): "turing", (8, 9): "ada-lovelace"}
_MODES: Final = {"0x030000": "graphics", "0x030200": "compute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts of a card for labels, in addition to its DeviceInfo."""

    compute: tuple[int, int]
    """CUDA compute capability."""
    pci_class: str
    is_vgpu: bool = False
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Facts of MIG instances, by their UUIDs: `multiprocessors`, `slices.gi`, `engines.copy` …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(NodeFacts):
    """Facts of a node with NVIDIA's cards."""

    cards: Mapping[str, CardFacts] = field(default_factory=dict)

    def labels(self, spec: DeviceSpec, *, renamed: bool) -> dict[str, str]:
        """Return the Node's labels; none if it has no GPU."""
        return of(spec, self, renamed=renamed)

    def attributes(self, spec: DeviceSpec, card: str) -> dict[str, dict[str, Any]]:
        """Return attributes that NVIDIA's driver has, too. The API accepts versions like `9.0.0` only."""
        texts = {"driverVersion": spec.driver_version, "cudaDriverVersion": spec.cuda_version}
        attributes: dict[str, dict[str, Any]] = {}
        if card in self.cards:
            major, minor = self.cards[card].compute
            texts["cudaComputeCapability"] = f"{major}.{minor}"
            attributes["architecture"] = {"string": family((major, minor)).replace("-", " ").title()}
        for name, text in texts.items():
            numbers = [int(part) for part in text.split(".") if part.isdecimal()]
            if len(numbers) in {2, 3}:
                attributes[name] = {"version": ".".join(map(str, (*numbers, 0)[:3]))}
        return attributes


def of(spec: DeviceSpec, facts: NodeFacts, *, renamed: bool) -> dict[str, str]:
    """Return the Node's labels; none if it has no GPU.

    Args:
        spec: the node's cards, some of them with replicas.
        facts: further facts about the cards. A card without facts does not count.
        renamed: whether replicas are `nvidia.com/gpu.shared`, so that the product's name does not mention them.
    """
    cards = facts.cards
    gpus = [device for device in spec.devices if device.type == names.GPU and device.id in cards]
    if not gpus:
        return {}
    classes = {cards[gpu.id].pci_class for gpu in gpus}
    driver, cuda = spec.driver_version.split("."), spec.cuda_version.split(".")
    versions: dict[str, str] = {}
    if len(driver) in {2, 3}:
        major, minor, revision = (*driver, "")[:3]
        new = {"major": major, "minor": minor, "revision": revision, "full": spec.driver_version}
        old = {"major": major, "minor": minor, "rev": revision}
        versions |= _keyed(f"{PREFIX}cuda.driver-version", new) | _keyed(f"{PREFIX}cuda.driver", old)
    if len(cuda) == 2:  # noqa: PLR2004 -- major and minor
        runtime = {"major": cuda[0], "minor": cuda[1]}
        versions |= _keyed(f"{PREFIX}cuda.runtime", runtime)
        versions |= _keyed(f"{PREFIX}cuda.runtime-version", {**runtime, "full": spec.cuda_version})
    labels = {
        **versions,
        f"{GPU}.machine": sanitised(facts.machine) or "unknown",
        f"{GPU}.mode": _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown",
        "nvidia.com/mig.capable": _flag(any(gpu.mig is not None for gpu in gpus)),
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": _flag(any(cards[gpu.id].is_vgpu for gpu in gpus)),
        **_whole(gpus, cards, renamed=renamed),
    }
    if spec.mig_strategy == "none":
        return labels
    labels["nvidia.com/mig.strategy"] = spec.mig_strategy
    if spec.mig_strategy == "single":
        return labels | _single(gpus, cards, renamed=renamed)
    for profile, instances in _kinds(gpus).items():
        values = _instances(profile, instances, cards, renamed=renamed)
        labels |= _keyed(f"{PREFIX}mig-{profile.replace('+', '.')}", values)
    return labels


def labels_of(spec: DeviceSpec) -> dict[str, str]:
    """Return the labels for vendor, model and driver. A node with cards of several models gets no model label."""
    models = {device.model for device in spec.devices if device.type == "gpu"}
    if not models:
        return {}
    model = models.pop().removeprefix("NVIDIA ") if len(models) == 1 else ""
    labels = {
        names.VENDOR_LABEL: "nvidia",
        names.MODEL_LABEL: label_value(model),
        names.DRIVER_LABEL: label_value(spec.driver_version),
    }
    return {key: value for key, value in labels.items() if value}


def sanitised(text: str) -> str:
    """Turn a name into a label's value: replace spaces by dashes, and drop characters that labels do not allow."""
    usage = "-".join(re.sub(r"[^A-Za-z0-9_. -]", "", text).split())
    return usage.strip("-_.")[:MAX_VALUE].strip("-_.")


def family(compute: tuple[int, int]) -> str:
    """Name the architecture of a compute capability."""
    later = [name for since, name in _LATER.items() if since[0] == compute[0] and compute >= since]
    return later[0] if later else _FAMILIES.get(compute[0], "undefined")


def _whole(gpus: Sequence[DeviceInfo], facts: Mapping[str, CardFacts], *, renamed: bool) -> dict[str, str]:
    """Return the labels of whole cards, also if they are in MIG mode; cards that are not describe their model."""
    counts = Counter(gpu.model for gpu in gpus)
    model = min(counts, key=lambda name: (-counts[name], name))
    first = min((gpu for gpu in gpus if gpu.model == model), key=_is_divided)
    major, minor = facts[first.id].compute
    sharing = {"replicas": 0, "sharing-strategy": "none"} if _is_divided(first) else _sharing(first)
    values: dict[str, object] = {
        "product": _product(model, shared=first.replicas > 1 and not renamed and first.replica_resource != REPLICAS),
        "count": counts[model],
        "memory": quantity.parse(first.resources.get(names.PREFIX + names.GPU_MEMORY, 0)) >> 20,
        **sharing,
        "family": family((major, minor)),
        "compute.major": major,
        "compute.minor": minor,
    }
    return _keyed(GPU, values)


def _single(gpus: Sequence[DeviceInfo], facts: Mapping[str, CardFacts], *, renamed: bool) -> dict[str, str]:
    divided = [gpu for gpu in gpus if _is_divided(gpu)]
    if not divided:
        return {}
    kinds = _kinds(divided)
    if len(kinds) != 1 or len(divided) != len(gpus) or not all(gpu.mig and gpu.mig.instances for gpu in divided):
        none = {"count": 0, "replicas": 0, "memory": 0, "sharing-strategy": ""}
        return _keyed(GPU, {"product": _product(divided[0].model, "MIG", "INVALID"), **none})
    ((profile, instances),) = kinds.items()
    return _keyed(GPU, _instances(profile, instances, facts, renamed=renamed))


Placed = Sequence[tuple[DeviceInfo, MigInstance]]
"""Instances with their cards."""


def _kinds(gpus: Sequence[DeviceInfo]) -> dict[str, list[tuple[DeviceInfo, MigInstance]]]:
    placed_by_profile: dict[str, list[tuple[DeviceInfo, MigInstance]]] = {}
    for gpu in gpus:
        for instance in gpu.mig.instances if gpu.mig else ():
            placed_by_profile.setdefault(instance.profile, []).append((gpu, instance))
    return placed_by_profile


def _instances(profile: str, placed: Placed, facts: Mapping[str, CardFacts], *, renamed: bool) -> dict[str, object]:
    gpu, instance = placed[0]
    return {
        "product": _product(gpu.model, "MIG", profile, shared=instance.replicas > 1 and not renamed),
        "count": len(placed),
        **_sharing(instance),
        "memory": quantity.parse(instance.memory) >> 20,
        **facts[gpu.id].parts.get(instance.id, {}),
    }


def _sharing(device: DeviceInfo | MigInstance) -> dict[str, object]:
    return {"replicas": device.replicas, "sharing-strategy": "time-slicing" if device.replicas > 1 else "none"}


def _product(*parts: str, shared: bool = False) -> str:
    return sanitised("-".join(map(sanitised, (*parts, *(["SHARED"] if shared else [])))))


def _is_divided(gpu: DeviceInfo) -> bool:
    return gpu.mig is not None and gpu.mig.enabled


def _flag(value: bool) -> str:  # noqa: FBT001 -- it is the value that is shaped
    return str(value).lower()


def _keyed(prefix: str, values: Mapping[str, object]) -> dict[str, str]:
    return {f"{prefix}.{name}": str(value) for name, value in values.items()}
