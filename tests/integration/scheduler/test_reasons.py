"""Pods that fit nowhere get exactly the same message from Berth as from kube-scheduler in the same cluster."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from devcluster import Arena, Cluster, waiting
from tests.conftest import CRDS
from tests.differential import evictions, judges
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.integration.scheduler.test_volumes import STORAGE, Shelf
from tests.integration.scheduler.test_volumes import ZONE as VOLUME_ZONE
from tests.programs import versions

Raw = dict[str, Any]

THEIRS: Final = "default-scheduler"
ZONE: Final = "topology.kubernetes.io/zone"
WEB: Final = {"app": "web"}
LOW: Final = -10
HIGH: Final = 10
SMALL: Final = {"cpu": "100m"}
HOSTNAME: Final = "kubernetes.io/hostname"


def near(labels: Raw, key: str = HOSTNAME) -> Raw:
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
        ]
    }


def spread(key: str) -> Raw:
    return {
        "topologyKey": key,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
        "nodeAffinityPolicy": "Ignore",
    }


def terms(**term: list[Raw]) -> Raw:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def on(zone: str) -> Raw:
    return {"nodeSelector": {ZONE: zone}}


def claiming(name: str) -> Raw:
    return {**on("a"), "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


def listening(port: int) -> Raw:
    container = {"name": "main", "image": "none", "ports": [{"containerPort": 80, "hostPort": port}]}
    return {"containers": [container]}


ELSEWHERE: Final = {"key": "zone", "operator": "In", "values": ["nowhere"]}
KINDS: Final[dict[str, tuple[str, Raw, Raw]]] = {
    "cpu-beyond-every-node": ("Insufficient cpu", {"cpu": "1000"}, {}),
    "cpu-and-memory": ("Insufficient memory", {"cpu": "1000", "memory": "10Ti"}, {}),
    "cpu-in-use": ("1 Insufficient cpu", {"cpu": "4"}, on("a")),
    "ephemeral-storage": ("Insufficient ephemeral-storage", {"ephemeral-storage": "1Ei"}, {}),
    "extended-resource": ("Insufficient example.com/wand", {"example.com/wand": "1"}, {}),
    "too-many-pods": ("1 Too many pods", {}, on("full")),
    "taint": ("1 node(s) had untolerated taint(s)", SMALL, on("tainted")),
    "cordon": ("1 node(s) were unschedulable", SMALL, on("cordoned")),
    "node-selector": (
        "node(s) didn't match Pod's node affinity/selector",
        SMALL,
        {"nodeSelector": {"zone": "nowhere"}},
    ),
    "node-affinity": (
        "node(s) didn't match Pod's node affinity/selector",
        SMALL,
        {"affinity": terms(matchExpressions=[ELSEWHERE])},
    ),
    "no-term": ("node(s) didn't match Pod's node affinity/selector", SMALL, {"affinity": terms()}),
    "other-node-name": (
        "5 node(s) didn't satisfy plugin(s) [NodeAffinity]",
        SMALL,
        {"affinity": terms(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["nowhere"]}])},
    ),
    "host-port": (
        "1 node(s) didn't have free ports for the requested pod ports",
        SMALL,
        {**on("a"), **listening(8080)},
    ),
    "pod-affinity": (
        "2 node(s) didn't match pod affinity rules",
        SMALL,
        {"affinity": {"podAffinity": near({"app": "nowhere"})}},
    ),
    "pod-anti-affinity": (
        "1 node(s) didn't match pod anti-affinity rules",
        SMALL,
        {**on("a"), "affinity": {"podAntiAffinity": near(WEB)}},
    ),
    "existing-anti-affinity": (
        "1 node(s) didn't satisfy existing pods anti-affinity rules",
        SMALL,
        {**on("a"), "labels": {"alone": "no"}},
    ),
    "spread-skew": (
        "1 node(s) didn't match pod topology spread constraints,",
        SMALL,
        {**on("a"), "labels": WEB, "topologySpreadConstraints": [spread(ZONE)]},
    ),
    "spread-label": (
        "2 node(s) didn't match pod topology spread constraints (missing required label)",
        SMALL,
        {"labels": WEB, "topologySpreadConstraints": [spread("nowhere")]},
    ),
    "claim-missing": ('persistentvolumeclaim "missing" not found', SMALL, claiming("missing")),
    "claim-immediate": ("pod has unbound immediate PersistentVolumeClaims", SMALL, claiming("immediate")),
    "claim-no-volume": ("1 node(s) didn't find available persistent volumes to bind", SMALL, claiming("waits")),
    "claim-volume-elsewhere": ("1 node(s) didn't match PersistentVolume's node affinity", SMALL, claiming("far")),
    "claim-in-use": (
        "with ReadWriteOncePod access mode already in-use by another pod",
        SMALL,
        claiming("single"),
    ),
    "no-victims-that-help": (
        "preemption: 0/5 nodes are available: 1 Insufficient cpu",
        {"cpu": "4"},
        {**on("a"), "priority": HIGH},
    ),
    "never-preempts": (
        "preemption: not eligible due to preemptionPolicy=Never.",
        {"cpu": "4"},
        {**on("a"), "priority": HIGH, "never": True},
    ),
    "never-helpful": ("1 Too many pods", {"cpu": "1000"}, {"priority": HIGH}),
}
"""What the message must have, requests, and fields of the pod;
`labels`, `priority` and `never` stand for what is not in its spec."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, version: str) -> Iterator[World]:
    """Return a separate cluster, so that kube-scheduler counts no other nodes than Berth."""
    folder = tmp_path_factory.mktemp("reasons")
    programs = versions.replaced(version, "kube-apiserver", "kube-scheduler")
    with Cluster(folder=folder / "cluster", replaced=programs) as running:
        running.install_crds(CRDS)
        arena = Arena(cluster=running, folder=folder)
        arena.open()
        own = World(arena=arena, folder=folder)
        own.operator()
        evictions.make_classes(arena, (LOW, HIGH))
        _fill(own)
        yield own
        own.close()


