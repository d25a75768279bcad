"""Plug-ins: what other distributions bring to Berth by entry points, loaded once at the start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any


class PluginError(Exception):
    """A plug-in cannot be used; the text says of which distribution, what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One that was loaded."""

    name: str
    """Of the entry point."""
    owner: str
    """Who brings it, in words."""
    value: Any
    """What the entry point names."""

    def error(self, problem: str) -> PluginError:
        """Give what to raise where something is wrong with it."""
        return PluginError(f"{self.owner}: {problem}")


def in_one_line(error: BaseException) -> str:
    """Give a stranger's error as text that can be sent anywhere."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - the same stranger wrote what gives the text
        text = f"its text cannot be read: {type(another).__name__}"
    line = " ".join(f"{type(error).__name__}: {text}".split())
    return line.encode(errors="replace").decode()


def load(entries: Iterable[EntryPoint]) -> Iterator[Plugin]:
    """Load what entry points name, always in the same order.

    Raises:
        PluginError: one cannot be loaded.
    """
    for entry in sorted(entries, key=lambda entry_point: (entry_point.name, entry_point.value)):
        owner = f"plug-in {entry.name} of {entry.dist.name if entry.dist else 'an unknown distribution'}"
        try:
            value = entry.load()
        except Exception as error:
            # Whatever a stranger's module does wrong is told in the same way.
            raise PluginError(f"{owner}: {entry.value} cannot be loaded: {in_one_line(error)}") from error
        yield Plugin(name=entry.name, owner=owner, value=value)
