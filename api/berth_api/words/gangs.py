"""Convert words that name the group of pods with which a pod starts to Berth's annotations and labels."""

from collections.abc import Mapping
from typing import Final

from berth_api import names
from berth_api.request import RequestError
from berth_api.words.constraints import Metadata, written
from berth_api.words.systems import TABLE
from berth_api.words.table import GANGS, Role, WordPlace

NAMES: Final = frozenset(row.word.name for row in TABLE.rows() if row.word.role in GANGS)
"""The annotations and labels that decide about gangs."""

BECOMES: Final[Mapping[Role, tuple[WordPlace, str]]] = {
    Role.GROUP: (WordPlace.ANNOTATION, names.POD_GROUP),
    Role.MIN_MEMBER: (WordPlace.ANNOTATION, names.POD_GROUP_MIN_MEMBER),
    Role.GROUP_OBJECT: (WordPlace.LABEL, names.POD_GROUP_LABEL),
}
"""The annotation or label of Berth that a word becomes, with its value."""


def replace_all(metadata: Metadata) -> None:
    """Replace the words about gangs in place.

    Raises:
        RequestError: the group has no minimum, or the pod names two groups.
    """
    rows = [row for row in written(metadata) if row.word.role in GANGS]
    for system in {id(row.system): row.system for row in rows}.values():
        written_words = [word for word in system.words if word.name in metadata.of(word.place)]
        objects = [word for word in written_words if word.role == Role.GROUP_OBJECT]
        for word in objects:
            metadata.put(*BECOMES[word.role], metadata.take(word), word)
        if objects:
            continue
        words = {word.role: word for word in written_words}
        for role in (Role.GROUP, Role.MIN_MEMBER):
            if role in words:
                metadata.put(*BECOMES[role], metadata.take(words[role]), words[role])
            elif role in {word.role for word in system.words}:
                missing = next(word for word in system.words if word.role == role)
                there = next(words[given] for given in (Role.GROUP, Role.MIN_MEMBER) if given in words)
                raise RequestError(f"{there.title}: {missing.title} must be set, too")
