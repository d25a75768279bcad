"""A fleet that three teams share by Kueue's quotas, and the record of what happens in it."""

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from devcluster import Cluster, waiting
from devcluster.additions import fleet, installation, kueue
from tests.bench.teams import history as teams_history
from tests.bench.teams.history import CARD, WHOLE, Event, Pod
from tests.bench.teams.load import HIGH, TEAMS
from tests.bench.teams.rules import Fleet, Quota, State
from tests.chaos import history
from tests.chaos.control_plane import ETCD, ControlPlane
from tests.chaos.history import STORES_JSON, Kind, Recorder, Revision, Source
from tests.kueue.audit import GPU, GPU_MEMORY, Amount

CARDS: Final = 8
"""Cards of each node."""
SHARES: Final = dict(zip(TEAMS, (0.24, 0.23, 0.5), strict=True))
"""Team -> what it is guaranteed of the fleet; the rest is for requests by bytes."""
BY_BYTES: Final = 0.03
BORROWED: Final = 0.5
"""What a team may borrow, in parts of what it is guaranteed."""
FLAVOR: Final = "a100"
CHECK: Final = "berth"
CONTROLLER: Final = "berth.dev/fits-devices"
API: Final = "kueue.x-k8s.io/v1beta2"
PLENTY: Final = {"cpu": "100k", "memory": "1Pi"}
SOURCES: Final = (history.PODS, Source(Kind.WORKLOAD, "/registry/kueue.x-k8s.io/workloads/"))
READY_SECONDS: Final = 60.0

Manifest = dict[str, Any]


def shared(nodes: list[str]) -> Fleet:
    """Return the fleet and its quotas."""
    capacity = len(nodes) * CARDS
    size = int(BY_BYTES / len(TEAMS) * capacity * CARD)
    quotas = {}
    for team, share in SHARES.items():
        nominal = Amount(int(share * capacity * WHOLE), size)
        quotas[team] = Quota(nominal=nominal, limit=_times(nominal, 1 + BORROWED))
    return Fleet(nodes=nodes, cards=CARDS, quotas=quotas)


def _times(amount: Amount, factor: float) -> Amount:
    return Amount(int(amount.hundredths * factor), int(amount.size * factor))


class Running(NamedTuple):
    """A cluster, its fleet, and the process of the operator."""

    cluster: Cluster
    fleet: Fleet
    operator: int


@contextlib.contextmanager
def opened(nodes: int, *, check: bool) -> Iterator[Running]:
    """Return a cluster with Berth as it is shipped, Kueue, and the teams' queues, with the check or without."""
    arguments = {"kube-apiserver": [STORES_JSON]}
    with (
        tempfile.TemporaryDirectory(prefix="berth-bench-") as name,
        Cluster(folder=Path(name) / "cluster", extra_args=arguments) as cluster,
    ):
        installation.apply(cluster)
        names = fleet.start(cluster, fleet.generated(cluster, count=nodes, gpus=CARDS, profile="a100"))
        kueue.start(cluster, neighbours=True)
        for manifest in _component(check=check):
            cluster.api.apply(manifest)
        operator = installation.start(cluster, *(["--kueue"] if check else []))
        running = Running(cluster, shared(names), operator)
        make_queues(running, check=check)
        installation.wait(cluster, operator, nodes=names)
        yield running


def make_queues(running: Running, *, check: bool) -> None:
    """Make the teams' queues, with the check or without, and wait until Kueue says that they are active."""
    for manifest in queues(running.fleet, check=check):
        running.cluster.api.apply(manifest)
    waiting.until(lambda: _are_active(running.cluster), deadline=READY_SECONDS, what="the LocalQueues")


def _component(*, check: bool) -> list[Manifest]:
    """Return what is shipped for clusters with Kueue."""
    folder = kueue.CONFIGURATION.parent
    names = ("policy", "rbac", "checks") if check else ("policy",)
    return [manifest for name in names for manifest in installation.documents(folder / f"{name}.yaml")]


