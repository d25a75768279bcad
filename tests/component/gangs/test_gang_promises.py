"""Places that are promised to pods that a controller creates only after others of its pods run."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_operator.binding.evictions.preemptor import UNCONFIRMED, UNREADABLE
from berth_operator.binding.workloads.gang_promises import QUOTA_PATIENCE
from berth_operator.core.advice.gang_explanation import explain_gang
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.promise import NO_PLACES_LEFT
from berth_operator.core.decision.promise_note import KEPT
from berth_operator.core.queue.gang_tracker import MAX_EXPECTED
from berth_operator.core.queue.promise_pauses import BACKOFF, PromisePauses
from berth_operator.core.values.controller_gangs import MAX_SIZE, OWNED
from berth_operator.core.values.pod_admission import PriorityClass, Quota
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.watches import gang_owners
from tests.attacks.work import counted
from tests.component.world import EPOCH, World, now, refusal
from tests.objects.builders import NVIDIA, Raw, pod, waiting, whole

pytestmark = pytest.mark.looptime

LWS = "leaderworkerset.sigs.k8s.io/"
JOBSET = "jobset.sigs.k8s.io/"
SECONDS = 300
"""For which places are kept."""
PATIENCE = 40
"""A little more than Berth waits for members that may be on their way."""


def wall() -> float:
    return EPOCH + now()


def member(index: int, group: int = 0, size: int = 3, **annotations: str) -> Raw:
    """Return a pod of one card of a group of a LeaderWorkerSet."""
    labels = {f"{LWS}name": "vllm", f"{LWS}group-index": str(group), f"{LWS}worker-index": str(index)}
    written = {
        f"{LWS}size": str(size),
        **{f"{LWS}{name.replace('_', '-')}": text for name, text in annotations.items()},
    }
    return pod(f"vllm-{group}-{index}", {NVIDIA: "1"}, labels=labels, annotations=written)


def of_job(job: str, number: int, **fields: Any) -> Raw:
    labels = {f"{JOBSET}jobset-name": "train", f"{JOBSET}replicatedjob-name": job}
    return pod(f"{job}-{number}", fields.pop("requests", {NVIDIA: "1"}), labels=labels, **fields)


def membership() -> Membership:
    return Membership(group="ns/vllm-0", controller="LeaderWorkerSet group")


def replicated_job(name: str, replicas: int = 1, **fields: Any) -> Raw:
    """Return a ReplicatedJob whose pods request a card each and name no scheduler."""
    containers = [{"name": "main", "resources": {"limits": {NVIDIA: "1"}}}]
    template = {"parallelism": 1, "template": {"spec": {"containers": containers}}}
    return {"name": name, "replicas": replicas, "template": {"spec": template}, **fields}


def job_set(world: World, *jobs: Raw, annotations: Raw | None = None, **spec: Any) -> None:
    """Put a JobSet `train`, as its watch shows it."""
    dict(gang_owners.sources(world.cluster, {"jobset.x-k8s.io"}))
    metadata = {"namespace": "ns", "name": "train", "uid": "u", "annotations": annotations or {}}
    raw = {"metadata": metadata, "spec": {"replicatedJobs": list(jobs), **spec}}
    world.cluster.put_owner("JobSet", gang_owners.read(OWNED["JobSet"], raw))


def promised(world: World) -> list[str]:
    return sorted(place.node for _, _, place in world.cluster.promises.all())


async def test_a_leader_is_placed_where_its_workers_will_fit_and_they_get_these_places() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.submit(member(0))
    async with world.running() as api:
        await asyncio.sleep(PATIENCE)
        assert not api.bound(), "two workers will need places, too"
        assert api.messages("vllm-0-0")[-1].endswith("This counts 2 pod(s) that are created once these run.")
        unit, _ = world.cluster.gang_tracker.waiting(membership())
        assert unit is not None
        explanation = explain_gang(world.fleet, unit, Policy())
        assert explanation.placed == 2, "two of the three have a place"
        world.add_node("b", cards=1)
        await asyncio.sleep(5)
        assert api.bound().keys() == {"vllm-0-0"}
        assert len(promised(world)) == 2
        [note] = api.events_of("vllm-0-0", "PlacesPromised")
        assert note.startswith("places on ")
        assert "for 2 pod(s) that come later are kept until 2026-" in note
        world.submit(pod("other", {NVIDIA: "1"}))
        await asyncio.sleep(5)
        world.submit(member(1), member(2))
        await asyncio.sleep(5)
        assert api.bound().keys() == {"vllm-0-0", "vllm-0-1", "vllm-0-2"}
        assert not promised(world)
    assert api.deletions == []


async def test_a_promise_ends_at_its_bound_with_one_event() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    # With this annotation the controller creates the workers when the leader has a node.
    world.submit(member(0, exclusive_topology="rack"))
    async with world.running() as api:
        await asyncio.sleep(2)
        assert api.bound().keys() == {"vllm-0-0"}, "it does not wait for pods that cannot come"
        world.submit(pod("other", {NVIDIA: "1"}))
        await asyncio.sleep(SECONDS - 10)
        assert "other" not in api.bound()
        assert api.messages("other")[-1].endswith(KEPT.format(2))
        places = [place for _, _, place in world.cluster.promises.all()]
        assert {(place.started, place.ends - place.started) for place in places} == {(int(EPOCH), SECONDS)}
        await asyncio.sleep(20)
        assert "other" in api.bound()
        await asyncio.sleep(SECONDS)
        [note] = api.events_of("vllm-0-0", "PromiseEnded")
        assert note.startswith("LeaderWorkerSet group ns/vllm-0: places for 2 pod(s) were kept until 2026-")
    assert api.deletions == []


@pytest.mark.parametrize("is_read", [False, True], ids=["without rights", "with the object"])
async def test_the_places_of_a_group_that_is_gone_are_released_at_once(*, is_read: bool) -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    if is_read:
        group_set(world)
    world.submit(member(0, exclusive_topology="rack"))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert len(promised(world)) == 2
        world.delete("vllm-0-0")
        await asyncio.sleep(5)
        assert not promised(world)
        assert api.events_of("vllm-0-0", "PromiseEnded") == []


async def test_a_leader_that_cannot_be_bound_repeats_no_event_and_gives_its_places_back() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    group_set(world)
    world.api.always["bind vllm-0-0"] = refusal()
    world.submit(member(0, exclusive_topology="rack"))
    async with world.running() as api:
        for _ in range(40):
            await asyncio.sleep(30)
            assert len(promised(world)) in (0, 2), "all or none"
        assert api.events_of("vllm-0-0", "PlacesPromised") == []
        del api.always["bind vllm-0-0"]
        await asyncio.sleep(900)
        assert api.bound().keys() == {"vllm-0-0"}
        assert len(api.events_of("vllm-0-0", "PlacesPromised")) == 1


def group_set(world: World, replicas: int = 1, size: int = 3, **worker: Any) -> None:
    """Put the LeaderWorkerSet, whose workers request a card each and come when their leader is ready.

    Their PriorityClass is `high`, of 10.
    """
    dict(gang_owners.sources(world.cluster, {"leaderworkerset.x-k8s.io"}))
    world.cluster.admission_rules.put_priority_class("high", PriorityClass(value=10))
    template = replicated_job("worker")["template"]["spec"]["template"]
    template["spec"] |= {"priorityClassName": "high", **worker}
    spec = {
        "replicas": replicas,
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"size": size, "workerTemplate": template},
    }
    raw = {"metadata": {"namespace": "ns", "name": "vllm", "uid": "u"}, "spec": spec}
    kind = "LeaderWorkerSet group"
    world.cluster.put_owner(kind, gang_owners.read(OWNED[kind], raw))


async def test_places_beyond_those_of_a_smaller_group_are_free_when_it_is_decided() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    group_set(world)
    world.submit(member(0, exclusive_topology="rack"))
    async with world.running() as api:
        await asyncio.sleep(5.5)
        assert len(promised(world)) == 2
        # Between two reviews of the promises, the group is created again, smaller and with a larger leader.
        world.delete("vllm-0-0")
        group_set(world, size=2)
        leader = member(0, size=2, exclusive_topology="rack")
        leader["metadata"]["uid"] = "again"
        leader["spec"]["containers"][0]["resources"]["requests"][NVIDIA] = "2"
        world.submit(leader)
        await asyncio.sleep(5)
        assert "again" in world.fleet.charges
        assert not promised(world), "they were kept in vain"
        assert api.messages("vllm-0-0") == [], "it was decided once"


@pytest.mark.parametrize("is_read", [False, True], ids=["without rights", "with the object"])
async def test_the_next_leader_keeps_the_promise(*, is_read: bool) -> None:
    first = World(wall=wall)
    first.add_node("a", cards=3)
    if is_read:
        group_set(first)
    first.submit(member(0, exclusive_topology="rack"))
    async with first.running():
        await asyncio.sleep(10)
        assert promised(first) == ["a", "a"]
    left = first.left()
    [record] = left.promised_gangs
    assert (record.kind, record.name, record.until) == ("LeaderWorkerSet group", "vllm-0", int(EPOCH) + SECONDS)

    second = World(api=first.api, wall=wall)
    second.add_node("a", cards=3)
    second.inherited = left
    if is_read:
        group_set(second)
    second.submit(pod("other", {NVIDIA: "1"}), member(1, exclusive_topology="rack"), *second.api.pods.values())
    async with second.running() as api:
        await asyncio.sleep(10)
        assert api.bound().keys() == {"vllm-0-0", "vllm-0-1"}
        assert promised(second) == ["a"]
        await asyncio.sleep(SECONDS)
        assert "other" in api.bound()


async def test_the_next_leader_reports_places_that_are_gone() -> None:
    first = World(wall=wall)
    first.add_node("a", cards=3)
    first.submit(member(0, exclusive_topology="rack"))
    async with first.running():
        await asyncio.sleep(10)
    second = World(api=first.api, wall=wall)
    second.add_node("a", cards=1)
    second.inherited = first.left()
    second.submit(*second.api.pods.values())
    async with second.running() as api:
        await asyncio.sleep(10)
        assert promised(second) == ["a"]
        [note] = api.events_of("vllm-0-0", "PromiseEnded")
        assert note.startswith("LeaderWorkerSet group ns/vllm-0: places were lost, 1 are left: ")


async def test_jobs_that_depend_on_others_get_their_places_with_them() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    ready = [{"name": "driver", "status": "Ready"}]
    job_set(world, replicated_job("driver"), replicated_job("worker", 2, dependsOn=ready))
    world.submit(of_job("driver", 0))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not api.bound()
        world.add_node("b", cards=1)
        await asyncio.sleep(5)
        assert api.bound().keys() == {"driver-0"}
        world.submit(pod("other", {NVIDIA: "1"}), of_job("worker", 0))
        await asyncio.sleep(5)
        assert api.bound().keys() == {"driver-0"}, "the workers start together"
        world.submit(of_job("worker", 1))
        await asyncio.sleep(5)
        assert api.bound().keys() == {"driver-0", "worker-0", "worker-1"}


async def test_a_single_pod_that_comes_later_takes_its_place() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    job_set(world, replicated_job("driver"), replicated_job("node"), startupPolicy={"startupPolicyOrder": "InOrder"})
    world.submit(of_job("driver", 0))
    async with world.running() as api:
        await asyncio.sleep(5)
        world.submit(pod("other", {NVIDIA: "1"}))
        await asyncio.sleep(5)
        world.submit(of_job("node", 0))
        await asyncio.sleep(5)
        assert api.bound().keys() == {"driver-0", "node-0"}


@pytest.mark.parametrize("has_card", [True, False], ids=["with a card", "without devices"])
async def test_workers_are_placed_where_their_launcher_will_fit_if_it_requests_devices(*, has_card: bool) -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    dict(gang_owners.sources(world.cluster, {"kubeflow.org"}))
    requests = {NVIDIA: "1"} if has_card else {"cpu": "1"}
    launcher = {"spec": {"containers": [{"name": "main", "resources": {"limits": requests}}]}}
    replicas = {"Launcher": {"template": launcher}, "Worker": {"replicas": 2}}
    spec = {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": replicas}
    raw = {"metadata": {"namespace": "ns", "name": "mpi", "uid": "u"}, "spec": spec}
    world.cluster.put_owner("MPIJob", gang_owners.read(OWNED["MPIJob"], raw))
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "mpi", "uid": "u", "controller": True}
    workers = [pod(f"mpi-worker-{index}", {NVIDIA: "1"}, metadata={"ownerReferences": [owner]}) for index in range(2)]
    labels = {"training.kubeflow.org/job-name": "mpi", "training.kubeflow.org/job-role": "launcher"}
    world.submit(*workers)
    async with world.running() as api:
        await asyncio.sleep(PATIENCE)
        assert len(api.bound()) == (0 if has_card else 2)
        world.add_node("b", cards=1)
        await asyncio.sleep(5)
        assert len(api.bound()) == 2
        assert len(promised(world)) == has_card
        world.submit(pod("other", {NVIDIA: "1"}))
        await asyncio.sleep(5)
        assert ("other" in api.bound()) != has_card
        world.submit(pod("mpi-launcher-x", requests, labels=labels))
        await asyncio.sleep(5)
        assert "mpi-launcher-x" in api.bound()


async def test_each_first_pod_of_an_exclusive_job_gets_places_for_the_others() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.add_node("b", cards=1)
    job = replicated_job("node", 2)
    job["template"]["spec"]["parallelism"] = 2
    job_set(world, job, annotations={f"alpha.{JOBSET}exclusive-topology": "rack"})
    world.submit(of_job("node", 0), of_job("node", 1))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not api.bound()
        world.add_node("c", cards=1)
        await asyncio.sleep(5)
        assert api.bound().keys() == {"node-0", "node-1"}
        assert len(promised(world)) == 2


@pytest.mark.parametrize("is_read", [False, True], ids=["without rights", "with the object"])
async def test_pods_of_lower_priority_leave_for_pods_that_come_later_if_an_object_confirms_them(
    *, is_read: bool
) -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    if is_read:
        group_set(world)
    for number in range(2):
        world.submit(pod(f"low{number}", {NVIDIA: "1"}, on="a", allocated=whole(number)))
    leader = member(0, exclusive_topology="rack")
    leader["spec"]["priority"] = 10
    world.submit(leader)
    async with world.running() as api:
        await asyncio.sleep(60)
        assert ("vllm-0-0" in api.bound()) == is_read
        assert promised(world) == (["a", "a"] if is_read else [])
        assert bool(api.deletions) == is_read
        if not is_read:
            assert UNCONFIRMED in api.messages("vllm-0-0")[-1]


@pytest.mark.parametrize("comes", [True, False], ids=["the leader stays", "the leader is deleted"])
async def test_places_for_pods_that_come_later_are_kept_while_victims_leave(*, comes: bool) -> None:
    world = World(wall=wall)
    world.grace = 30
    world.add_node("a", cards=1)
    world.add_node("b", cards=2)
    group_set(world)
    world.submit(pod("low", {NVIDIA: "1"}, on="a", allocated=whole(0)))
    leader = member(0, exclusive_topology="rack")
    leader["spec"]["priority"] = 10
    world.submit(leader)
    async with world.running() as api:
        await asyncio.sleep(5)
        assert [name for _, name in api.deletions] == ["low"]
        world.submit(*(pod(f"other{number}", {NVIDIA: "1"}, priority=10) for number in range(2)))
        await asyncio.sleep(5)
        assert not api.bound().keys() - {"low"}, "two cards are free, and all three will be needed"
        if not comes:
            world.delete("vllm-0-0")
            await asyncio.sleep(5)
            assert api.bound().keys() - {"low"} == {"other0", "other1"}
            return
        await asyncio.sleep(30)
        workers = [member(index, exclusive_topology="rack") for index in (1, 2)]
        for worker in workers:
            worker["spec"]["priority"] = 10
        world.submit(*workers)
        await asyncio.sleep(5)
        assert api.bound().keys() == {"vllm-0-0", "vllm-0-1", "vllm-0-2"}
    assert not world.fleet.nominees


async def test_places_that_are_kept_while_victims_leave_have_the_same_bounds() -> None:
    world = World(wall=wall)
    world.grace = 10 * SECONDS
    for number in range(38):
        world.add_node(f"n{number}", cards=8)
    world.submit(pod("low", {NVIDIA: "8"}, on="n0", allocated=whole(*range(8))))
    group_set(world, size=300)
    leader = member(0, size=300, exclusive_topology="rack")
    leader["spec"]["priority"] = 10
    world.submit(leader)
    async with world.running() as api:
        await asyncio.sleep(20)
        assert not api.deletions, "places of 49 of 299 pods could not be kept"
        assert NO_PLACES_LEFT in api.messages("vllm-0-0")[-1]
        world.delete("vllm-0-0")
        for number in range(32, 38):
            busy = pod(f"busy{number}", {NVIDIA: "8"}, on=f"n{number}", allocated=whole(*range(8)), priority=10)
            world.submit(busy)
        group_set(world, size=251)
        leader = member(0, size=251, exclusive_topology="rack")
        leader["spec"]["priority"] = 10
        world.submit(leader)
        await asyncio.sleep(20)
        assert [name for _, name in api.deletions] == ["low"]
        assert len(world.cluster.nominator.later()[membership().key]) == 250
        world.submit(*(pod(f"other{number}", {NVIDIA: "8"}, priority=10) for number in range(37)))
        await asyncio.sleep(SECONDS - 40)
        assert len(api.bound()) == 7, "only those that were bound before"
        await asyncio.sleep(60)
        assert not world.cluster.nominator.later()
        assert len(api.bound()) == 38, "the leader waits for the node of the victim"


@pytest.mark.parametrize(
    ("nodes", "groups", "size", "cards", "places"),
    [
        pytest.param(40, 1, 300, 1, 80, id="a quarter of the cards"),
        pytest.param(40, 1, 40, 8, 10, id="a quarter of the nodes"),
        pytest.param(40, 5, 4, 8, 10, id="several groups"),
        pytest.param(40, 70, 2, 1, 62, id="a quarter of the gangs with promises"),
        pytest.param(2, 1, 8, 1, 7, id="a group on a small cluster"),
        pytest.param(9, 1, 9, 8, 8, id="a group that needs a small cluster"),
    ],
)
async def test_a_namespace_gets_no_more_than_its_share_for_pods_that_no_object_confirms(
    nodes: int, groups: int, size: int, cards: int, places: int
) -> None:
    world = World(wall=wall)
    for number in range(nodes):
        world.add_node(f"n{number}", cards=8)
    leaders = [member(0, group, size, exclusive_topology="rack") for group in range(groups)]
    for leader in leaders:
        leader["spec"]["containers"][0]["resources"]["requests"][NVIDIA] = str(cards)
    world.submit(*leaders)
    async with world.running() as api:
        await asyncio.sleep(20)
        assert len(api.bound()) == groups
        assert len(promised(world)) == places


async def test_a_namespace_gets_a_quarter_of_all_places_for_pods_that_an_object_confirms() -> None:
    world = World(wall=wall)
    for number in range(40):
        world.add_node(f"n{number}", cards=8)
    group_set(world, size=300)
    world.submit(member(0, size=300, exclusive_topology="rack"))
    async with world.running() as api:
        await asyncio.sleep(20)
        assert len(api.bound()) == 1
        assert len(promised(world)) == 250


async def test_the_template_that_many_groups_share_is_parsed_once() -> None:
    world, parsed = World(wall=wall), list[str]()

    def labels(namespace: str) -> dict[str, str]:
        parsed.append(namespace)
        return {}

    world.cluster.gangs.templates = replace(world.cluster.gangs.templates, namespace_labels=labels)
    group_set(world)
    of_one = len(parsed)
    assert of_one
    group_set(world, replicas=1000)
    assert len(parsed) == 2 * of_one
    assert world.cluster.gangs.applies(Membership(group="ns/vllm-999", controller="LeaderWorkerSet group"))


async def test_an_object_with_more_pods_than_any_cluster_confirms_nothing() -> None:
    world = World(wall=wall)
    world.cluster.put_pending(member(0, size=2, exclusive_topology="rack"))
    confirmed = []
    for size in (2, MAX_SIZE + 1, 2):
        group_set(world, size=size)
        unit = world.cluster.gangs.unit(membership())
        assert unit is not None
        confirmed += [pod.preempts for pod in unit.expected]
    assert confirmed == [True, False, True]


# --- what admission will create -----------------------------------------------------------------------------------


def quota(world: World, hard: int, *, used: int = 0) -> None:
    """Put a ResourceQuota for cards, as its watch shows it."""
    name = f"requests.{NVIDIA}"
    world.cluster.admission_rules.put_quota("ns", Quota(name="cards", hard={name: hard}, used={name: used}))


def coordinator(**fields: Any) -> Raw:
    """Return a leader without a card, of 1m CPU."""
    leader = member(0, exclusive_topology="rack")
    leader["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
    leader["spec"] |= fields
    return leader


async def test_no_places_are_kept_for_pods_that_a_quota_refuses() -> None:
    """A tenant without a quota for cards would hold all of them by a leader of 1m CPU."""
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.submit(pod("low", {NVIDIA: "1"}, on="a", allocated=whole(0)))
    quota(world, 0)
    group_set(world)
    world.submit(coordinator(priority=1000))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.bound().keys() == {"low", "vllm-0-0"}, "the leader is decided alone"
        assert not promised(world)
        assert not api.deletions
        [note] = api.events_of("vllm-0-0", "NoPlacesPromised")
        assert note == (
            "No places are kept for 2 pod(s) that come later: exceeded quota: cards, requested: "
            "requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0."
        )
        world.submit(pod("other", {NVIDIA: "1"}))
        await asyncio.sleep(5)
        assert "other" in api.bound()


async def test_a_leader_that_does_not_fit_names_the_quota_that_refuses_its_workers() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=1)
    world.submit(pod("low", {NVIDIA: "1"}, on="a", allocated=whole(0)))
    quota(world, 0)
    group_set(world)
    world.submit(member(0, exclusive_topology="rack"))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert "come later: exceeded quota: cards" in api.messages("vllm-0-0")[-1]


async def test_pods_that_come_later_evict_by_their_own_class() -> None:
    """The leader's priority is 1000, and that of its workers the default of 0."""
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.submit(pod("low", {NVIDIA: "2"}, on="a", allocated=whole(0, 1)))
    group_set(world, priorityClassName=None)
    world.submit(coordinator(priority=1000))
    async with world.running() as api:
        await asyncio.sleep(10)
        assert not api.deletions
        assert "vllm-0-0" not in api.bound(), "it waits until all fit"
        world.delete("low")
        await asyncio.sleep(5)
        assert len(promised(world)) == 2


