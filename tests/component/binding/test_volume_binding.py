"""From decision to Binding of pods with VolumeClaims, on an API server in memory and in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from berth_api import names
from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.evictions.node_taints import NodeTaints
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.evictions.progress import EvictionProgress
from berth_operator.binding.gangs import GangKeeper
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.prebind.claims import ClaimBinder
from berth_operator.binding.prebind.volumes import BOUND_BY_CONTROLLER, VolumeBinder
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.scheduler import MAX_BINDS, Scheduler
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.volumes import BOUND_ANNOTATION, SELECTED_NODE
from berth_operator.state.watches.storage import Storage
from tests.component.world import NOTHING
from tests.objects.builders import Raw, node, pod, pod_group
from tests.objects.volumes import raw_claim, raw_class, raw_volume

pytestmark = pytest.mark.looptime

TIMEOUT = 600.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Claims and volumes in memory; every change reaches the operator's state after `lag` seconds, as by a watch."""

    storage: Storage
    """The state that is shown every change."""

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.calls: list[tuple[float, str]] = []
        self.faults: list[Exception] = []
        """What the next patches answer."""
        self.lag = 0.01
        self.controller: Callable[[str], None] = self.bind_soon
        """What the volume controller does when a path changes."""
        self.version = 100

    # --- calls of the operator --------------------------------------------------------------------------------

    async def json_patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> None:
        raise AssertionError(f"no pod is evicted, so {path} needs no {operations}")

    async def merge_patch(self, path: str, body: Raw) -> Raw:
        self.calls.append((now(), f"patch {path.rpartition('/')[2]}"))
        await asyncio.sleep(0.01)
        if self.faults:
            raise self.faults.pop(0)
        known = self.objects[path]["metadata"]
        if body["metadata"]["resourceVersion"] != known["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        annotations = {**known.get("annotations", {}), **body["metadata"].get("annotations", {})}
        self.change(path, annotations=annotations, **body.get("spec", {}))
        self.controller(path)
        return self.objects[path]

    async def get_protobuf(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        raise AssertionError(f"no claim has parameters, so {path} {params} is not read")

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Raw:
        raise AssertionError(f"a pod without ResourceClaims needs no {path}: {params}")

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None, body: Any, **_: Any) -> Any:
        raise AssertionError(f"a pod without ResourceClaims needs no {method} {path}: {params}, {body}")

    async def bind(self, _namespace: str, name: str, _binding: Raw) -> None:
        await asyncio.sleep(0.01)
        self.calls.append((now(), f"bind {name}"))

    async def get_pod(self, _namespace: str, _name: str) -> Raw:
        raise NotImplementedError

    async def delete_pod(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        raise AssertionError(f"{namespace}/{name} ({uid}) was not bound; dry run: {dry_run}")

    async def patch_event(self, _namespace: str, name: str, _patch: Raw) -> None:
        raise AssertionError(f"no pod waits for two reasons: {name}")

    async def create_event(self, _namespace: str, event: Raw) -> None:
        self.calls.append((now(), f"event {event['reason']} {event['regarding']['name']}"))

    async def patch_pod_status(self, _namespace: str, name: str, patch: Raw) -> None:
        self.calls.append((now(), f"condition {name}: {patch['status']['conditions'][0]['message']}"))

    # --- changes on the server --------------------------------------------------------------------------------

    def put(self, raw: Raw) -> None:
        """Create an object, seen at once."""
        self.objects[_path(raw)] = raw
        self._show(raw)

    def change(self, path: str, *, annotations: Raw | None = None, **spec: Any) -> None:
        old = self.objects[path]
        self.version += 1
        metadata = {**old["metadata"], "resourceVersion": str(self.version)}
        if annotations is not None:
            metadata["annotations"] = annotations
        self.objects[path] = {**old, "metadata": metadata, "spec": {**old["spec"], **spec}}
        asyncio.get_running_loop().call_later(self.lag, self._show, self.objects[path])

    def _show(self, raw: Raw) -> None:
        (self.storage.put_volume if "capacity" in raw["spec"] else self.storage.put_claim)(raw)

    def bind_soon(self, path: str) -> None:
        asyncio.get_running_loop().call_later(3.0, self.bind_claim, path)

    def bind_claim(self, path: str) -> None:
        """Act as the volume controller: bind the claim that a volume is for."""
        if (ref := self.objects[path]["spec"].get("claimRef")) is None:
            return
        claim = f"/api/v1/namespaces/ns/persistentvolumeclaims/{ref['name']}"
        self.change(claim, annotations={BOUND_ANNOTATION: "yes"}, volumeName=self.objects[path]["metadata"]["name"])

    def sent(self, *kinds: str) -> list[str]:
        return [what for _, what in self.calls if what.startswith(kinds or ("patch", "bind"))]

    def at(self, what: str) -> float:
        return next(when for when, each in self.calls if each == what)


class World:
    """The scheduler of a node, its server, and the actions of tests."""

    def __init__(self) -> None:
        self.server = Server()
        self.reporter = Reporter(api=self.server, instance="i", clock=now)
        self.attempts = attempts = Attempts(clock=now)
        self.notifier = Notifier(reporter=self.reporter, attempts=attempts, mark=lambda _kind, _name: None)
        self.cluster = Cluster(grace=1.0, listener=self.notifier, clock=now)
        self.storage = self.server.storage = Storage(self.cluster)
        self.term: int | None = 1
        volumes = VolumeBinder(api=self.server, cluster=self.cluster, timeout=TIMEOUT)
        self.storage.on_claim = volumes.changed
        preemptor = Preemptor(
            cluster=self.cluster,
            pods=self.server,
            reporter=self.reporter,
            policy=lambda _: Policy(),
            term=lambda: self.term,
            progress=EvictionProgress(self.cluster),
            taints=NodeTaints(cluster=self.cluster, nodes=self.server, leads=lambda: self.term is not None),
        )
        self.scheduler = Scheduler(
            cluster=self.cluster,
            preemptor=preemptor,
            pods=self.server,
            volume_binder=volumes,
            claim_binder=ClaimBinder(
                api=self.server, cluster=self.cluster, lease="l", term=lambda: self.term, fenced=False
            ),
            reporter=self.reporter,
            attempts=attempts,
            policy=lambda _scheduler: Policy(),
            lease="l",
            term=lambda: self.term,
            work=self.notifier.work,
            inherited=lambda: NOTHING,
        )
        self.keeper = GangKeeper(
            cluster=self.cluster,
            pods=self.server,
            reporter=self.reporter,
            keep_partial=lambda _scheduler: False,
            leads=lambda: True,
        )
        self.cluster.node_cache.put_node(node())
        self.storage.put_class(raw_class())
        self.storage.put_class(raw_class("made", provisioner="csi.example"))

    def pod(self, name: str, *claims: str, **fields: Any) -> None:
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
        self.cluster.put_pending(pod(name, volumes=volumes, **fields))

    def path(self, claim: str) -> str:
        return f"/api/v1/namespaces/ns/persistentvolumeclaims/{claim}"

    @property
    def charged(self) -> set[str]:
        return set(self.cluster.fleet.charges)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    tasks = [asyncio.create_task(each.run()) for each in (world.scheduler, world.reporter)]
    yield world
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)
    await world.scheduler.drain()


def _path(raw: Raw) -> str:
    name = raw["metadata"]["name"]
    if "capacity" in raw["spec"]:
        return f"/api/v1/persistentvolumes/{name}"
    return f"/api/v1/namespaces/ns/persistentvolumeclaims/{name}"


async def test_a_volume_is_set_aside_and_the_pod_bound_once_its_claim_is(world: World) -> None:
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(2)
    assert world.server.sent() == ["patch volume"]
    assert world.charged == {"uid-p"}
    written = world.server.objects["/api/v1/persistentvolumes/volume"]
    assert written["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
    assert written["spec"]["claimRef"]["uid"] == "uid-claim"
    await asyncio.sleep(2)
    assert world.server.sent() == ["patch volume", "bind p"]
    # Soon after the controller's three seconds: the operator does not poll.
    assert world.server.at("bind p") == pytest.approx(3.05, abs=0.03)


async def test_pods_without_such_claims_take_no_step_more(world: World) -> None:
    world.server.put(raw_volume(spec={"claimRef": {"namespace": "ns", "name": "claim", "uid": "uid-claim"}}))
    world.server.put(raw_claim(annotations={BOUND_ANNOTATION: "yes"}, spec={"volumeName": "volume"}))
    world.pod("p")
    world.pod("q", "claim")
    await asyncio.sleep(1)
    assert sorted(world.server.sent("patch", "bind", "event", "condition")) == [
        "bind p",
        "bind q",
        "event Scheduled p",
        "event Scheduled q",
    ]


async def test_pods_at_once_get_different_volumes_and_the_last_waits(world: World) -> None:
    for name in ("v", "w"):
        world.server.put(raw_volume(name))
    for name in ("a", "b", "c"):
        world.server.put(raw_claim(name))
        world.pod(name, name)
    await asyncio.sleep(10)
    assert sorted(world.server.sent()) == ["bind a", "bind b", "patch v", "patch w"]
    assert world.charged == {"uid-a", "uid-b"}
    world.server.put(raw_volume("x"))
    await asyncio.sleep(10)
    assert world.server.sent()[-2:] == ["patch x", "bind c"]


async def test_a_volume_that_is_being_made_is_waited_for(world: World) -> None:
    world.server.put(raw_claim(spec={"storageClassName": "made"}))
    world.pod("p", "claim")
    await asyncio.sleep(60)
    assert world.server.sent() == ["patch claim"]
    claim = world.server.objects[world.path("claim")]
    assert claim["metadata"]["annotations"] == {SELECTED_NODE: "node"}
    world.server.put(raw_volume(spec={"claimRef": {"namespace": "ns", "name": "claim", "uid": "uid-claim"}}))
    annotations = {SELECTED_NODE: "node", BOUND_ANNOTATION: "yes"}
    world.server.change(world.path("claim"), annotations=annotations, volumeName="volume")
    await asyncio.sleep(1)
    assert world.server.sent() == ["patch claim", "bind p"]


async def test_after_ten_minutes_the_pod_is_reported_and_decided_again(world: World) -> None:
    world.server.put(raw_claim(spec={"storageClassName": "made"}))
    world.pod("p", "claim")
    await asyncio.sleep(TIMEOUT - 1)
    assert world.charged == {"uid-p"}
    await asyncio.sleep(1.5)
    assert world.charged == set()
    assert world.server.sent("condition", "event") == [
        "condition p: binding volumes: not done within 600 s",
        "event FailedBinding p",
    ]
    await asyncio.sleep(2)
    assert world.charged == {"uid-p"}
    assert world.server.sent() == ["patch claim"]  # it still names the node


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(ApiError(409, "Conflict", "modified"), id="changed meanwhile"),
        pytest.param(ApiError(403, "Forbidden", "no"), id="forbidden"),
        pytest.param(Unreachable("away"), id="no answer"),
    ],
)
async def test_a_write_that_fails_is_decided_again_after_the_back_off(world: World, fault: Exception) -> None:
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.server.faults.append(fault)
    world.pod("p", "claim")
    await asyncio.sleep(0.5)
    assert world.charged == set()
    assert world.server.sent("condition") == [f"condition p: binding volumes: {fault}"]
    await asyncio.sleep(10)
    assert world.server.sent() == ["patch volume", "patch volume", "bind p"]


