"""Pod affinity, anti-affinity and topology spread constraints, read from the API into values of the core.

The API server merges `matchLabelKeys` and `mismatchLabelKeys` of affinity terms into the label selector when the pod is
created. It also merges those of topology spread constraints, but kube-scheduler applies them once more with the pod's
current labels, and so do we.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from berth_api import names, selectors
from berth_api.selectors import IN, NOTHING, Labels, LabelSelector, Requirement
from berth_operator.core.values.affinity import NO_AFFINITY, Affinity, Identity, Peers, Spread, Term

Object = Mapping[str, Any]

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_SPREAD: Final = frozenset({("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("v1", "ReplicationController")})
"""Controllers whose replicas kube-scheduler spreads by default."""


def identity(pod: Object) -> Identity:
    """Read what the constraints of other pods see of a pod: namespace, labels and controller."""
    metadata = pod["metadata"]
    return identity_of(metadata["namespace"], metadata.get("labels") or {}, controller(metadata))


def identity_of(namespace: str, labels: Mapping[str, str], controller: str) -> Identity:
    """Return the identity of a pod with these labels."""
    # A Binding's labels are copied to the pod; without this exception every pod's identity would change when bound.
    seen = tuple(sorted(each for each in labels.items() if each[0] != names.FENCED_BY))
    return _identity(namespace, seen, controller)


@lru_cache(maxsize=16384)
def _identity(namespace: str, labels: Labels, controller: str) -> Identity:
    """Return one shared value for all replicas, to save memory in clusters with ten thousands of pods."""
    return Identity(namespace=namespace, labels=labels, controller=controller)


def controller(metadata: Object) -> str:
    """Read the UID of a pod's controller; empty if kube-scheduler does not spread replicas of its kind."""
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            return str(each["uid"]) if (each.get("apiVersion"), each["kind"]) in _SPREAD else ""
    return ""


def of_pod(pod: Object) -> Affinity:
    """Read a pod's affinity, anti-affinity and topology spread constraints."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    near, apart = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spreads = spec.get("topologySpreadConstraints")
    if not (near or apart or spreads):
        return NO_AFFINITY
    # Only labels in matchLabelKeys of spread constraints matter; without the others, replicas share one value.
    keys = {key for each in spreads or () for key in each.get("matchLabelKeys") or ()}
    labels = {key: value for key, value in (pod["metadata"].get("labels") or {}).items() if key in keys}
    read = (pod["metadata"]["namespace"], labels, near, apart, spreads)
    return _read(orjson.dumps(read, option=orjson.OPT_SORT_KEYS))


def of_placed(pod: Object) -> Affinity:
    """Read the same of a placed pod; none if it is invalid, so that it does not affect other pods."""
    try:
        return of_pod(pod)
    except ValueError:
        return NO_AFFINITY


@lru_cache(maxsize=4096)
def _read(body: bytes) -> Affinity:
    """Parse equal constraints once: a Deployment's pods share one value, which is compared by identity."""
    namespace, labels, near, apart, spreads = orjson.loads(body)
    near, apart, spreads = near or {}, apart or {}, spreads or ()
    return Affinity(
        near=_terms(near.get(REQUIRED), namespace),
        apart=_terms(apart.get(REQUIRED), namespace),
        preferred=(*_weighted(near.get(PREFERRED), namespace, 1), *_weighted(apart.get(PREFERRED), namespace, -1)),
        spread=tuple(_spreads(spreads, labels, "DoNotSchedule")),
        preferred_spread=tuple(_spreads(spreads, labels, "ScheduleAnyway")),
    )


def _terms(raw: Iterable[Object] | None, namespace: str) -> tuple[Term, ...]:
    return tuple(_term(each, namespace) for each in raw or ())


def _weighted(raw: Iterable[Object] | None, namespace: str, sign: int) -> Iterator[tuple[Term, int]]:
    for each in raw or ():
        yield _term(each["podAffinityTerm"], namespace), sign * each["weight"]


def _term(raw: Object, namespace: str) -> Term:
    names, selected = tuple(sorted(raw.get("namespaces") or ())), raw.get("namespaceSelector")
    if not names and selected is None:
        names = (namespace,)
    peers = Peers(selector=selector(raw.get("labelSelector")), namespaces=names, namespace_selector=selector(selected))
    return Term(key=raw["topologyKey"], peers=peers)


def _spreads(raw: Iterable[Object], labels: Mapping[str, str], unsatisfiable: str) -> Iterator[Spread]:
    for each in raw:
        if each["whenUnsatisfiable"] == unsatisfiable:
            yield Spread(
                key=each["topologyKey"],
                selector=_narrowed(selector(each.get("labelSelector")), each.get("matchLabelKeys") or (), labels),
                max_skew=each["maxSkew"],
                min_domains=each.get("minDomains") or 1,
                honor_affinity=each.get("nodeAffinityPolicy") != "Ignore",
                honor_taints=each.get("nodeTaintsPolicy") == "Honor",
            )


def _narrowed(found: LabelSelector, keys: Iterable[str], labels: Mapping[str, str]) -> LabelSelector:
    """Return a selector that also requires this pod's values of `matchLabelKeys`; keys that it lacks are ignored."""
    more = tuple(Requirement(key=key, operator=IN, values=(labels[key],)) for key in keys if key in labels)
    return LabelSelector(requirements=selectors.canonical((*found.requirements, *more)))


def selector(raw: Object | None) -> LabelSelector:
    """Read a label selector: null matches nothing, an empty one matches everything.

    Raises:
        SelectorError: the selector is invalid.
    """
    return NOTHING if raw is None else selectors.read(raw)


def selected(service: Object) -> Labels:
    """Read the labels that a Service selects; empty if it has no selector."""
    return tuple(sorted((service["spec"].get("selector") or {}).items()))
