"""The words of other systems in pods, read as Berth's own.

`read` replaces these words in a pod: resources of containers, annotations, labels. The code that reads pods, that
rewrites manifests and that answers at admission calls `read`, so results cannot differ. A word that cannot be honoured
is an error that names what to do. No word is dropped without a sentence in `Reading.notes`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth_api.resources import quantity
from berth_api.words import cards, constraints, gangs, plain
from berth_api.words.cards import DEFAULT_UNITS, KINDS, Units
from berth_api.words.constraints import Metadata
from berth_api.words.systems import TABLE
from berth_api.words.table import (
    AMOUNTS,
    GANGS,
    KUBERNETES_GROUPS,
    OWN_GROUPS,
    READ_OF_GROUPS,
    Choice,
    PodGroupKind,
    Role,
    Row,
    System,
    Table,
    Word,
    WordPlace,
)

__all__ = [
    "AMOUNTS",
    "DEFAULT_UNITS",
    "GANGS",
    "GANG_NAMES",
    "GANG_READS",
    "KUBERNETES_GROUPS",
    "OWN_GROUPS",
    "READ_ANNOTATIONS",
    "READ_OF_GROUPS",
    "TABLE",
    "Choice",
    "PodGroupKind",
    "Reading",
    "Role",
    "Row",
    "System",
    "Table",
    "UnitError",
    "Units",
    "Word",
    "WordPlace",
    "asking",
    "checked_units",
    "gang",
    "is_used",
    "of_controller",
    "of_group",
    "plain",
    "read",
    "read_units",
    "resources_of",
]

Object = Mapping[str, Any]
Strings = Mapping[str, str]

GANG_NAMES: Final = gangs.NAMES
GANG_READS: Final = gangs.READS
asking = cards.asking
READ_ANNOTATIONS: Final = frozenset(TABLE.annotations) - GANG_NAMES
"""The annotations that decide about cards."""


class UnitError(ValueError):
    """The unit of a word is not valid. The message names the word and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A pod in Berth's words."""

    spec: Object
    annotations: Strings
    labels: Strings
    words: tuple[str, ...] = ()
    """The words that were replaced, as messages name them, in the order of the table; empty if there were none."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Word -> its meaning, for words that are no amounts; empty if a note names it."""
    notes: tuple[str, ...] = ()
    """A sentence for each word without effect, with what has this effect in Berth."""
    replaced: tuple[str, ...] = ()
    """The resources that were replaced."""
    in_metadata: bool = False
    """Whether annotations or labels decided about amounts."""
    may_be_in_metadata: bool = False
    """Whether they could have, by the system whose words were read."""


def is_used(spec: Object, annotations: Strings, labels: Strings) -> bool:
    """Return whether a pod has a word of another system."""
    return (
        not TABLE.annotations.keys().isdisjoint(annotations)
        or not TABLE.labels.keys().isdisjoint(labels)
        or cards.is_used(spec)
    )


def read(spec: Object, annotations: Strings, labels: Strings, units: Units = DEFAULT_UNITS) -> Reading:
    """Return a pod, or a pod template, in Berth's words; unchanged if it has no other words.

    Raises:
        RequestError: words contradict each other, a value is not allowed, or Berth cannot honour a word.
    """
    if not is_used(spec, annotations, labels):
        return Reading(spec=spec, annotations=annotations, labels=labels)
    metadata = Metadata(dict(annotations), dict(labels))
    # Resources that are no amounts are checked here, amounts where they are read.
    for kind in KINDS:
        for container in spec.get(kind) or ():
            for name, value in cards.amounts(container).items():
                word = TABLE.resources[name].word if name in TABLE.resources else None
                if word is not None and word.role == Role.CHOICE:
                    constraints.choice(word, value)
                elif word is not None and word.role == Role.REFUSED and value != "0":
                    raise constraints.refused(word, word.answer)
    asked = cards.asks(spec, annotations, labels, units)
    constraints.drop_amounts(metadata)
    constraints.replace_all(metadata)
    gangs.replace_all(metadata)
    held = {name for kind in KINDS for container in spec.get(kind) or () for name in cards.amounts(container)}
    telling = held & TABLE.telling
    systems = {id(TABLE.resources[name].system) for name in telling}
    others = {name for name in held & TABLE.resources.keys() if id(TABLE.resources[name].system) in systems}
    replaced = tuple(name for name in TABLE.resources if name in telling | others)
    return Reading(
        spec=_with_resources(spec, replaced, cards.resources(asked) if asked else {}),
        annotations=metadata.annotations,
        labels=metadata.labels,
        words=(*replaced, *metadata.read),
        said=metadata.said,
        notes=tuple(metadata.notes),
        replaced=replaced,
        in_metadata=any(_is_of_metadata(place, written) for place, written in _metadata(annotations, labels)),
        may_be_in_metadata=any(TABLE.resources[name].system.in_metadata for name in replaced),
    )


