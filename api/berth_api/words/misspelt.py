"""Annotations and labels that resemble words of other systems: misspelt, or written in the wrong place.

These systems have more names than Berth reads, so a similar name may be correct. It causes a question, not an error.
"""

import functools
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from berth_api import names
from berth_api.values import spelling
from berth_api.words.systems import TABLE
from berth_api.words.table import Role, WordPlace

Strings = Mapping[str, str]

MAX_COMPARED: Final = 40
"""Names of a pod that are compared with words: a pod may have thousands."""
_ANNOTATIONS: Final = frozenset(
    {*TABLE.annotations, *names.KOORDINATOR_ANNOTATIONS, names.PARTITIONS, names.MODEL_EXACT}
)
_LABELS: Final = frozenset({*TABLE.labels, *names.GENIUS_LABELS})
_NOT_MEANT: Final = {
    names.PARTITIONS,  # of Devices
    *(row.word.name for row in TABLE.rows() if row.word.role == Role.NO_EFFECT),
}
_KNOWN: Final = {WordPlace.ANNOTATION: _ANNOTATIONS, WordPlace.LABEL: _LABELS}
_MEANT: Final[Mapping[str, WordPlace]] = {
    name: place for place, known in _KNOWN.items() for name in sorted(known - _NOT_MEANT)
}
"""What a misspelt name may have been meant to be -> where it is written."""


def _by_domain() -> Mapping[str, tuple[str, ...]]:
    domains: dict[str, tuple[str, ...]] = {}
    for name in _MEANT:
        domain, short = _split(name)
        domains[domain] = (*domains.get(domain, ()), short)
    return domains


def questions(annotations: Strings, labels: Strings) -> Iterator[str]:
    """Yield a question for each annotation and label that is almost a word which Berth reads."""
    names_at = {WordPlace.ANNOTATION: annotations, WordPlace.LABEL: labels}
    for place, written in names_at.items():
        unread = (name for name in written if name not in _KNOWN[place])
        for name in islice(unread, MAX_COMPARED):
            # Some systems read a name both as an annotation and as a label.
            if (meant := _nearest(name)) and (meant != name or name not in names_at[_MEANT[meant]]):
                kind = f"{place} " if meant == name else ""
                yield f"{kind}{name}: did you mean the {_MEANT[meant]} {meant}?"


def _split(name: str) -> tuple[str, str]:
    domain, slash, short = name.rpartition("/")
    return domain + slash, short


_DOMAINS: Final = _by_domain()
_SHORT: Final = {_split(row.word.name)[1]: row.word.name for row in TABLE.rows() if row.word.name in _MEANT}
"""Name without its domain -> the word."""


@functools.lru_cache(1024)
def _nearest(name: str) -> str:
    """Return the word that a name may have been meant to be; empty if there is none."""
    if name in _MEANT:
        return name
    domain, short = _split(name)
    if near := spelling.closest(short, _DOMAINS.get(domain, ()), spelling.ALMOST_SURE):
        return domain + near
    word = _SHORT.get(short, "")
    # Without a domain, `name` or `group-name` may mean anything; under another domain it is another system's.
    is_almost = spelling.closest(domain, (_split(word)[0],), spelling.ALMOST_SURE) if domain else "gpu" in short
    return word if is_almost else ""
