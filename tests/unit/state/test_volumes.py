"""VolumeClaims, volumes and provisioners as the API server sends them: parsing, and which pods a change wakes."""

from typing import Any

import pytest

from berth_api.values.selectors import LabelSelector
from berth_operator.core.values.mounts import Attachable, Disk, Mounts, Use
from berth_operator.core.values.request import NodeTerm
from berth_operator.core.values.storage import Attachment
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import mounts, volumes
from berth_operator.state.watches.storage import Storage, sources
from tests.objects.builders import GI, Raw, label, node, parked, pod, relist, woken
from tests.objects.volumes import DRIVER, bound, claim, csi, raw_claim, raw_class, raw_volume, volume

ALWAYS, NEVER = label("", "DoesNotExist"), label("", "In")


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_claim_is_read() -> None:
    assert volumes.claim(raw_claim()) == claim()
    selector = {"matchLabels": {"b": "1"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}
    owners = [{"uid": "someone"}, {"uid": "me", "controller": True}]
    spec = {"volumeMode": "Block", "volumeAttributesClassName": "gold", "selector": selector, "volumeName": "v"}
    annotations = {
        volumes.BOUND_ANNOTATION: "yes",
        volumes.SELECTED_NODE: "n",
        volumes.CLASS_ANNOTATION: "older",
    }
    parsed = volumes.claim(
        raw_claim(
            spec=spec,
            annotations=annotations,
            ownerReferences=owners,
            deletionTimestamp="2026-01-01T00:00:00Z",
            status={"phase": "Lost"},
        )
    )
    assert parsed == claim(
        volume_mode="Block",
        attributes_class="gold",
        selector=LabelSelector(requirements=(label("b", "In", "1"), label("a", "Exists"))),
        volume="v",
        bound=True,
        selected_node="n",
        storage_class="older",
        owner="me",
        deleting=True,
        lost=True,
    )


@pytest.mark.parametrize(
    ("spec", "annotations", "is_bound"),
    [
        pytest.param({"volumeName": "v"}, {volumes.BOUND_ANNOTATION: "yes"}, True, id="both sides"),
        pytest.param({"volumeName": "v"}, {}, False, id="one side"),
        pytest.param({}, {volumes.BOUND_ANNOTATION: "yes"}, False, id="no volume"),
    ],
)
def test_when_a_claim_is_bound(spec: Raw, annotations: Raw, is_bound: bool) -> None:
    assert volumes.claim(raw_claim(spec=spec, annotations=annotations)).bound == is_bound


def test_a_claim_that_says_nothing() -> None:
    parsed = volumes.claim({"metadata": {"namespace": "ns", "name": "claim", "uid": "uid-claim"}, "spec": {}})
    assert parsed == claim(storage_class="", size=0, has_size=False, modes=frozenset())


def test_a_volume_is_read() -> None:
    assert volumes.volume(raw_volume()) == volume()
    ref = {"namespace": "ns", "name": "claim", "uid": "uid-claim"}
    labels = {"topology.kubernetes.io/zone": "b__ a", "topology.kubernetes.io/region": "r__", "disk": "ssd"}
    spec = {"claimRef": ref, "csi": {"driver": DRIVER, "volumeHandle": "h"}}
    parsed = volumes.volume(raw_volume(spec=spec, labels=labels, status={"phase": "Bound"}))
    assert parsed == volume(
        claim="ns/claim",
        claim_uid="uid-claim",
        attachable=csi("h"),
        csi=True,
        labels=tuple(sorted(labels.items())),
        zones=(("topology.kubernetes.io/zone", ("a", "b")),),
        available=False,
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param({"awsElasticBlockStore": {"volumeID": "v"}}, csi("v", "ebs.csi.aws.com"), id="ebs"),
        pytest.param({"gcePersistentDisk": {"pdName": "d"}}, csi("d", "pd.csi.storage.gke.io"), id="gce"),
        pytest.param({"azureDisk": {"diskURI": "d"}}, csi("d", "disk.csi.azure.com"), id="azure"),
        pytest.param({"cinder": {"volumeID": "v"}}, csi("v", "cinder.csi.openstack.org"), id="cinder"),
        pytest.param({"portworxVolume": {"volumeID": "v"}}, csi("v", "pxd.portworx.com"), id="portworx"),
        pytest.param({"nfs": {"server": "s"}}, None, id="of no driver"),
    ],
)
def test_volumes_of_kinds_that_drivers_took_over(source: Raw, expected: Attachable | None) -> None:
    parsed = volumes.volume(raw_volume(spec=source))
    assert (parsed.attachable, parsed.csi) == (expected, False)