def _fill(world: World) -> None:
    """Create nodes of several kinds, pods on them, and claims."""
    arena = world.arena
    [a] = arena.nodes(1, labels={ZONE: "a", VOLUME_ZONE: "a"}, capacity={"cpu": "4"})
    arena.nodes(1, labels={ZONE: "b", VOLUME_ZONE: "b"}, capacity={"cpu": "4"})
    arena.nodes(1, labels={ZONE: "full"}, capacity={"pods": "0"})
    arena.nodes(1, labels={ZONE: "tainted"}, taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    [cordoned] = arena.nodes(1, labels={ZONE: "cordoned"})
    world.cordon(cordoned, on=True)
    _claims(world)
    high = {"nodeName": a, "priorityClassName": evictions.class_name(arena, HIGH)}
    world.pod("web", {"cpu": "1"}, **high, labels=WEB, affinity={"podAntiAffinity": near({"alone": "no"})})
    world.pod("web-2", SMALL, **high, labels=WEB, **listening(8080))
    world.pod("single", SMALL, **high, **{**claiming("single"), "nodeSelector": {}})
    world.pod("low", SMALL, nodeName=a, priorityClassName=evictions.class_name(arena, LOW))
    world.wait(lambda: len(world.bound_names()) == 4, what="the pods to be there")


def _claims(world: World) -> None:
    shelf = Shelf(world=world)
    shelf.storage_class("local")
    immediate = {"provisioner": "csi.example", "volumeBindingMode": "Immediate"}
    world.api.post(STORAGE, {"metadata": {"name": shelf.named("immediate"), "labels": world.arena.labels}, **immediate})
    shelf.claim("waits")
    shelf.claim("immediate", storage_class="immediate")
    for name, zone, mode in (("far", "b", "ReadWriteOnce"), ("single", "a", "ReadWriteOncePod")):
        shelf.volume(name, zone, accessModes=[mode])
        spec = {**shelf.claim_spec(mode=mode), "volumeName": shelf.named(name)}
        world.api.post(shelf.claims, {"metadata": {"name": name}, "spec": spec})
    world.wait(
        lambda: all(shelf.shown(name).get("status", {}).get("phase") == "Bound" for name in ("far", "single")),
        what="the claims to be bound",
    )


@pytest.fixture(scope="module")
def messages(both: World) -> dict[str, tuple[str, str]]:
    """Return by kind the messages of Berth and kube-scheduler for such a pod."""
    arena = both.arena
    for kind, (_, requests, fields) in KINDS.items():
        spec = {"labels": {}, **fields}
        priority, never = spec.pop("priority", None), spec.pop("never", False)
        if priority is not None:
            spec["priorityClassName"] = evictions.class_name(arena, priority, never=never)
        for name, scheduler in ((f"ours-{kind}", arena.scheduler_name), (f"theirs-{kind}", THEIRS)):
            manifest = arena.pod(name, requests=requests, limits=requests, scheduler_name=scheduler, **spec)
            if "containers" in fields:
                manifest["spec"]["containers"][0]["resources"] = {"requests": requests}
            arena.create([manifest])

    expected = {f"{who}-{kind}" for who in ("ours", "theirs") for kind in KINDS}
    by_kind: dict[str, str] = {}

    def all_reported() -> bool:
        for pod in arena.list("pods"):
            by_kind[pod["metadata"]["name"]] = words.condition(pod, "PodScheduled").get("message", "")
        return all(by_kind[name] for name in expected)

    both.wait(all_reported, deadline=60, what="both schedulers to report every pod")
    # What a pod refers to may become known after the pod; a message that stays another one fails its own test.
    waiting.within(
        lambda: all_reported() and all(KINDS[name.partition("-")[2]][0] in by_kind[name] for name in expected),
        seconds=60,
    )
    return {kind: (by_kind[f"ours-{kind}"], by_kind[f"theirs-{kind}"]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_shows_kube_schedulers_message(messages: dict[str, tuple[str, str]], kind: str) -> None:
    ours, theirs = messages[kind]
    assert KINDS[kind][0] in theirs
    ours, theirs = judges.comparable(ours, theirs)
    assert ours == theirs
