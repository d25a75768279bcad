"""Write the parts of admission policies that come from the tables of other systems' words and of Berth's own keys.

`python -m reference.policies [--check]`

`manifests/base/words.yaml` is generated as a whole. In manifests that people write, only the lines between two marks
are generated. The expressions state in CEL what `berth_api.words` does in Python, as far as CEL can state it simply.
Tests compare the two for every manifest of `tests/manifests_of_others`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Final

from berth_api import metadata, names
from berth_api.words import AMOUNTS, TABLE, Role, Row, System, Word, WordPlace, constraints, gangs
from reference import writing

MANIFESTS: Final = Path(__file__).parent.parent / "manifests"
TEMPLATE: Final = Path(__file__).parent / "words.yaml"
COUNTED: Final = Path(__file__).parent / "counted.yaml"
COUNTING: Final = (
    {
        "kind": "ResourceQuota",
        "name": "berth-words-quotas",
        "counts": '"requests." + name in params.spec.?hard.orValue({})',
    },
    {
        "kind": "LimitRange",
        "name": "berth-words-limit-ranges",
        "counts": "params.spec.limits.exists(item, [item.?max, item.?min, item.?default, item.?defaultRequest,\n"
        "          item.?maxLimitRequestRatio].exists(amounts, name in amounts.orValue({})))",
    },
)
"""What counts resources of a namespace's pods, and when it counts a name."""
OPERATOR: Final = MANIFESTS / "base/operator-rbac.yaml"
NAMESPACES: Final = MANIFESTS / "base/namespaces.yaml"
INJECTION: Final = MANIFESTS / "base/injection.yaml"
RUNTIME: Final = MANIFESTS / "components/runtime-class/policy.yaml"
ISOLATION: Final = MANIFESTS / "components/isolation/policy.yaml"
SHARES: Final = ISOLATION.with_name("validation.yaml")
WEBHOOK: Final = MANIFESTS / "components/webhook/webhook.yaml"
FEW: Final = 32
"""The longest map over which a loop runs: its time grows with the square of its turns."""
_MARKS: Final = re.compile(r"^( *)# Generated: (\w+)\n.*?^\1# End of generated\n", re.DOTALL | re.MULTILINE)


def files() -> dict[Path, str]:
    """Return the text of each file."""
    marked = {
        file: _with_marked(file.read_text())
        for file in (OPERATOR, NAMESPACES, INJECTION, RUNTIME, ISOLATION, SHARES, WEBHOOK)
    }
    words = Template(TEMPLATE.read_text()).substitute(_values())
    counted = "".join(Template(COUNTED.read_text()).substitute({**_values(), **each}) for each in COUNTING)
    return {**marked, MANIFESTS / "base/words.yaml": words + counted}


# --- the table as CEL -------------------------------------------------------------------------------------------


def _cel(value: object) -> str:
    """Return a list or text as a CEL literal, which is JSON."""
    return json.dumps(value, ensure_ascii=False)


def _rows(place: WordPlace) -> Iterator[Row]:
    return (row for row in TABLE.rows() if row.word.place == place)


def _names(place: WordPlace, roles: Iterable[Role] = tuple(Role)) -> list[str]:
    return [row.word.name for row in _rows(place) if row.word.role in roles]


def _number(system: System) -> str:
    """Return what stands for a system in expressions, where texts and numbers do not mix."""
    return str([id(each) for each in TABLE.systems].index(id(system)))


def _telling(system: System) -> list[str]:
    return [word.name for word in system.words if word.name in TABLE.telling]


def _asking() -> list[str]:
    """Return the resources by which a container requests cards, whatever else its pod has."""
    return [name for name in _names(WordPlace.RESOURCE, AMOUNTS) if name in TABLE.telling]


def _only_with() -> list[list[str]]:
    """Return the resources that count next to one of the others in their list."""
    return [
        [row.word.name, *_telling(row.system)]
        for row in _rows(WordPlace.RESOURCE)
        if row.word.only_with and row.word.role in AMOUNTS
    ]