async def test_no_places_are_kept_for_pods_of_an_unknown_class() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    group_set(world, priorityClassName="gone")
    world.submit(coordinator(priority=1000))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not promised(world)
        [note] = api.events_of("vllm-0-0", "NoPlacesPromised")
        assert note.endswith("come later: no PriorityClass with name gone was found.")


async def test_without_the_rights_nobody_is_evicted_for_pods_that_come_later() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.submit(pod("low", {NVIDIA: "2"}, on="a", allocated=whole(0, 1)))
    world.cluster.admission_rules.are_served = lambda: False
    group_set(world)
    world.submit(coordinator(priority=1000))
    async with world.running() as api:
        await asyncio.sleep(10)
        assert not api.deletions
        assert UNREADABLE in api.messages("vllm-0-0")[-1]


async def test_what_is_kept_for_one_gang_is_used_for_the_next() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=8)
    quota(world, 3)
    group_set(world, replicas=2)
    world.submit(coordinator())
    async with world.running() as api:
        await asyncio.sleep(5)
        assert len(promised(world)) == 2
        second = member(0, 1, exclusive_topology="rack")
        second["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
        world.submit(second)
        await asyncio.sleep(QUOTA_PATIENCE - 5)
        assert "vllm-1-0" not in api.bound(), "the quota may be full only for a moment"
        await asyncio.sleep(20)
        assert len(promised(world)) == 2
        [note] = api.events_of("vllm-1-0", "NoPlacesPromised")
        assert "kept for other pods: requests.nvidia.com/gpu=2" in note


async def test_a_quota_that_falls_ends_the_promise_but_not_for_pods_that_exist() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    quota(world, 2)
    group_set(world)
    world.submit(coordinator())
    async with world.running() as api:
        await asyncio.sleep(5)
        world.submit(member(1, exclusive_topology="rack"))
        await asyncio.sleep(0.5)
        quota(world, 2, used=1)
        await asyncio.sleep(5)
        assert len(promised(world)) == 1
        quota(world, 1, used=1)
        await asyncio.sleep(2)
        assert not promised(world)
        [note] = api.events_of("vllm-0-0", "PromiseEnded")
        assert "places for 1 pod(s) were given up: exceeded quota: cards" in note


@pytest.mark.parametrize("end", ["annotation", "object", "smaller"])
async def test_a_promise_ends_at_once(end: str) -> None:
    world = World(wall=wall)
    world.add_node("a", cards=3)
    group_set(world)
    world.submit(coordinator())
    async with world.running() as api:
        await asyncio.sleep(5)
        assert len(promised(world)) == 2
        match end:
            case "annotation":
                world.cluster.put_namespace("ns", {}, {names.CONTROLLER_GANGS: "false"})
            case "object":
                world.cluster.remove_owner("LeaderWorkerSet group", "ns/vllm")
            case "smaller":
                group_set(world, size=2)
        await asyncio.sleep(1.5)
        assert len(promised(world)) == (1 if end == "smaller" else 0)
        assert len(api.events_of("vllm-0-0", "PromiseEnded")) == (end != "smaller")


async def test_places_that_were_kept_in_vain_are_kept_again_only_after_a_pause_that_grows() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    group_set(world)
    kept = 0.0
    async with world.running():
        for round_ in range(60):
            leader = coordinator()
            leader["metadata"]["uid"] = f"leader-{round_}"
            world.submit(leader)
            for _ in range(30):
                await asyncio.sleep(1)
                kept += bool(promised(world))
            world.delete("vllm-0-0")
            await asyncio.sleep(1)
    assert kept < 0.25 * 60 * 31, f"{kept} of {60 * 31} s"


async def test_owners_of_a_namespace_have_one_pause_after_three_of_them() -> None:
    pauses = PromisePauses()
    gangs = [Membership(group=f"ns/a{number}-0", controller="LeaderWorkerSet group") for number in range(5)]
    for gang in gangs[:2]:
        pauses.in_vain(gang, 0.0)
    assert pauses.why(gangs[0], 1.0) == (
        "for LeaderWorkerSet group ns/a0 they were kept in vain 1 time(s), and are again after 30 s"
    )
    assert not pauses.why(gangs[4], 1.0)
    pauses.in_vain(gangs[2], 0.0)
    assert pauses.why(gangs[4], 1.0) == "for namespace ns they were kept in vain 1 time(s), and are again after 30 s"
    assert not pauses.why(gangs[4], 30.0)
    assert not pauses.why(Membership(group="other/a0-0", controller="LeaderWorkerSet group"), 1.0)
    for time in range(100, 1000, 100):
        pauses.in_vain(gangs[4], time)
    assert pauses.why(gangs[4], 1000.0).endswith("after 1800 s")
    pauses.taken(gangs[0])
    assert not pauses.why(gangs[0], 30.0 + BACKOFF.longest + 1000)


async def test_a_leader_that_is_slow_to_become_ready_has_no_pause() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=6)
    group_set(world, replicas=2)
    world.submit(coordinator())
    async with world.running() as api:
        await asyncio.sleep(SECONDS + 10)
        assert not promised(world)
        world.submit(member(1), member(2))
        await asyncio.sleep(5)
        world.delete("vllm-0-0")
        await asyncio.sleep(5)
        world.submit(again("again"))
        await asyncio.sleep(PATIENCE)
        assert api.events_of("vllm-0-0", "NoPlacesPromised") == []


