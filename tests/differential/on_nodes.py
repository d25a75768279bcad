"""Rules about nodes only: labels, taints, cordons and readiness."""

from collections.abc import Sequence
from random import Random

from tests.differential.draft import Draft, Raw, name_of

KEYS = ("zone", "disk", "cores", "rank")
WORDS = ("a", "b", "c", "")
NUMBERS = ("0", "7", "8", "9", "10", "007", "9223372036854775807", "9223372036854775808", "1_0", "x8")
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
RESTART_ALL = "RestartAllContainersOnContainerExits"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


# --- labels -----------------------------------------------------------------------------------------------------


def node_selector(draft: Draft, *, focus: bool) -> None:
    """Make the probe select labels; the last node lacks one of them or has another value."""
    wanted = {f"s-{key}": draft.random.choice(WORDS) for key in draft.random.sample(KEYS, draft.random.randint(1, 3))}
    draft.probe["spec"]["nodeSelector"] = wanted
    for node in draft.nodes:
        node["metadata"]["labels"] |= wanted
    for node in [*draft.between, *([draft.last] if focus else [])]:
        if node is draft.last or draft.random.random() < 0.4:
            _spoil(draft.random, node["metadata"]["labels"], draft.random.choice(sorted(wanted)))


def _spoil(random: Random, labels: dict[str, str], key: str) -> None:
    if random.random() < 0.5:
        del labels[key]
    else:
        labels[key] += "x"


def node_affinity(draft: Draft, *, focus: bool) -> None:
    """Add terms to the probe, one of which the first node just meets and the last node just misses."""
    random = draft.random
    for node in draft.nodes:
        node["metadata"]["labels"] |= _labels(random)
    conditions = [_met_by(random, draft.first, key) for key in random.sample(KEYS, random.randint(1, 3))]
    if focus:
        _miss(random, draft.last["metadata"]["labels"], random.choice(conditions))
    term: Raw = {"matchExpressions": conditions}
    if random.random() < 0.3:
        term["matchFields"] = [_field("NotIn", name_of(draft.last) if focus else "no-node")]
    terms = [term, *(_met_by_no_node(random) for _ in range(random.randint(0, 2)))]
    random.shuffle(terms)
    required = {"nodeSelectorTerms": terms}
    draft.probe["spec"].setdefault("affinity", {})["nodeAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": required
    }


def _labels(random: Random) -> dict[str, str]:
    labels = {key: random.choice(WORDS) for key in ("zone", "disk")}
    labels |= {key: random.choice(NUMBERS) for key in ("cores", "rank")}
    return {key: value for key, value in labels.items() if random.random() < 0.8}


def _met_by(random: Random, node: Raw, key: str) -> Raw:
    value = node["metadata"]["labels"].get(key)
    if value is None:
        return random.choice([_condition(key, "DoesNotExist"), _condition(key, "NotIn", *random.sample(WORDS, 2))])
    other = value + "y"
    choices = [
        _condition(key, "In", value),
        _condition(key, "In", value, other),
        _condition(key, "NotIn", other),
        _condition(key, "Exists"),
    ]
    if value.isdecimal() and 0 < int(value) < 2**63 - 1:
        choices += [_condition(key, "Gt", str(int(value) - 1)), _condition(key, "Lt", str(int(value) + 1))] * 2
    return random.choice(choices)


def _miss(random: Random, labels: dict[str, str], condition: Raw) -> None:
    """Set the label to a value that just fails to meet a condition."""
    key, values = condition["key"], condition.get("values", [])
    match condition["operator"]:
        case "In":
            labels.pop(key, None) if random.random() < 0.4 else labels.update({key: values[0] + "z"})
        case "NotIn":
            labels[key] = random.choice(values)
        case "Exists":
            labels.pop(key, None)
        case "DoesNotExist":
            labels[key] = ""
        case _:
            # The bound itself, or a value that only resembles a number.
            labels[key] = random.choice([values[0], "x8", "9223372036854775808"])


def _met_by_no_node(random: Random) -> Raw:
    return random.choice(
        [
            {},
            {"matchExpressions": [_condition("zone", "In", "nowhere")]},
            {"matchExpressions": [_condition("zone", "Exists"), _condition("zone", "DoesNotExist")]},
            {"matchExpressions": [_condition("cores", "Gt", "many")]},
            {"matchExpressions": [_condition("cores", "Lt", "1_000"), _condition("none", "DoesNotExist")]},
            {"matchFields": [_field("In", "no-node")]},
        ]
    )