def _by_plugin() -> list[list[str]]:
    """Return [resource, Berth's resource, the words next to which it is renamed ...]."""
    return [[row.word.name, row.word.renamed, *_telling(row.system)] for row in TABLE.by_plugin]


def _amount_rows(place: WordPlace) -> list[list[str]]:
    """Return [name, role, system, title, bytes of its unit] of each word about amounts."""
    return [
        [row.word.name, str(row.word.role), _number(row.system), row.word.title, str(row.word.unit)]
        for row in _rows(place)
        if row.word.role in AMOUNTS and not row.word.only_with
    ]


def _rows_next_to() -> list[list[str]]:
    """Return the same of resources that count next to others, by both names; the others follow."""
    return [
        [name, str(row.word.role), _number(row.system), row.word.title, str(row.word.unit), *_telling(row.system)]
        for row in _rows(WordPlace.RESOURCE)
        if row.word.only_with and row.word.role in AMOUNTS
        for name in filter(None, (row.word.name, row.word.renamed))
    ]


def _replaced() -> list[list[str]]:
    """Return [resource, Berth's resource that stands for it in pods]."""
    return [[row.word.name, row.word.renamed] for row in TABLE.by_plugin]


def _multiplied() -> list[list[str]]:
    """Return [resource, another one, the most of it next to which the first is read as written].

    An amount of each card is multiplied by the cards, and hundredths from a whole card on bring all of its memory.
    """
    rows = []
    for system in TABLE.systems:
        by_role: dict[Role, list[Word]] = {}
        for word in system.words:
            if word.place == WordPlace.RESOURCE:
                by_role.setdefault(word.role, []).append(word)
        cards = [name for word in by_role.get(Role.CARDS, ()) for name in (word.name, word.renamed) if name]
        others = {} if system.total else dict.fromkeys(cards, "1")
        others |= {word.name: "99" for word in by_role.get(Role.HUNDREDTHS, ())}
        amounts = [word.name for role in (Role.MEMORY, Role.PERCENT, Role.CORES) for word in by_role.get(role, ())]
        rows += [[name, other, most] for name in amounts for other, most in others.items()]
    return rows


def _zero() -> list[str]:
    """Return the resources of which 0 is all of a card."""
    rows = (row for row in _rows(WordPlace.RESOURCE) if not row.system.needs_memory)
    return [row.word.name for row in rows if row.word.role in (Role.MEMORY, Role.PERCENT)]


def _names_next_to() -> list[str]:
    """Return the resources that count next to others."""
    return [row.word.name for row in _rows(WordPlace.RESOURCE) if row.word.only_with and row.word.role in AMOUNTS]


def _lists() -> list[list[str]]:
    """Return [annotation, title, as what it is read, what its texts begin with, `*` for globs] of words with a list."""
    words = [row.word for row in _rows(WordPlace.ANNOTATION)]
    kinds = (((Role.MODELS, Role.NO_MODELS), "*"), ((Role.UUIDS, Role.NO_UUIDS), ""))
    return [
        [word.name, word.title, f"{constraints.MEANS[word.role]} ", word.strip, glob]
        for roles, glob in kinds
        for word in words
        if word.role in roles
    ]


def _group_names() -> list[list[str]]:
    """Return [annotation, annotation or label of Berth that it becomes] of words about gangs."""
    rows = (row.word for row in _rows(WordPlace.ANNOTATION) if row.word.role in gangs.BECOMES)
    return [[word.name, " ".join(gangs.BECOMES[word.role])] for word in rows]


def _answers(place: WordPlace, role: Role) -> list[list[str]]:
    """Return [name, sentence] of words with an answer."""
    between = {Role.REFUSED: " is not supported; ", Role.NO_EFFECT: " has no effect; "}[role]
    return [
        [row.word.name, f"{row.word.title}{between}{row.word.answer}"] for row in _rows(place) if row.word.role == role
    ]


