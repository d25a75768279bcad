"""Owners of processes. The cgroup of a process names its pod."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from berth_agent.readings import Process
from berth_api.device import ForeignUse
from berth_api.resources import quantity

_POD: Final = re.compile(
    r"(?:kubepods|:(?:/\.\.)+)(?:[/-](?:burstable|besteffort))?[/-]"
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
)
"""The pod's cgroup in both of kubelet's spellings: `kubepods/burstable/pod1f2e…-…` and
`kubepods-burstable-pod1f2e…_….slice`. Static pods have 32 digits.

The kernel shows paths relative to the root of the agent's cgroup namespace. With cgroup v2, the root is the agent's own
container, so the first spelling may begin without `kubepods`: `0::/../../pod1f2e…-…`.

The first match in a path is the cgroup that kubelet made: a container may name cgroups as those of other pods, but only
below its own. A pod of an outer cluster does not come first: a node that is itself a container, as with kind, has its
own cgroup namespace."""
_CONTAINER: Final = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
"""The container's cgroup in both spellings: `…/<id>` and `…/cri-containerd-<id>.scope`. A container may have cgroups
below its own."""
OUTSIDE: Final = ("", "")
"""The owner of processes of no pod."""
STEP: Final = 2**30
"""Bytes to which published memory is rounded, because it changes all the time and no decision depends on it."""


def pod_of(cgroup: str) -> str | None:
    """Return the UID of the pod that a process's `/proc/<pid>/cgroup` names; None for a process of no pod."""
    match = _POD.search(cgroup)
    return match[1].replace("_", "-") if match else None


def container_of(cgroup: str) -> str:
    """Return the runtime's id of the container that a process of a pod runs in; empty if its cgroup names none."""
    match = _CONTAINER.search(cgroup)
    return match[1] if match else ""


def memory_by_owner(listed: Iterable[Process], proc: Path) -> Mapping[tuple[str, str], int]:
    """Return the bytes of a card that processes use, by the UID of their pod and the id of their container.

    Ended processes, and processes whose memory the driver does not report, are left out.
    """
    memory: Counter[tuple[str, str]] = Counter()
    for process in listed:
        cgroup = _read(proc / str(process.pid))
        if cgroup is not None and process.memory:
            pod = pod_of(cgroup)
            memory[(pod, container_of(cgroup)) if pod else OUTSIDE] += process.memory
    return memory


def memory_by_pod(listed: Iterable[Process], proc: Path) -> Mapping[str, int]:
    """Return the bytes that the processes of each pod use of a card, by the UID in their cgroups."""
    memory: Counter[str] = Counter()
    for (pod, _), used in memory_by_owner(listed, proc).items():
        memory[pod] += used
    del memory[OUTSIDE[0]]
    return memory


def pods_with_processes(proc: Path) -> frozenset[str]:
    """Return the UIDs of all pods that have a process."""
    readings = (_read(entry) for entry in proc.iterdir() if entry.name.isdecimal())
    return frozenset(uid for text in readings if text and (uid := pod_of(text)))


def foreign(by_minor: Mapping[int, Iterable[Process]], proc: Path) -> tuple[ForeignUse, ...]:
    """Return the cards with processes of no pod; processes that ended or are not visible do not count."""
    uses = []
    for minor, listed in sorted(by_minor.items()):
        outside = []
        for process in listed:
            cgroup = _read(proc / str(process.pid))
            if cgroup is not None and pod_of(cgroup) is None:
                outside.append(process)
        if outside:
            memory = rounded(sum(process.memory for process in outside))
            uses.append(ForeignUse(type="gpu", minor=minor, processes=len(outside), memory=memory))
    return tuple(uses)


def rounded(memory: int) -> str:
    """Return an amount of memory in words, rounded up to `STEP`."""
    return quantity.format_bytes(-(-memory // STEP) * STEP)


def _read(process: Path) -> str | None:
    """Read a process's cgroups; None if it has ended or they cannot be read.

    Tenants may name cgroups below their own, in any encoding. The kernel refuses to show a path of more than 4096
    bytes.
    """
    try:
        return (process / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
