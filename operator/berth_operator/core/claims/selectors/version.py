"""Semantic versions (https://semver.org), which Kubernetes calls semver."""

import re
from dataclasses import dataclass, field
from typing import Final

_NUMBER: Final = "0|[1-9][0-9]{0,19}"
"""A number with no more digits than 64 bits can hold."""
_FORM: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-((?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_MAX: Final = 2**64 - 1


class VersionError(ValueError):
    """A text is not a semantic version."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A semantic version. As everywhere in Kubernetes, the build is in no comparison."""

    major: int
    minor: int
    patch: int
    pre: tuple[tuple[int, int, str], ...] = ()
    """The order of each part of the pre-release: numbers before words. The release comes after all pre-releases."""
    build: str = field(default="", compare=False)


_RELEASE: Final = ((2, 0, ""),)
_END: Final = (-1, 0, "")


def parse(text: str) -> Version:
    """Return a version.

    Raises:
        VersionError: the text is none.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise VersionError(f'"{text}" is not a semantic version such as 1.2.3')
    major, minor, patch = (int(match[at]) for at in (1, 2, 3))
    pre: tuple[tuple[int, int, str], ...] = _RELEASE
    if match[4]:
        identifiers = match[4].split(".")
        pre = (*((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in identifiers), _END)
    if max(major, minor, patch, *(number for _, number, _ in pre)) > _MAX:
        raise VersionError(f'"{text}" is not a semantic version such as 1.2.3')
    return Version(major, minor, patch, pre, match[5] or "")


def parse_tolerant(text: str) -> Version:
    """Return a version of a text that may begin with v, lack the minor and patch numbers, and have leading zeros.

    Raises:
        VersionError: the text is none even so.
    """
    parts = []
    for part in text.removeprefix("v").split(".", 2):
        stripped = part.lstrip("0")
        with_digit = stripped if stripped[:1].isdecimal() else f"0{stripped}"
        parts.append(with_digit if len(part) > 1 else part)
    if len(parts) < 3 and set("+-") & set(parts[-1]):  # noqa: PLR2004 - major, minor and patch
        raise VersionError(f'"{text}" is a short version with a pre-release or build')
    return parse(".".join([*parts, "0", "0"][: max(3, len(parts))]))