def _choices(place: WordPlace, kind: str) -> list[list[str]]:
    """Return [name, value, sentence] of values that are refused, or have no effect."""
    return [
        [
            row.word.name,
            value,
            f"{row.word.title}: {value} {'is not supported' if kind == 'refused' else 'has no effect'}; {text}",
        ]
        for row in _rows(place)
        if row.word.role == Role.CHOICE
        for value, choice in row.word.choices.items()
        if (text := getattr(choice, kind))
    ]


def _for_schedulers(place: WordPlace) -> list[str]:
    """Return the words about amounts of systems whose scheduler a pod must name; others extend kube-scheduler."""
    rows = (row for row in _rows(place) if row.system.schedulers and not row.word.only_with)
    return [row.word.name for row in rows if row.word.role in AMOUNTS]


def _effects() -> list[list[str]]:
    """Return [annotation, value, as what it is read] of choices that are read."""
    return [
        [row.word.name, value, said]
        for row in _rows(WordPlace.ANNOTATION)
        for value, choice in row.word.choices.items()
        if not choice.refused and (said := constraints.said(choice))
    ]


def _mentions(kind: str) -> list[list[str]]:
    """Return [name, value, sentence, values that count before it ...] of what a text may mention."""
    return [
        [
            row.word.name,
            value,
            f"{row.word.title}: {value} {'is not supported' if kind == 'refused' else 'has no effect'}; {text}",
            *list(row.word.choices)[:number],
        ]
        for row in _rows(WordPlace.ANNOTATION)
        if row.word.role == Role.MENTION
        for number, (value, choice) in enumerate(row.word.choices.items())
        if (text := getattr(choice, kind))
    ]


def _allowed(place: WordPlace) -> list[list[str]]:
    """Return [name, title, values ...] of words with a choice."""
    return [[row.word.name, row.word.title, *row.word.choices] for row in _rows(place) if row.word.role == Role.CHOICE]


def _needs(role: Role, systems: Callable[[System], bool]) -> list[list[str]]:
    """Return [system, what it needs] of systems that need a word of a role."""
    roles = (Role.MEMORY, Role.FRACTION) if role == Role.MEMORY else (role,)
    return [
        [
            _number(system),
            " or ".join(dict.fromkeys(word.title for word in system.words if word.role in roles)),
        ]
        for system in TABLE.systems
        if systems(system)
    ]


def _hundredths() -> list[str]:
    return [_number(each) for each in TABLE.systems if any(word.role == Role.HUNDREDTHS for word in each.words)]


def _groups() -> list[list[str]]:
    """Return [name, name of the minimum] of systems whose groups have one."""
    pairs = []
    for system in TABLE.systems:
        by_role = {word.role: word.name for word in system.words}
        if Role.GROUP in by_role:
            pairs.append([by_role[Role.GROUP], by_role[Role.MIN_MEMBER]])
    return pairs