async def test_what_another_client_changed_is_not_overwritten(world: World) -> None:
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.server.lag = 5.0
    world.server.change("/api/v1/persistentvolumes/volume", claimRef={"namespace": "ns", "name": "x", "uid": "y"})
    world.pod("p", "claim")
    await asyncio.sleep(20)
    assert world.server.objects["/api/v1/persistentvolumes/volume"]["spec"]["claimRef"]["name"] == "x"
    assert "bind p" not in world.server.sent()


async def test_a_provisioner_that_cannot_says_so_by_taking_the_node_away(world: World) -> None:
    world.server.put(raw_claim(spec={"storageClassName": "made"}))
    world.pod("p", "claim")
    await asyncio.sleep(5)
    world.server.change(world.path("claim"), annotations={})
    await asyncio.sleep(0.5)
    assert world.charged == set()
    assert world.server.sent("condition") == ['condition p: binding volumes: provisioning failed for PVC "claim"']
    await asyncio.sleep(2)
    assert world.server.sent() == ["patch claim", "patch claim"]


async def test_a_volume_that_is_taken_away_again_is_not_waited_for(world: World) -> None:
    world.server.controller = lambda _path: None
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(5)
    world.server.change("/api/v1/persistentvolumes/volume", claimRef=None)
    await asyncio.sleep(0.5)
    assert world.charged == set()
    assert 'ClaimRef got reset for pv "volume"' in world.server.sent("condition")[0]


