"""The end of a month: etcd is restored from a copy under all programs, and no card may get two owners.

The history ends before: its revisions only grow, and after a restore versions occur twice. What is there at the end is
audited by the code of the demo.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from demo.audit import audit
from devcluster import waiting
from devcluster.control_plane.api import Manifest
from tests.chaos.machines import CARDS, MONTH, WORKLOAD_MODEL
from tests.chaos.site import Site
from tests.chaos.workload import MODEL
from tests.integration.operator.world import condition

WHOLE: Final = {"kubernetes.io/gpu": "100"}
SETTLED: Final = 180.0
"""Longest time in seconds until all that is there is decided again, and shown."""
ON_OWN_NODES: Final = {"matchExpressions": [{"key": f"{MONTH}/pool", "operator": "DoesNotExist"}]}
"""Not on nodes of the autoscaler, which no longer learns what is on them."""


def restored(site: Site) -> Sequence[str]:
    """Restore etcd while cards change their owners; return what the audit finds afterwards, and what waits unsaid."""
    site.recorder.close()
    cards = CARDS * len(site.machines.names)
    before, after, later = (
        [f"{part}-{number}" for number in range(cards // 2)] for part in ("before", "after", "later")
    )
    _create(site, before)
    _until_bound(site, before)
    copy = site.cluster.back_up()
    # Of these changes nothing is left after the restore, but the programs know them.
    for name in before[::2]:
        site.arena.delete("pods", name, grace_seconds=0)
    _create(site, after)
    _until_bound(site, [*before[1::2], *after])
    revision = int(site.arena.get("pods", after[-1])["metadata"]["resourceVersion"])
    site.cluster.restore(copy)
    _create(site, later)
    site.world.write_until(revision)
    _create(site, after)
    try:
        waiting.until(lambda: not _problems(site), deadline=SETTLED, what="the cluster to settle after a restore")
    except waiting.WaitError:
        return [f"after the restore of etcd: {problem}" for problem in _problems(site)]
    return ()


def _create(site: Site, names: Iterable[str]) -> None:
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ON_OWN_NODES]}}
    }
    own: dict[str, Any] = {"annotations": {MODEL: WORKLOAD_MODEL}, "affinity": affinity}
    for name in names:
        site.insist(lambda name=name: site.arena.create([site.arena.pod(name, requests=WHOLE, limits=WHOLE, **own)]))


def _until_bound(site: Site, names: Iterable[str]) -> None:
    wanted = set(names)
    waiting.until(lambda: wanted <= site.world.bound_names(), deadline=SETTLED, what=f"{sorted(wanted)} to be bound")


def _problems(site: Site) -> list[str]:
    """Return the faults of the audit, and the pods that wait without a reason."""
    pods: list[Manifest] = site.arena.list("pods")
    nodes = site.arena.list("nodes", labelSelector=site.arena.selector)
    names = {node["metadata"]["name"] for node in nodes}
    devices = [device for device in site.arena.list("devices") if device["metadata"]["name"] in names]
    faults = audit(pods=pods, nodes=nodes, devices=devices, scheduler=site.arena.scheduler_name)
    silent = [pod for pod in pods if not pod["spec"].get("nodeName") and not condition(pod, "PodScheduled")]
    return [*map(str, faults), *(f"pod {pod['metadata']['name']} waits without a reason" for pod in silent)]
