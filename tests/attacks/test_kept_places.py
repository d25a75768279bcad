"""What a tenant with a quota of one card can keep from others by pods that never come: nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berth_operator.binding.evictions.preemptor import UNREADABLE
from berth_operator.core.values.controller_gangs import OWNED
from devcluster import Arena, Cluster, waiting
from devcluster.control_plane.api import Api, Manifest
from tests.attacks.accounts import OPERATOR, Accounts
from tests.differential import evictions
from tests.integration.operator.test_controller_gangs import define
from tests.integration.operator.world import World

LWS: Final = "leaderworkerset.sigs.k8s.io/"
JOBSET: Final = "jobset.sigs.k8s.io/"
GPU: Final = "nvidia.com/gpu"
CARDS: Final = 12
PRIORITIES: Final = (-10, 1000)
SMALL: Final = {"cpu": "1m"}
WORKER: Final[Manifest] = {
    "containers": [{"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}, "requests": {GPU: "1"}}}]
}


@pytest.fixture
def arena(cluster: Cluster, tmp_path: Path) -> Iterator[Arena]:
    own = Arena(cluster=cluster, folder=tmp_path)
    own.open()
    evictions.make_classes(own, PRIORITIES)
    yield own
    evictions.remove_classes(own)
    own.close()


@pytest.fixture
def world(arena: Arena, cluster: Cluster, tmp_path: Path) -> Iterator[World]:
    """Run an operator that reads the owners of gangs, and three nodes of four cards."""
    define(cluster, tmp_path, "JobSet", "LeaderWorkerSet group")
    own = World(arena=arena, folder=tmp_path)
    own.operator(jobset_gangs=True, lws_gangs=True)
    own.agent()
    own.nodes(3, gpus=4)
    yield own
    own.close()


@pytest.fixture
def tenant(arena: Arena) -> Iterator[Api]:
    """Return the client of a tenant with the rights on pods and owners of gangs, and a quota of one card."""
    metadata = {"name": "tenant"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": arena.namespace}
    rules = [
        {"apiGroups": [OWNED[kind].group], "resources": [OWNED[kind].plural], "verbs": ["*"]}
        for kind in ("JobSet", "LeaderWorkerSet group")
    ]
    rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]})
    rbac = "rbac.authorization.k8s.io/v1"
    arena.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules},
            {"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject], "roleRef": role},
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "cards"},
                "spec": {"hard": {f"requests.{GPU}": "1"}},
            },
        ]
    )
    waiting.until(
        lambda: arena.get("resourcequotas", "cards").get("status", {}).get("hard"), deadline=60, what="the quota"
    )
    accounts = f"/api/v1/namespaces/{arena.namespace}/serviceaccounts"
    token = arena.cluster.api.post(f"{accounts}/tenant/token", {"spec": {}})["status"]["token"]
    client = Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())
    yield client
    client.close()


@pytest.fixture
def others(arena: Arena) -> Iterator[str]:
    """Return the namespace of another tenant."""
    name = f"{arena.namespace}-others"
    arena.cluster.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    arena.cluster.api.delete(f"/api/v1/namespaces/{name}")


def promised_gangs(arena: Arena) -> Any:
    return arena.get("leaderleases", arena.lease_name).get("status", {}).get("promisedGangs")


def worker(arena: Arena, priority: int = 0) -> Manifest:
    """Return the spec of a worker: of a card, and of the class -10 if the leader's is 1000."""
    return {**WORKER, "priorityClassName": evictions.class_name(arena, -10)} if priority else WORKER


def leader_worker_set(arena: Arena, priority: int) -> list[Manifest]:
    """Return a LeaderWorkerSet whose workers come when their leader is ready, and which needs all cards."""
    template = {"size": CARDS + 1, "workerTemplate": {"spec": worker(arena, priority)}}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": template}
    owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "y"}}
    return [{**owner, "spec": spec}, leader(arena, priority)]


def leader(arena: Arena, priority: int, *, size: int = CARDS + 1, requests: Any = None, **more: str) -> Manifest:
    requests = requests or SMALL
    pod = arena.pod(
        "y-0",
        requests=requests,
        limits=requests,
        labels={f"{LWS}name": "y", f"{LWS}group-index": "0"},
        annotations={f"{LWS}size": str(size), **more},
    )
    return with_class(arena, pod, priority)


def with_class(arena: Arena, pod: Manifest, priority: int) -> Manifest:
    if priority:
        pod["spec"]["priorityClassName"] = evictions.class_name(arena, priority)
    return pod


