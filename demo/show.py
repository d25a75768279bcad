"""What the demo prints."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Manifest = dict[str, Any]

ALLOCATION: Final = "scheduling.koordinator.sh/device-allocated"
PREFIXES: Final = ("kubernetes.io/", "koordinator.sh/", "gpu-")
"""What a resource's name loses for the table: `koordinator.sh/gpu-core` becomes `core`."""
RATIO: Final = "gpu-memory-ratio"
"""The amount that the table leaves out, because the memory says the same."""
WIDTH: Final = 125
"""Characters per line without a terminal."""

console: Final = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show one step with its time when it is done, and on a terminal a spinner before."""
    started = time.monotonic()
    with console.status(escape(what)):
        yield
    console.print(f"[green]done[/] {escape(what)} [dim]({time.monotonic() - started:.1f} s)[/]")


def heading(text: str) -> None:
    """Show the title of a section."""
    console.print(f"\n[bold]{escape(text)}[/]")


def command(text: str, output: str) -> None:
    """Show a command and what it printed, as it came."""
    console.print(f"$ {escape(text)}")
    console.out(output.rstrip(), highlight=False)


def pods(manifests: Iterable[Manifest]) -> None:
    """Show what each pod requests, its node, and its cards, read from its annotation."""
    heads = ("POD", "REQUESTS", "NODE", "CARD", "OF IT", "ID")
    table = Table(*heads, box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for pod in sorted(manifests, key=lambda pod: str(pod["metadata"]["name"])):
        first = (pod["metadata"]["name"], _requests(pod), pod["spec"].get("nodeName", ""))
        for number, card in enumerate(_cards(pod)):
            table.add_row(*(("", "", "") if number else first), *card)
    console.print(table)


def say(text: str) -> None:
    """Show one line."""
    console.print(escape(text))


def failure(text: str) -> None:
    """Show why the demo failed."""
    console.print(f"[bold red]demo failed:[/] {escape(text)}", soft_wrap=True)


def _requests(pod: Manifest) -> str:
    """Return what a pod requests of devices, as it is written in its manifest."""
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return ", ".join(f"{name}: {amount}" for name, amount in limits.items() if "/" in name)


def _cards(pod: Manifest) -> list[tuple[str, str, str]]:
    """Return a pod's cards as `gpu 0`, `core 50, memory 40Gi`, `GPU-…`."""
    allocation = json.loads(pod["metadata"].get("annotations", {}).get(ALLOCATION, "{}"))
    return [
        (f"{kind} {card['minor']}", _amounts(card["resources"]), card["id"])
        for kind, cards in allocation.items()
        for card in cards
    ]


def _amounts(resources: dict[str, str]) -> str:
    return ", ".join(f"{_short(name)} {amount}" for name, amount in resources.items() if not name.endswith(RATIO))


def _short(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
