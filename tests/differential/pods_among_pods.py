"""Random scenes of pods with affinity, anti-affinity or topology spread. The same seed gives the same scene.

Topology keys begin with the scene's prefix, and nodes without the key never count. So many scenes can share one
cluster. A scene holds objects to create. `as_listed` returns them as the API server would show them, for comparisons
without an API server.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Raw = dict[str, Any]

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A small cluster and the pod to be placed in it."""

    seed: int
    namespaces: Sequence[Raw]
    nodes: Sequence[Raw]
    placed: Sequence[Raw]
    """Pods that are bound to a node."""
    terminating: frozenset[str]
    """Names of placed pods to delete; their finalizer keeps them terminating."""
    pod: Raw


def scene(seed: int, *, prefix: str = "s") -> Scene:
    """Return the scene of a seed; the names of all its objects begin with the prefix."""
    return _Maker(seed, prefix).scene()


class _Maker:
    """Makes the random choices of one scene."""

    def __init__(self, seed: int, prefix: str) -> None:
        self._seed, self._prefix = seed, prefix
        self._dice = random.Random(seed)
        self._namespaces = [f"{prefix}-{each}" for each in "abc"]
        self._keys = [f"{prefix}.{each}" for each in ("zone", "rack", "host")]

    def scene(self) -> Scene:
        nodes = [self._node(i) for i in range(self._dice.randint(2, 6))]
        names = [each["metadata"]["name"] for each in nodes]
        placed = [self._placed(i, self._dice.choice(names)) for i in range(self._dice.randint(0, 14))]
        return Scene(
            seed=self._seed,
            namespaces=[self._namespace(name) for name in self._namespaces],
            nodes=nodes,
            placed=placed,
            terminating=frozenset(each["metadata"]["name"] for each in placed if self._often(0.15)),
            pod=self._pod("probe", affinity=0.9),
        )

    # --- objects ----------------------------------------------------------------------------------------------

    def _namespace(self, name: str) -> Raw:
        labels = {key: self._dice.choice("xy") for key in ("team", "old") if self._often(0.5)}
        return {"metadata": {"name": name, "labels": labels}}

    def _node(self, number: int) -> Raw:
        name = f"{self._prefix}-{number}"
        labels = {"kubernetes.io/hostname": name}
        zone, rack, host = self._keys
        if self._often(0.85):
            labels[zone] = self._dice.choice("123")
        if self._often(0.7):
            labels[rack] = self._dice.choice("12")
        if self._often(0.9):
            labels[host] = name
        if self._often(0.5):
            labels[f"{self._prefix}.disk"] = "ssd"
        taints = [{"key": f"{self._prefix}.taint", "effect": self._effect()}] if self._often(0.25) else []
        return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}

    def _effect(self) -> str:
        return self._dice.choice(["NoSchedule", "NoSchedule", "PreferNoSchedule"])

    def _placed(self, number: int, node: str) -> Raw:
        pod = self._pod(f"placed-{number}", affinity=0.5)
        pod["spec"]["nodeName"] = node
        # Constraints of placed pods affect no other pod, and must not change a verdict.
        return pod

    def _pod(self, name: str, *, affinity: float) -> Raw:
        labels = {key: self._dice.choice(values) for key, values in LABELS.items() if self._often(0.75)}
        spec: Raw = {"containers": [{"name": "main", "image": "none"}], "affinity": {}}
        if self._often(affinity):
            self._add_constraints(spec)
        if self._often(0.3):
            spec["nodeSelector"] = {f"{self._prefix}.disk": "ssd"}
        if self._often(0.5):
            spec["tolerations"] = [{"key": f"{self._prefix}.taint", "operator": "Exists"}]
        metadata = {
            "name": name,
            "namespace": self._dice.choice([self._namespaces[0], *self._namespaces[:2]]),
            "labels": labels,
        }
        return {"metadata": metadata, "spec": spec}

    def _add_constraints(self, spec: Raw) -> None:
        for kind in ("podAffinity", "podAntiAffinity"):
            terms: Raw = {}
            if self._often(0.45):
                terms[REQUIRED] = [self._term() for _ in range(self._few())]
            if self._often(0.3):
                terms[PREFERRED] = [self._weighted() for _ in range(self._few())]
            if terms:
                spec["affinity"][kind] = terms
        if self._often(0.5):
            spec["topologySpreadConstraints"] = list(self._spreads())

    # --- terms ------------------------------------------------------------------------------------------------

    def _term(self) -> Raw:
        term: Raw = {"topologyKey": self._dice.choice(self._keys)}
        if self._often(0.95):
            term["labelSelector"] = self._selector(("app", "tier"))
            self._add_keys(term)
        if self._often(0.35):
            term["namespaces"] = self._dice.sample(self._namespaces, self._few())
        if self._often(0.35):
            term["namespaceSelector"] = self._selector(("team", "old"))
        return term

    def _add_keys(self, term: Raw) -> None:
        """Add keys whose values the API server takes from the pod; none that its selector names."""
        kind = self._dice.choice(["matchLabelKeys", "mismatchLabelKeys", None, None, None])
        if kind:
            term[kind] = ["revision"]

    def _weighted(self) -> Raw:
        return {"weight": self._dice.choice([1, 2, 50, 100]), "podAffinityTerm": self._term()}

    def _selector(self, keys: Sequence[str]) -> Raw:
        selector: Raw = {}
        if self._often(0.1):
            return selector
        if self._often(0.6):
            selector["matchLabels"] = {self._dice.choice(keys): self._dice.choice("xy")}
        if not selector or self._often(0.3):
            selector["matchExpressions"] = [self._expression(keys)]
        return selector

    def _expression(self, keys: Sequence[str]) -> Raw:
        operator = self._dice.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        values = {"values": self._dice.sample("xyz", self._few())} if operator in ("In", "NotIn") else {}
        return {"key": self._dice.choice(keys), "operator": operator, **values}

    def _spreads(self) -> Iterator[Raw]:
        keys = [*self._keys, "kubernetes.io/hostname"]
        for key in self._dice.sample(keys, self._few()):
            spread: Raw = {
                "topologyKey": key,
                "maxSkew": self._dice.choice([1, 1, 1, 2, 3]),
                "whenUnsatisfiable": "ScheduleAnyway" if key not in self._keys or self._often(0.3) else "DoNotSchedule",
            }
            self._add_details(spread)
            yield spread

    def _add_details(self, spread: Raw) -> None:
        if self._often(0.95):
            own = {"matchLabels": {"app": self._dice.choice("xy")}}
            spread["labelSelector"] = own if self._often(0.6) else self._selector(("app", "tier"))
            if self._often(0.15):
                spread["matchLabelKeys"] = ["revision"]
        if spread["whenUnsatisfiable"] == "DoNotSchedule" and self._often(0.3):
            spread["minDomains"] = self._dice.randint(1, 4)
        # A probe is pinned by affinity, so honoring affinity would leave a single node to compare.
        spread["nodeAffinityPolicy"] = self._dice.choice(["Ignore", "Ignore", "Ignore", "Honor"])
        if self._often(0.5):
            spread["nodeTaintsPolicy"] = self._dice.choice(["Honor", "Ignore"])

    def _few(self) -> int:
        return self._dice.choice([1, 1, 1, 2])

    def _often(self, share: float) -> bool:
        return self._dice.random() < share