ZONE = {"key": "zone", "operator": "In", "values": ["x"]}
HERE = {"key": "metadata.name", "operator": "In", "values": ["n"]}
ELSEWHERE = {"key": "metadata.name", "operator": "NotIn", "values": ["n"]}
BAD = {"key": "zone", "operator": "Gt", "values": ["x"]}


NODES_THAT_REACH_A_VOLUME = {
    "none": ({}, None),
    "no term": ({"required": {"nodeSelectorTerms": []}}, ()),
    "a label": (
        {"required": {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}]}},
        (NodeTerm(labels=(label("zone", "In", "x"),)),),
    ),
    "an empty term": ({"required": {"nodeSelectorTerms": [{}]}}, (NodeTerm(),)),
    "a name": ({"required": {"nodeSelectorTerms": [{"matchFields": [HERE]}]}}, (NodeTerm(labels=(NEVER,)),)),
    "not a name": ({"required": {"nodeSelectorTerms": [{"matchFields": [ELSEWHERE]}]}}, (NodeTerm(labels=(ALWAYS,)),)),
    "nonsense": ({"required": {"nodeSelectorTerms": [{"matchExpressions": [BAD]}]}}, (NodeTerm(),)),
}


@pytest.mark.parametrize(("affinity", "expected"), NODES_THAT_REACH_A_VOLUME.values(), ids=NODES_THAT_REACH_A_VOLUME)
def test_nodes_that_reach_a_volume(affinity: Raw, expected: tuple[NodeTerm, ...] | None) -> None:
    assert volumes.volume(raw_volume(spec={"nodeAffinity": affinity})).affinity == expected


def test_classes_and_capacities_are_read() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["y", "x"]}]}, {}]
    parsed = volumes.storage_class(raw_class(allowedTopologies=topologies))
    assert (parsed.delayed, parsed.topologies) == (
        True,
        (NodeTerm(labels=(label("zone", "In", "x", "y"),)), NodeTerm()),
    )
    assert volumes.storage_class(raw_class(volumeBindingMode="Immediate", allowedTopologies=[])).topologies is None
    assert not volumes.storage_class(raw_class(volumeBindingMode="Immediate")).delayed


@pytest.mark.parametrize(
    ("fields", "limit", "nodes"),
    [
        pytest.param({}, None, (), id="nothing"),
        pytest.param({"capacity": "1Gi", "nodeTopology": {}}, GI, (NodeTerm(labels=(ALWAYS,)),), id="everywhere"),
        pytest.param({"capacity": "2Gi", "maximumVolumeSize": "1Gi"}, GI, (), id="the largest volume counts"),
        pytest.param(
            {"capacity": "1Gi", "nodeTopology": {"matchLabels": {"zone": "x"}}},
            GI,
            (NodeTerm(labels=(label("zone", "In", "x"), ALWAYS)),),
            id="of a zone",
        ),
    ],
)
def test_capacities(fields: Raw, limit: int | None, nodes: tuple[NodeTerm, ...]) -> None:
    raw = {"metadata": {"namespace": "ns", "name": "c"}, "storageClassName": "made", **fields}
    parsed = volumes.capacity(raw)
    assert (parsed.key, parsed.storage_class, parsed.limit, parsed.nodes) == ("ns/c", "made", limit, nodes)


def test_limits_and_attachments_are_read() -> None:
    drivers = [{"name": "a", "allocatable": {"count": 0}}, {"name": "b", "allocatable": {}}, {"name": "c"}]
    read = volumes.drivers({"metadata": {"name": "n"}, "spec": {"drivers": drivers}})
    assert read == {"a": 0, "b": None, "c": None}
    raw: Raw = {"metadata": {"name": "x"}, "spec": {"attacher": DRIVER, "nodeName": "n", "source": {}}}
    assert volumes.attachment(raw) is None
    raw["spec"]["source"] = {"persistentVolumeName": "v"}
    assert volumes.attachment(raw) == Attachment(name="x", node="n", driver=DRIVER, volume="v")


