"""Scenarios about preferences: one preference decides between nodes that are otherwise equal.

Each kind writes its part of a draft so that one node, the best, is clearly preferred. It is never the first node, which
would be chosen without any preference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.differential import draft as drafts
from tests.differential.draft import Draft, Raw, name_of
from tests.differential.on_volumes import SIZE, TRACKED, Shelf, mounting

SCENARIO: Final = "example.com/preference"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
CORES: Final = 64
GIBIBYTES: Final = 512
"""Memory of each node, as in `drafts.PLENTY`."""
ITS: Final = {"app": "x"}
OTHERS: Final = {"app": "y"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A scenario, and the node that must be chosen."""

    kind: str
    draft: Draft
    best: str


def kinds(kubernetes: int) -> list[str]:
    """Return the kinds of preferences that a minor version has."""
    return [kind for kind in KINDS if kubernetes >= SINCE.get(kind, 0)]


def preferences(seed: int, each: int, namespaces: list[str], kubernetes: int) -> Iterator[Preference]:
    """Return the given number of scenarios of each kind, each in its own namespace; the same seed gives the same."""
    names = iter(namespaces)
    for kind in kinds(kubernetes):
        for number in range(each):
            yield preference(kind, f"p{seed}-{kind}-{number}", next(names), kubernetes)


def preference(kind: str, id_: str, namespace: str, kubernetes: int) -> Preference:
    """Return one scenario."""
    random = Random(id_)
    made = drafts.begin(id_, namespace, random, kubernetes)
    for number, node in enumerate(made.nodes):
        node["metadata"]["labels"] |= {SCENARIO: id_, ZONE: f"{id_}-z{number}"}
    made.probe["metadata"]["labels"] = {**ITS, drafts.MARK: "probe"}
    made.probe["spec"] |= {"nodeSelector": {SCENARIO: id_}}
    made.probe["spec"]["containers"][0]["resources"] = _requests(1, CORES)
    best = random.choice(made.nodes[1:])
    KINDS[kind](made, best)
    return Preference(kind=kind, draft=made, best=name_of(best))


def _requests(part: float, of: float) -> Raw:
    """Return a request of the same share of both cpu and memory."""
    return {"requests": {"cpu": f"{1000 * CORES * part / of:.0f}m", "memory": f"{1024 * GIBIBYTES * part / of:.0f}Mi"}}


def _but(draft: Draft, best: Raw) -> list[Raw]:
    return [each for each in draft.nodes if each is not best]


# --- nodes ------------------------------------------------------------------------------------------------------