async def test_a_node_that_reaches_the_volume_no_more(world: World) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    world.server.put(raw_volume(spec={"nodeAffinity": affinity}))
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(2)
    world.cluster.node_cache.put_node(node(labels={"zone": "x"}))
    await asyncio.sleep(1)
    assert world.charged == set()
    refused = 'condition p: binding volumes: pv "volume" node affinity doesn\'t match node "node"'
    assert world.server.sent("condition")[0] == refused


async def test_a_volume_made_elsewhere_is_no_use(world: World) -> None:
    world.server.put(raw_claim(spec={"storageClassName": "made"}))
    world.pod("p", "claim")
    await asyncio.sleep(2)
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    ref = {"namespace": "ns", "name": "claim", "uid": "uid-claim"}
    world.server.put(raw_volume(spec={"claimRef": ref, "nodeAffinity": affinity}))
    annotations = {SELECTED_NODE: "node", BOUND_ANNOTATION: "yes"}
    world.server.change(world.path("claim"), annotations=annotations, volumeName="volume")
    await asyncio.sleep(1)
    assert world.charged == set()
    assert "node affinity doesn't match" in world.server.sent("condition")[0]


async def test_a_volume_that_a_user_set_aside_stays_marked_so(world: World) -> None:
    world.server.put(raw_volume(spec={"claimRef": {"namespace": "ns", "name": "claim"}}))
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(10)
    assert world.server.sent() == ["patch volume", "bind p"]
    written = world.server.objects["/api/v1/persistentvolumes/volume"]
    assert written["metadata"].get("annotations", {}) == {}
    assert written["spec"]["claimRef"]["uid"] == "uid-claim"


