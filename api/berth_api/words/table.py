"""The rows of the table of other systems' words, and the table by name.

The rows are data (`systems`): support for another system needs rows, and no code. The code that reads pods, and that
writes manifests, policies and documents, takes the names from here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from berth_api import names

MIB: Final = 2**20
GIB: Final = 2**30


class WordPlace(StrEnum):
    """Where a pod writes a word."""

    RESOURCE = "resource"
    """Among the requests or limits of a container."""
    ANNOTATION = "annotation"
    LABEL = "label"


class Role(StrEnum):
    """The effect of a word. Each role has one rule in `cards`, `constraints` or `gangs`."""

    # Amounts. What is said of a card is the same for each of the container's cards.
    CARDS = "cards"
    """The number of cards."""
    MEMORY = "memory"
    """Memory in `Word.unit` bytes: of each card, or of all together if `System.total`."""
    PERCENT = "percent"
    """Hundredths of each card's memory."""
    CORES = "cores"
    """Hundredths of each card's cores."""
    HUNDREDTHS = "hundredths"
    """Hundredths of a card's cores, or from 100 on so many hundredths of whole cards."""
    FRACTION = "fraction"
    """The part of each card's memory, as a decimal fraction up to 1."""
    CONTAINER = "container"
    """The name of the container to which an annotation's request applies; without it, the first container."""

    # Which cards.
    MODELS = "models"
    """Parts of model names. A card's model must contain one of them."""
    NO_MODELS = "no models"
    """Parts of model names. A card's model must contain none of them."""
    UUIDS = "uuids"
    """The cards that are allowed, by UUID."""
    NO_UUIDS = "no uuids"
    """The cards that are not allowed, by UUID."""

    # Which pods start together.
    GROUP = "group"
    """The name of a group whose minimum another word has."""
    MIN_MEMBER = "minimum"
    """The minimum of that group."""
    GROUP_OBJECT = "group object"
    """The name of a group that an object describes."""
    TASK_GROUP = "task group"
    """The part of the application's group to which the pod belongs. `TASK_GROUPS` has the minimum of each part."""
    TASK_GROUPS = "task groups"
    """All parts of the application's group with their minimums, as a JSON list."""

    # The rest.
    CHOICE = "choice"
    """One of the values in `Word.choices`; each becomes Berth's words, or is answered."""
    MENTION = "mention"
    """As a choice, but the first value that the text mentions counts."""
    NO_EFFECT = "no effect"
    """It has no effect on the pod's node or devices. `Word.answer` names what has this effect."""
    REFUSED = "refused"
    """It cannot be honoured. `Word.answer` names what to write instead."""


