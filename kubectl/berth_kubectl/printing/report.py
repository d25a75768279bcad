"""The report of a command, before it is formatted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from berth_api.objects.visibility import API_VERSION

NONE: Final = "-"
"""What a table shows for an empty cell."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str
    wide: bool = False
    """Whether it is shown with `-o wide` alone."""
    volatile: bool = False
    """Whether time alone changes it, so that a watch does not print a row again because of it."""
    style: Callable[[str], str] | None = None
    """Returns the colour of a cell, by its text; see `printing.colours`."""


@dataclass(slots=True, kw_only=True)
class Report:
    """Rows for people, and items for programs."""

    kind: str
    """Of the list: `FleetNodeList`."""
    columns: Sequence[Column]
    rows: list[Row]
    items: Sequence[Any]
    names: list[str] = field(default_factory=list)
    """`kind/name`, for `-o name`."""
    notes: Sequence[str] = ()
    """What is said on standard error after the rows."""
    volatile: Sequence[str] = ()
    """Fields of items that time alone changes."""
    empty: str = "No resources found"
    """What is said on standard error if there are no rows."""

    def stable_row(self, row: Row) -> Row:
        """Return a row without what time alone changes."""
        return tuple(text for text, column in zip(row, self.columns, strict=True) if not column.volatile)

    def stable_item(self, item: Any) -> Any:
        """Return an item without what time alone changes."""
        return {name: value for name, value in item.items() if name not in self.volatile}

    @property
    def body(self) -> dict[str, Any]:
        """Return the list for JSON and YAML."""
        return {"apiVersion": API_VERSION, "kind": self.kind, "items": list(self.items)}


def cell(text: object) -> str:
    """Return a cell without spaces, so that columns can be cut: `NVIDIA-A100-SXM4-80GB`."""
    return "-".join(str(text).split()) or NONE