async def test_a_volume_that_is_set_aside_already_is_not_written(world: World) -> None:
    world.server.put(raw_volume(spec={"claimRef": {"namespace": "ns", "name": "claim", "uid": "uid-claim"}}))
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(2)
    world.server.bind_claim("/api/v1/persistentvolumes/volume")
    await asyncio.sleep(1)
    assert world.server.sent() == ["bind p"]


async def test_what_a_pod_was_promised_wakes_others_when_it_is_free_again(world: World) -> None:
    world.server.controller = lambda _path: None
    world.server.put(raw_volume())
    for name in ("a", "b"):
        world.server.put(raw_claim(name))
        world.pod(name, name)
    world.server.faults.append(ApiError(403, "Forbidden", "no"))
    await asyncio.sleep(0.5)
    assert len(world.charged) == 1


async def test_a_watch_that_is_behind_is_no_failure(world: World) -> None:
    world.server.lag = 8.0
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(20)
    assert world.server.sent() == ["patch volume", "bind p"]


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        pytest.param(lambda world: world.cluster.remove_pending("uid-p"), [], id="the pod is gone"),
        pytest.param(
            lambda world: world.cluster.node_cache.remove_node("node"),
            ['condition p: binding volumes: node "node" is gone'],
            id="the node is gone",
        ),
        pytest.param(
            lambda world: world.storage.remove_claim("ns/claim"),
            ['condition p: binding volumes: persistentvolumeclaim "claim" not found'],
            id="the claim is gone",
        ),
    ],
)
async def test_what_goes_while_its_volume_is_made(
    world: World, happens: Callable[[World], None], expected: list[str]
) -> None:
    world.server.put(raw_claim(spec={"storageClassName": "made"}))
    world.pod("p", "claim")
    await asyncio.sleep(5)
    happens(world)
    await asyncio.sleep(1.5)
    assert world.charged == set()
    assert not world.attempts.in_flight
    assert world.server.sent("condition")[: len(expected)] == expected
    assert "bind p" not in world.server.sent()


