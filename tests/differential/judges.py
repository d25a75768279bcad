"""Compare two verdicts on whether a node takes a pod: kube-scheduler's in a real cluster, and Berth's filters'.

kube-scheduler gets a probe for each node, pinned to it by its name. It gets one node at a time, so that no placed probe
affects another. Berth gets exactly the objects that the API server then shows.
"""

import copy
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from berth_operator.core.decision import cycle
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import not_helpful
from berth_operator.core.filters import Filter
from berth_operator.state.cache.cluster import Cluster as State
from berth_operator.state.objects import nodes, pods
from berth_operator.state.objects.volumes import SELECTED_NODE
from berth_operator.state.watches import sinks
from berth_operator.state.watches.storage import Storage, sources
from devcluster import Cluster, waiting
from tests.differential.draft import MARK, Draft, Raw, name_of, node_of, pod_of
from tests.differential.on_volumes import ELSEWHERE
from tests.objects.builders import relist

ARGUMENTS: Final = {
    # Conditions and taints are as the scenario has them, no ServiceAccount is waited for, and no volume stays.
    "kube-apiserver": ["--disable-admission-plugins=TaintNodesByCondition,ServiceAccount,StorageObjectInUseProtection"],
    "kube-controller-manager": [
        "--controllers=-node-lifecycle-controller,-taint-eviction-controller,-persistentvolume-binder-controller",
        "--controllers=-replicaset-controller,-garbage-collector-controller",
    ],
}
"""Arguments of the cluster's programs, so that nothing but the scenarios changes their objects."""
CLAIMS: Final = (
    "/api/v1/namespaces/{}/services",
    "/apis/apps/v1/namespaces/{}/replicasets",
    "/api/v1/namespaces/{}/persistentvolumeclaims",
    "/apis/storage.k8s.io/v1/namespaces/{}/csistoragecapacities",
)
MADE: Final = (
    "/api/v1/nodes",
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/volumeattachments",
)
"""Kinds whose objects are taken away by their mark, those of a namespace and the others."""
WORKERS: Final = 12
SENTINEL: Final = "sentinel"
SENTINELS: Final = "default"
NOT_OURS: Final = "no new claims to deallocate, "
"""What kube-scheduler's DynamicResources adds for pods without claims before 1.37."""
NO_STATE: Final = " not found"
"""What kube-scheduler appends for a pod that a PreFilter plugin rejects: it has no state of the pod then. That is an
error to kube-scheduler, so DefaultPreemption is not asked, and the message has no preemption part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One probe on one node, and kube-scheduler's verdict."""

    scenario: str
    node: str
    probe: Raw
    fits: bool
    message: str


@dataclass(slots=True, kw_only=True)
class Trial:
    """The probes of one cluster, and the state in which they were tried."""

    state: State
    cases: list[Mismatch] = field(default_factory=list)

    def judged(self, case: Mismatch, order: Sequence[Filter] | None = None) -> bool:
        """Return the verdict of all filters on a case, or of the given filters."""
        pod = pods.pending(pods.transform(copy.deepcopy(case.probe)))
        assert not pod.error
        mask = cycle.feasible(self.state.fleet, pod.request, order)
        return bool(mask[self.state.fleet.rows[case.node]])

    def message(self, case: Mismatch) -> str:
        """Return Berth's message for a case that fits nowhere, including why evictions would not help."""
        pod, policy = pods.pending(pods.transform(copy.deepcopy(case.probe))), Policy()
        outcome = cycle.decide(self.state.fleet, pod, policy)
        assert isinstance(outcome, cycle.Failure)
        return not_helpful(self.state.fleet, pod, policy, outcome).message

    def differing(self, order: Sequence[Filter] | None = None) -> list[Mismatch]:
        """Return the cases in which the filters differ from kube-scheduler."""
        return [each for each in self.cases if self.judged(each, order) != each.fits]


def comparable(ours: str, theirs: str) -> tuple[str, str]:
    """Return two messages of one pod without what only kube-scheduler can mean."""
    if theirs.endswith("." + NO_STATE):
        return ours.partition(" preemption: ")[0], theirs.removesuffix(NO_STATE)
    return ours, theirs.replace(NOT_OURS, "")


def hold(cluster: Cluster, drafts: Sequence[Draft]) -> Trial:
    """Create the scenarios, let kube-scheduler judge every node, and delete everything again."""
    namespaces = sorted({each.namespace for each in drafts})
    try:
        _make(cluster, drafts)
        trial = Trial(state=_state(cluster))
        # Node by node, all scenarios at once.
        for row in zip_longest(*(_probes(each) for each in drafts)):
            trial.cases += _ask(cluster, [each for each in row if each is not None], namespaces)
    finally:
        _clear(cluster, namespaces)
    return trial


