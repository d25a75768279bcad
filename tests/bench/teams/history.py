"""Pods and Kueue's Workloads in the history of a cluster, as values. No code of Berth is used."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tests.chaos.history import Revision
from tests.kueue import audit
from tests.kueue.audit import Amount

Raw = dict[str, Any]
WHOLE: Final = 100
"""Hundredths of a card."""
CARD: Final = 80 * 2**30
"""Bytes of memory of every card."""
UNIT: Final = "bench.berth.dev/unit"
"""The label by which the benchmark names what it created."""
PARTS: Final = {
    "kubernetes.io/gpu": 1,
    "koordinator.sh/gpu-memory-ratio": 1,
    "kubernetes.io/gpu-memory-ratio": 1,
    "nvidia.com/gpumem-percentage": 1,
}
"""Resources in hundredths of a card."""
SIZES: Final = {"kubernetes.io/gpu-memory": 1, "nvidia.com/gpumem": 2**20, "aliyun.com/gpu-mem": 2**30}
"""Resources in memory -> bytes of one of them."""
CARDS: Final = "nvidia.com/gpu"
PREEMPTOR: Final = re.compile(r"\(UID: ([^,]+),")


class Shape(NamedTuple):
    """What one pod requests: whole cards, or a part of one in hundredths."""

    cards: int
    part: int
    by_size: bool
    """Whether it requests bytes of memory, which have a quota of their own."""


class Held(NamedTuple):
    """What a pod holds of one card."""

    minor: int
    hundredths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One revision of a pod."""

    team: str
    name: str
    unit: str
    """What it was created with."""
    workload: str
    """The name of its Workload; empty before it is admitted."""
    node: str
    held: tuple[Held, ...]
    amount: Amount
    by_size: bool
    is_over: bool
    """Whether it has succeeded or failed."""
    is_ending: bool
    is_disrupted: bool
    """Whether a scheduler evicts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One revision of a Workload."""

    team: str
    name: str
    uid: str
    priority: int
    created: str
    requested: Amount
    pods: tuple[Shape, ...]
    has_quota: bool
    is_admitted: bool
    is_evicted: bool
    is_over: bool
    """Whether it has finished or is not active."""
    preemptor: str
    """The UID of the Workload that it was evicted for; empty if it is not evicted or for another reason."""
    is_reclaimed: bool
    """Whether that one gets back what its team lends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One revision of the history."""

    at: float
    """When it was seen, in seconds."""
    revision: int
    uid: str
    value: Pod | Workload
    is_gone: bool = False


def parse(raw: Raw, at: float) -> Event:
    """Return an event of a watch."""
    obj = raw["object"]
    return _event(obj, at, int(obj["metadata"]["resourceVersion"]), is_gone=raw["type"] == "DELETED")


def follow(revision: Revision, last: Event | None) -> Event | None:
    """Return a revision in etcd of an object that was seen last so; None if nothing of it was seen."""
    if revision.object is not None:
        return _event(dict(revision.object), revision.time, revision.number)
    return replace(last, at=revision.time, revision=revision.number, is_gone=True) if last else None


def _event(obj: Raw, at: float, revision: int, *, is_gone: bool = False) -> Event:
    value = _workload(obj) if obj["kind"] == "Workload" else _pod(obj)
    return Event(at=at, revision=revision, uid=obj["metadata"]["uid"], value=value, is_gone=is_gone)


def _pod(obj: Raw) -> Pod:
    metadata, status = obj["metadata"], obj.get("status", {})
    annotations = metadata.get("annotations", {})
    return Pod(
        team=metadata["namespace"],
        name=metadata["name"],
        unit=metadata.get("labels", {}).get(UNIT, ""),
        workload=annotations.get(audit.WORKLOAD, ""),
        node=obj["spec"].get("nodeName", ""),
        held=tuple(_held(annotations)),
        amount=audit.charged(obj),
        by_size=shape(obj["spec"]).by_size,
        is_over=status.get("phase") in ("Succeeded", "Failed"),
        is_ending="deletionTimestamp" in metadata,
        is_disrupted=any(
            each["type"] == "DisruptionTarget" and each.get("reason") == "PreemptionByScheduler"
            for each in status.get("conditions", ())
        ),
    )


def _held(annotations: Mapping[str, str]) -> Iterator[Held]:
    for grant in json.loads(annotations.get(audit.ALLOCATED, "{}")).get("gpu", ()):
        amounts = {name.partition("/")[2]: audit.amount(text) for name, text in grant["resources"].items()}
        yield Held(grant["minor"], max(amounts.get("gpu-core", 0), amounts.get("gpu-memory-ratio", 0)))


def shape(spec: Raw) -> Shape:
    """Return what a pod's spec requests."""
    limits = [each.get("resources", {}).get("limits", {}) for each in spec["containers"]]
    amounts = {name: audit.amount(str(text)) for each in limits for name, text in each.items()}
    size = sum(amounts[name] * factor for name, factor in SIZES.items() if name in amounts)
    if size:
        return Shape(0, -(-size * WHOLE // CARD), by_size=True)
    part = max((amounts[name] * factor for name, factor in PARTS.items() if name in amounts), default=0)
    return Shape(amounts.get(CARDS, 0), part, by_size=False)


def _workload(obj: Raw) -> Workload:
    metadata, status = obj["metadata"], obj.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    holds = {name for name, each in conditions.items() if each["status"] == "True"}
    message = conditions["Preempted"]["message"] if {"Evicted", "Preempted"} <= holds else ""
    match = PREEMPTOR.search(message)
    return Workload(
        team=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        priority=obj["spec"].get("priority", 0),
        created=metadata["creationTimestamp"],
        requested=_requested(status),
        pods=tuple(_shapes(obj["spec"]["podSets"])),
        has_quota="QuotaReserved" in holds,
        is_admitted="Admitted" in holds,
        is_evicted="Evicted" in holds,
        is_over="Finished" in holds or not obj["spec"].get("active", True),
        preemptor=match[1] if match else "",
        is_reclaimed="reclamation within the cohort" in message,
    )


def _requested(status: Raw) -> Amount:
    """Return what Kueue counts: of a Workload without quota, what it counted when it considered it."""
    if "admission" in status:
        return audit.counted({"status": status})
    requests = [each.get("resources", {}) for each in status.get("resourceRequests", ())]
    return Amount(
        *(sum(audit.amount(each.get(name, "0")) for each in requests) for name in (audit.GPU, audit.GPU_MEMORY))
    )


def _shapes(pod_sets: Iterable[Raw]) -> Iterator[Shape]:
    for each in pod_sets:
        yield from [shape(each["template"]["spec"])] * each["count"]