def job_set(arena: Arena, priority: int) -> list[Manifest]:
    """Return a JobSet whose second job needs all cards, and comes after the first."""
    template = {"spec": {"parallelism": CARDS, "template": {"spec": worker(arena, priority)}}}
    jobs = [{"name": "driver", "template": {"spec": {}}}, {"name": "node", "template": template}]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "y"}}
    spec = {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": jobs}
    labels = {f"{JOBSET}jobset-name": "y", f"{JOBSET}replicatedjob-name": "driver"}
    pod = arena.pod("y-0", requests=SMALL, limits=SMALL, labels=labels)
    return [{**owner, "spec": spec}, with_class(arena, pod, priority)]


def leader_alone(arena: Arena, priority: int) -> list[Manifest]:
    """Return a leader of a card with a size and no object, whose workers come when it has a node."""
    more = {f"{LWS}exclusive-topology": "rack"}
    return [leader(arena, priority, size=9, requests={GPU: "1"}, **more)]


ALONE: Final = "a leader alone"
SHAPES: Final = {"LeaderWorkerSet": leader_worker_set, "JobSet": job_set, ALONE: leader_alone}


@pytest.mark.parametrize("priority", [0, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_card_is_kept_for_pods_that_a_quota_refuses(
    world: World, tenant: Api, others: str, shape: str, priority: int
) -> None:
    arena, api = world.arena, world.api
    fillers = [
        {
            **arena.pod(f"filler{number}", requests={GPU: "1"}, limits={GPU: "1"}),
            "metadata": {"name": f"filler{number}"},
        }
        for number in range(CARDS - (priority == 0) - (shape == ALONE))
    ]
    path = f"/api/v1/namespaces/{others}/pods"
    for filler in fillers:
        api.post(path, filler)

    def bound() -> set[str]:
        return {each["metadata"]["name"] for each in api.get(path)["items"] if each["spec"].get("nodeName")}

    world.wait(lambda: len(bound()) == len(fillers), what="the cards of others")
    for document in SHAPES[shape](arena, priority):
        if document["kind"] == "Pod":
            tenant.post(f"/api/v1/namespaces/{arena.namespace}/pods", document)
        else:
            plural = f"{document['kind'].lower()}s"
            tenant.post(f"/apis/{document['apiVersion']}/namespaces/{arena.namespace}/{plural}", document)
    world.bound("y-0")
    assert (
        "requests.nvidia.com/gpu"
        in world.wait(lambda: world.events("y-0", "NoPlacesPromised"), what="the Event")[0]["message"]
    )
    assert bound() == {filler["metadata"]["name"] for filler in fillers}, "no pod is evicted"
    assert not promised_gangs(arena)
    if not priority:
        last = arena.pod("last", requests={GPU: "1"}, limits={GPU: "1"})
        api.post(path, {**last, "metadata": {"name": "last"}})
        world.wait(lambda: "last" in bound(), what="the last card to be given to another")


def test_with_the_role_of_an_earlier_version_nobody_is_evicted(cluster: Cluster, tmp_path: Path) -> None:
    """Without the right to read quotas it is not known whether the pods will come; everything else goes on."""
    arena = Arena(cluster=cluster, folder=tmp_path)
    arena.lease_name = OPERATOR  # its role names it
    arena.open()
    evictions.make_classes(arena, PRIORITIES)
    define(cluster, tmp_path, "LeaderWorkerSet group")
    accounts = Accounts(arena)
    accounts.open()
    world = World(arena=arena, folder=tmp_path)
    try:
        account = accounts.operator()
        path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OPERATOR}-{arena.id}"
        rules = world.api.get(path)["rules"]
        earlier = [rule for rule in rules if not {"limitranges", "priorityclasses"} & {*rule.get("resources", ())}]
        assert len(earlier) == len(rules) - 2
        owners = OWNED["LeaderWorkerSet group"]
        added = {"apiGroups": [owners.group], "resources": [owners.plural], "verbs": ["list", "watch"]}
        world.api.merge(path, {"rules": [*earlier, added]})
        world.operator(kubeconfig=account, lws_gangs=True)
        world.agent()
        world.nodes(1, gpus=2)
        world.pods(["a", "b"], {GPU: "1"})
        world.bound("a")
        world.bound("b")
        template = {"size": 3, "workerTemplate": {"spec": WORKER}}
        spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": template}
        owner = {"apiVersion": f"{owners.group}/{owners.version}", "kind": "LeaderWorkerSet"}
        arena.apply({**owner, "metadata": {"name": "y"}, "spec": spec})
        arena.create([leader(arena, 1000, size=3)])
        world.wait(lambda: UNREADABLE in world.message("y-0"), what="the reason")
        assert world.bound_names() == {"a", "b"}
    finally:
        world.close()
        accounts.close()
        evictions.remove_classes(arena)
        arena.close()