def _values() -> Mapping[str, str]:
    """Return what the template names."""
    resource, annotation, label = WordPlace.RESOURCE, WordPlace.ANNOTATION, WordPlace.LABEL
    cel = {
        "resources": [name for name in _names(resource) if name in TABLE.telling],
        "annotations": _names(annotation),
        "labels": _names(label),
        "asking": _asking(),
        "only_with": _only_with(),
        "by_plugin": _by_plugin(),
        "amount_annotations": _names(annotation, AMOUNTS),
        "amount_labels": _names(label, AMOUNTS),
        "card_resources": _names(resource, (Role.CARDS,)),
        "card_annotations": _names(annotation, (Role.CARDS,)),
        "card_labels": _names(label, (Role.CARDS,)),
        "container_annotations": _names(annotation, (Role.CONTAINER,)),
        "resource_rows": _amount_rows(resource),
        "rows_next_to": _rows_next_to(),
        "annotation_rows": _amount_rows(annotation),
        "label_rows": _amount_rows(label),
        "replaced": _replaced(),
        "multiplied": _multiplied(),
        "zero": _zero(),
        "countable": list(dict.fromkeys([row[0] for row in (*_replaced(), *_multiplied())] + _zero())),
        "names_next_to": _names_next_to(),
        "resources_for_schedulers": _for_schedulers(resource),
        "annotations_for_schedulers": _for_schedulers(annotation),
        "lists": _lists(),
        "group_names": _group_names(),
        "task_groups": _names(annotation, (Role.TASK_GROUP, Role.TASK_GROUPS)),
        "effects": _effects(),
        "refused_resources": _answers(resource, Role.REFUSED),
        "refused_annotations": _answers(annotation, Role.REFUSED),
        "refused_labels": _answers(label, Role.REFUSED),
        "noted_annotations": _answers(annotation, Role.NO_EFFECT),
        "noted_labels": _answers(label, Role.NO_EFFECT),
        "refused_choices_of_resources": _choices(resource, "refused"),
        "refused_choices": _choices(annotation, "refused"),
        "noted_choices": _choices(annotation, "note"),
        "refused_mentions": _mentions("refused"),
        "noted_mentions": _mentions("note"),
        "allowed_annotations": _allowed(annotation),
        "allowed_labels": _allowed(label),
        "cards_of": [[_number(each), str(each.cards)] for each in TABLE.systems],
        "totals": [_number(each) for each in TABLE.systems if each.total],
        "needs_memory": _needs(Role.MEMORY, lambda each: each.needs_memory),
        "needs_cards": _needs(Role.CARDS, lambda each: not each.cards),
        "of_hundredths": _hundredths(),
        "groups": _groups(),
        "original": names.ORIGINAL_RESOURCES,
        "pod_groups": [kind.group for kind in TABLE.pod_groups],
        "keys_of_namespaces": [
            [[key.place, key.name], list(key.values)] for key in metadata.TABLE if metadata.NAMESPACE in key.kinds
        ],
    }
    next_to_plugins = list(dict.fromkeys(name for row in TABLE.by_plugin for name in _telling(row.system)))
    any_of = {
        "requests_next_to_plugins": _any("each.resources.requests", next_to_plugins),
        "requests_resources": _any("each.resources.requests", cel["resources"]),
        "limits_resources": _any("each.resources.limits", cel["resources"]),
        "requests_asking": _any("each.resources.requests", cel["asking"]),
        "object_annotations": _any("object.metadata.annotations", cel["annotations"]),
        "object_labels": _any("object.metadata.labels", cel["labels"]),
        "pod_annotations": _any("pod.metadata.annotations", cel["annotations"]),
        "pod_labels": _any("pod.metadata.labels", cel["labels"]),
    }
    return {name: _cel(value) for name, value in cel.items()} | any_of


def _any(written: str, known: object) -> str:
    """Return whether a map has one of the names: by its few keys, as most have, or else by the names."""
    keys = f"keys.exists(key, key in {_cel(known)})"
    return f"[{written}].exists(keys, keys.size() <= {FEW} ? {keys} : {_cel(known)}.exists(name, name in keys))"


# --- the files --------------------------------------------------------------------------------------------------


def _with_marked(text: str) -> str:
    return _MARKS.sub(_marked, text)


def _marked(match: re.Match[str]) -> str:
    indent, name = match[1], match[2]
    lines = Template(_FRAGMENTS[name]).substitute(_values()).strip("\n").splitlines()
    body = "\n".join(f"{indent}{line}" if line else "" for line in lines)
    return f"{indent}# Generated: {name}\n{body}\n{indent}# End of generated\n"


