"""The members of a gang that are bound together, as each of their Bindings records them.

The Bindings of a gang are sent one by one, and a leader may end between two of them. The next leader must recognize
that this gang has not formed. It must not confuse this gang with one that formed and has lost members since. A member
that was to be bound and *still waits* was never bound. If so many of them wait that too few can have been bound, the
gang has not formed. A member that is gone proves nothing.

The text is `needed/number/minimum id id ...`. `number` members are being bound. `needed` of them must be bound for the
gang to have formed, or 0 if it has formed already. `minimum` is the gang's minimum. An id is the end of a member's UID.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

MAX_LISTED: Final = 128
"""Ids in one record, of 13 bytes each. Each member names the members that follow it in a ring, so that the members of a
larger gang together name nearly all."""
ID_LENGTH: Final = 12
"""Characters of an id: 48 random bits of a UID."""
_NUMBER: Final = re.compile("[0-9]{1,9}")
"""Others may write records, and `int` raises an error for more than 4,300 digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundWith:
    """A record on a bound member."""

    needed: int
    number: int
    minimum: int
    ids: frozenset[str] = frozenset()

    def is_unfinished(self, waiting: Collection[str], minimum: int) -> bool:
        """Return whether fewer members than needed can have been bound, because the members with these ids wait.

        `minimum` is the gang's current minimum, which may have been lowered; 0 if it is unknown.
        """
        lowered = max(0, self.minimum - minimum) if minimum else 0
        return len(self.ids.intersection(waiting)) > self.number - max(0, self.needed - lowered)


def id_of(uid: str) -> str:
    """Return the id of a member in records."""
    return uid[-ID_LENGTH:]


def records(uids: Sequence[str], needed: int, minimum: int) -> list[str]:
    """Return the record of each of the members that are bound together."""
    number, listed = len(uids), min(len(uids), MAX_LISTED)
    ring = [id_of(uid) for uid in (*uids, *uids)]
    return [" ".join((f"{needed}/{number}/{minimum}", *ring[i : i + listed])) for i in range(number)]


def parse(text: str) -> BoundWith | None:
    """Read a record; None if there is none, or another version of Berth wrote it in another form."""
    counts, *ids = text.split(" ")
    numbers = [int(number) for number in counts.split("/") if _NUMBER.fullmatch(number)]
    if len(numbers) != 3:  # noqa: PLR2004 - the text has three numbers
        return None
    needed, number, minimum = numbers
    return BoundWith(needed=needed, number=number, minimum=minimum, ids=frozenset(ids))


def united(texts: Iterable[str]) -> list[BoundWith]:
    """Read the records of several members. Members that were bound together have one record, with the ids of all."""
    ids: dict[BoundWith, frozenset[str]] = {}
    for record in filter(None, map(parse, texts)):
        key = replace(record, ids=frozenset())
        ids[key] = ids.get(key, frozenset()) | record.ids
    return [replace(key, ids=of_all) for key, of_all in ids.items()]