def chosen(cluster: Cluster, drafts: Sequence[Draft]) -> tuple[State, dict[str, tuple[Raw, str]]]:
    """Create the scenarios, let kube-scheduler choose a node for each probe, and delete everything again.

    Return the state in which it chose, and by scenario the probe and its node.
    """
    try:
        _make(cluster, drafts)
        state = _state(cluster)
        probes = {each.id: cluster.api.post(_path(each.namespace), each.probe) for each in drafts}
        chosen_nodes: dict[str, str] = {}

        def all_bound() -> bool:
            listed = cluster.api.get("/api/v1/pods", labelSelector=f"{MARK}=probe")["items"]
            selected = _selected(cluster)
            chosen_nodes.update({name_of(each): node for each in listed if (node := _node(each, selected))})
            return all(name_of(each) in chosen_nodes for each in probes.values())

        waiting.until(all_bound, deadline=300, what=f"{len(probes)} choices", poll=0.05)
    finally:
        _clear(cluster, sorted({each.namespace for each in drafts}))
    return state, {id_: (probe, chosen_nodes[name_of(probe)]) for id_, probe in probes.items()}


# --- making -----------------------------------------------------------------------------------------------------


def prepare(cluster: Cluster, objects: Iterable[tuple[str, Raw]]) -> None:
    """Create what all scenarios share."""
    for path, manifest in objects:
        cluster.api.post(path, manifest)


def create_namespaces(cluster: Cluster, namespaces: Iterable[str]) -> None:
    """Create namespaces, one for each scenario at a time."""
    cluster.api.create_all("/api/v1/namespaces", [{"metadata": {"name": each}} for each in namespaces])


def _make(cluster: Cluster, drafts: Sequence[Draft]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda each: _write(cluster, *each), [each for draft in drafts for each in draft.objects]))
    nodes_to_create = [_marked(node) for draft in drafts for node in draft.nodes]
    # kube-scheduler sees the sentinel last: once a pod is bound to it, all other nodes have been seen.
    cluster.api.create_all("/api/v1/nodes", nodes_to_create)
    cluster.api.post("/api/v1/nodes", _marked(node_of(SENTINEL)))
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(functools.partial(_bind, cluster), [pod for draft in drafts for pod in draft.pods]))
    cluster.api.post(_path(SENTINELS), _pinned(pod_of(SENTINEL, SENTINELS, {}), SENTINEL))
    waiting.until(
        lambda: _verdict(cluster.api.get(f"{_path(SENTINELS)}/{SENTINEL}")), deadline=300, what="the sentinel"
    )


def _bind(cluster: Cluster, pod: Raw) -> None:
    _write(cluster, _path(pod["metadata"]["namespace"]), pod)


def _write(cluster: Cluster, path: str, manifest: Raw) -> None:
    cluster.api.post(path, manifest)
    if "status" in manifest:
        # A new object's status is the API server's; a patch keeps the rest of it.
        cluster.api.merge(f"{path}/{name_of(manifest)}/status", {"status": manifest["status"]})


def _marked(node: Raw) -> Raw:
    return {**node, "metadata": {**node["metadata"], "labels": {**node["metadata"]["labels"], MARK: ""}}}


def _state(cluster: Cluster) -> State:
    """Return the state that the reflectors would build from the API server."""
    state = State(grace=1.0)
    state.fleet.set_kubernetes(int(cluster.api.get("/version")["minor"]))
    for each in cluster.api.get("/api/v1/namespaces")["items"]:
        state.put_namespace(name_of(each), each["metadata"].get("labels") or {})
    for each in cluster.api.get("/api/v1/nodes")["items"]:
        state.node_cache.put_node(nodes.transform(each))
    for each in cluster.api.get("/api/v1/pods")["items"]:
        state.put_bound(pods.transform(each))
    relist(sinks.services(state), cluster.api.get("/api/v1/services")["items"])
    for source, table in sources(Storage(state)).values():
        relist(table, cluster.api.get(source.path)["items"])
    return state


