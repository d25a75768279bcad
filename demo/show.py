"""What the demo prints."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.audit import Fault

Manifest = dict[str, Any]

ALLOCATION: Final = "scheduling.koordinator.sh/device-allocated"
PREFIXES: Final = ("kubernetes.io/", "koordinator.sh/", "gpu-", "memory-")
"""What a resource's name loses for the table: `gpu-memory-ratio` becomes `ratio`."""
WIDTH: Final = 120
"""Characters per line without a terminal."""

console: Final = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show one step with its time when it is done, and on a terminal a spinner before."""
    started = time.monotonic()
    with console.status(escape(what)):
        yield
    console.print(f"[green]done[/] {escape(what)} [dim]({time.monotonic() - started:.1f} s)[/]")


def command(text: str, output: str) -> None:
    """Show a command and what it printed, as it came."""
    console.print(f"\n[bold]$ {escape(text)}[/]")
    console.out(output.rstrip(), highlight=False)


def pods(manifests: Sequence[Manifest]) -> None:
    """Show each pod's node and its cards, read from its annotation."""
    console.print(f"\n[bold]Pods[/] and their {ALLOCATION}")
    table = Table("POD", "NODE", "CARD", "OF IT", box=None, header_style="", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("ID", overflow="fold")
    for pod in sorted(manifests, key=lambda pod: str(pod["metadata"]["name"])):
        rows = _cards(pod) or [("", "", "")]
        heads = [(pod["metadata"]["name"], pod["spec"].get("nodeName", "[yellow](waits)[/]")), *[("", "")] * len(rows)]
        for head, row in zip(heads, rows, strict=False):
            table.add_row(*head, *row)
    console.print(table)


def audit(faults: Sequence[Fault], *, pods: int, devices: int) -> None:
    """Show the audit's result."""
    console.print(f"\n[bold]Audit[/] of {pods} pods and {devices} Devices: {len(faults) or 'no'} faults")
    for fault in faults:
        console.print(f"  [red]{escape(str(fault))}[/]")


def say(text: str) -> None:
    """Show one line."""
    console.print(escape(text))


def failure(text: str) -> None:
    """Show why the demo failed."""
    console.print(f"[bold red]demo failed:[/] {escape(text)}", soft_wrap=True)


def _cards(pod: Manifest) -> list[tuple[str, str, str]]:
    """Return a pod's cards as `gpu 0`, `core 50, memory 40Gi, ratio 50`, `GPU-…`."""
    allocation = json.loads(pod["metadata"].get("annotations", {}).get(ALLOCATION, "{}"))
    return [
        (f"{kind} {card['minor']}", _amounts(card["resources"]), card["id"])
        for kind, cards in allocation.items()
        for card in cards
    ]


def _amounts(resources: dict[str, str]) -> str:
    return ", ".join(f"{_short(name)} {amount}" for name, amount in resources.items())


def _short(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
