"""Rules about volumes: valid, used and bound claims, disks, limits, zones, and claims that wait for a consumer.

No volume controller runs, so a claim is created with its volume already set. For a claim that waits, it is enough that
kube-scheduler has chosen a volume or a node. If a rule concerns all nodes at once or would use up its volumes, each
node's probe has its own claim.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from berth_operator.state.objects.volumes import SELECTED_NODE
from tests.differential.draft import MARK, Draft, Raw, name_of

STORAGE: Final = "/apis/storage.k8s.io/v1"
DRIVER: Final = "csi.differential"
MAKER: Final = "maker.differential"
"""Driver of volumes to provision; they count for no limit."""
TRACKED: Final = "tracked.differential"
"""The same, with a CSIStorageCapacity."""
REQUIRED: Final = "required.differential"
"""A driver that must be on the node, from 1.37 on."""
ELSEWHERE: Final = "elsewhere"
"""A node that does not exist."""
LOCAL: Final = "kubernetes.io/no-provisioner"
ONCE: Final = "ReadWriteOncePod"
BOUND: Final = "pv.kubernetes.io/bind-completed"
MI: Final = 2**20
SIZE: Final = 64 * MI

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
OLD_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"

OBJECTS: Final[tuple[tuple[str, Raw], ...]] = (
    (f"{STORAGE}/csidrivers", {"metadata": {"name": TRACKED}, "spec": {"storageCapacity": True}}),
    (f"{STORAGE}/csidrivers", {"metadata": {"name": REQUIRED}, "spec": {"preventPodSchedulingIfMissing": True}}),
    (
        f"{STORAGE}/storageclasses",
        {"metadata": {"name": "at-once"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"},
    ),
)


class Shelf:
    """Writes claims, volumes and classes of one rule of a draft; their names begin with the rule's."""

    def __init__(self, draft: Draft, rule: str) -> None:
        self._draft, self._rule = draft, rule
        self._count = 0

    def name(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"{self._draft.id}-{self._rule}-{self._count}"

    def claim(self, *, annotations: Raw | None = None, **spec: object) -> str:
        """Write a claim; return its name."""
        base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(SIZE)}}}
        metadata = {"annotations": annotations or {}}
        path = f"/api/v1/namespaces/{self._draft.namespace}/persistentvolumeclaims"
        return self._write(path, {"metadata": metadata, "spec": {**base, "storageClassName": "none", **spec}})

    def volume(self, *, labels: Raw | None = None, phase: str = "Available", **spec: object) -> str:
        """Write a volume; return its name."""
        base = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": str(SIZE)}, "storageClassName": "none"}
        source = {} if "csi" in spec else {"nfs": {"server": "none", "path": "/"}}
        manifest = {"metadata": {"labels": labels or {}}, "spec": {**base, **source, **spec}}
        return self._write("/api/v1/persistentvolumes", {**manifest, "status": {"phase": phase}})

    def storage_class(self, provisioner: str = LOCAL, **fields: object) -> str:
        """Write a class whose claims wait for their first consumer; return its name."""
        body = {"metadata": {}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer", **fields}
        return self._write(f"{STORAGE}/storageclasses", body)

    def capacity(self, storage_class: str, **fields: object) -> None:
        """Write how much a driver can provision."""
        path = f"{STORAGE}/namespaces/{self._draft.namespace}/csistoragecapacities"
        self._write(path, {"metadata": {}, "storageClassName": storage_class, **fields})

    def bound(self, volume: str, **spec: object) -> str:
        """Write a bound claim; return its name."""
        return self.claim(annotations={BOUND: "yes"}, volumeName=volume, **spec)

    def attach(self, volume: str, node: Raw) -> None:
        """Attach a volume to a node."""
        source = {"persistentVolumeName": volume}
        spec = {"attacher": DRIVER, "nodeName": name_of(node), "source": source}
        self._write(f"{STORAGE}/volumeattachments", {"metadata": {}, "spec": spec})

    def _write(self, path: str, manifest: Raw) -> str:
        name = self.name()
        metadata = manifest["metadata"]
        labels = {**metadata.get("labels", {}), MARK: ""}
        self._draft.objects.append((path, {**manifest, "metadata": {**metadata, "name": name, "labels": labels}}))
        return name


def mounting(claim: str) -> Raw:
    """Return a pod's volume of a claim."""
    return {"name": claim[-60:], "persistentVolumeClaim": {"claimName": claim}}


def _mount(pod: Raw, *volumes: Raw) -> None:
    pod["spec"].setdefault("volumes", []).extend(volumes)


def _each(draft: Draft, *, focus: bool) -> list[tuple[Raw, bool]]:
    """Yield each node, and whether it must take the probe."""
    takes = [True, *(draft.random.random() < 0.5 for _ in draft.between), not focus]
    return list(zip(draft.nodes, takes, strict=True))


# --- of all nodes or none: each has a claim of its own ------------------------------------------------------------


def volume_claims(draft: Draft, *, focus: bool) -> None:
    """Omit the last node's claim, or leave it unbound although it has immediate binding."""
    shelf = Shelf(draft, "claims")
    wrong: list[Callable[[], str]] = [
        shelf.name,
        lambda: shelf.claim(storageClassName="at-once"),
        lambda: shelf.claim(storageClassName=""),
        lambda: shelf.claim(storageClassName="missing"),
        lambda: shelf.claim(volumeName=shelf.volume()),
        lambda: shelf.claim(storageClassName=shelf.storage_class(), volumeName=shelf.volume()),
    ]
    for node, takes in _each(draft, focus=focus):
        claim = shelf.bound(shelf.volume()) if takes else draft.random.choice(wrong)()
        draft.own(node).append(mounting(claim))


def volume_in_use(draft: Draft, *, focus: bool) -> None:
    """Use the last node's ReadWriteOncePod claim in another pod; the others are unused, or shared."""
    shelf = Shelf(draft, "in-use")
    for node, takes in _each(draft, focus=focus):
        used = not takes or draft.random.random() < 0.5
        modes = ["ReadWriteMany"] if takes and used else [ONCE]
        claim = shelf.bound(shelf.volume(accessModes=modes), accessModes=modes)
        if used:
            draft.put(draft.random.choice(draft.nodes), {"volumes": [mounting(claim)]})
        draft.own(node).append(mounting(claim))


# --- on the node ------------------------------------------------------------------------------------------------


def volume_conflicts(draft: Draft, *, focus: bool) -> None:
    """Use the probe's disk in a pod of the last node, one of both writing; others only read, or use other disks."""
    random = draft.random
    make = random.choice([_gce, _iscsi, _rbd, _ebs])
    only_reads = random.random() < 0.5
    _mount(draft.probe, {"name": "disk", **make(draft.id, only_reads, 0)})
    for node, takes in _each(draft, focus=focus):
        if takes and make is not _ebs and only_reads and random.random() < 0.7:
            draft.put(node, {"volumes": [{"name": "disk", **make(draft.id, only_reads, 0)}]})
        elif takes:
            draft.put(node, {"volumes": [{"name": "disk", **make(f"{draft.id}-other", only_reads, 0)}]})
        else:
            draft.put(
                node, {"volumes": [{"name": "disk", **make(draft.id, not only_reads and random.random() < 0.5, 1)}]}
            )


def _gce(name: str, only_reads: bool, _at: int) -> Raw:
    return {"gcePersistentDisk": {"pdName": name, "readOnly": only_reads}}


def _ebs(name: str, only_reads: bool, _at: int) -> Raw:
    return {"awsElasticBlockStore": {"volumeID": name, "readOnly": only_reads}}


def _iscsi(name: str, only_reads: bool, at: int) -> Raw:
    # Targets that differ only in the portal are the same.
    return {
        "iscsi": {
            "targetPortal": f"10.0.0.{at}",
            "iqn": f"iqn.2026-01.dev.berth:{name}",
            "lun": 0,
            "readOnly": only_reads,
        }
    }


def _rbd(name: str, only_reads: bool, at: int) -> Raw:
    return {"rbd": {"monitors": ["shared", f"own-{at}"], "image": name, "readOnly": only_reads}}


def volume_limits(draft: Draft, *, focus: bool) -> None:
    """Limit the last node to one volume too few, or omit a driver; on the others they just fit, or are attached."""
    random, shelf = draft.random, Shelf(draft, "limits")
    handles = (f"{draft.id}-{number}" for number in range(1000))
    new = [_csi(shelf, next(handles)) for _ in range(random.randint(1, 3))]
    _mount(draft.probe, *(mounting(claim) for claim, _ in new))
    if by_driver := draft.kubernetes >= 37 and random.random() < 0.4:
        _mount(draft.probe, mounting(_csi(shelf, next(handles), REQUIRED)[0]))
    for node, takes in _each(draft, focus=focus):
        # Never all volumes: without a new volume a node never exceeds its limit.
        there = random.sample(new, random.randint(0, len(new) - 1))
        others = [_csi(shelf, next(handles)) for _ in range(random.randint(0, 2))]
        for claim, _ in (*there, *others):
            for _ in range(random.choice([1, 1, 2])):
                draft.put(node, {"volumes": [mounting(claim)]})
        for _, volume in others if random.random() < 0.5 else ():
            shelf.attach(volume, node)
        leaving = random.choice([0, 0, 1])
        for _ in range(leaving):
            shelf.attach(_csi(shelf, next(handles))[1], node)
        fitting, lacks = len(new) + len(others) + leaving, by_driver and not takes and random.random() < 0.7
        count = fitting + random.choice([0, 0, 1]) if takes or lacks else fitting - 1
        _limit(draft, node, count, {} if lacks else {REQUIRED: {}})


def _csi(shelf: Shelf, handle: str, driver: str = DRIVER) -> tuple[str, str]:
    volume = shelf.volume(csi={"driver": driver, "volumeHandle": handle})
    return shelf.bound(volume), volume


def _limit(draft: Draft, node: Raw, count: int, others: Raw) -> None:
    """Write the drivers of a node: one with a limit, and others."""
    drivers = {DRIVER: {"allocatable": {"count": count}}, **others}
    spec = {"drivers": [{"name": name, "nodeID": name_of(node), **each} for name, each in drivers.items()]}
    manifest = {"metadata": {"name": name_of(node), "labels": {MARK: ""}}, "spec": spec}
    draft.objects.append((f"{STORAGE}/csinodes", manifest))


# --- bound volumes ----------------------------------------------------------------------------------------------


def volume_affinity(draft: Draft, *, focus: bool) -> None:
    """Bind the probe's claim to a volume that the last node does not reach."""
    shelf, key = Shelf(draft, "reach"), f"{draft.id}.reach"
    for node, takes in _each(draft, focus=focus):
        if place := "here" if takes else draft.random.choice(["there", ""]):
            node["metadata"]["labels"][key] = place
    claim = shelf.bound(shelf.volume(nodeAffinity=_reached(draft.random, key)))
    _mount(draft.probe, mounting(claim))


def _reached(random: Random, key: str) -> Raw:
    """Return one of the ways to select the nodes that reach a volume."""
    here = {"key": key, "operator": "In", "values": ["here", "elsewhere"]}
    never = {"key": key, "operator": "In", "values": ["nowhere"]}
    exists = {"key": key, "operator": "Exists"}
    terms = random.choice(
        [
            [{"matchExpressions": [here]}],
            [{"matchExpressions": [never]}, {"matchExpressions": [here, exists]}],
            [{"matchExpressions": [exists, {"key": key, "operator": "NotIn", "values": ["there"]}]}],
        ]
    )
    return {"required": {"nodeSelectorTerms": terms}}


def volume_zones(draft: Draft, *, focus: bool) -> None:
    """Put the last node into another zone than the probe's volume, or into a region without a zone."""
    random, shelf = draft.random, Shelf(draft, "zones")
    key = random.choice([ZONE, OLD_ZONE])
    right: list[Raw] = [{key: "a"}, {key: "b"}, {key: "a", REGION: "r"}, {}]
    if key == OLD_ZONE:
        right += [{ZONE: "a"}, {OLD_ZONE: "a", ZONE: "z"}]
    wrong: list[Raw] = [{key: "z"}, {REGION: "r"}, {key: "a__b"}]
    if key == ZONE:
        wrong.append({OLD_ZONE: "a"})
    for node, takes in _each(draft, focus=focus):
        node["metadata"]["labels"].update(random.choice(right if takes else wrong))
    claim = shelf.bound(shelf.volume(labels={key: random.choice(["a__b", "b__a", "a__b__c"])}))
    _mount(draft.probe, mounting(claim))


# --- claims that wait for their first consumer ------------------------------------------------------------------


def volume_binding(draft: Draft, *, focus: bool) -> None:
    """Leave the last node's claim without a large, reachable and free volume, and without a provisioner."""
    shelf = Shelf(draft, "binding")
    for node, takes in _each(draft, focus=focus):
        make = draft.random.choice([_found, _made, _made_with_space] if takes else [_not_found, _not_made, _no_space])
        draft.own(node).append(mounting(make(draft, shelf, name_of(node))))


def _near(node: str, operator: str = "In") -> Raw:
    expression = {"key": "kubernetes.io/hostname", "operator": operator, "values": [node]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def _found(draft: Draft, shelf: Shelf, node: str) -> str:
    name = shelf.storage_class()
    claim: Raw = {"storageClassName": name}
    volume: Raw = draft.random.choice(
        [
            {},
            {"nodeAffinity": _near(node)},
            {"capacity": {"storage": str(SIZE + 1)}},
            {"accessModes": ["ReadWriteMany", "ReadWriteOnce"]},
        ]
    )
    if draft.random.random() < 0.3:
        claim["volumeMode"] = volume["volumeMode"] = "Block"
    if draft.random.random() < 0.3:
        claim["selector"] = {"matchLabels": {"disk": "ssd"}}
    shelf.volume(storageClassName=name, labels={"disk": "ssd"}, **volume)
    claim_name = shelf.claim(**claim)
    if draft.random.random() < 0.3:
        # Reserved for the claim by a user, whatever its modes and phase.
        ref = {"namespace": draft.namespace, "name": claim_name}
        changed: Raw = {"claimRef": ref, "accessModes": ["ReadOnlyMany"]}
        shelf.volume(storageClassName=name, phase="Pending", **changed)
    return claim_name


def _not_found(draft: Draft, shelf: Shelf, node: str) -> str:
    name = shelf.storage_class()
    claim: Raw = {"storageClassName": name}
    ways: list[Raw] = [
        {"capacity": {"storage": str(SIZE - 1)}},
        {"nodeAffinity": _near(node, "NotIn")},
        {"accessModes": ["ReadOnlyMany"]},
        {"storageClassName": "none"},
        {"phase": "Pending"},
        {"phase": "Released"},
        {"claimRef": {"namespace": draft.namespace, "name": "somebody-else"}},
        {"labels": {"disk": "hdd"}},
        {"volumeMode": "Block"},
    ]
    volume = draft.random.choice(ways)
    if "labels" in volume:
        claim["selector"] = {"matchLabels": {"disk": "ssd"}}
    if draft.random.random() < 0.9:
        shelf.volume(**{"storageClassName": name, **volume})
    return shelf.claim(**claim)


def _made(draft: Draft, shelf: Shelf, node: str) -> str:
    topologies = [_only(ELSEWHERE), _only(node, ELSEWHERE)]
    fields = draft.random.choice([{}, {"allowedTopologies": topologies}])
    return shelf.claim(storageClassName=shelf.storage_class(MAKER, **fields))


def _not_made(draft: Draft, shelf: Shelf, _node: str) -> str:
    if draft.random.random() < 0.5:
        name = shelf.storage_class(MAKER, allowedTopologies=[_only(ELSEWHERE)])
        return shelf.claim(storageClassName=name)
    name = shelf.storage_class(draft.random.choice([MAKER, LOCAL]))
    shelf.volume(storageClassName=name)
    return shelf.claim(storageClassName=name, annotations={SELECTED_NODE: ELSEWHERE})


def _only(*names: str) -> Raw:
    return {"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": list(names)}]}


def _made_with_space(draft: Draft, shelf: Shelf, node: str) -> str:
    name = shelf.storage_class(TRACKED)
    amount = draft.random.choice(
        [{"capacity": str(SIZE)}, {"capacity": "0", "maximumVolumeSize": str(SIZE)}, {"capacity": str(2 * SIZE)}]
    )
    where = draft.random.choice([{}, {"matchLabels": {"kubernetes.io/hostname": node}}])
    shelf.capacity(name, nodeTopology=where, **amount)
    return shelf.claim(storageClassName=name)


def _no_space(draft: Draft, shelf: Shelf, node: str) -> str:
    name = shelf.storage_class(TRACKED)
    here = {"nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}}}
    fields: Raw = draft.random.choice(
        [
            {**here, "capacity": str(SIZE - 1)},
            {**here, "capacity": str(SIZE), "maximumVolumeSize": str(SIZE - 1)},
            {"nodeTopology": {"matchLabels": {"kubernetes.io/hostname": ELSEWHERE}}, "capacity": str(SIZE)},
            {"capacity": str(SIZE)},
            here,
        ]
    )
    shelf.capacity(name, **fields)
    return shelf.claim(storageClassName=name)