AMOUNTS: Final = frozenset(
    {Role.CARDS, Role.MEMORY, Role.PERCENT, Role.CORES, Role.HUNDREDTHS, Role.FRACTION, Role.CONTAINER}
)
GANGS: Final = frozenset({Role.GROUP, Role.MIN_MEMBER, Role.GROUP_OBJECT, Role.TASK_GROUP, Role.TASK_GROUPS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a value becomes. If all fields are empty, it becomes nothing, because Berth behaves so anyway."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    """Berth's annotations with the same meaning."""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    """Why it has no effect, and what has this effect in Berth."""
    refused: str = ""
    """What to do instead. The pod is refused."""
    kept: bool = False
    """Whether the word itself is Berth's with this value, and stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A row: one name, and what it means."""

    name: str
    place: WordPlace = WordPlace.RESOURCE
    role: Role
    means: str
    """What it means in its system, for documents."""
    unit: int = 1
    """Bytes of one unit of memory."""
    is_set: bool = False
    """Whether the source has a flag for the unit, and so has Berth (`--memory-units`)."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    answer: str = ""
    by_plugin: bool = False
    """Whether a device plugin may offer it, and would allocate devices of its own choice: admission renames it to
    `Word.renamed`."""
    renamed: str = ""
    """Berth's resource that stands for it in its container once admission has renamed it."""
    only_with: bool = False
    """Whether it is only read in pods with another word of its system. Alone it is Berth's word, too."""
    strip: str = ""
    """What the values of this word begin with, and names of models do not."""

    @property
    def title(self) -> str:
        """Return the name as messages have it."""
        return self.name if self.place == WordPlace.RESOURCE else f"{self.place} {self.name}"


READ_OF_GROUPS: Final = ("minMember", "scheduleTimeoutSeconds")
"""The fields of a PodGroup's spec that are read, of whichever other system it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupKind:
    """A kind of PodGroup: Berth's, or another system's."""

    group: str
    """Its API group."""
    version: str
    lost: Mapping[str, str] = field(default_factory=dict)
    """Field of the spec without effect -> what has this effect in Berth."""
    has_status: bool = False
    """Whether Berth writes its status, from which it then reads the earlier state."""

    @property
    def path(self) -> str:
        """Return the path of the list of all these objects."""
        return f"/apis/{self.group}/{self.version}/podgroups"

    def notes(self, spec: Mapping[str, object]) -> tuple[str, ...]:
        """Return a sentence for each field of a PodGroup's spec that has no effect."""
        without = [name for name in spec if name not in READ_OF_GROUPS]
        answers = {name: f"; {self.lost[name]}" if self.lost.get(name) else "" for name in without}
        return tuple(f"spec.{name} has no effect{answer}" for name, answer in answers.items())


OWN_GROUPS: Final = PodGroupKind(group=names.POD_GROUP_GROUP, version=names.VERSION, has_status=True)
"""Berth's PodGroups."""
KUBERNETES_GROUPS: Final = PodGroupKind(group="scheduling.k8s.io", version="v1beta1", has_status=True)
"""The PodGroups of Kubernetes from 1.37 on, which `spec.schedulingGroup` of pods names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system and its words. All words of one request come from the same row."""

    name: str
    page: str = ""
    """Name of the page about migrating from it; the first of several rows of a system has it."""
    images: tuple[str, ...] = ()
    """Parts of the image names that identify its programs in a cluster."""
    differs: tuple[str, ...] = ()
    """What else is different with Berth, a sentence each, for documents."""
    opt_out: str = ""
    """The label that excludes a namespace from its webhook."""
    drain: bool = True
    """Whether its pods on a node must end before Berth can allocate there: their cards are recorded nowhere that
    Berth reads."""
    pod_groups: tuple[PodGroupKind, ...] = ()
    schedulers: tuple[str, ...] = ()
    """The `schedulerName` that its manifests have."""
    cards: int = 1
    """Cards of a container whose request names no number; 0 if the number is required."""
    total: bool = False
    """Whether memory and cores are the totals of all cards together."""
    needs_memory: bool = False
    """Whether a request for a part of a card must state its memory; otherwise it gets all of the card's memory."""
    words: tuple[Word, ...]

    @property
    def in_metadata(self) -> bool:
        """Return whether annotations or labels decide about amounts, which can change after the pod was created."""
        return any(word.role in AMOUNTS and word.place != WordPlace.RESOURCE for word in self.words)


@dataclass(frozen=True, slots=True)
class Row:
    """A word with its system."""

    system: System
    word: Word


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, and the rows of each place by name."""

    systems: tuple[System, ...]
    resources: Mapping[str, Row] = field(init=False)
    annotations: Mapping[str, Row] = field(init=False)
    labels: Mapping[str, Row] = field(init=False)
    telling: frozenset[str] = field(init=False)
    """The resources that show that a pod uses a system's words."""
    renamed: Mapping[str, tuple[Row, ...]] = field(init=False)
    """Berth's resource -> the rows that it stands for."""
    by_plugin: tuple[Row, ...] = field(init=False)
    """The resources that admission renames."""
    pod_groups: tuple[PodGroupKind, ...] = field(init=False)
    """The kinds of PodGroups, Berth's and Kubernetes' first: of several with one name the first counts."""

    def __post_init__(self) -> None:
        """Index the rows: pods are looked up in every parse."""
        rows = [Row(system, word) for system in self.systems for word in system.words]
        for place in WordPlace:
            of_place = {row.word.name: row for row in rows if row.word.place == place}
            object.__setattr__(self, f"{place}s", MappingProxyType(of_place))
        kinds = (kind for system in self.systems for kind in system.pod_groups)
        object.__setattr__(self, "pod_groups", (OWN_GROUPS, KUBERNETES_GROUPS, *kinds))
        resources = [row for row in rows if row.word.place == WordPlace.RESOURCE]
        object.__setattr__(self, "telling", frozenset(row.word.name for row in resources if not row.word.only_with))
        object.__setattr__(self, "by_plugin", tuple(row for row in resources if row.word.by_plugin))
        renamed: dict[str, tuple[Row, ...]] = {}
        for row in resources:
            if row.word.renamed:
                renamed[row.word.renamed] = (*renamed.get(row.word.renamed, ()), row)
        object.__setattr__(self, "renamed", MappingProxyType(renamed))

    def rows(self) -> Iterator[Row]:
        """Yield all rows in the order of the table."""
        return (Row(system, word) for system in self.systems for word in system.words)

    def units(self) -> Mapping[str, int]:
        """Return the words whose unit can be set, each with the bytes of its default unit."""
        return {row.word.name: row.word.unit for row in self.rows() if row.word.is_set}
