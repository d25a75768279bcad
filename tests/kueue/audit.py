"""Compare what Kueue counts of each workload with Berth's charges. The audit shares no code with what it checks."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Manifest = dict[str, Any]
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
WORKLOAD: Final = "kueue.x-k8s.io/workload"
"""The annotation by which Kueue names the workload of a pod that it has admitted."""
GPU: Final = "quota.berth.dev/gpu"
GPU_MEMORY: Final = "quota.berth.dev/gpu-memory"
UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True)
class Amount:
    """What is counted or charged."""

    hundredths: int
    size: int
    """Bytes of memory: those that were requested as such, or those of the cards that were charged."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload."""

    name: str
    counted: Amount
    charged: Amount
    card: int
    """Bytes of memory of its cards."""

    def fault(self) -> str:
        """Return what Berth charged beyond Kueue's count; empty if nothing."""
        # A card that is counted in hundredths stands for so much of its memory.
        size = self.counted.hundredths * self.card // 100 + self.counted.size
        if self.charged.hundredths > self.counted.hundredths and not self.counted.size:
            return f"{self.name}: charged {self.charged.hundredths} hundredths, counted {self.counted.hundredths}"
        return f"{self.name}: charged {self.charged.size} bytes, counted {size}" if self.charged.size > size else ""


def rows(workloads: Iterable[Manifest], pods: Iterable[Manifest], *, card: int) -> Iterator[Row]:
    """Yield a row for each admitted workload with bound pods; `card` is the memory of every card in bytes."""
    charges: dict[str, Amount] = {}
    for pod in pods:
        name, amount = pod["metadata"].get("annotations", {}).get(WORKLOAD, ""), charged(pod)
        before = charges.get(name, Amount(0, 0))
        charges[name] = Amount(before.hundredths + amount.hundredths, before.size + amount.size)
    for workload in workloads:
        name = workload["metadata"]["name"]
        if name in charges and "admission" in workload.get("status", {}):
            yield Row(name, counted(workload), charges[name], card)


def counted(workload: Manifest) -> Amount:
    """Return what Kueue counts of an admitted workload."""
    used = [each.get("resourceUsage", {}) for each in workload["status"]["admission"]["podSetAssignments"]]
    return Amount(*(sum(amount(each.get(name, "0")) for each in used) for name in (GPU, GPU_MEMORY)))


def charged(pod: Manifest) -> Amount:
    """Return what Berth charged for a pod: of each card the larger of cores and memory."""
    allocated = json.loads(pod["metadata"].get("annotations", {}).get(ALLOCATED, "{}")).get("gpu", ())
    held = [_short(grant["resources"]) for grant in allocated]
    hundredths = sum(max(amount(each.get("gpu-core", "0")), amount(each.get("gpu-memory-ratio", "0"))) for each in held)
    return Amount(hundredths, sum(amount(each["gpu-memory"]) for each in held if "gpu-memory" in each))


def amount(text: str) -> int:
    """Return a quantity as a number."""
    for suffix, factor in UNITS.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text)


def _short(resources: Mapping[str, str]) -> dict[str, str]:
    return {name.partition("/")[2]: value for name, value in resources.items()}
