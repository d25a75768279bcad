"""Tables in kubectl's format."""

from collections.abc import Sequence
from typing import Final

from berth_kubectl.printing.colours import coloured
from berth_kubectl.printing.report import NONE, Column, Row

GAP: Final = "   "


def lines(
    columns: Sequence[Column], rows: Sequence[Row], *, wide: bool = False, headers: bool = True, colour: bool = False
) -> list[str]:
    """Return the lines of a table; the last column is not padded, and may contain spaces."""
    kept = [index for index, column in enumerate(columns) if wide or not column.wide]
    titles = [tuple(columns[index].title for index in kept)] if headers else []
    cells = [tuple(clean(row[index]) for index in kept) for row in rows]
    widths = [max((len(row[place]) for row in (*titles, *cells)), default=0) for place in range(len(kept))]
    shown = [columns[index] for index in kept]
    return [_line(row, widths, shown, colour=colour and row not in titles) for row in (*titles, *cells)]


def clean(text: str) -> str:
    """Return a cell on one line, without control characters, which objects of others may contain."""
    return "".join(letter if letter.isprintable() else " " for letter in text) or NONE


def _line(row: Row, widths: Sequence[int], columns: Sequence[Column], *, colour: bool) -> str:
    parts = []
    for text, width, column in zip(row, widths, columns, strict=True):
        padded = text if column is columns[-1] else text.ljust(width)
        parts.append(coloured(padded, column.style(text)) if colour and column.style else padded)
    return GAP.join(parts).rstrip()