async def test_a_bound_pod_keeps_what_it_holds_and_nothing_that_it_was_promised(world: World) -> None:
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(5)
    volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}}]
    world.cluster.put_bound(pod("p", volumes=volumes, on="node"))
    charge = world.cluster.fleet.charges["uid-p"]
    assert (bool(charge.mounts), bool(charge.volumes)) == (True, False)


async def test_nothing_is_sent_once_the_term_is_over(world: World) -> None:
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("p", "claim")
    await asyncio.sleep(2)
    world.term = None
    await asyncio.sleep(10)
    assert world.server.sent() == ["patch volume"]


async def test_waiting_for_volumes_delays_no_other_bind(world: World) -> None:
    world.cluster.node_cache.put_node(node(allocatable={"pods": "1000"}))
    world.server.lag = 0.0
    for i in range(MAX_BINDS + 10):
        world.server.put(raw_claim(f"c{i}", spec={"storageClassName": "made"}))
        world.pod(f"p{i}", f"c{i}")
    await asyncio.sleep(5)
    assert len(world.charged) == MAX_BINDS + 10
    world.pod("plain")
    await asyncio.sleep(0.1)
    assert world.server.sent("bind") == ["bind plain"]
    started = now()
    await world.scheduler.drain()
    assert now() - started < 1


# --- gangs --------------------------------------------------------------------------------------------------------

GANG = {"labels": {names.POD_GROUP_LABEL: "g"}}


async def test_no_member_of_a_gang_is_bound_before_the_claims_of_all_are(world: World) -> None:
    world.cluster.gangs.put_group(pod_group(minimum=3))
    for name in ("v", "w"):
        world.server.put(raw_volume(name))
    for name in ("a", "b"):
        world.server.put(raw_claim(name))
        world.pod(name, name, **GANG)
    world.pod("plain", **GANG)
    await asyncio.sleep(2)
    assert sorted(world.server.sent()) == ["patch v", "patch w"]
    await asyncio.sleep(2)
    assert sorted(world.server.sent("bind")) == ["bind a", "bind b", "bind plain"]


async def test_a_claim_that_cannot_be_bound_costs_no_member_of_its_gang_its_life(world: World) -> None:
    world.cluster.gangs.put_group(pod_group(minimum=2, timeout=5))
    world.server.put(raw_claim("a", spec={"storageClassName": "made"}))
    world.pod("a", "a", **GANG)
    world.pod("plain", **GANG)
    # Longer than the gang's own timeout, which begins with the first Binding.
    await asyncio.sleep(60)
    assert world.charged == {"uid-a", "uid-plain"}
    world.server.change(world.path("a"), annotations={})
    await asyncio.sleep(0.5)
    assert world.charged == set()
    assert world.server.sent("bind") == []
    assert world.server.sent("condition") == ['condition a: binding volumes: provisioning failed for PVC "a"']
    # It is decided again after a while. (Not a task of the fixture: time is real while that is set up.)
    keeper = asyncio.create_task(world.keeper.run())
    await asyncio.sleep(3)
    keeper.cancel()
    assert world.charged == {"uid-a", "uid-plain"}
    assert world.server.sent("patch") == ["patch a", "patch a"]


