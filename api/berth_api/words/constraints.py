"""Convert words in annotations and labels that restrict cards, or that need an answer, to Berth's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from berth_api import names
from berth_api.names import GPU
from berth_api.request import RequestError
from berth_api.words.systems import TABLE
from berth_api.words.table import AMOUNTS, Choice, Role, Row, Word, WordPlace

Strings = Mapping[str, str]

_EXPRESSIONS: Final = "matchExpressions"
_NONE_OF: Final = "!"
_GLOB_CHARACTERS: Final = "[*?"
MEANS: Final[Mapping[Role, str]] = {
    Role.MODELS: "model",
    Role.NO_MODELS: "any model but",
    Role.UUIDS: "only GPU",
    Role.NO_UUIDS: "any GPU but",
}
"""How messages describe a word with a list, before the texts of its list."""


@dataclass(slots=True)
class Metadata:
    """Annotations and labels while words are replaced in them."""

    annotations: dict[str, str]
    labels: dict[str, str]
    notes: list[str] = field(default_factory=list)
    """Words without effect, and what to do."""
    read: list[str] = field(default_factory=list)
    """The words that had an effect, as messages name them."""
    said: dict[str, str] = field(default_factory=dict)
    """Word -> its meaning, for words that are no amounts; empty if a note names it."""

    def of(self, place: WordPlace) -> dict[str, str]:
        """Return the annotations or the labels."""
        return self.labels if place == WordPlace.LABEL else self.annotations

    def put(self, place: WordPlace, name: str, value: str, word: Word) -> None:
        """Set an annotation or label of Berth for a word.

        Raises:
            RequestError: the pod has it with another value.
        """
        target = self.of(place)
        if target.get(name, value) != value:
            raise RequestError(f"{word.title} and {place} {name}: {target[name]} differ; write one of the two")
        target[name] = value
        self.said.setdefault(word.title, f"{place} {name}: {value}")

    def take(self, word: Word) -> str:
        """Remove a word, and return its value."""
        self.read.append(word.title)
        return self.of(word.place).pop(word.name)


def written(metadata: Metadata) -> Iterator[Row]:
    """Yield the rows of the words in annotations and labels, in the order of the table."""
    if TABLE.annotations.keys().isdisjoint(metadata.annotations) and TABLE.labels.keys().isdisjoint(metadata.labels):
        return
    for row in TABLE.rows():
        if row.word.place != WordPlace.RESOURCE and row.word.name in metadata.of(row.word.place):
            yield row


def replace_all(metadata: Metadata) -> None:
    """Replace the words in place, except words about gangs and amounts.

    Raises:
        RequestError: a word cannot be honoured; the message names what to do instead.
    """
    rows = list(written(metadata))
    _models(metadata, [row.word for row in rows])
    _cards(metadata, [row.word for row in rows])
    for word in (row.word for row in rows):
        if word.role in (Role.CHOICE, Role.MENTION):
            _choose(metadata, word)
        elif word.role == Role.NO_EFFECT:
            metadata.notes.append(f"{word.title} has no effect; {word.answer}")
        elif word.role == Role.REFUSED:
            raise refused(word, word.answer)


def drop_amounts(metadata: Metadata) -> None:
    """Remove the words about amounts, which `cards` has read."""
    for row in list(written(metadata)):
        if row.word.role in AMOUNTS:
            metadata.take(row.word)


def refused(word: Word, answer: str, value: str = "") -> RequestError:
    """Return the error of a word, or of one of its values, that cannot be honoured."""
    return RequestError(f"{word.title}{f': {value}' if value else ''} is not supported; {answer}")


def choice(word: Word, text: str) -> tuple[str, Choice]:
    """Return the value in a text, and what it becomes.

    Raises:
        RequestError: the value is unknown, or cannot be honoured.
    """
    mentioned = (choice for choice in word.choices if choice in text) if word.role == Role.MENTION else iter((text,))
    value = next(mentioned, "")
    chosen = word.choices.get(value)
    if chosen is None:
        raise RequestError(f'{word.title}: "{text}"; allowed are {", ".join(word.choices)}')
    if chosen.refused:
        raise refused(word, chosen.refused, value)
    return value, chosen


def said(chosen: Choice) -> str:
    """Return the meaning of a value; empty if a note names it, or the value stays."""
    if chosen.kept or chosen.note:
        return ""
    becomes = [f"{WordPlace.ANNOTATION} {name}: {value}" for name, value in chosen.annotations.items()]
    becomes += [f"{WordPlace.LABEL} {name}: {value}" for name, value in chosen.labels.items()]
    return becomes[0] if becomes else "what Berth does in any case"


def _choose(metadata: Metadata, word: Word) -> None:
    value, chosen = choice(word, metadata.of(word.place)[word.name])
    if chosen.kept:
        return
    metadata.take(word)
    for place, replaced in ((WordPlace.ANNOTATION, chosen.annotations), (WordPlace.LABEL, chosen.labels)):
        for name, becomes in replaced.items():
            metadata.put(place, name, becomes, word)
    metadata.said[word.title] = said(chosen)
    if chosen.note:
        metadata.notes.append(f"{word.title}: {value} has no effect; {chosen.note}")


# --- models and cards -----------------------------------------------------------------------------------------


def _models(metadata: Metadata, words: list[Word]) -> None:
    globs: list[str] = []
    for word in words:
        if word.role in (Role.MODELS, Role.NO_MODELS):
            models = [f"*{_literal(part)}*" for part in _parts(word, metadata.take(word))]
            excluded = word.role == Role.NO_MODELS
            globs += [f"{_NONE_OF if excluded else ''}{model}" for model in models]
            metadata.said[word.title] = f"{MEANS[word.role]} {' or '.join(models)}"
    if globs:
        word = next(word for word in words if word.role in (Role.MODELS, Role.NO_MODELS))
        metadata.put(WordPlace.ANNOTATION, names.MODEL_GLOBS, ", ".join(globs), word)


def _parts(word: Word, value: str) -> list[str]:
    parts = [part.strip().removeprefix(word.strip) for part in value.split(",")]
    parts = [part for part in parts if part]
    if not parts:
        raise RequestError(f'{word.title}: "{value}"; allowed is a list, joined by commas')
    return parts


def _literal(text: str) -> str:
    """Return a glob that matches the text literally."""
    return "".join(f"[{char}]" if char in _GLOB_CHARACTERS else char for char in text)


def _cards(metadata: Metadata, words: list[Word]) -> None:
    expressions = []
    for word in words:
        if word.role in (Role.UUIDS, Role.NO_UUIDS):
            uuids = _parts(word, metadata.take(word))
            operator = "In" if word.role == Role.UUIDS else "NotIn"
            expressions.append({"key": names.DEVICE_UUID, "operator": operator, "values": uuids})
            metadata.said[word.title] = f"{MEANS[word.role]} {' or '.join(uuids)}"
    if expressions:
        metadata.annotations[names.ALLOCATE_HINT] = _with_expressions(metadata.annotations, expressions)


def _with_expressions(annotations: Strings, expressions: list[dict[str, Any]]) -> str:
    """Return the hint with these expressions added to the selector of GPUs."""
    try:
        hint = orjson.loads(annotations.get(names.ALLOCATE_HINT, "{}"))
        of_gpus = dict(hint.get(GPU) or {})
        selector = dict(of_gpus.get("selector") or {})
        selector[_EXPRESSIONS] = [*(selector.get(_EXPRESSIONS) or ()), *expressions]
        # Fewer levels can be written than read: 254 and 1,024.
        return orjson.dumps({**hint, GPU: {**of_gpus, "selector": selector}}, option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
        raise RequestError(f"annotation {names.ALLOCATE_HINT}: not a hint with a selector: {error}") from error
