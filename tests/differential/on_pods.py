"""Rules about other pods: affinity and anti-affinity in both directions, and topology spread.

Each rule has its own labels and topology key, so that rules do not disturb each other. The key belongs to the scenario.
So pods of other scenarios never count, whatever a namespace selector selects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.differential.draft import Draft, Raw

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
NAME: Final = "kubernetes.io/metadata.name"
"""The label with its name that every namespace has."""

Labels = dict[str, str]


# --- affinity ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Terms, pods that match them, and pods that just do not."""

    terms: list[Raw]
    meant: Labels
    others: list[Labels]


def pod_affinity(draft: Draft, *, focus: bool) -> None:
    """Add affinity of the probe to a pod in the first node's domain; pods in the last one's just do not match."""
    random, key = draft.random, f"{draft.id}.near"
    _divide(draft, key, last=random.choice(["there", None]) if focus else "here")
    meaning = random.choice([_by_value, _by_own_label, _by_two])(draft, "near", key)
    _require(draft.probe, "podAffinity", meaning.terms)
    if random.random() < 0.3 and "mismatchLabelKeys" not in meaning.terms[0]:
        # The first pod of a group may go to any node with the key.
        _add_labels(draft.probe, meaning.meant)
        if focus:
            draft.last["metadata"]["labels"].pop(key, None)
    else:
        draft.put(_somewhere(draft, key, "here"), labels=meaning.meant)
    for other in meaning.others:
        draft.put(random.choice(draft.nodes), labels=other)


def pod_anti_affinity(draft: Draft, *, focus: bool) -> None:
    """Add anti-affinity of the probe to a pod in the last node's domain; pods in the first one's do not match."""
    random, key = draft.random, f"{draft.id}.apart"
    _divide(draft, key, last="there")
    meaning = random.choice([_by_value, _by_own_label, _by_two])(draft, "apart", key)
    _require(draft.probe, "podAntiAffinity", meaning.terms)
    if draft.kubernetes >= 37 and random.random() < 0.5:
        # kube-scheduler matched pods of the scenario's own namespace, too, before 1.37.
        elsewhere = {"matchExpressions": [{"key": NAME, "operator": "NotIn", "values": [draft.namespace]}]}
        selector, labels = {"namespaceSelector": elsewhere}, {"apart-elsewhere": "yes"}
        meaning.terms.append({"topologyKey": key, "labelSelector": {"matchLabels": labels}, **selector})
        draft.put(draft.first, labels=labels)
    # Unlike affinity, each anti-affinity term excludes nodes by itself.
    two = "apart-too" in meaning.meant
    avoided = random.choice(meaning.others) if two else meaning.meant
    if focus:
        draft.put(_somewhere(draft, key, "there"), labels=avoided)
    if random.random() < 0.3:
        # A node without the key is in no domain, not even in that of its own pods.
        draft.first["metadata"]["labels"].pop(key)
        draft.put(draft.first, labels=avoided)
    for each in () if two else meaning.others:
        draft.put(draft.first, labels=each)


def existing_anti_affinity(draft: Draft, *, focus: bool) -> None:
    """Add anti-affinity to the probe to a pod in the last node's domain; pods near the first one exclude others."""
    random, key = draft.random, f"{draft.id}.avoids"
    _divide(draft, key, last="there")
    meaning = _by_value(draft, "avoids", key)
    (term,) = meaning.terms
    _add_labels(draft.probe, meaning.meant)
    if focus:
        draft.put(_somewhere(draft, key, "there"), _avoiding(term), labels={"own": "1"})
    for other in meaning.others:
        draft.put(draft.first, _avoiding({**term, "labelSelector": {"matchLabels": other}}), labels={"own": "2"})
    if random.random() < 0.3:
        draft.put(draft.first, _avoiding({**term, "topologyKey": "nowhere"}), labels={"own": "3"})


def _avoiding(term: Raw) -> Raw:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def _require(pod: Raw, kind: str, terms: list[Raw]) -> None:
    pod["spec"].setdefault("affinity", {})[kind] = {REQUIRED: terms}


def _divide(draft: Draft, key: str, *, last: str | None) -> None:
    """Put the first node into one domain, the last one into another or none, and those between into any."""
    places = ["here", *(draft.random.choice(["here", "there", None]) for _ in draft.between), last]
    for node, place in zip(draft.nodes, places, strict=True):
        if place:
            node["metadata"]["labels"][key] = place


def _somewhere(draft: Draft, key: str, place: str) -> Raw:
    return draft.random.choice([each for each in draft.nodes if each["metadata"]["labels"].get(key) == place])


def _by_value(draft: Draft, label: str, key: str) -> Meaning:
    """Match pods by a requirement on a label."""
    kind = {label: "yes"}
    selector = {"matchLabels": kind, "matchExpressions": [_met_by_one(draft.random, f"{label}-variant")]}
    return Meaning(
        terms=[{"topologyKey": key, "labelSelector": selector, **_scope(draft)}],
        meant={**kind, f"{label}-variant": "1"},
        others=[{**kind, f"{label}-variant": "2"}] if draft.random.random() < 0.7 else [],
    )


def _by_own_label(draft: Draft, label: str, key: str) -> Meaning:
    """Match pods that have the probe's own value of a label, or have another one."""
    kind, own = {label: "yes"}, f"{label}-variant"
    _add_labels(draft.probe, {own: "1"})
    same, other = {**kind, own: "1"}, {**kind, own: "2"}
    term: Raw = {"topologyKey": key, "labelSelector": {"matchLabels": kind}, **_scope(draft)}
    if draft.random.random() < 0.5:
        return Meaning(terms=[{**term, "matchLabelKeys": [own]}], meant=same, others=[other])
    return Meaning(terms=[{**term, "mismatchLabelKeys": [own]}], meant=other, others=[same])