# --- claims that several pods share ---------------------------------------------------------------------------------

MANY: Raw = {"accessModes": ["ReadWriteMany"]}


@pytest.mark.parametrize("labels", [pytest.param({}, id="two pods"), pytest.param(GANG, id="a gang")])
@pytest.mark.parametrize("provisioned", [pytest.param(False, id="bound"), pytest.param(True, id="made")])
async def test_a_claim_of_several_pods_is_written_once(world: World, labels: Raw, *, provisioned: bool) -> None:
    world.cluster.gangs.put_group(pod_group(minimum=2))
    if not provisioned:
        world.server.put(raw_volume())
    world.server.put(raw_claim(spec={"storageClassName": "made"} if provisioned else {}))
    for name in ("a", "b"):
        world.pod(name, "claim", **labels)
    await asyncio.sleep(2)
    assert world.server.sent() == ["patch claim" if provisioned else "patch volume"]
    if provisioned:
        provide(world, "claim")
    await asyncio.sleep(3)
    assert sorted(world.server.sent("bind", "condition")) == ["bind a", "bind b"]


def provide(world: World, claim: str, **spec: Any) -> None:
    """Act as the provisioner and the volume controller."""
    ref = {"namespace": "ns", "name": claim, "uid": f"uid-{claim}"}
    world.server.put(raw_volume(spec={**MANY, "claimRef": ref, **spec}))
    annotations = {**world.server.objects[world.path(claim)]["metadata"]["annotations"], BOUND_ANNOTATION: "yes"}
    world.server.change(world.path(claim), annotations=annotations, volumeName="volume")


def two_nodes_of_one_pod(world: World) -> None:
    for name in ("node", "other"):
        world.cluster.node_cache.put_node(
            node(name, labels={"kubernetes.io/hostname": name}, allocatable={"pods": "1"})
        )
    world.cluster.gangs.put_group(pod_group(minimum=2))
    world.server.put(raw_claim(spec={"storageClassName": "made", **MANY}))
    for name in ("a", "b"):
        world.pod(name, "claim", **GANG)


async def test_a_volume_that_is_made_for_one_member_serves_those_on_other_nodes(world: World) -> None:
    two_nodes_of_one_pod(world)
    await asyncio.sleep(2)
    assert world.charged == {"uid-a", "uid-b"}
    assert world.server.sent() == ["patch claim"]
    provide(world, "claim")
    await asyncio.sleep(1)
    assert sorted(world.server.sent("bind", "condition")) == ["bind a", "bind b"]


async def test_a_volume_that_does_not_reach_all_members_binds_none(world: World) -> None:
    two_nodes_of_one_pod(world)
    await asyncio.sleep(2)
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node"]}]}]
    provide(world, "claim", nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    await asyncio.sleep(1)
    assert world.charged == set()
    assert world.server.sent("bind") == []
    (message,) = world.server.sent("condition")
    assert message.endswith('binding volumes: pv "volume" node affinity doesn\'t match node "other"')
    # From now on the volume's node affinity decides.
    world.cluster.node_cache.put_node(
        node("node", labels={"kubernetes.io/hostname": "node"}, allocatable={"pods": "2"})
    )
    keeper = asyncio.create_task(world.keeper.run())
    await asyncio.sleep(5)
    keeper.cancel()
    assert sorted(world.server.sent("bind")) == ["bind a", "bind b"]
    assert {each.node for each in world.cluster.fleet.charges.values()} == {"node"}


async def test_a_mistake_in_binding_the_claims_of_a_gang_ends_the_process() -> None:
    world = World()
    world.cluster.gangs.put_group(pod_group(minimum=1))
    world.server.faults = [ZeroDivisionError("a mistake")]
    world.server.put(raw_volume())
    world.server.put(raw_claim())
    world.pod("a", "claim", **GANG)
    with pytest.raises(ZeroDivisionError):
        await world.scheduler.run()
