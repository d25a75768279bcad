"""The words of other systems that Berth reads from pods: the table of `berth_api.words`."""

from collections.abc import Iterator
from typing import Final

from berth_api import names
from berth_api.words import TABLE, Role, System, Word, WordPlace
from berth_api.words.table import Choice
from reference.markdown import code, page, section, table

_MARKS: Final = {
    "refused:": "* *refused*: Berth refuses the pod. The cell says what to do instead.",
    "no effect:": "* *no effect*: Berth ignores the word. The cell says what has this effect.",
    "removed": "* *removed*: the word is not needed, because Berth does this without it.",
}
"""What a cell of the last column may say -> what it means."""
_BECOMES: Final = {
    Role.CARDS: f"cards (`{names.PREFIX}{names.GPU_SHARED}`)",
    Role.MEMORY: f"`{names.PREFIX}{names.GPU_MEMORY}`",
    Role.PERCENT: f"`{names.PREFIX}{names.GPU_MEMORY_RATIO}`",
    Role.CORES: f"`{names.PREFIX}{names.GPU_CORE}`",
    Role.HUNDREDTHS: f"`{names.PREFIX}{names.GPU_CORE}`, or whole cards",
    Role.FRACTION: f"`{names.PREFIX}{names.GPU_MEMORY_RATIO}`",
    Role.CONTAINER: "the limits of this container",
    Role.MODELS: f"`{names.MODEL_GLOBS}`",
    Role.NO_MODELS: f"`{names.MODEL_GLOBS}` with `!`",
    Role.UUIDS: f"the selector of `{names.ALLOCATE_HINT}`: `{names.DEVICE_UUID}` in",
    Role.NO_UUIDS: f"the selector of `{names.ALLOCATE_HINT}`: `{names.DEVICE_UUID}` not in",
    Role.GROUP: f"`{names.POD_GROUP}`",
    Role.MIN_MEMBER: f"`{names.POD_GROUP_MIN_MEMBER}`",
    Role.TASK_GROUP: f"`{names.POD_GROUP}` with the name of the application, from the label `applicationId`, or "
    "`spark-app-selector`, which Spark sets. Spark's driver, and executors without the list of all parts, start alone",
    Role.TASK_GROUPS: f"`{names.POD_GROUP_MIN_MEMBER}`: the sum of all parts. For Spark's executors, only their own "
    "part counts",
    Role.GROUP_OBJECT: f"label `{names.POD_GROUP_LABEL}`",
}


def text() -> str:
    """Return the page."""
    systems = dict.fromkeys(system.name for system in TABLE.systems)
    return page(
        "Words of other systems",
        "Berth reads these resources, annotations and labels of other systems in its pods. Amounts are for each card "
        "unless the row says otherwise. Berth's own amounts are [totals](../protocol.md#requests).",
        legend("".join(map(of_system, systems))),
        *(section(name, of_system(name)) for name in systems),
    )


def legend(tables: str) -> str:
    """Return what readers of these tables need to know first."""
    marks = [meaning for mark, meaning in _MARKS.items() if mark in tables]
    becomes = "The last column shows what each word becomes."
    return "\n\n".join(
        filter(
            None,
            (
                f"{becomes} It may also say:" if marks else becomes,
                "\n".join(marks),
                "If a unit has a `*`, `--memory-units` can set another unit." if "* |" in tables else "",
            ),
        )
    )


def of_system(name: str) -> str:
    """Return the table of a system."""
    return table(("word", "where", "means", "becomes"), _rows(name))


def _rows(name: str) -> Iterator[tuple[str, str, str, str]]:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for system in TABLE.systems:
        for word in system.words if system.name == name else ():
            rows.setdefault((str(word.place), _means(system, word), _becomes(word)), []).append(code(word.name))
    for (place, means, becomes), alike in rows.items():
        yield ", ".join(alike), place, means, becomes


def _means(system: System, word: Word) -> str:
    means = f"{word.means}*" if word.is_set else word.means
    needed = word.role == Role.CARDS and not system.cards and word.place == WordPlace.RESOURCE
    return f"{means}; it must be set" if needed else means


def _becomes(word: Word) -> str:
    if word.role in (Role.CHOICE, Role.MENTION):
        values: dict[str, list[str]] = {}
        for value, choice in word.choices.items():
            values.setdefault(_choice(choice), []).append(code(value))
        return "; ".join(f"{', '.join(alike)}: {becomes}" for becomes, alike in values.items())
    if word.role == Role.NO_EFFECT:
        return f"no effect: {word.answer}"
    if word.role == Role.REFUSED:
        return f"refused: {word.answer}"
    return f"{_BECOMES[word.role]}; {word.answer}" if word.answer else _BECOMES[word.role]


def _choice(choice: Choice) -> str:
    if choice.refused:
        return f"refused: {choice.refused}"
    written = [code(f"{name}: {value}") for name, value in (*choice.annotations.items(), *choice.labels.items())]
    if choice.note:
        written.append(f"no effect: {choice.note}")
    return " ".join(written) or ("unchanged" if choice.kept else "removed")
