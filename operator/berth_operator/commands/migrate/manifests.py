"""A manifest file: its documents, their conversions, and its text afterwards."""

from dataclasses import dataclass, replace
from typing import Final

from berth_operator.commands.migrate import edits, pieces, workloads
from berth_operator.commands.migrate.edits import NotWritableError
from berth_operator.commands.migrate.pieces import Parsed, Piece, UnreadableError
from berth_operator.commands.migrate.workloads import Goal, MigratedWorkload, MigrationResult

_BYTE_ORDER: Final = "\ufeff"
"""The byte order mark at the beginning of files of some editors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationAnswer:
    """What was found in one document."""

    file: str
    line: int
    """The document's first line."""
    workload: MigratedWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A place that could not be read; the rest of the file was."""

    file: str
    message: str
    line: int = 0
    """0 if the whole file could not be read."""
    column: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """A file afterwards."""

    text: str
    answers: tuple[MigrationAnswer, ...]
    problems: tuple[Problem, ...]


def migrate(file: str, text: str, goal: Goal) -> Migrated:
    """Return a file in Berth's words. Documents that cannot be read stay unchanged."""
    parts = [_BYTE_ORDER] if text.startswith(_BYTE_ORDER) else []  # the parser does not count it
    answers: list[MigrationAnswer] = []
    problems: list[Problem] = []
    for piece in pieces.cut(text.removeprefix(_BYTE_ORDER)):
        try:
            after, found = _rewritten(piece, goal) if piece.is_relevant else (piece.text, ())
        except UnreadableError as error:
            problems.append(Problem(file=file, message=str(error), line=error.line, column=error.column))
            after, found = piece.text, ()
        parts.append(after)
        answers += [MigrationAnswer(file=file, line=piece.begin, workload=workload) for workload in found]
    return Migrated(text="".join(parts), answers=tuple(answers), problems=tuple(problems))


def _rewritten(piece: Piece, goal: Goal) -> tuple[str, tuple[MigratedWorkload, ...]]:
    parsed = pieces.parse(piece)
    if parsed is None:
        return piece.text, ()
    done = workloads.rewrite(parsed.body, goal)
    read = " ".join(f"{workload.why} {workload.name} {workload.becomes}" for workload in done.workloads)
    if pieces.TEMPLATE in piece.text and pieces.TEMPLATE in read:
        raise pieces.template(piece)
    if done.body == parsed.body:
        return piece.text, done.workloads
    try:
        return _written(piece, parsed, done.body), done.workloads
    except NotWritableError as error:
        impossible = MigrationResult.IMPOSSIBLE
        why = f"cannot be written into this text ({error}); write it by hand"
        return piece.text, tuple(
            workload
            if workload.outcome in (MigrationResult.UNCHANGED, impossible)
            else replace(workload, outcome=impossible, why=why)
            for workload in done.workloads
        )


def _written(piece: Piece, parsed: Parsed, body: object) -> str:
    """Return the text with another body, checked by reading it again.

    Raises:
        NotWritableError: the form of the text does not allow it.
    """
    text = edits.written(piece.text, parsed.node, parsed.body, body)
    try:
        again = pieces.parse(replace(piece, text=text))
    except UnreadableError as error:
        raise NotWritableError(f"the text would not be YAML: {error}") from error
    if again is None or again.body != body:
        raise NotWritableError("another place shares what would change, by an anchor")
    return text
