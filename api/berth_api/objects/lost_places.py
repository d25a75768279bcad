"""The record of lost places in the LeaderLease: what evictions freed and others took before the preemptor ran."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

MAX_ENTRIES: Final = 1024
"""Entries that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPlace:
    """What one preemptor has lost on one node, or on all nodes together, since it last ran there."""

    preemptor: str
    """`UID/namespace/kind/name` of a controller, namespace/name of a pod without one, or the key of a gang."""
    node: str
    """Empty for all nodes together."""
    count: int = 0
    """Sets of victims."""
    until: float = 0.0
    """When pods may be evicted there again, in seconds since 1970; 0 if they may."""
    last: float = 0.0
    """When the last place was lost."""
    takers: tuple[str, ...] = ()
    """The schedulers whose pods took the places; none if no pod did."""

    @property
    def title(self) -> str:
        """Return the preemptor in words: without the UID of a controller."""
        parts = self.preemptor.split("/")
        return (
            f"{parts[2]} {parts[1]}/{parts[3]}"
            if len(parts) == len(("UID", "namespace", "kind", "name"))
            else self.preemptor
        )


def text(lost: Iterable[LostPlace]) -> str:
    """Return a record."""
    by_preemptor: dict[str, dict[str, list[Any]]] = {}
    for each in lost:
        entry = [each.count, round(each.until), round(each.last), *each.takers]
        by_preemptor.setdefault(each.preemptor, {})[each.node] = entry
    return json.dumps(by_preemptor)


def read(record: str) -> list[LostPlace]:
    """Read a record.

    Raises:
        ValueError: it has another form.
    """
    preemptors: Any = json.loads(record)
    try:
        return [
            LostPlace(
                preemptor=preemptor,
                node=node,
                count=int(count),
                until=float(until),
                last=float(last),
                takers=tuple(map(str, takers)),
            )
            for preemptor, by_node in preemptors.items()
            for node, (count, until, last, *takers) in by_node.items()
        ][:MAX_ENTRIES]
    except (AttributeError, TypeError) as error:
        raise ValueError(f"the record of lost places has another form: {error}") from error
