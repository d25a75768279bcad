"""Plug-ins that other distributions add to Berth through entry points. They are loaded once, at the start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any


class PluginError(Exception):
    """A plug-in cannot be used. The message names its distribution, the problem and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A loaded plug-in."""

    name: str
    """Name of the entry point."""
    owner: str
    """The entry point and its distribution, for messages."""
    value: Any
    """The object that the entry point names."""

    def error(self, problem: str) -> PluginError:
        """Return the exception to raise for a problem with this plug-in."""
        return PluginError(f"{self.owner}: {problem}")


def in_one_line(error: BaseException) -> str:
    """Return the text of an error of third-party code: one line, without characters that cannot be encoded."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - __str__ is third-party code, too
        text = f"its text cannot be read: {type(another).__name__}"
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return line.encode(errors="replace").decode()


def load(entries: Iterable[EntryPoint]) -> Iterator[Plugin]:
    """Load the objects that entry points name, sorted by name and value.

    Raises:
        PluginError: an entry point cannot be loaded.
    """
    for entry in sorted(entries, key=lambda entry_point: (entry_point.name, entry_point.value)):
        owner = f"plug-in {entry.name} of {entry.dist.name if entry.dist else 'an unknown distribution'}"
        try:
            value = entry.load()
        except Exception as error:
            # A third-party module may raise anything.
            raise PluginError(f"{owner}: {entry.value} cannot be loaded: {in_one_line(error)}") from error
        yield Plugin(name=entry.name, owner=owner, value=value)