def node_affinity(draft: Draft, best: Raw) -> None:
    """Set the label with the highest weight on the best node, and at most those with low weights on the others."""
    random = draft.random
    weights = {"heavy": random.randint(60, 100), "light": random.randint(1, 15), "lighter": random.randint(1, 15)}
    terms = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": f"w-{name}", "operator": "Exists"}]}}
        for name, weight in weights.items()
    ]
    random.shuffle(terms)
    draft.probe["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: terms}}
    best["metadata"]["labels"]["w-heavy"] = ""
    for node in _but(draft, best):
        node["metadata"]["labels"] |= {f"w-{name}": "" for name in ("light", "lighter") if random.random() < 0.5}


def taints(draft: Draft, best: Raw) -> None:
    """Taint all nodes but the best with taints that the probe does not tolerate; the best has a tolerated one."""
    draft.probe["spec"]["tolerations"] = [{"key": "minded", "operator": "Equal", "value": "no", "effect": ""}]
    for node in draft.nodes:
        number = draft.random.randint(1, 3)
        values = ["no"] if node is best else [f"yes{i}" for i in range(number)]
        node["spec"]["taints"] = [
            {"key": "minded" if node is best else f"minded-{value}", "value": value, "effect": "PreferNoSchedule"}
            for value in values
        ]


def images(draft: Draft, best: Raw) -> None:
    """Put the probe's large image on the best node, and at most the small one on the others.

    An image counts by the share of all nodes that have it, and other scenarios have many nodes: so it is huge.
    """
    large, small = (f"registry.example/{draft.id}/{name}:v1" for name in ("large", "small"))
    draft.probe["spec"]["containers"] = [
        {**draft.probe["spec"]["containers"][0], "image": large},
        {**drafts.container("second"), "image": small},
    ]
    for node in draft.nodes:
        held = {f"{large}0": 10**12, **({small: 10**7} if draft.random.random() < 0.5 else {})}
        if node is best:
            held[large] = 10**12
        node["status"]["images"] = [{"names": [name], "sizeBytes": size} for name, size in held.items()]


def emptiest(draft: Draft, best: Raw) -> None:
    """Make the best node the emptiest; all of them use cpu and memory in the same proportion."""
    for node in draft.nodes:
        part = draft.random.uniform(0.0, 0.2) if node is best else draft.random.uniform(0.4, 0.8)
        _take(draft, node, part)


def _take(draft: Draft, node: Raw, part: float) -> None:
    draft.put(node, {"containers": [drafts.container("main", resources=_requests(part, 1))]}, labels=OTHERS)


# --- pods -------------------------------------------------------------------------------------------------------


def pod_affinity(draft: Draft, best: Raw) -> None:
    """Attract the probe to a pod on the best node, by a preferred term of the probe or of the pod."""
    _near(draft, "podAffinity", [best], _but(draft, best))


def pod_anti_affinity(draft: Draft, best: Raw) -> None:
    """Repel the probe from all other nodes, by a preferred term of the probe or of pods there."""
    _near(draft, "podAntiAffinity", _but(draft, best), [best])


def _near(draft: Draft, kind: str, meant: list[Raw], others: list[Raw]) -> None:
    random = draft.random
    own_wish, labels = random.random() < 0.5, {"role": "meant"}
    selector = {"matchLabels": labels if own_wish else ITS}
    term = {"topologyKey": random.choice([HOSTNAME, ZONE]), "labelSelector": selector}
    wish = {"affinity": {kind: {PREFERRED: [{"weight": random.randint(50, 100), "podAffinityTerm": term}]}}}
    if own_wish:
        draft.probe["spec"] |= wish
    for node in meant:
        for _ in range(random.randint(1, 2)):
            draft.put(node, {} if own_wish else wish, labels=labels)
    for node in others:
        draft.put(node, labels=OTHERS)


def soft_spread(draft: Draft, best: Raw) -> None:
    """Put pods that the probe's constraint counts on all nodes but the best."""
    constraint = {
        "topologyKey": draft.random.choice([HOSTNAME, ZONE]),
        "maxSkew": draft.random.randint(1, 2),
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": ITS},
    }
    draft.probe["spec"]["topologySpreadConstraints"] = [constraint]
    _crowd(draft, best)


def service(draft: Draft, best: Raw) -> None:
    """Put pods of the probe's Service on all nodes but the best."""
    spec = {"selector": ITS, "ports": [{"port": 80}]}
    _own(draft, "/api/v1/namespaces/{}/services", {"metadata": {"name": "its"}, "spec": spec})
    _crowd(draft, best)


def replica_set(draft: Draft, best: Raw) -> None:
    """Put pods of the probe's ReplicaSet on all nodes but the best; its controller does not run."""
    metadata = {"name": draft.id, "labels": ITS}
    template = {"metadata": {"labels": ITS}, "spec": {"containers": [drafts.container("main")]}}
    spec = {"replicas": 0, "selector": {"matchLabels": ITS}, "template": template}
    _own(draft, "/apis/apps/v1/namespaces/{}/replicasets", {"metadata": metadata, "spec": spec})
    kind = {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
    owner = {**kind, "name": draft.id, "uid": f"of-{draft.id}", "controller": True}
    draft.probe["metadata"]["ownerReferences"] = [owner]
    _crowd(draft, best, ownerReferences=[owner])


def _own(draft: Draft, path: str, manifest: Raw) -> None:
    metadata = {**manifest["metadata"], "labels": {**manifest["metadata"].get("labels", {}), drafts.MARK: ""}}
    draft.objects.append((path.format(draft.namespace), {**manifest, "metadata": metadata}))


def _crowd(draft: Draft, best: Raw, **metadata: Any) -> None:
    """Put counted pods on all nodes but the best, which is a little fuller nevertheless."""
    _take(draft, best, 0.05)
    for node in _but(draft, best):
        for _ in range(draft.random.randint(2, 4)):
            draft.put(node, labels=ITS, **metadata)


# --- volumes ----------------------------------------------------------------------------------------------------


def volume_capacity(draft: Draft, best: Raw) -> None:
    """Offer on the best node much more storage to provision than on the others, for the probe's claim."""
    shelf = Shelf(draft, "free")
    name = shelf.storage_class(TRACKED)
    for node in draft.nodes:
        times = draft.random.randint(10, 99) if node is best else draft.random.randint(1, 3)
        where = {"matchLabels": {HOSTNAME: name_of(node)}}
        shelf.capacity(name, nodeTopology=where, capacity=str(times * SIZE))
    draft.probe["spec"]["volumes"] = [mounting(shelf.claim(storageClassName=name))]


KINDS: Final[dict[str, Callable[[Draft, Raw], None]]] = {
    "node-affinity": node_affinity,
    "taints": taints,
    "image-locality": images,
    "least-allocated": emptiest,
    "pod-affinity": pod_affinity,
    "pod-anti-affinity": pod_anti_affinity,
    "even-spread": soft_spread,
    "service": service,
    "replica-set": replica_set,
    "volume-capacity": volume_capacity,
}
SINCE: Final = {"volume-capacity": 37}
"""Kind -> the minor version that has it; all others have it."""
SCORES: Final = {
    **{name: name for name in ("node-affinity", "taints", "image-locality", "least-allocated", "even-spread")},
    "volume-capacity": "volume-capacity",
    **dict.fromkeys(("pod-affinity", "pod-anti-affinity"), "pods-near"),
    **dict.fromkeys(("service", "replica-set"), "default-spread"),
}
"""Kind -> Berth's score that it is about."""
