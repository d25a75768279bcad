"""Pieces of Markdown pages."""

from collections.abc import Iterable, Sequence


def page(title: str, introduction: str, *sections: str) -> str:
    """Return the text of a page."""
    note = "<!-- Generated from the code by `make generate`; do not edit. -->"
    return "\n\n".join([note, f"# {title}", introduction, *filter(None, sections)]) + "\n"


def section(title: str, *parts: str, level: int = 2) -> str:
    """Return a heading with what follows it."""
    return "\n\n".join([f"{'#' * level} {title}", *filter(None, parts)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; empty if it has no rows."""
    lines = [_row(cells) for cells in rows]
    return "\n".join([_row(head), "|" + "---|" * len(head), *lines]) if lines else ""


def code(text: object) -> str:
    """Return a text as code; nothing for an empty one."""
    return f"`{text}`" if str(text) else ""


def in_one_line(text: str) -> str:
    """Return a text of several lines as one."""
    return " ".join(text.split())


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(in_one_line(cell).replace("|", "\\|") for cell in cells) + " |"