_ASKED: Final = """
- name: asked # names of the containers that request GPUs by words of other systems (docs/reference/words.md)
  expression: >-
    [object.spec.?initContainers.orValue([]) + object.spec.containers].map(all, all.filter(each,
      has(each.resources) && has(each.resources.requests) && ($requests_asking
        || $only_with.exists(row, row[0] in each.resources.requests && row.exists(name, name != row[0]
          && all.exists(other, name in other.?resources.requests.orValue({})))))
    ).map(each, each.name))[0]
- name: worded # the same, or the container for which annotations request: the named one, or the first
  expression: >-
    variables.asked.size() > 0
    || !$amount_annotations.exists(name, name in object.metadata.?annotations.orValue({}))
    && !$amount_labels.exists(name, name in object.metadata.?labels.orValue({}))
    ? variables.asked
    : ($container_annotations.filter(name, name in object.metadata.?annotations.orValue({}))
        .map(name, string(object.metadata.annotations[name])) + [string(object.spec.containers[0].name)]).filter(name,
          name != "").map(name, [name])[0]
"""

_SHARING: Final = """
- name: whole # names of the containers that request whole cards: all of their memory
  expression: >-
    (object.spec.?initContainers.orValue([]) + object.spec.containers).filter(each,
      has(each.resources) && has(each.resources.requests) && ["kubernetes.io/", "koordinator.sh/"].exists(prefix,
        [["gpu", "gpu-memory-ratio", "gpu.shared"].map(name,
          string(each.resources.requests[?prefix + name].orValue("0")))].exists(amounts,
          amounts[0] != "0" ? quantity(amounts[0]).isInteger() && quantity(amounts[0]).asInteger() % 100 == 0
          : amounts[1] != "0" && quantity(amounts[1]).isInteger() && quantity(amounts[2]).isInteger()
            && (amounts[2] == "0" ? quantity(amounts[1]).asInteger() % 100 == 0
              : quantity(amounts[1]).asInteger() == 100 * quantity(amounts[2]).asInteger())))
    ).map(each, each.name)
- name: sharing # names of the containers that request shares of cards
  expression: >-
    (object.spec.?initContainers.orValue([]) + object.spec.containers).filter(each, each.name in variables.worded
      || (["genius/gpu-number", "genius/gpu-memory-each", "genius/gpu-memory-total"].exists(label,
          label in object.metadata.?labels.orValue({}))
        ? ["genius/gpu-memory-each", "genius/gpu-memory-total"].exists(label,
          label in object.metadata.?labels.orValue({}))
        : has(each.resources) && has(each.resources.requests) && !(each.name in variables.whole)
          && ["kubernetes.io/", "koordinator.sh/"].exists(prefix,
            ["gpu", "gpu.shared", "gpu-core", "gpu-memory", "gpu-memory-ratio"].exists(name,
              string(each.resources.requests[?prefix + name].orValue("0")) != "0")))
    ).map(each, each.name)
"""

_CARDS: Final = """
- name: cards # the maximum that one of them may see: a share is of one card unless it is spread
  expression: >-
    variables.containers.map(each, "genius/gpu-number" in object.metadata.?labels.orValue({})
      ? int(object.metadata.labels["genius/gpu-number"])
      : ((["kubernetes.io/gpu.shared", "koordinator.sh/gpu.shared"]
            + (each.of.name in variables.worded ? $card_resources : []))
          .map(name, string(each.of.?resources.requests[?name].orValue("1")))
        + (each.of.name in variables.worded
          ? $card_annotations.map(name, string(object.metadata.?annotations[?name].orValue("1")))
            + $card_labels.map(name, string(object.metadata.?labels[?name].orValue("1")))
          : [])).filter(amount, amount.matches("^[0-9]{1,9}$$")).map(amount, int(amount)).max())
"""

_ASKS: Final = """
- name: asks-for-gpus
  expression: >-
    (has(object.metadata.labels) && ["genius/gpu-number", "genius/gpu-memory-each", "genius/gpu-memory-total"]
      .exists(label, label in object.metadata.labels))
    || (object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(each,
      has(each.resources) && has(each.resources.requests) && (each.resources.requests.exists(name,
        name.matches("^(kubernetes[.]io|koordinator[.]sh)/gpu([.-]|$$)|^nvidia[.]com/(gpu|mig-)"))
      || $requests_asking))
    || $amount_annotations.exists(name, name in object.metadata.?annotations.orValue({}))
    || $amount_labels.exists(name, name in object.metadata.?labels.orValue({}))
"""