LABELS: Final = {"app": "xy", "tier": "xy", "revision": "12"}
"""Labels that nearly all pods have, and their values."""


# --- without an API server --------------------------------------------------------------------------------------


def as_listed(made: Scene) -> Scene:
    """Return the scene as the API server shows it: with UIDs, deletion times, and label keys merged into selectors."""
    pods = [
        _listed(each, terminating=each["metadata"]["name"] in made.terminating) for each in (*made.placed, made.pod)
    ]
    return Scene(
        seed=made.seed,
        namespaces=made.namespaces,
        nodes=[{**each, "metadata": {**each["metadata"], "uid": each["metadata"]["name"]}} for each in made.nodes],
        placed=pods[:-1],
        terminating=made.terminating,
        pod=pods[-1],
    )


def _listed(pod: Raw, *, terminating: bool) -> Raw:
    pod = copy.deepcopy(pod)
    pod["metadata"]["uid"] = pod["metadata"]["name"]
    if terminating:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    labels = pod["metadata"]["labels"]
    for each in (*_terms(pod["spec"]["affinity"]), *pod["spec"].get("topologySpreadConstraints", ())):
        for kind, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            merged = [
                {"key": key, "operator": operator, "values": [labels[key]]}
                for key in each.get(kind, ())
                if key in labels
            ]
            each.get("labelSelector", {}).setdefault("matchExpressions", []).extend(merged)
    return pod


def _terms(affinity: Raw) -> Iterator[Raw]:
    for each in affinity.values():
        yield from each.get(REQUIRED, ())
        yield from (weighted["podAffinityTerm"] for weighted in each.get(PREFERRED, ()))
