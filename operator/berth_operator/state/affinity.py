"""What pods want of other pods, as the API has it, read into values of the core.

`matchLabelKeys` and `mismatchLabelKeys` of affinity terms stand in the label selector already: the API server merges
them when the pod is created. Those of topology spread constraints it merges too, but kube-scheduler adds them once
more by the labels that the pod has now, and so do we.
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
"""Controllers whose replicas kube-scheduler spreads unless told otherwise."""


def identity(pod: Object) -> Identity:
    """Read what others see of a pod."""
    metadata = pod["metadata"]
    return identity_of(metadata["namespace"], metadata.get("labels") or {}, controller(metadata))


def identity_of(namespace: str, labels: Mapping[str, str], controller: str) -> Identity:
    """Return what others see of a pod with these labels."""
    # A Binding's labels are copied onto the pod: with this one every pod would change as soon as it is bound.
    seen = tuple(sorted(each for each in labels.items() if each[0] != names.FENCED_BY))
    return _identity(namespace, seen, controller)


@lru_cache(maxsize=16384)
def _identity(namespace: str, labels: Labels, controller: str) -> Identity:
    """Keep one value for all replicas: there are ten thousands of them."""
    return Identity(namespace=namespace, labels=labels, controller=controller)


def controller(metadata: Object) -> str:
    """Read whose replica a pod is: a UID, or nothing where its controller is of a kind that nobody spreads."""
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            return str(each["uid"]) if (each.get("apiVersion"), each["kind"]) in _SPREAD else ""
    return ""


def of_pod(pod: Object) -> Affinity:
    """Read what a pod wants of other pods."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    near, apart = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spreads = spec.get("topologySpreadConstraints")
    if not (near or apart or spreads):
        return NO_AFFINITY
    # Labels only matter to keys that spread constraints take from them; without, replicas share one value.
    keys = {key for each in spreads or () for key in each.get("matchLabelKeys") or ()}
    labels = {key: value for key, value in (pod["metadata"].get("labels") or {}).items() if key in keys}
    read = (pod["metadata"]["namespace"], labels, near, apart, spreads)
    return _read(orjson.dumps(read, option=orjson.OPT_SORT_KEYS))


def of_placed(pod: Object) -> Affinity:
    """Read what a placed pod wants of others; what cannot be read is nobody else's trouble."""
    try:
        return of_pod(pod)
    except ValueError:
        return NO_AFFINITY


@lru_cache(maxsize=4096)
def _read(body: bytes) -> Affinity:
    """Read the same wishes once: a Deployment's pods share one value, which is compared by being the same."""
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
    """Add to a selector that its pods have the same values as this one; keys that it lacks count for nothing."""
    more = tuple(Requirement(key=key, operator=IN, values=(labels[key],)) for key in keys if key in labels)
    return LabelSelector(requirements=selectors.canonical((*found.requirements, *more)))


def selector(raw: Object | None) -> LabelSelector:
    """Read a label selector: one that is null matches nothing, an empty one everything.

    Raises:
        SelectorError: it is none.
    """
    return NOTHING if raw is None else selectors.read(raw)


def selected(service: Object) -> Labels:
    """Read which labels a Service selects; none if it selects nothing."""
    return tuple(sorted((service["spec"].get("selector") or {}).items()))