def resources_of(container: Object, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the resources a container requests."""
    held = cards.amounts(container) if names else {}
    return tuple(name for name in names if held.get(name, "0") != "0")


def gang(annotations: Strings, labels: Strings) -> tuple[Strings, Strings]:
    """Return annotations and labels with the words about gangs replaced.

    Raises:
        RequestError: the group has no minimum, or the pod names two groups.
    """
    if GANG_NAMES.isdisjoint(annotations) and GANG_NAMES.isdisjoint(labels):
        return annotations, labels
    metadata = Metadata(dict(annotations), dict(labels))
    gangs.replace_all(metadata)
    return metadata.annotations, metadata.labels


def of_group(annotations: Strings, labels: Strings) -> Reading:
    """Return the annotations and labels of a PodGroup in Berth's words.

    Raises:
        RequestError: a value is not allowed, or Berth cannot honour a word.
    """
    metadata = Metadata(dict(annotations), dict(labels))
    constraints.replace_all(metadata)
    return Reading(
        spec={},
        annotations=metadata.annotations,
        labels=metadata.labels,
        words=tuple(metadata.read),
        notes=tuple(metadata.notes),
    )


def of_controller(kind: str, metadata: Object, template: Object) -> Iterator[str]:
    """Yield a sentence for each word in the metadata of a controller, and not of its pod template: pods alone are read.

    Both are `metadata` of objects; a word in the template is read there.
    """
    for place, rows in (("annotations", TABLE.annotations), ("labels", TABLE.labels)):
        written, of_pods = metadata.get(place) or {}, template.get(place) or {}
        for word in (row.word for name, row in rows.items() if name in written and name not in of_pods):
            answer = word.answer or "Berth reads pods: write it in the metadata of the pod template"
            yield f"{word.title} of the {kind} has no effect; {answer}"


def read_units(text: str) -> dict[str, int]:
    """Return the units of words in bytes: `NAME=1Mi`, joined by commas.

    Raises:
        UnitError: a word has no unit that can be set, or a unit is no size.
    """
    known, units = TABLE.units(), {}
    for entry in filter(None, text.split(",")):
        name, _, size = entry.partition("=")
        if name not in known:
            raise UnitError(f'"{name}"; allowed are {", ".join(known)}')
        try:
            units[name] = quantity.parse(size)
        except quantity.QuantityError as error:
            raise UnitError(f"{name}: {error}") from error
        if units[name] < 1:
            raise UnitError(f"{name}={size}; allowed are sizes such as 1Mi")
    return units


def checked_units(text: str) -> str:
    """Return the text of a setting if it is valid; raise the errors of `read_units`."""
    read_units(text)
    return text


def _metadata(annotations: Strings, labels: Strings) -> tuple[tuple[Mapping[str, Row], Strings], ...]:
    return (TABLE.annotations, annotations), (TABLE.labels, labels)


def _is_of_metadata(rows: Mapping[str, Row], written: Strings) -> bool:
    return any(rows[name].word.role in AMOUNTS for name in rows.keys() & written.keys())


def _with_resources(
    spec: Object, replaced: tuple[str, ...], resources: Mapping[cards.Where, Mapping[str, str]]
) -> Object:
    """Return the spec with Berth's resources in place of the words."""
    if not replaced and not resources:
        return spec
    systems = {id(TABLE.resources[name].system) for name in replaced}
    renamed = {name for name, rows in TABLE.renamed.items() if any(id(row.system) in systems for row in rows)}
    dropped = {*replaced, *renamed}
    changed = {
        kind: [
            _with(container, dropped, resources.get((kind, number), {}))
            for number, container in enumerate(spec.get(kind) or ())
        ]
        for kind in KINDS
        if spec.get(kind)
    }
    return {**spec, **changed}


def _with(container: Object, dropped: set[str], added: Mapping[str, str]) -> Object:
    """Return a container with these resources; its requests have them only if they had a word, as limits imply them."""
    resources = container.get("resources") or {}
    changed = dict(resources)
    for kind in ("limits", "requests"):
        held = resources.get(kind) or {}
        kept = {name: value for name, value in held.items() if name not in dropped}
        if added and (kind == "limits" or len(kept) < len(held)):
            kept |= added
        if kept or kind in resources:
            changed[kind] = kept
    return {**container, "resources": changed} if changed != resources else container
