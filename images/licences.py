"""Print the licence of each package in the images, and fail for one that is unknown or not allowed: `make licences`.

The packages are those of `requirements.py`. Their licences come from their own metadata, as they are installed here: an
SPDX expression, or else a classifier or text that `SPDX` knows. What SPDX has no identifier for is unknown.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol, cast

import requirements

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ("operator", "agent")
ALLOWED: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"),
        # Its copyleft ends at its own files, which the images have unchanged.
        "MPL-2.0",
    }
)
"""Licences under which a package may be in an image together with code under the Apache License 2.0."""
SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Classifiers and texts without an ambiguity -> SPDX identifier."""
_PIN: Final = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)
_TOKEN: Final = re.compile(r"[()]|[^\s()]+")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


class LicenceError(ValueError):
    """A text is no SPDX expression."""


class Fields(Protocol):
    """The metadata of a package."""

    def get(self, name: str, /) -> str | None:
        """Return a field; None if it is absent."""

    def get_all(self, name: str, /) -> list[str] | None:
        """Return all fields of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of the images."""

    name: str
    version: str
    images: tuple[str, ...]
    licence: str
    """As an SPDX expression; empty if it is unknown."""

    @property
    def problem(self) -> str:
        """Return why the package must not be in an image; empty if it may."""
        if not self.licence:
            return "its licence is unknown: add its text to SPDX in images/licences.py, if it is one"
        try:
            allowed = is_allowed(self.licence)
        except LicenceError as error:
            return f"its licence cannot be read: {error}"
        return "" if allowed else f"{self.licence} is not allowed; allowed are {', '.join(sorted(ALLOWED))}"


def licence(fields: Fields) -> str:
    """Return the licence in a package's metadata as an SPDX expression; empty if it is unknown.

    Of several classifiers all count, since none says whether one may choose.
    """
    if expression := fields.get("License-Expression"):
        return expression
    text = (fields.get("License") or "").strip()
    if text in ALLOWED or text in SPDX:
        return SPDX.get(text, text)
    classifiers = [
        each.rpartition(" :: ")[2] for each in fields.get_all("Classifier") or () if each.startswith("License ::")
    ]
    identifiers = [SPDX.get(each, "") for each in classifiers]
    return " AND ".join(sorted(set(identifiers))) if all(identifiers) else ""


def is_allowed(expression: str) -> bool:
    """Return whether the licences that an SPDX expression requires are all allowed.

    Raises:
        LicenceError: it is no expression.
    """
    tokens = _TOKEN.findall(expression)
    allowed, rest = _any(tokens)
    if rest:
        raise LicenceError(f"{expression!r}: {' '.join(rest)!r} is left over")
    return allowed


def _any(tokens: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _all(tokens)
    while rest and rest[0].upper() == "OR":
        more, rest = _all(rest[1:])
        allowed = allowed or more
    return allowed, rest


def _all(tokens: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _one(tokens)
    while rest and rest[0].upper() == "AND":
        more, rest = _one(rest[1:])
        allowed = allowed and more
    return allowed, rest


def _one(tokens: Sequence[str]) -> tuple[bool, Sequence[str]]:
    if not tokens:
        raise LicenceError("the expression ends where a licence must follow")
    first, rest = tokens[0], tokens[1:]
    if first == "(":
        allowed, rest = _any(rest)
        if rest[:1] != [")"]:
            raise LicenceError("a bracket is not closed")
        return allowed, rest[1:]
    if not _NAME.fullmatch(first):
        raise LicenceError(f"{first!r} is no licence")
    return first in ALLOWED, rest


def packages() -> Iterator[Package]:
    """Yield the packages of all images, by name.

    Raises:
        PackageNotFoundError: one is not installed here.
    """
    pinned: dict[tuple[str, str], list[str]] = {}
    for image in IMAGES:
        for name, version in _PIN.findall(requirements.of_image(ROOT, image)):
            pinned.setdefault((name, version), []).append(image)
    for (name, version), images in sorted(pinned.items()):
        fields = cast(Message, metadata.metadata(name))
        yield Package(name=name, version=version, images=tuple(images), licence=licence(cast(Fields, fields)))


def table(listed: Sequence[Package]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield "| package | version | licence | images |"
    yield "|---|---|---|---|"
    for package in listed:
        yield f"| {package.name} | {package.version} | {package.licence or 'unknown'} | {', '.join(package.images)} |"


def main() -> int:
    """Print the table; return 1 if a package must not be in an image."""
    listed = list(packages())
    sys.stdout.writelines(f"{line}\n" for line in table(listed))
    problems = [f"{package.name} {package.version}: {package.problem}" for package in listed if package.problem]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