def _are_active(cluster: Cluster) -> bool:
    listed = [
        each for kind in ("clusterqueues", "localqueues") for each in cluster.api.get(f"/apis/{API}/{kind}")["items"]
    ]
    return len(listed) == 2 * len(TEAMS) and all(map(_is_active, listed))


def _is_active(queue: Manifest) -> bool:
    """Return whether Kueue has seen the queue as it is now."""
    generation = queue["metadata"]["generation"]
    conditions = queue.get("status", {}).get("conditions", ())
    return any(
        each["type"] == "Active" and each["status"] == "True" and each.get("observedGeneration") == generation
        for each in conditions
    )


def queues(shared_fleet: Fleet, *, check: bool) -> Iterator[Manifest]:
    """Yield a cohort whose teams borrow from each other and get back what they lend."""
    yield _kueue("ResourceFlavor", FLAVOR, spec={"nodeLabels": {"node.koordinator.sh/gpu-model": _MODEL}})
    yield _kueue("WorkloadPriorityClass", HIGH, value=1000)
    if check:
        yield _kueue("AdmissionCheck", CHECK, spec={"controllerName": CONTROLLER})
    for team, quota in shared_fleet.quotas.items():
        labels = {"kueue-managed": "true"}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": labels}}
        selector = {"matchLabels": {**labels, "kubernetes.io/metadata.name": team}}
        spec = {
            "cohortName": "all",
            "namespaceSelector": selector,
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [_resources(quota)],
        }
        strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}} if check else {}
        yield _kueue("ClusterQueue", team, spec={**spec, **strategy})
        local = _kueue("LocalQueue", "default", spec={"clusterQueue": team})
        yield {**local, "metadata": {"name": "default", "namespace": team}}


_MODEL: Final = "NVIDIA-A100-SXM4-80GB"


def _kueue(kind: str, name: str, **fields: Any) -> Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, **fields}


def _resources(quota: Quota) -> Manifest:
    limited = {
        GPU: (quota.nominal.hundredths, quota.limit.hundredths),
        GPU_MEMORY: (quota.nominal.size, quota.limit.size),
    }
    resources: list[Manifest] = [{"name": name, "nominalQuota": amount} for name, amount in PLENTY.items()]
    for name, (nominal, limit) in limited.items():
        resources.append({"name": name, "nominalQuota": nominal, "borrowingLimit": limit - nominal})
    return {"coveredResources": [*PLENTY, *limited], "flavors": [{"name": FLAVOR, "resources": resources}]}


class Record:
    """What is known of pods and Workloads of the teams while their history is recorded.

    Attributes:
        events: the history, in its order.
        state: what exists now.
        bound: unit -> UIDs of its pods that have a node.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state = State()
        self.bound: defaultdict[str, set[str]] = defaultdict(set)
        self._last: dict[tuple[Kind, str], Event] = {}

    def take(self, revision: Revision) -> None:
        """Add a revision."""
        key = revision.kind, revision.name
        event = teams_history.follow(revision, self._last.get(key))
        if event is None:
            return
        self._last[key] = event
        self.events.append(event)
        self.state.apply(event)
        if isinstance(event.value, Pod) and event.value.unit:
            holds = event.value.node and not event.is_gone
            (self.bound[event.value.unit].add if holds else self.bound[event.value.unit].discard)(event.uid)


@contextlib.contextmanager
def recorded(running: Running) -> Iterator[Record]:
    """Return the record of everything that is written from now on; it is complete at the end of the block.

    Raises:
        RuntimeError: something of the history is missing.
    """
    record = Record()
    sources = [each for team in TEAMS for each in history.within(team, SOURCES)]
    port = ControlPlane(running.cluster).port(ETCD)
    with (
        tempfile.NamedTemporaryFile(prefix="berth-bench-") as file,
        Recorder(port=port, sources=sources, file=Path(file.name), take=record.take) as recorder,
    ):
        yield record
        recorder.catch_up()