_WITH_DEVICES: Final = """
- name: with-devices # by whatever name, of whatever scheduler
  expression: >-
    (object.spec.containers + object.spec.?initContainers.orValue([])).exists(each,
      has(each.resources) && has(each.resources.requests)
      && each.resources.requests.exists(name, name.contains("/")))
    || has(object.spec.resourceClaims)
    || has(object.metadata.labels) && ["genius/gpu-number", "genius/gpu-memory-each", "genius/gpu-memory-total"]
      .exists(label, label in object.metadata.labels)
    || $amount_labels.exists(name, name in object.metadata.?labels.orValue({}))
    || $amount_annotations.exists(name, name in object.metadata.?annotations.orValue({}))
"""

_MAY_BE_OURS: Final = _WITH_DEVICES.replace("with-devices #", "of-berth-or-with-devices #").replace(
    "(object.spec.containers", 'object.spec.schedulerName in ["berth-scheduler"]\n    || (object.spec.containers', 1
)

_ROUTED: Final = """
- name: ours # whether Berth places the pod, or is to be routed: the API server reads RuntimeClasses before policies
  expression: >-
    object.spec.schedulerName in ["berth-scheduler"]
    || object.spec.schedulerName == "default-scheduler" && object.spec.?nodeName.orValue("") == ""
    && [namespaceObject.metadata.?labels[?"berth.dev/routing"].orValue("")].exists(routing,
      routing != "disabled" && (
        (object.spec.containers + object.spec.?initContainers.orValue([])).exists(each,
          each.?resources.?requests.orValue({}).exists(name,
            (name.startsWith("kubernetes.io/") || name.startsWith("koordinator.sh/"))
            && name.matches("^[^/]+/(gpu([.-].*)?|rdma|fpga)$$")
            && string(each.resources.requests[name]) != "0"))
        || ["genius/gpu-number", "genius/gpu-memory-each", "genius/gpu-memory-total"].exists(label,
          label in object.metadata.?labels.orValue({}))
        && !(object.spec.containers + object.spec.?initContainers.orValue([])).exists(each,
          each.?resources.?requests.orValue({}).exists(name,
            name.startsWith("nvidia.com/") && string(each.resources.requests[name]) != "0")))
      || routing == "devices" && !has(object.spec.resourceClaims)
        && (object.spec.containers + object.spec.?initContainers.orValue([])).exists(each,
          each.?resources.?requests.orValue({}).exists(name,
            name.matches("^nvidia[.]com/(gpu([.]shared)?|mig-.+)$$") && string(each.resources.requests[name]) != "0"))
      || routing in ["words", "devices"] && !has(object.spec.resourceClaims) && (
        (object.spec.containers + object.spec.?initContainers.orValue([])).exists(each,
          has(each.resources) && has(each.resources.requests) && $requests_resources)
        || has(object.metadata.annotations) && $object_annotations
        || has(object.metadata.labels) && $object_labels))
"""

_GROUPS: Final = """
- apiGroups: $pod_groups
  resources: [podgroups]
  verbs: [list, watch]
"""

_KEYS_OF_NAMESPACES: Final = """
- name: known # [[label or annotation, name], allowed values]
  expression: >-
    $keys_of_namespaces
"""

_FRAGMENTS: Final = {
    "worded": _ASKED,
    "sharing": _ASKED + _SHARING,
    "asks": _ASKS,
    "cards": _CARDS,
    "with_devices": _WITH_DEVICES,
    "may_be_ours": _MAY_BE_OURS,
    "routed": _ROUTED,
    "groups": _GROUPS,
    "keys_of_namespaces": _KEYS_OF_NAMESPACES,
}


def main() -> int:
    """Write the files, or with --check report which differ; return 1 if one does."""
    options = writing.parser(__doc__).parse_args()
    return writing.write(files(), "its table", check=options.check)


if __name__ == "__main__":
    sys.exit(main())
