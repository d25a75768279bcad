"""Documents of a manifest: cut out of the text by bytes, and parsed only if they contain a known word.

A folder may have thousands of files, few of which concern cards. Parsing is slow compared with a search for bytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import yaml

from berth_api import names
from berth_api.words import TABLE
from berth_base import documents
from berth_base.documents import DocumentError

TEMPLATE: Final = "{{"
"""Begins an expression of a Helm template."""
_BORDER: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_BEGIN: Final = re.compile(r"^(?!---|\s*#|\s*$)", re.MULTILINE)
_OWN: Final = (
    "nvidia.com/",
    "amd.com/",
    names.PREFIX + names.GPU,
    names.PREFIX + names.RDMA,
    names.PREFIX + names.FPGA,
    *names.GENIUS_LABELS,
    "koordinator.sh/",
)
"""What marks devices that are requested by words which Berth has, too."""


def _pattern() -> re.Pattern[str]:
    """Return the pattern of known words, one of which each document about Berth or a system of the table has.

    Words that contain another known word are left out.
    """
    rows = {row.word.name for row in TABLE.rows()}
    schedulers = {name for system in TABLE.systems for name in system.schedulers}
    groups = {kind.group for system in TABLE.systems for kind in system.pod_groups}
    words = sorted({*_OWN, *rows, *schedulers, *groups}, key=len)
    shortest = [word for number, word in enumerate(words) if not any(other in word for other in words[:number])]
    return re.compile("|".join(map(re.escape, shortest)))


_WORDS: Final = _pattern()
_BYTES: Final = re.compile(_WORDS.pattern.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The text of one document, with the border before it."""

    text: str
    line: int
    """Number of its first line in the file, from 1."""

    @property
    def is_relevant(self) -> bool:
        """Return whether it has a known word."""
        return _WORDS.search(self.text) is not None

    @property
    def begin(self) -> int:
        """Return the number of the first line that is neither empty, nor a comment, nor the document's border."""
        match = _BEGIN.search(self.text)
        return self.line + (self.text.count("\n", 0, match.start()) if match else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A document as nodes, which know their places in the text, and as values."""

    node: yaml.Node
    body: Any


class UnreadableError(ValueError):
    """A document is not YAML. The message shows what is wrong, and where the document begins."""

    def __init__(self, message: str, *, line: int, column: int) -> None:
        """Create the error; line and column are counted from 1."""
        super().__init__(message)
        self.line, self.column = line, column


def is_relevant(content: bytes) -> bool:
    """Return whether a file has a known word."""
    return _BYTES.search(content) is not None


def cut(text: str) -> Iterator[Piece]:
    """Yield the documents of a text; joined, their texts are the text."""
    starts = [match.start() for match in _BORDER.finditer(text)]
    borders, line = sorted({0, *starts, len(text)}), 1
    for start, end in pairwise(borders):
        piece = Piece(text=text[start:end], line=line)
        line += piece.text.count("\n")
        yield piece


def parse(piece: Piece) -> Parsed | None:
    """Return a document; None if it is empty.

    Raises:
        UnreadableError: the text is not YAML, or is a template.
    """
    try:
        parsed = documents.read_with_nodes(piece.text)
    except DocumentError as error:
        if TEMPLATE in piece.text:
            raise template(piece) from error
        line = piece.line + max(error.line, 1) - 1
        raise UnreadableError(error.problem, line=line, column=max(error.column, 1)) from error
    if len(parsed) > 1:
        mark = parsed[1][0].start_mark
        raise UnreadableError("a second document without ---", line=piece.line + mark.line, column=mark.column + 1)
    return Parsed(node=parsed[0][0], body=parsed[0][1]) if parsed else None


def template(piece: Piece) -> UnreadableError:
    """Return the error of a piece with an expression of a Helm template."""
    before, _, _ = piece.text.partition(TEMPLATE)
    message = f"{TEMPLATE}: a template, not a manifest; migrate what `helm template` prints"
    return UnreadableError(
        message, line=piece.line + before.count("\n"), column=len(before) - (before.rfind("\n") + 1) + 1
    )