def _clear(cluster: Cluster, namespaces: Sequence[str]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        for each in (*namespaces, SENTINELS):
            pool.submit(cluster.api.delete, _path(each), grace_seconds=0)
            for kind in CLAIMS:
                pool.submit(functools.partial(cluster.api.delete, kind.format(each), labelSelector=MARK))
    for path in MADE:
        cluster.api.delete(path, labelSelector=MARK)


# --- asking -----------------------------------------------------------------------------------------------------


def _probes(draft: Draft) -> Iterator[tuple[str, str, Raw]]:
    for node in draft.nodes:
        name = name_of(node)
        yield draft.id, name, _pinned(draft.probe, name, draft.volumes.get(name, ()))


def _pinned(probe: Raw, node: str, volumes: Iterable[Raw] = ()) -> Raw:
    """Return a probe that fits no other node, with these volumes in addition to its own."""
    pinned = copy.deepcopy(probe)
    pinned["spec"]["volumes"] = [*pinned["spec"].get("volumes", ()), *volumes]
    pinned["metadata"]["labels"] = {**probe["metadata"].get("labels", {}), MARK: "probe"}
    affinity = pinned["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [None]})
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    # A term without conditions matches nothing, and would match this node if it were given one.
    required["nodeSelectorTerms"] = [
        {**(term or {}), "matchFields": [*(term or {}).get("matchFields", []), pin]} if term != {} else term
        for term in required["nodeSelectorTerms"]
    ]
    return pinned


def _ask(cluster: Cluster, questions: Sequence[tuple[str, str, Raw]], namespaces: Sequence[str]) -> list[Mismatch]:
    with ThreadPoolExecutor(WORKERS) as pool:
        made = list(
            pool.map(lambda each: cluster.api.post(_path(each[2]["metadata"]["namespace"]), each[2]), questions)
        )
    verdicts: dict[str, tuple[bool, str]] = {}

    def all_decided() -> bool:
        listed = cluster.api.get("/api/v1/pods", labelSelector=f"{MARK}=probe")["items"]
        reserved = _reserved(cluster)
        verdicts.update({each["metadata"]["uid"]: verdict for each in listed if (verdict := _verdict(each, reserved))})
        return all(each["metadata"]["uid"] in verdicts for each in made)

    waiting.until(all_decided, deadline=300, what=f"{len(made)} verdicts", poll=0.05)
    with ThreadPoolExecutor(WORKERS) as pool:
        for namespace in namespaces:
            query = {"labelSelector": f"{MARK}=probe"}
            pool.submit(functools.partial(cluster.api.delete, _path(namespace), grace_seconds=0, **query))
    return [_case(question, probe, verdicts) for question, probe in zip(questions, made, strict=True)]


def _case(question: tuple[str, str, Raw], probe: Raw, verdicts: dict[str, tuple[bool, str]]) -> Mismatch:
    fits, message = verdicts[probe["metadata"]["uid"]]
    return Mismatch(scenario=question[0], node=question[1], probe=probe, fits=fits, message=message)


def _node(pod: Raw, selected: Mapping[tuple[str, str], str]) -> str:
    """Return the node of a pod, or the one for which a volume of it is to be provisioned; empty if it has none."""
    nodes_of_claims = (selected.get((pod["metadata"]["namespace"], claim), "") for claim in _claims(pod))
    return pod["spec"].get("nodeName") or next(filter(None, nodes_of_claims), "")


def _selected(cluster: Cluster) -> dict[tuple[str, str], str]:
    """Return {(namespace, name): node} of the claims for which kube-scheduler has selected a node."""
    claims = cluster.api.get("/api/v1/persistentvolumeclaims", labelSelector=MARK)["items"]
    metadata = [each["metadata"] for each in claims if _is_selected(each["metadata"])]
    return {(each["namespace"], each["name"]): each["annotations"][SELECTED_NODE] for each in metadata}


def _reserved(cluster: Cluster) -> set[tuple[str, str]]:
    """Return (namespace, name) of the claims for which kube-scheduler has recorded a volume or node."""
    volumes = cluster.api.get("/api/v1/persistentvolumes", labelSelector=MARK)["items"]
    refs = [each["spec"]["claimRef"] for each in volumes if each["spec"].get("claimRef", {}).get("uid")]
    return {*_selected(cluster), *((each["namespace"], each["name"]) for each in refs)}


def _is_selected(claim: Raw) -> bool:
    """Return whether a claim was given its node; the scenario itself names only nodes that do not exist."""
    return bool(claim.get("annotations", {}).get(SELECTED_NODE, ELSEWHERE) != ELSEWHERE)


def _verdict(pod: Raw, reserved: Collection[tuple[str, str]] = ()) -> tuple[bool, str] | None:
    """Return kube-scheduler's verdict; None as long as it has none, or reports an internal error."""
    if pod["spec"].get("nodeName"):
        return True, ""
    if any((pod["metadata"]["namespace"], each) in reserved for each in _claims(pod)):
        # It waits for the volume controller, which does not run.
        return True, ""
    for each in pod.get("status", {}).get("conditions", []):
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
            return False, str(each["message"])
    return None


def _claims(pod: Raw) -> list[str]:
    """Return the names of the claims that a pod mounts."""
    mounted = (each.get("persistentVolumeClaim", {}).get("claimName") for each in pod["spec"].get("volumes", []))
    return [each for each in mounted if each]


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
