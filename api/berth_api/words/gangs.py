"""Convert words that name the group of pods with which a pod starts to Berth's annotations and labels."""

from collections.abc import Mapping
from typing import Final

import orjson

from berth_api import names
from berth_api.request import RequestError
from berth_api.words.constraints import Metadata, written
from berth_api.words.systems import TABLE
from berth_api.words.table import GANGS, Role, Word, WordPlace

NAMES: Final = frozenset(row.word.name for row in TABLE.rows() if row.word.role in GANGS)
"""The annotations and labels that decide about gangs."""

APPLICATIONS: Final = ("yunikorn.apache.org/app-id", "applicationId", "spark-app-selector")
"""The annotations or labels that name the application whose task groups start together; Spark writes the last one."""
_APPLICATION: Final = "applicationId"
SPARK_ROLE: Final = "spark-role"
"""The label of Spark's pods. The driver runs before the executors, which it creates, so it cannot wait for them."""
DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
READS: Final = frozenset({*NAMES, *APPLICATIONS, SPARK_ROLE})
"""All annotations and labels that these words are read with."""

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
        if Role.TASK_GROUP in words or Role.TASK_GROUPS in words:
            _replace_task_groups(metadata, words)
            continue
        for role in (Role.GROUP, Role.MIN_MEMBER):
            if role in words:
                metadata.put(*BECOMES[role], metadata.take(words[role]), words[role])
            elif role in {word.role for word in system.words}:
                missing = next(word for word in system.words if word.role == role)
                there = next(words[given] for given in (Role.GROUP, Role.MIN_MEMBER) if given in words)
                raise RequestError(f"{there.title}: {missing.title} must be set, too")


def _replace_task_groups(metadata: Metadata, words: Mapping[Role, Word]) -> None:
    """Replace the task groups of an application: all of them start together, so their minimums add up.

    YuniKorn holds a place for each member by a placeholder, so a pod can run before it creates the others. A gang of
    Berth waits until its members exist. So the driver of Spark is no member, and its executors wait only for executors.

    Raises:
        RequestError: the group or its minimum cannot be read from this pod.
    """
    own, listed = words.get(Role.TASK_GROUP), words.get(Role.TASK_GROUPS)
    role = metadata.labels.get(SPARK_ROLE)
    if own is None or role == DRIVER:
        for word in filter(None, (own, listed)):
            metadata.take(word)
            metadata.notes.append(f"{word.title} has no effect; this pod creates the others, so it starts before them")
        return
    if listed is None and role == EXECUTOR:
        metadata.take(own)
        metadata.notes.append(
            f"{own.title} has no effect; only the driver lists the task groups, so this pod waits for no other executor"
        )
        return
    if listed is None:
        raise RequestError(
            f"{own.title}: the annotation task-groups must be set on each member, too; set it, or write the "
            f"annotations {names.POD_GROUP} and {names.POD_GROUP_MIN_MEMBER} instead of both"
        )
    written = (metadata.annotations.get(name) or metadata.labels.get(name) for name in APPLICATIONS)
    application = next(filter(None, written), "")
    if not application:
        raise RequestError(f"{own.title}: label {_APPLICATION} must be set, too")
    group, minimums = metadata.take(own), _minimums(metadata.take(listed), listed)
    if group not in minimums:
        raise RequestError(f"{own.title}: {group!r:.60} is not in {listed.title}")
    metadata.put(*BECOMES[Role.GROUP], application, own)
    minimum = minimums[group] if role == EXECUTOR else sum(minimums.values())
    metadata.put(*BECOMES[Role.MIN_MEMBER], str(minimum), listed)


def _minimums(text: str, word: Word) -> Mapping[str, int]:
    """Return the minimum of each task group by its name.

    Raises:
        RequestError: the text is not such a list.
    """
    try:
        minimums = {group["name"]: group["minMember"] for group in orjson.loads(text)}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        minimums = {}
    if not minimums or not all(type(minimum) is int and minimum > 0 for minimum in minimums.values()):
        raise RequestError(
            f"{word.title}: {text!r:.60}; allowed is a JSON list of objects with name and minMember, from 1"
        )
    return minimums
