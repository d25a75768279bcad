"""Tables in kubectl's format."""

from collections.abc import Sequence
from typing import Final

from berth_api.values.printing import printable
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
    table = []
    for row in (*titles, *cells):
        parts = []
        for text, width, column in zip(row, widths, shown, strict=True):
            padded = text if column is shown[-1] else text.ljust(width)
            style = column.style if colour and row not in titles else None
            parts.append(coloured(padded, style(text)) if style else padded)
        table.append(GAP.join(parts).rstrip())
    return table


def clean(text: str) -> str:
    """Return a cell on one line, without control characters."""
    return printable(text) or NONE
