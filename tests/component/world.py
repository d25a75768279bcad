"""The scheduler, its reporter and state, on an API server in memory with configurable failures, under virtual time."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth_api import names
from berth_api.objects.leader_lease import VERSION, LeaderLeaseStatus
from berth_api.words import TABLE
from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.evictions.moves import Moves
from berth_operator.binding.evictions.node_taints import NodeTaints
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.evictions.progress import EvictionProgress
from berth_operator.binding.gangs import GangKeeper
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.prebind.claims import ClaimBinder
from berth_operator.binding.prebind.volumes import VolumeBinder
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.scheduler import Scheduler
from berth_operator.binding.selectors.slow import SlowSelectors
from berth_operator.binding.workloads.fits_check import FitsCheck
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import NO_PLUGINS, DevicePlugin, kinds_of
from berth_operator.core.values.quota_workload import CheckAnswer, CheckSettings
from berth_operator.core.values.request import Taint
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.watches import sinks
from tests.objects.builders import device, entry, every_pod, node

Raw = dict[str, Any]

LATENCY = 0.01
GRACE = 0.5
"""Seconds that a deleted pod takes to end."""
EPOCH = 1_767_225_600
"""The start of a test, in seconds since 1970: 2026-01-01T00:00:00Z, when its pods are created."""
DEFAULT = Policy()
NOTHING = LeaderLeaseStatus(version=VERSION, lost_places=[])
"""What the first leader inherits."""


def now() -> float:
    return asyncio.get_running_loop().time()


def refusal(status: int = 422, message: str = "no") -> ApiError:
    return ApiError(status, "Refused", message)


class LostError(Unreachable):
    """The request was carried out, but its answer was lost."""


class Api:
    """Pods and Events in memory, with the methods of a client that the binder and the reporter call."""

    def __init__(self) -> None:
        self.pods: dict[str, Raw] = {}
        self.binds: list[tuple[float, str, Raw]] = []
        """(when, pod, Binding) of every attempt."""
        self.events: list[tuple[float, Raw]] = []
        """Bindings that were stored."""
        self.series: list[tuple[float, str]] = []
        """(when, name) of Events whose series was patched."""
        self.in_flight: set[str] = set()
        """Pods whose status is being patched."""
        self.patches: list[tuple[float, str, Raw]] = []
        """(when, pod, condition) of those that were stored."""
        self.nominations: list[tuple[str, str | None]] = []
        """(pod, node) in the order in which they were stored."""
        self.deletes: list[tuple[float, str]] = []
        """(when, pod) of deletions that were carried out."""
        self.faults: dict[str, list[Exception]] = {}
        """The next answers for a pod, by call: `bind NAME`, `get`, `annotate`, `event`, `condition`, `delete`."""
        self.always: dict[str, Exception] = {}
        """What every call for a pod answers."""
        self.annotated: list[tuple[float, str]] = []
        """(when, pod) of every attempt."""
        self.deletions: list[tuple[float, str]] = []
        """(when, pod) of every attempt."""
        self.on_deleted: list[Any] = []
        self.taints: list[tuple[float, str, bool]] = []
        """(when, node, whether the taint was placed) of each patch of a node that was carried out."""
        self.on_tainted: list[Any] = []
        self.under_way = 0
        self.most_under_way = 0
        self.on_bound: list[Any] = []
        self.latency = LATENCY
        self.evictions: list[tuple[float, str]] = []
        """(when, pod) of every attempt."""

    async def _answer(self, what: str) -> Exception | None:
        """Wait for the latency, then raise the next failure; return it if the request is still carried out."""
        await asyncio.sleep(self.latency)
        queued = self.faults.get(what)
        fault = queued.pop(0) if queued else self.always.get(what)
        if fault is not None and not isinstance(fault, LostError):
            raise fault
        return fault

    async def bind(self, namespace: str, name: str, binding: Raw) -> None:
        assert namespace == "ns"
        self.binds.append((now(), name, copy.deepcopy(binding)))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            lost = await self._answer(f"bind {name}")
        finally:
            self.under_way -= 1
        stored = self.pods.get(name)
        if stored is None or stored["metadata"]["uid"] != binding["metadata"]["uid"]:
            raise refusal(404, f"pods {name} not found")
        if stored["spec"].get("nodeName"):
            raise refusal(409, f"pod {name} is already assigned to node")
        stored["spec"]["nodeName"] = binding["target"]["name"]
        stored["metadata"]["annotations"] |= binding["metadata"]["annotations"]
        for callback in self.on_bound:
            callback(stored)
        if lost is not None:
            raise lost

    async def get_pod(self, namespace: str, name: str) -> Raw:
        assert namespace == "ns"
        await self._answer(f"get {name}")
        if name not in self.pods:
            raise refusal(404, f"pods {name} not found")
        return copy.deepcopy(self.pods[name])

    async def delete_pod(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        assert namespace == "ns"
        if dry_run:
            await asyncio.sleep(self.latency)
            if fault := self.always.get(f"delete {name}"):
                raise fault
            return
        self.deletions.append((now(), name))
        await self._answer(f"delete {name}")
        if name not in self.pods:
            raise refusal(404, f"pods {name} not found")
        if self.pods[name]["metadata"]["uid"] != uid:
            raise refusal(409, "another pod of this name")
        self.deletes.append((now(), name))
        for callback in self.on_deleted:
            callback(name)

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        assert namespace == "ns"
        self.evictions.append((now(), name))
        await self._answer(f"evict {name}")
        if name not in self.pods or self.pods[name]["metadata"]["uid"] != uid:
            raise refusal(404, f"pods {name} not found")
        for callback in self.on_deleted:
            callback(name)

    async def create_event(self, namespace: str, event: Raw) -> None:
        assert namespace == event["metadata"]["namespace"]
        name = event["regarding"]["name"]
        lost = await self._answer(f"event {name}")
        if "name" in event["metadata"] and event["metadata"]["name"] in {
            each["metadata"].get("name") for _, each in self.events
        }:
            raise refusal(409, "already exists")
        self.events.append((now(), event))
        if lost is not None:
            raise lost

    async def patch_event(self, namespace: str, name: str, patch: Raw) -> None:
        assert namespace == "ns"
        await self._answer("series")
        for _, event in self.events:
            if event["metadata"]["name"] == name:
                event.update(copy.deepcopy(patch))
                self.series.append((now(), name))
                return
        raise refusal(404, f"events {name} not found")

    async def patch_pod_status(self, namespace: str, name: str, patch: Raw) -> None:
        assert namespace == "ns"
        assert name not in self.in_flight, "one report of a pod at a time"
        self.in_flight.add(name)
        try:
            lost = await self._answer(f"condition {name}")
        finally:
            self.in_flight.discard(name)
        stored = self.pods.get(name)
        if stored is None or stored["metadata"]["uid"] != patch["metadata"]["uid"]:
            raise refusal(409, "another pod of this name")
        if "nominatedNodeName" in patch["status"]:
            self.nominations.append((name, patch["status"]["nominatedNodeName"]))
        for condition in patch["status"].get("conditions", ()):
            self.patches.append((now(), name, condition))
        if lost:
            raise lost

    async def annotate_pod(self, pod: Raw, annotations: Mapping[str, str]) -> None:
        name = pod["metadata"]["name"]
        self.annotated.append((now(), name))
        lost = await self._answer(f"annotate {name}")
        stored = self.pods.get(name)
        if stored is None:
            raise refusal(404, f"pods {name} not found")
        if stored["metadata"] != pod["metadata"]:
            raise refusal(409, f"pod {name} has been modified")
        stored["metadata"]["annotations"] = {**stored["metadata"]["annotations"], **annotations}
        for callback in self.on_bound:
            callback(stored)
        if lost is not None:
            raise lost

    async def json_patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """Place or remove the taint of a node."""
        name = path.rpartition("/")[2]
        await self._answer(f"taint {name}")
        is_placed = any(each["op"] == "add" for each in operations)
        self.taints.append((now(), name, is_placed))
        for callback in self.on_tainted:
            callback(name, is_placed)

    async def merge_patch(self, path: str, body: Raw) -> Raw:
        raise AssertionError(f"a pod without claims needs no {path}: {body}")

    async def get_protobuf(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        raise AssertionError(f"no claim has parameters, so {path} {params} is not read")

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        raise AssertionError(f"a pod without claims needs no {path}: {params}")

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, **_: Any) -> Any:
        raise AssertionError(f"a pod without claims needs no {method} {path}: {params}, {body}")

    # --- requests of tests --------------------------------------------------------------------------------------

    def bound(self) -> dict[str, str]:
        return {name: pod["spec"]["nodeName"] for name, pod in self.pods.items() if pod["spec"].get("nodeName")}

    def bind_times(self, name: str) -> list[float]:
        return [round(at, 2) for at, each, _ in self.binds if each == name]

    def events_of(self, name: str, reason: str) -> list[str]:
        return [
            each["note"] for _, each in self.events if each["regarding"]["name"] == name and each["reason"] == reason
        ]

    def counts(self, name: str) -> list[int]:
        """Return how often each Event about why a pod waits has occurred."""
        warnings = [each for _, each in self.events if each["regarding"]["name"] == name and each["type"] == "Warning"]
        return [each.get("series", {"count": 1})["count"] for each in warnings]

    def patched_at(self, name: str) -> list[float]:
        return [at for at, each, _ in self.patches if each == name]

    def messages(self, name: str) -> list[str]:
        return [condition["message"] for _, each, condition in self.patches if each == name]


class CountingFleet(Fleet):
    """Counts decisions: each reads the taints twice, and twice more if the pod does not fit."""

    looks = 0

    def taints(self) -> Mapping[Taint, Any]:
        self.looks += 1
        return super().taints()


class World:
    """All parts of an operator that decide and bind, without watches: the API itself reports the state of binds."""

    def __init__(
        self,
        *,
        watch: bool = True,
        policy: Policy = DEFAULT,
        schedulers: Sequence[str] | None = None,
        plugins: Mapping[str, DevicePlugin] = NO_PLUGINS,
        api: Api | None = None,
        tenants: Tenants | None = None,
        policies: Mapping[str, Policy] | None = None,
        cpu: Callable[[], float] = now,
        slow: Callable[[Cluster], SlowSelectors] | None = None,
        **of_cluster: Any,
    ) -> None:
        self.api = api or Api()
        self.reporter = Reporter(
            api=self.api,
            instance="me",
            clock=now,
            state_changed_at=lambda: self.cluster.waker.changed_at,
            lost_of=lambda gang: self.cluster.gang_tracker.notes(gang),  # noqa: PLW0108 - there is no cluster yet
        )
        self.attempts = Attempts(clock=now)
        self.notifier = Notifier(reporter=self.reporter, attempts=self.attempts, mark=lambda _kind, _name: None)
        self.fleet = CountingFleet(kinds=kinds_of(plugins))
        self.cluster = Cluster(
            grace=1e9, listener=self.notifier, fleet=self.fleet, tenants=tenants, clock=now, **of_cluster
        )
        if schedulers is not None:
            self.cluster.gangs.set_schedulers(schedulers)
        self.pods = every_pod(self.cluster)
        self.ended = sinks.ended_pods(self.cluster)
        tables = [sinks.pod_groups(self.cluster, kind) for kind in TABLE.pod_groups]
        self.groups, self.kubernetes_groups, *self.groups_of_others = tables
        self.term: int | None = 1
        self.grace = GRACE
        """Seconds from a bound pod's deletion to its end."""
        self.policies = dict(policies) if policies else {names.SCHEDULER: replace(policy, plugins=plugins)}
        self.inherited = NOTHING
        """What the last leader left."""
        self.moves = None if tenants is None else Moves(self.cluster)
        self.preemptor = Preemptor(
            cluster=self.cluster,
            pods=self.api,
            reporter=self.reporter,
            policy=self.policies.__getitem__,
            term=lambda: self.term,
            progress=EvictionProgress(self.cluster),
            taints=NodeTaints(cluster=self.cluster, nodes=self.api, leads=lambda: self.term is not None),
            moves=self.moves,
        )
        self.slow = None if slow is None else slow(self.cluster)
        self.answers: list[CheckAnswer] = []
        """Of the AdmissionCheck."""
        self.scheduler = Scheduler(
            cluster=self.cluster,
            preemptor=self.preemptor,
            pods=self.api,
            volume_binder=VolumeBinder(api=self.api, cluster=self.cluster, timeout=600),
            claim_binder=ClaimBinder(
                api=self.api, cluster=self.cluster, lease="berth", term=lambda: self.term, fenced=False
            ),
            reporter=self.reporter,
            attempts=self.attempts,
            policy=lambda scheduler: self.policies[scheduler],
            lease="berth",
            term=lambda: self.term,
            work=self.notifier.work,
            inherited=lambda: self.inherited,
            fits=FitsCheck(
                cluster=self.cluster,
                policy=self.policies.__getitem__,
                settings=CheckSettings,
                answer=self.answers.append,
            ),
            wall=lambda: EPOCH + now(),
            cpu=cpu,
            slow=self.slow,
        )
        self.keeper = GangKeeper(
            cluster=self.cluster,
            pods=self.api,
            reporter=self.reporter,
            keep_partial=lambda scheduler: self.policies[scheduler].gang_keep_partial,
            leads=lambda: self.term is not None,
        )
        self.api.on_deleted.append(self.terminate)
        if watch:
            self.api.on_bound.append(self.seen_bound)

    def left(self) -> LeaderLeaseStatus:
        """Return what the leader leaves to the next one."""
        assert self.term is not None
        record = self.scheduler.record(self.term)
        assert record is not None
        return record

    def seen_bound(self, pod: Raw) -> None:
        """Pass the state of a bind to the cluster state a moment later."""
        asyncio.get_running_loop().call_later(2 * LATENCY, self.pods.apply, "MODIFIED", copy.deepcopy(pod))

    def add_node(self, name: str = "node", cards: int = 1, **fields: Any) -> None:
        self.cluster.node_cache.put_node(node(name, **fields))
        self.cluster.node_cache.put_device(device(name, *(entry(minor) for minor in range(cards))))

    def submit(self, *pods: Raw) -> None:
        for pod in pods:
            self.api.pods[pod["metadata"]["name"]] = pod
            self.pods.apply("ADDED", copy.deepcopy(pod))

    def change(self, pod: Raw) -> None:
        self.api.pods[pod["metadata"]["name"]] = pod
        self.pods.apply("MODIFIED", copy.deepcopy(pod))

    def delete(self, name: str) -> None:
        pod = self.api.pods.pop(name)
        self.pods.apply("DELETED", pod)

    def terminate(self, name: str) -> None:
        """Delete a bound pod, which takes its time to end."""
        pod = self.api.pods[name]
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        self.pods.apply("MODIFIED", copy.deepcopy(pod))
        asyncio.get_running_loop().call_later(self.grace, self._leave, name)

    def _leave(self, name: str) -> None:
        if name in self.api.pods:
            self.delete(name)

    def end(self, name: str, phase: str = "Succeeded") -> None:
        """End a bound pod that completes by itself."""
        pod = self.api.pods[name]
        self.pods.apply("DELETED", copy.deepcopy(pod))
        pod["status"]["phase"] = phase
        self.ended.apply("ADDED", copy.deepcopy(pod))

    def users(self) -> int:
        """Return the number of grants that are charged."""
        return int(self.cluster.fleet.cards["gpu"].users.sum())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Api]:
        tasks: Sequence[asyncio.Task[None]] = [
            asyncio.create_task(self.scheduler.run()),
            asyncio.create_task(self.reporter.run()),
            asyncio.create_task(self.keeper.run()),
            asyncio.create_task(self.preemptor.run()),
            *([] if self.slow is None else [asyncio.create_task(self.slow.run())]),
        ]
        try:
            yield self.api
            failed = [task.exception() for task in tasks if task.done()]
            assert not any(failed), failed
            assert self.attempts.in_flight <= set(self.cluster.placements.in_flight()), "every attempt ends"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.scheduler.drain()
