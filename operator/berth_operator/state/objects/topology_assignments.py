"""Topology assignments of Kueue: how many pods of a pod set go into which topology domain.

API v1beta2 compresses the domains into slices. The labels in a slice are equal, or have a common prefix and suffix.
"""

from collections.abc import Iterator
from typing import Final

from berth_operator.core.claims.objects.fields import Field, FieldError

MAX_DOMAINS: Final = 10_000
"""Domains of a pod set that are read; a compressed slice may name any number."""

Domain = tuple[dict[str, str], int]
"""(labels of the domain's nodes, number of pods)."""


def read(assignment: Field) -> Iterator[Domain]:
    """Yield the domains of a `topologyAssignment`, none if it is absent.

    Raises:
        FieldError: a field cannot be read, or there are too many domains.
    """
    levels, total = assignment.at("levels").texts(), 0
    for piece in assignment.at("slices").items():
        number = piece.at("domainCount").integer()
        total += number
        if number < 1 or total > MAX_DOMAINS:
            raise FieldError(f"{piece.path}.domainCount: {number}; allowed are 1 to {MAX_DOMAINS} domains in all")
        per_level: list[list[str]] = []
        for level in piece.at("valuesPerLevel").items():
            if level.at("universal").value is not None:
                per_level.append([level.at("universal").text()] * number)
                continue
            individual = level.at("individual")
            prefix, suffix = individual.at("prefix").text(), individual.at("suffix").text()
            per_level.append([f"{prefix}{root}{suffix}" for root in _checked(individual.at("roots"), number)])
        if len(per_level) != len(levels):
            raise FieldError(f"{piece.path}.valuesPerLevel: {len(per_level)} levels; levels has {len(levels)}")
        counts = piece.at("podCounts")
        if counts.at("universal").value is not None:
            pods = [counts.at("universal").integer()] * number
        else:
            _checked(counts.at("individual"), number)
            pods = [count.integer() for count in counts.at("individual").items()]
        for index in range(number):
            yield dict(zip(levels, (values[index] for values in per_level), strict=True)), pods[index]


def _checked(values: Field, number: int) -> list[object]:
    """Return a list that must have one value for each domain."""
    listed = [item.value for item in values.items()]
    if len(listed) != number:
        raise FieldError(f"{values.path}: {len(listed)} values for {number} domains")
    return listed