def _by_two(draft: Draft, label: str, key: str) -> Meaning:
    """Match pods by two terms; the others meet one of them."""
    one, two = {label: "yes"}, {f"{label}-too": "yes"}
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": each}, **_scope(draft)} for each in (one, two)]
    return Meaning(terms=terms, meant={**one, **two}, others=[one, two])


def _met_by_one(random: Random, key: str) -> Raw:
    """Return a requirement that the value 1 meets and 2 does not."""
    operator, *values = random.choice([("In", "1"), ("In", "1", "3"), ("NotIn", "2"), ("NotIn", "2", "3")])
    return {"key": key, "operator": operator, "values": values}


def _scope(draft: Draft) -> Raw:
    """Return one of the ways to select the scenario's own namespace."""
    here = {"matchLabels": {NAME: draft.namespace}}
    all_, unlabelled = ({"key": key, "operator": how} for key, how in ((NAME, "Exists"), ("gone", "DoesNotExist")))
    return draft.random.choice(
        [
            {},
            {"namespaces": [draft.namespace, "nowhere"]},
            {"namespaceSelector": {}},
            {"namespaceSelector": here},
            {"namespaces": ["nowhere"], "namespaceSelector": {"matchExpressions": [all_]}},
            {"namespaceSelector": {"matchExpressions": [unlabelled]}},
        ]
    )


# --- spread -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A constraint, and the domain and number of counted pods of each node."""

    constraint: Raw
    places: list[str | None]
    counts: list[int]
    hidden: frozenset[int]
    """Nodes with a taint that excludes them if taints are honored."""
    itself: bool
    """Whether the probe counts itself."""

    def takes(self, at: int) -> bool:
        """Return whether the probe may go to a node, by the constraint alone."""
        place, domains = self.places[at], self._domains(at)
        if place is None:
            return False
        least = min(domains.values()) if len(domains) >= self.constraint.get("minDomains", 1) else 0
        return domains.get(place, 0) + self.itself - least <= int(self.constraint["maxSkew"])

    def _domains(self, at: int) -> dict[str, int]:
        counts: dict[str, int] = {}
        for i, (place, count) in enumerate(zip(self.places, self.counts, strict=True)):
            # The probe is pinned by node affinity: if that is honored, its node is the only one that counts.
            pinned = self.constraint["nodeAffinityPolicy"] == "Honor" and i != at
            kept_out = self.constraint["nodeTaintsPolicy"] == "Honor" and i in self.hidden
            if place is not None and not pinned and not kept_out:
                counts[place] = counts.get(place, 0) + count
        return counts


def topology_spread(draft: Draft, *, focus: bool) -> None:
    """Fill the last node's domain with one pod too many for the probe, or put the node into no domain."""
    key = f"{draft.id}.even"
    made = next(each for each in _layouts(draft, key) if each.takes(0) and each.takes(len(draft.nodes) - 1) != focus)
    draft.probe["spec"]["topologySpreadConstraints"] = [made.constraint]
    for node, place, count in zip(draft.nodes, made.places, made.counts, strict=True):
        if place:
            node["metadata"]["labels"][key] = place
        for _ in range(count):
            draft.put(node, labels={"even": "yes", "even-variant": "1"})
        if draft.random.random() < 0.3:
            draft.put(node, labels={"even": "yes", "even-variant": "2"})


def _layouts(draft: Draft, key: str) -> Iterator[Layout]:
    """Yield the layouts."""
    random, hidden = draft.random, frozenset(_hidden(draft))
    counts_itself = random.random() < 0.7
    _add_labels(draft.probe, {"even": "yes" if counts_itself else "no", "even-variant": "1"})
    while True:
        yield Layout(
            constraint=_constraint(random, key, taints=random.choice(["Honor", "Ignore"]) if hidden else "Ignore"),
            places=["a", *(random.choice(["a", "b", "c", "c", None]) for _ in draft.nodes[1:])],
            counts=[random.randint(0, 3) for _ in draft.nodes],
            hidden=hidden,
            itself=counts_itself,
        )


def _hidden(draft: Draft) -> Iterator[int]:
    """Taint a node in between, unless another rule uses taints."""
    tainted = any(node["spec"]["taints"] for node in draft.nodes)
    if draft.between and not tainted and not draft.probe["spec"].get("tolerations"):
        draft.nodes[1]["spec"]["taints"].append({"key": "even", "effect": "NoSchedule"})
        yield 1


def _constraint(random: Random, key: str, *, taints: str) -> Raw:
    constraint: Raw = {
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "maxSkew": random.choice([1, 1, 2, 3]),
        "labelSelector": {"matchLabels": {"even": "yes"}},
        "nodeAffinityPolicy": random.choice(["Ignore", "Ignore", "Ignore", "Honor"]),
        "nodeTaintsPolicy": taints,
    }
    if random.random() < 0.5:
        constraint["labelSelector"]["matchExpressions"] = [_met_by_one(random, "even-variant")]
    else:
        constraint["matchLabelKeys"] = ["even-variant", "missing"]
    if random.random() < 0.4:
        constraint["minDomains"] = random.randint(1, 4)
    return constraint


def _add_labels(pod: Raw, labels: Labels) -> None:
    pod["metadata"].setdefault("labels", {}).update(labels)
