"""Pod affinity, anti-affinity and topology spread constraints, read from the API into values of the core.

The API server merges `matchLabelKeys` and `mismatchLabelKeys` of affinity terms into the label selector when the pod is
created. It also merges `matchLabelKeys` of topology spread constraints. kube-scheduler and Berth apply the keys of
spread constraints again, with the pod's current labels.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from berth_api import names
from berth_api.values import selectors
from berth_api.values.caching import compact, sized_cache
from berth_api.values.selectors import IN, NOTHING, Labels, LabelSelector, Requirement
from berth_operator.core.values.affinity import NO_AFFINITY, Affinity, Identity, Peers, Term, TopologySpreadConstraint
from berth_operator.state.objects import pod_limits
from berth_operator.state.objects.pod_limits import PREFERRED, REQUIRED

Object = Mapping[str, Any]

_SPREAD: Final = frozenset({("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("v1", "ReplicationController")})
"""Controllers whose replicas kube-scheduler spreads by default."""


def identity(pod: Object) -> Identity:
    """Read what the constraints of other pods see of a pod: namespace, labels and controller."""
    metadata = pod["metadata"]
    return identity_of(metadata["namespace"], metadata.get("labels") or {}, controller(metadata))


def identity_of(namespace: str, labels: Mapping[str, str], controller: str) -> Identity:
    """Return the identity of a pod with these labels."""
    if pod_limits.has_too_many_labels(labels):
        labels = {}
    # A Binding's labels are copied to the pod; without this exception every pod's identity would change when bound.
    sorted_labels = tuple(sorted((key, value) for key, value in labels.items() if key != names.FENCED_BY))
    return _identity(namespace, sorted_labels, controller)


@sized_cache(2**23)
def _identity(namespace: str, labels: Labels, controller: str) -> Identity:
    """Return one shared value for all replicas, to save memory in clusters with ten thousands of pods."""
    return Identity(namespace=namespace, labels=labels, controller=controller)


def controller(metadata: Object) -> str:
    """Read the UID of a pod's controller; empty if kube-scheduler does not spread replicas of its kind."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"]) if (owner.get("apiVersion"), owner["kind"]) in _SPREAD else ""
    return ""


def of_pod(pod: Object) -> Affinity:
    """Read a pod's affinity, anti-affinity and topology spread constraints."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    pod_affinity, pod_anti_affinity = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spreads = spec.get("topologySpreadConstraints")
    if not (pod_affinity or pod_anti_affinity or spreads):
        return NO_AFFINITY
    # Only labels in matchLabelKeys of spread constraints matter; without the others, replicas share one value.
    keys = {key for constraint in spreads or () for key in constraint.get("matchLabelKeys") or ()}
    labels = {key: value for key, value in (pod["metadata"].get("labels") or {}).items() if key in keys}
    constraints = (pod["metadata"]["namespace"], labels, pod_affinity, pod_anti_affinity, spreads)
    return _read(compact(orjson.dumps(constraints, option=orjson.OPT_SORT_KEYS)))


def of_placed(pod: Object) -> Affinity:
    """Read the affinity of a placed pod; none if it is invalid or too large, so that it does not affect other pods."""
    try:
        return NO_AFFINITY if pod_limits.has_too_many_terms(pod["spec"]) else of_pod(pod)
    except ValueError:
        return NO_AFFINITY


@sized_cache(2**23)
def _read(body: bytes) -> Affinity:
    """Parse equal constraints once: a Deployment's pods share one value, which is compared by identity."""
    namespace, labels, pod_affinity, pod_anti_affinity, spreads = orjson.loads(body)
    pod_affinity, pod_anti_affinity, spreads = pod_affinity or {}, pod_anti_affinity or {}, spreads or ()
    return Affinity(
        required_affinity=_terms(pod_affinity.get(REQUIRED), namespace),
        required_anti_affinity=_terms(pod_anti_affinity.get(REQUIRED), namespace),
        preferred_terms=(
            *_weighted(pod_affinity.get(PREFERRED), namespace, 1),
            *_weighted(pod_anti_affinity.get(PREFERRED), namespace, -1),
        ),
        topology_spread=tuple(_spreads(spreads, labels, "DoNotSchedule")),
        preferred_topology_spread=tuple(_spreads(spreads, labels, "ScheduleAnyway")),
    )


def _terms(raw: Iterable[Object] | None, namespace: str) -> tuple[Term, ...]:
    return tuple(_term(term, namespace) for term in raw or ())


def _weighted(raw: Iterable[Object] | None, namespace: str, sign: int) -> Iterator[tuple[Term, int]]:
    for term in raw or ():
        yield _term(term["podAffinityTerm"], namespace), sign * term["weight"]


def _term(raw: Object, namespace: str) -> Term:
    names, selected = tuple(sorted(raw.get("namespaces") or ())), raw.get("namespaceSelector")
    if not names and selected is None:
        names = (namespace,)
    peers = Peers(selector=selector(raw.get("labelSelector")), namespaces=names, namespace_selector=selector(selected))
    # Raises TypeError for anything but a string: a bound pod could not be charged with it.
    return Term(key=sys.intern(raw["topologyKey"]), peers=peers)


def _spreads(
    raw: Iterable[Object], labels: Mapping[str, str], unsatisfiable: str
) -> Iterator[TopologySpreadConstraint]:
    for constraint in raw:
        if constraint["whenUnsatisfiable"] == unsatisfiable:
            # Keys that the pod lacks are ignored.
            keys = [key for key in constraint.get("matchLabelKeys") or () if key in labels]
            own = (Requirement(key=key, operator=IN, values=(labels[key],)) for key in keys)
            requirements = (*selector(constraint.get("labelSelector")).requirements, *own)
            yield TopologySpreadConstraint(
                key=constraint["topologyKey"],
                selector=LabelSelector(requirements=selectors.canonical(requirements)),
                max_skew=constraint["maxSkew"],
                min_domains=constraint.get("minDomains") or 1,
                honor_affinity=constraint.get("nodeAffinityPolicy") != "Ignore",
                honor_taints=constraint.get("nodeTaintsPolicy") == "Honor",
            )


def selector(raw: Object | None) -> LabelSelector:
    """Read a label selector: null matches nothing, an empty one matches everything.

    Raises:
        SelectorError: the selector is invalid.
    """
    return NOTHING if raw is None else selectors.read(raw)


def selected(service: Object) -> Labels:
    """Read the labels that a Service selects; empty if it has no selector."""
    return tuple(sorted((service["spec"].get("selector") or {}).items()))
