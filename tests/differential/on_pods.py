"""Rules about the pods that are on the nodes already: affinity both ways, and even spread.

Each scenario has a topology key of its own, so that the nodes of others are in none of its domains. The pin of a probe
is a node affinity; spread must be told to ignore it, or it would count on that one node.
"""

from typing import Final

from tests.differential.draft import Draft, Raw

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
NEAR, APART, GUARDED, SPREAD = "near", "apart", "guarded", "spread"
"""Each rule looks at a label of its own, so that rules do not get in each other's way."""


def pod_affinity(draft: Draft, *, focus: bool) -> None:
    """The probe wants to be near a pod; nobody is near on the last node, or it is in no domain at all."""
    key = _domains(draft, NEAR, focus=focus)
    _add(draft.probe["spec"], "podAffinity", _term(draft, key, NEAR))
    alone = draft.random.random() < 0.3
    if alone:
        # The first of its kind may go into any domain; but it must be in one.
        draft.probe["metadata"].setdefault("labels", {}).update(_friend(NEAR))
        if focus:
            del draft.last["metadata"]["labels"][key]
    else:
        draft.put(draft.first, labels=_friend(NEAR))
    for node in draft.nodes:
        _stranger(draft, node, NEAR)


def pod_anti_affinity(draft: Draft, *, focus: bool) -> None:
    """The probe wants to be apart from pods; one of them is on the last node."""
    key = _domains(draft, APART, focus=focus)
    _add(draft.probe["spec"], "podAntiAffinity", _term(draft, key, APART))
    if focus:
        draft.put(draft.last, labels=_friend(APART))
    for node in draft.nodes:
        _stranger(draft, node, APART)


def existing_anti_affinity(draft: Draft, *, focus: bool) -> None:
    """A pod on the last node wants to be apart from pods such as the probe."""
    key = _domains(draft, GUARDED, focus=focus)
    draft.probe["metadata"].setdefault("labels", {}).update(_friend(GUARDED))
    for node in draft.nodes:
        if (node is draft.last and focus) or (focus and _domain(node, key) == _domain(draft.last, key)):
            spec: Raw = {}
            _add(spec, "podAntiAffinity", _term(draft, key, GUARDED))
            draft.put(node, spec)
        if draft.random.random() < 0.3:
            spec = {}
            # One that minds others only.
            _add(spec, "podAntiAffinity", {"topologyKey": key, "labelSelector": {"matchLabels": {GUARDED: "db"}}})
            draft.put(node, spec)


def topology_spread(draft: Draft, *, focus: bool) -> None:
    """The probe wants to be spread; the last node's domain has just too many already."""
    random = draft.random
    key = _domains(draft, SPREAD, focus=focus)
    skew, least = random.randint(1, 2), random.randint(0, 1) if focus else 0
    constraint: Raw = {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": _selector(draft, SPREAD),
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": random.choice(["Ignore", "Honor"]),
    }
    draft.probe["metadata"].setdefault("labels", {}).update(_friend(SPREAD))
    if random.random() < 0.3:
        constraint["minDomains"] = random.choice([1, 2, 5])
        # With fewer domains than that the least counts as none.
        least = 0
    draft.probe["spec"].setdefault("topologySpreadConstraints", []).append(constraint)
    for node in draft.nodes:
        _stranger(draft, node, SPREAD)
    for node, count in ((draft.first, least), (draft.last, least + skew if focus else 0)):
        for _ in range(count):
            draft.put(node, labels=_friend(SPREAD))


def _domains(draft: Draft, label: str, *, focus: bool) -> str:
    """Give a key that puts the first and the last node into different domains."""
    random = draft.random
    key = f"{draft.id}/{label}"
    for node in draft.nodes:
        node["metadata"]["labels"][key] = random.choice(["a", "b"])
    draft.first["metadata"]["labels"][key] = "a"
    draft.last["metadata"]["labels"][key] = "b" if focus else random.choice(["a", "b"])
    for node in draft.between:
        if random.random() < 0.2:
            del node["metadata"]["labels"][key]
    return key


def _domain(node: Raw, key: str) -> str | None:
    found: str | None = node["metadata"]["labels"].get(key)
    return found


def _friend(label: str) -> dict[str, str]:
    return {label: "web"}


def _selector(draft: Draft, label: str) -> Raw:
    """Give a selector of friends that no stranger meets."""
    return draft.random.choice(
        [
            {"matchLabels": {label: "web"}},
            {"matchExpressions": [_expression(label, "In", "web", "other")]},
            {"matchExpressions": [_expression(label, "Exists"), _expression("tier", "DoesNotExist")]},
            {"matchExpressions": [_expression(label, "NotIn", "db")], "matchLabels": {label: "web"}},
        ]
    )


def _expression(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _stranger(draft: Draft, node: Raw, label: str) -> None:
    if draft.random.random() < 0.3:
        labels = draft.random.choice([{}, {label: "db", "tier": ""}, {"tier": "web"}, {label: "web2", "tier": "x"}])
        draft.put(node, labels=labels)


def _term(draft: Draft, key: str, label: str) -> Raw:
    term: Raw = {"topologyKey": key, "labelSelector": _selector(draft, label)}
    scope: Raw = draft.random.choice(
        [
            {},
            {"namespaces": [draft.namespace, "elsewhere"]},
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": draft.namespace}}},
            {"namespaceSelector": {}},
        ]
    )
    return {**term, **scope}


def _add(spec: Raw, kind: str, term: Raw) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault(kind, {})
    affinity.setdefault(REQUIRED, []).append(term)