# --- a pod's volumes --------------------------------------------------------------------------------------------


def of(*pod_volumes: Raw) -> Mounts:
    return mounts.of_pod(pod(volumes=[{"name": f"v{i}", **each} for i, each in enumerate(pod_volumes)]))


PODS_VOLUMES = {
    "of no concern": ({"configMap": {}}, Mounts()),
    "a claim": ({"persistentVolumeClaim": {"claimName": "c"}}, Mounts(claims=(Use(claim="ns/c"),))),
    "an ephemeral volume": (
        {"ephemeral": {"volumeClaimTemplate": {}}},
        Mounts(claims=(Use(claim="ns/pod-v0", owner="uid-pod"),)),
    ),
    "a GCE disk": (
        {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        Mounts(disks=(Disk(kind="gce", id="d", read_only=True),), attachables=(csi("d", "pd.csi.storage.gke.io"),)),
    ),
    "an EBS volume bears no second reader": (
        {"awsElasticBlockStore": {"volumeID": "v", "readOnly": True}},
        Mounts(disks=(Disk(kind="ebs", id="v"),), attachables=(csi("v", "ebs.csi.aws.com"),)),
    ),
    "an iSCSI target": ({"iscsi": {"iqn": "q"}}, Mounts(disks=(Disk(kind="iscsi", id="q"),))),
    "an RBD image": (
        {"rbd": {"monitors": ["n", "m"], "image": "i", "readOnly": True}},
        Mounts(disks=(Disk(kind="rbd", id="m rbd i", read_only=True), Disk(kind="rbd", id="n rbd i", read_only=True))),
    ),
}


@pytest.mark.parametrize(("source", "expected"), PODS_VOLUMES.values(), ids=PODS_VOLUMES)
def test_a_pods_volumes(source: Raw, expected: Mounts) -> None:
    assert of(source) == expected


def test_a_claim_used_twice_is_one() -> None:
    twice = {"persistentVolumeClaim": {"claimName": "c"}}
    assert of(twice, twice).claims == (Use(claim="ns/c"),)


# --- waking -----------------------------------------------------------------------------------------------------


class World:
    """A cluster of one node with storage, and the claims whose changes were reported."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=1.0, clock=lambda: 0.0)
        self.storage = Storage(self.cluster)
        self.reported: list[str] = []
        self.storage.on_claim = self.reported.append
        self.cluster.node_cache.put_node(node())

    def parked(self, name: str, *claims: str) -> None:
        """Decide a pod that fits nowhere yet."""
        pod_volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        parked(self.cluster, pod(name, volumes=pod_volumes))

    def woken(self) -> set[str]:
        return set(woken(self.cluster))


def test_what_comes_or_goes_outdates_the_reasons_of_parked_pods() -> None:
    desk = Storage(cluster := Cluster(grace=10))
    versions = [cluster.waker.version]
    desk.put_claim(raw_claim("c"))
    versions.append(cluster.waker.version)
    desk.put_volume(raw_volume("v"))
    versions.append(cluster.waker.version)
    desk.remove_volume("v")
    versions.append(cluster.waker.version)
    desk.remove_claim("ns/c")
    versions.append(cluster.waker.version)
    assert versions == sorted(set(versions))


def test_a_claim_wakes_its_own_pods() -> None:
    world = World()
    world.parked("p", "a")
    world.parked("q", "b")
    world.storage.put_claim(raw_claim("b"))
    assert world.woken() == {"q"}
    assert world.reported == ["ns/b"]


def test_what_changes_nothing_wakes_no_pod() -> None:
    world = World()
    world.storage.put_class(raw_class())
    world.storage.put_claim(raw_claim("a"))
    world.storage.put_volume(raw_volume(status={"phase": "Pending"}))
    world.parked("p", "a")
    world.storage.put_claim(raw_claim("a", version=2))
    world.storage.put_volume(raw_volume(version=2, status={"phase": "Pending"}))
    world.storage.put_class(raw_class())
    assert world.woken() == set()
    world.storage.put_volume(raw_volume(version=3))
    assert world.woken() == {"p"}


def test_a_driver_that_reports_more_capacity_wakes() -> None:
    world = World()
    world.storage.put_class(raw_class("made", provisioner=DRIVER))
    world.storage.put_driver({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}})
    world.storage.put_claim(raw_claim("a", spec={"storageClassName": "made"}))
    world.parked("p", "a")
    capacity: Raw = {"metadata": {"namespace": "ns", "name": "c"}, "storageClassName": "made", "nodeTopology": {}}
    world.storage.put_capacity({**capacity, "capacity": "1Gi"})
    assert world.woken() == {"p"}
    world.storage.put_driver({"metadata": {"name": DRIVER}, "spec": {"storageCapacity": False}})
    assert world.cluster.fleet.volumes.tracked == set()


def test_a_place_for_a_volume_is_awaited() -> None:
    world = World()
    world.storage.put_class(raw_class("made", provisioner=DRIVER))
    for name in ("a", "b"):
        world.storage.put_claim(raw_claim(name, spec={"storageClassName": "made"}))
    world.storage.put_limits({"metadata": {"name": "node"}, "spec": {"drivers": [_limit(0)]}})
    world.parked("p", "a")
    world.storage.put_limits({"metadata": {"name": "node"}, "spec": {"drivers": [_limit(1)]}})
    assert world.woken() == {"p"}
    world.cluster.put_bound(holder := pod("holder", volumes=[{"persistentVolumeClaim": {"claimName": "b"}}], on="node"))
    world.parked("q", "a")
    world.cluster.remove_bound(holder["metadata"]["uid"])
    assert world.woken() == {"q"}


def test_the_claims_of_a_volume_hear_of_it() -> None:
    world = World()
    ref = {"claimRef": {"namespace": "ns", "name": "a", "uid": "u"}}
    world.storage.put_volume(raw_volume(spec=ref))
    world.storage.put_volume(raw_volume())
    world.storage.put_volume(raw_volume(spec=ref))
    world.storage.remove_volume("volume")
    assert world.reported == ["ns/a"] * 4


def test_limits_and_attachments_come_and_go() -> None:
    world = World()
    store = world.cluster.fleet.volumes
    row = world.cluster.fleet.rows["node"]
    world.storage.put_limits({"metadata": {"name": "node"}, "spec": {"drivers": [_limit(1)]}})
    assert store.limits(DRIVER)[row] == 1  # type: ignore[index]
    attached: Raw = {
        "metadata": {"name": "x"},
        "spec": {"attacher": DRIVER, "nodeName": "node", "source": {"persistentVolumeName": "volume"}},
    }
    world.storage.put_attachment(attached)
    world.storage.put_volume(raw_volume(spec={"csi": {"driver": DRIVER, "volumeHandle": "h"}}))
    assert store.attached.counts(DRIVER)[row] == 1
    world.storage.remove_attachment("x")
    world.storage.remove_limits("node")
    assert store.attached.counts(DRIVER)[row] == 0
    assert store.limits(DRIVER)[row] > 1000  # type: ignore[index]


def _limit(count: int) -> dict[str, Any]:
    return {"name": DRIVER, "allocatable": {"count": count}}


def test_every_kind_is_reflected() -> None:
    world = World()
    tables = sources(world.storage)
    objects: dict[str, Raw] = {
        "claims": raw_claim(),
        "volumes": raw_volume(),
        "storage classes": raw_class(),
        "storage capacities": {"metadata": {"namespace": "ns", "name": "c"}, "storageClassName": "local"},
        "storage drivers": {"metadata": {"name": "d"}, "spec": {"storageCapacity": True}},
        "volume limits": {"metadata": {"name": "node"}, "spec": {"drivers": [_limit(1)]}},
        "volume attachments": {"metadata": {"name": "x"}, "spec": {}},
    }
    assert tables.keys() == objects.keys()
    store = world.cluster.fleet.volumes
    for name, (_, table) in tables.items():
        table.apply("ADDED", objects[name])
    assert (store.claims["ns/claim"], store.volumes["volume"], store.tracked) == (claim(), volume(), {"d"})
    assert store.classes.keys() == {"local"}
    assert store.capacities["local"].keys() == {"ns/c"}
    for _, table in tables.values():
        relist(table, [])
    assert [store.claims, store.volumes, store.classes, store.tracked] == [{}, {}, {}, set()]
    assert store.capacities == {}


def test_a_bound_claim_is_known_by_name() -> None:
    assert (
        volumes.claim(raw_claim(annotations={volumes.BOUND_ANNOTATION: ""}, spec={"volumeName": "volume"})) == bound()
    )