def _condition(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _field(operator: str, name: str) -> Raw:
    return {"key": "metadata.name", "operator": operator, "values": [name]}


# --- taints -----------------------------------------------------------------------------------------------------


def taints(draft: Draft, *, focus: bool) -> None:
    """Set taints on the first node that the probe tolerates, and one on the last node that it just does not."""
    random = draft.random
    tolerations = [_toleration(random, f"t{i}") for i in range(random.randint(0, 3))]
    # A toleration of every taint of one effect leaves only the other effect as a reason for rejection.
    everything = random.random() < 0.2
    effects = ("NoSchedule",) if everything else ("NoSchedule", "NoExecute")
    whole = [{"operator": "Exists", "effect": "NoExecute"}] if everything else []
    draft.probe["spec"].setdefault("tolerations", []).extend([*tolerations, *whole])
    for node in draft.nodes:
        tolerated = [_tolerated(random, each) for each in tolerations if random.random() < 0.6]
        if random.random() < 0.4:
            tolerated.append(_taint("soft", "", "PreferNoSchedule"))
        if (node is draft.last and focus) or (node in draft.between and random.random() < 0.4):
            tolerated.append(_not_tolerated(random, tolerations, effects))
        node["spec"]["taints"] += {(each["key"], each["effect"]): each for each in tolerated}.values()


def _toleration(random: Random, key: str) -> Raw:
    effect = random.choice(["NoSchedule", "NoExecute", ""])
    form: Raw = random.choice(
        [{"key": key, "operator": "Equal", "value": "v"}, {"key": key, "operator": "Exists"}, {"key": key}]
    )
    return {**form, **({"effect": effect} if effect else {})}


def _tolerated(random: Random, toleration: Raw) -> Raw:
    value = toleration.get("value", "")
    if toleration.get("operator") == "Exists":
        value = random.choice(["", "w"])
    return _taint(toleration["key"], value, toleration.get("effect") or random.choice(["NoSchedule", "NoExecute"]))


def _not_tolerated(random: Random, tolerations: list[Raw], effects: Sequence[str]) -> Raw:
    """Return a taint that some toleration covers except for its key, value or effect."""
    choices = [_taint("strange", random.choice(["", "v"]), random.choice(effects))]
    for near in tolerations:
        choices += [_taint(near["key"], near.get("value", ""), each) for each in effects if "effect" in near]
        if near.get("operator") != "Exists":
            choices += [_taint(near["key"], "other", each) for each in effects]
    return random.choice([each for each in choices if not any(_covers(near, each) for near in tolerations)])


def _covers(toleration: Raw, taint: Raw) -> bool:
    same_key, same_effect = toleration["key"] == taint["key"], toleration.get("effect", taint["effect"])
    same_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return same_key and same_effect == taint["effect"] and same_value


def _taint(key: str, value: str, effect: str) -> Raw:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def cordon(draft: Draft, *, focus: bool) -> None:
    """Cordon the last node, with or without the taint that follows; a probe may tolerate that."""
    if not focus and draft.random.random() < 0.5:
        effect = draft.random.choice([{}, {"effect": "NoSchedule"}])
        toleration = {"key": UNSCHEDULABLE, "operator": "Exists", **effect}
        draft.probe["spec"].setdefault("tolerations", []).append(toleration)
        draft.first["spec"]["unschedulable"] = True
        return
    for node in [*draft.between, *([draft.last] if focus else [])]:
        if node is draft.last or draft.random.random() < 0.3:
            node["spec"]["unschedulable"] = True
            if node is not draft.last and draft.random.random() < 0.5:
                node["spec"]["taints"].append(_taint(UNSCHEDULABLE, "", "NoSchedule"))


def declared_features(draft: Draft, *, focus: bool) -> None:
    """Make the probe restart all containers by a rule, a feature that the last node does not declare."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    draft.probe["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    for node in draft.nodes:
        refuses = (node is draft.last and focus) or (node in draft.between and draft.random.random() < 0.4)
        others = draft.random.choice([[], ["AnotherFeature"]])
        node["status"]["declaredFeatures"] = [*others, *([] if refuses else [RESTART_ALL])]


def readiness(draft: Draft, *, focus: bool) -> None:
    """Make the last node not ready or unreachable, with the taints that the node controller sets."""
    random = draft.random
    tolerated = random.choice([NOT_READY, UNREACHABLE, ""])
    if tolerated:
        draft.probe["spec"].setdefault("tolerations", []).append({"key": tolerated, "operator": "Exists"})
        if random.random() < 0.5:
            _fail(draft.first, tolerated)
    refused = random.choice([each for each in (NOT_READY, UNREACHABLE) if each != tolerated])
    if focus:
        _fail(draft.last, refused)


def _fail(node: Raw, taint: str) -> None:
    node["status"]["conditions"][0]["status"] = "Unknown" if taint == UNREACHABLE else "False"
    node["spec"]["taints"] += [_taint(taint, "", "NoSchedule"), _taint(taint, "", "NoExecute")]