def again(uid: str) -> Raw:
    leader = coordinator()
    leader["metadata"]["uid"] = uid
    return leader


async def expire(world: World) -> None:
    """Wait until the promise is over, and delete the leader, whose workers have never come."""
    await asyncio.sleep(SECONDS + 2)
    world.delete("vllm-0-0")


async def terminate(world: World) -> None:
    """Delete the leader with a grace period."""
    await asyncio.sleep(30)
    leader = world.api.pods["vllm-0-0"]
    leader["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.change(leader)
    await asyncio.sleep(2.5)
    world.delete("vllm-0-0")


async def fail(world: World) -> None:
    await asyncio.sleep(30)
    leader = world.api.pods["vllm-0-0"]
    leader["status"] = {"phase": "Failed"}
    world.change(leader)
    await asyncio.sleep(2)
    world.delete("vllm-0-0")


async def shrink(world: World) -> None:
    """Make the object small before the leader is deleted, and large again."""
    await asyncio.sleep(30)
    group_set(world, size=1)
    await asyncio.sleep(2)
    world.delete("vllm-0-0")
    await asyncio.sleep(1)
    group_set(world)


async def misuse(world: World) -> None:
    """Create pods without cards that have the labels of the workers."""
    await asyncio.sleep(30)
    for number in (1, 2):
        small = member(number)
        small["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
        world.submit(small)
    await asyncio.sleep(5)
    for number in range(3):
        world.delete(f"vllm-0-{number}")


@pytest.mark.parametrize("end", [expire, terminate, fail, shrink, misuse])
async def test_a_promise_is_not_renewed_without_end_by_other_ways_to_end_it(end: Any) -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    group_set(world)
    kept = seconds = 0
    async with world.running():
        for number in range(12):
            world.submit(again(f"leader-{number}"))
            ending = asyncio.create_task(end(world))
            while not ending.done():
                await asyncio.sleep(1)
                seconds += 1
                kept += bool(promised(world))
            await ending
            await asyncio.sleep(1)
    assert kept < 0.7 * seconds, f"{kept} of {seconds} s"
    assert world.cluster.gangs.promise_pauses.why(membership(), now())


async def test_evictions_are_not_renewed_by_deleting_the_leader_before_its_victims_have_left() -> None:
    world = World(wall=wall)
    world.grace = 60
    world.add_node("a", cards=2)
    world.submit(pod("low", {NVIDIA: "2"}, on="a", allocated=whole(0, 1)))
    group_set(world)
    leader = coordinator(priority=1000)
    world.submit(leader)
    async with world.running() as api:
        await asyncio.sleep(5)
        assert [name for _, name in api.deletions] == ["low"]
        world.delete("vllm-0-0")
        await asyncio.sleep(2)
        assert world.cluster.gangs.promise_pauses.why(membership(), now())


async def test_a_quota_that_is_full_for_a_moment_takes_no_promise_away() -> None:
    """The pods of an earlier group end for some seconds, and are counted meanwhile."""
    world = World(wall=wall)
    world.add_node("a", cards=3)
    quota(world, 2, used=2)
    group_set(world)
    world.submit(coordinator())
    async with world.running() as api:
        await asyncio.sleep(31)
        assert not api.bound()
        assert "come later: exceeded quota: cards" in api.messages("vllm-0-0")[-1]
        quota(world, 2)
        await asyncio.sleep(11)
        assert api.bound().keys() == {"vllm-0-0"}
        assert len(promised(world)) == 2


async def test_a_gang_is_decided_again_when_its_pause_is_over() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.submit(pod("low", {NVIDIA: "2"}, on="a", allocated=whole(0, 1)))
    group_set(world)
    world.cluster.gangs.promise_pauses.in_vain(membership(), 0.0)
    world.submit(coordinator(priority=1000))
    async with world.running() as api:
        await asyncio.sleep(20)
        assert not api.deletions
        assert "for LeaderWorkerSet group ns/vllm they were kept in vain 1 time(s)" in api.messages("vllm-0-0")[-1]
        await asyncio.sleep(15)
        assert [name for _, name in api.deletions] == ["low"]


async def test_pods_that_exist_are_not_counted_twice() -> None:
    """A node of a JobSet exists and waits for the other one: it is in the quota's use, and has a place."""
    world = World(wall=wall)
    world.add_node("a", cards=8)
    quota(world, 4)
    ready = [{"name": "driver", "status": "Ready"}]
    job_set(world, replicated_job("driver"), replicated_job("node", 2, dependsOn=ready))
    world.submit(of_job("driver", 0, requests={"cpu": "1m"}))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert len(promised(world)) == 2
        world.submit(of_job("node", 0))
        # With a leader of one card. The other node, and one worker, take the rest.
        quota(world, 4, used=2)
        world.submit(member(0, size=2, exclusive_topology="rack"))
        await asyncio.sleep(5)
        assert "vllm-0-0" in api.bound()
        assert len(promised(world)) == 3
        assert api.events_of("vllm-0-0", "NoPlacesPromised") == []


async def test_places_that_are_promised_again_have_the_new_end() -> None:
    world = World(wall=wall)
    world.add_node("a", cards=2)
    expected = replace(waiting(request={NVIDIA: 1}), workload="Job ns/j")
    placement = decide(world.fleet, expected, Policy())
    assert isinstance(placement, Placement)
    promises = world.cluster.promises
    ends = []
    for until in ({"until": 100}, {"until": 200}, {}):
        promises.keep("Job ns/j", [placement], **until)
        ends += [place.ends for _, _, place in promises.all()]
    assert ends == [100, 200, 200]
    assert promises.number_of(placement.pod.request) == 1
    promises.release("Job ns/j")
    assert promises.number_of(placement.pod.request) == 0


# --- what a size may cost -----------------------------------------------------------------------------------------


async def test_a_size_that_fits_nowhere_costs_a_count_and_passes_no_other_pod_over() -> None:
    """Anybody may write any size on a pod: it is counted before any member is placed."""
    world = World(wall=wall)
    world.add_node("a", cards=2)
    world.cluster.put_pending(member(0, size=MAX_SIZE, exclusive_topology="rack"))
    unit = world.cluster.gangs.unit(membership())
    assert unit is not None
    assert len(unit.expected) == MAX_EXPECTED
    failure, _ = counted(lambda: decide_gang(world.fleet, unit, Policy()), 20 * MAX_EXPECTED)
    assert isinstance(failure, Failure)
    assert failure.message.startswith(
        f"LeaderWorkerSet group ns/vllm-0: 2 of the {MAX_EXPECTED + 1} required members fit; next member vllm-0:"
    )
    # Such units are decided in a tenth of the time while others wait.
    world.cluster.put_pending(pod("plain", {"cpu": "1m"}))
    queue = world.cluster.queue
    plain = queue.pop(0.0, with_costly=False)
    assert isinstance(plain, PendingPod)
    assert plain.name == "plain"
    assert queue.pop(0.0, with_costly=False) is None
    assert queue.has_costly()


async def test_classes_that_need_the_same_cards_are_counted_together() -> None:
    """Each class alone would fit, and placing all members one by one takes long."""
    world = World(wall=wall)
    for name in "abcde":
        world.add_node(name, cards=8)
    size = 41
    group_set(world, size=size)
    leader = member(0, size=size, exclusive_topology="rack")
    leader["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1m"
    world.cluster.put_pending(leader)
    unit = world.cluster.gangs.unit(membership())
    assert unit is not None
    failure, _ = counted(lambda: decide_gang(world.fleet, unit, Policy()), 8_000)
    assert isinstance(failure, Failure)
    assert "40 of the 41 required members fit" in failure.message
